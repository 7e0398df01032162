"""A change that the leader got and did not answer may have been made: it ends as unknown (75), never as unreachable."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from app.cli import run
from app.commands import targets
from app.commands.endings import Exit
from node.client import LedgerClient, OutcomeUnknown, Unreachable
from node.client import members as client_members
from node.protocol.codes import RemotingCode, RequestCode
from node.transport.bodies import dump, load
from node.transport.connection import Connection
from node.transport.remoting import Frame
from tests.ports import free_ports

DRY = {"code": 200, "before": {"needed": 1, "voters": ["n0"], "answering": ["n0"]}}
DRY["after"] = DRY["before"]


@contextmanager
def leading(lost: Callable[[Connection, Frame], None]) -> Iterator[str]:
    """n0, which leads; it answers dry runs, and does with every change what `lost` says."""
    loop = asyncio.new_event_loop()

    def answer(connection: Connection, frame: Frame) -> None:
        if frame.code == RequestCode.METADATA:
            connection.answer(frame, dump({"code": 200, "group": "g", "leaderId": "n0", "term": -1}))
        elif frame.code == RequestCode.INTROSPECT:
            connection.answer(frame, dump({"role": "LEADER"}))
        elif load(frame.body).values.get("dryRun"):
            connection.answer(frame, dump(DRY))
        else:
            lost(connection, frame)

    listening = loop.create_server(lambda: Connection(answer, lambda _: None, lambda _: None), "127.0.0.1", 0)
    server = loop.run_until_complete(listening)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def hang_up(connection: Connection, frame: Frame) -> None:
    connection.abort()


def say_nothing(connection: Connection, frame: Frame) -> None:
    pass


CHANGES = [
    ["members", "remove", "n0", "--yes"], ["members", "promote", "n0", "--yes"],
    ["members", "address", "n0", "127.0.0.1:9", "--yes"], ["transfer"],
]  # fmt: skip


@pytest.mark.parametrize("words", CHANGES, ids=[" ".join(one[:2]) for one in CHANGES])
def test_the_leader_ends_while_it_makes_a_change(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with leading(hang_up) as address:
        assert run([*words, "--peers", f"n0-{address}", "--group", "g"]) == Exit.UNKNOWN_OUTCOME
    last = capsys.readouterr().err.splitlines()[-1]
    where = f"n0 at {address}: the connection closed"
    assert last == f"quorumscope: outcome unknown: {where}; look whether it was done before you repeat it"


@pytest.mark.parametrize(
    ("code", "ends"),
    [(RemotingCode.SYSTEM_ERROR, Exit.UNKNOWN_OUTCOME), (RemotingCode.SYSTEM_BUSY, Exit.UNDETERMINED)],
)
def test_a_leader_that_fails_over_a_change_may_have_made_it_and_a_busy_one_has_not(
    code: RemotingCode, ends: Exit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with leading(lambda connection, frame: connection.refuse(frame, code, "an exception")) as address:
        assert run(["transfer", "--peers", f"n0-{address}", "--group", "g"]) == ends


def test_an_answer_to_a_change_that_cannot_be_read_says_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with leading(lambda connection, frame: connection.answer(frame, b"[1")) as address:
        assert run(["transfer", "--peers", f"n0-{address}", "--group", "g"]) == Exit.UNKNOWN_OUTCOME


def test_no_answer_in_time_is_unknown_and_a_dry_run_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def change(address: str) -> None:
        client = LedgerClient({"n0": address}, group="g", deadline_s=5.0)
        try:
            with pytest.raises(OutcomeUnknown, match="no answer in time"):
                await client_members.change_members(client, {"kind": "remove", "memberId": "n0"})
            monkeypatch.setattr(client_members, "CHANGE_WITHIN_S", 5.0)
            assert (await client_members.change_members(client, {"kind": "remove", "dryRun": True}))["code"] == 200
        finally:
            await client.close()

    monkeypatch.setattr(client_members, "CHANGE_WITHIN_S", 0.2)
    with leading(say_nothing) as address:
        asyncio.run(change(address))


def test_who_led_and_is_gone_is_asked_once_and_then_whoever_leads() -> None:
    """A client that lives on kept asking the member that led last, for ever, although another one led long since."""

    async def ask(address: str) -> None:
        client = LedgerClient({"n9": f"127.0.0.1:{free_ports(1)[0]}", "n0": address}, group="g", deadline_s=5.0)
        try:
            client._leader_id = "n9"
            assert (await client_members.change_members(client, {"kind": "remove", "dryRun": True}))["code"] == 200
            assert client._leader_id == "n0"
        finally:
            await client.close()

    with leading(say_nothing) as address:
        asyncio.run(ask(address))


def test_what_was_not_sent_was_not_done() -> None:
    async def order() -> None:
        client = LedgerClient({"n0": f"127.0.0.1:{free_ports(1)[0]}"}, group="g", deadline_s=5.0)
        try:
            with pytest.raises(Unreachable):
                await client.order("n0", {"what": "members", "kind": "remove", "memberId": "n0"}, 5.0)
        finally:
            await client.close()

    asyncio.run(order())


@contextmanager
def hanging_up() -> Iterator[str]:
    """A port that closes each connection once something is said, as one with TLS does on plain text."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_member_that_closes_the_connection_is_not_to_be_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    # Nobody comes who answers.
    monkeypatch.setattr(
        targets, "LedgerClient", lambda *names, **more: LedgerClient(*names, **more | {"deadline_s": 1.0})
    )
    with hanging_up() as address:
        asked = ["--peers", f"n0-{address}", "--group", "g"]
        assert run(["transfer", *asked]) == Exit.UNREACHABLE
        assert "closes the connection, as one with TLS where no certificate is shown" in capsys.readouterr().err
        run(["status", *asked])
        said = capsys.readouterr().out
    assert f"Something listens at {address} and closes the connection" in said and "--ca FILE" in said
    assert "Start n0" not in said
