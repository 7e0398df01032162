"""Clients' rights on the member port (SAFETY C11): rows of [access], tokens, certificates, and who shows nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from app.commands.endings import Exit
from app.commands.ledger_calls import failure_of
from node.access_rows import ALL, Right, Row, row_of, rows_of
from node.client import Denied, LedgerClient
from node.client.errors import NO_RIGHT_TO_READ
from node.config import ConfigError, load
from node.engine.access import Access, refusal_text
from node.engine.engine import Engine
from node.protocol.codes import RequestCode, ResponseCode, VoterState
from node.store.log_store import HardState
from node.store.memory_store import MemoryStore
from node.transport.connection import Connection, dial
from node.transport.remoting import Frame
from node.transport.slab_frames import AppendRequest, decode_append_answer, encode_append
from tests.ports import free_ports

OWN, READER, WRITER = "own-token-0123456789", "reader-0123456789ab", "writer-0123456789ab"
BOTH = Right.APPEND | Right.READ


class Client:
    """A connection as far as rights are concerned."""

    def __init__(self, host: str = "127.0.0.1", certificate: str | None = None) -> None:
        self.peer_host, self.certificate_name = host, certificate


def rights(access: Access, host: str = "127.0.0.1", certificate: str | None = None, token: str = "") -> Right:
    one: Any = Client(host, certificate)
    return access.of_connection(one) | access.of_token(token)


# --- rows -----------------------------------------------------------------------------------------------------------


def test_rows_are_read() -> None:
    assert row_of("anonymous = append + read") == Row("anonymous", "", BOTH)
    assert row_of("certificate  billing.example=observe") == Row("certificate", "billing.example", Right.OBSERVE)
    assert row_of("token /etc/a b/x.token = operate+read").path == Path("/etc/a b/x.token")
    assert row_of("anonymous = nothing").rights is Right.NOTHING


@pytest.mark.parametrize(
    "text",
    ["", "anonymous", "anonymous =", "anonymous = all", "anonymous = append, read", "anonymous x = read",
     "certificate = read", "token = read", "nobody = read", "anonymous = read + "],
)  # fmt: skip
def test_what_is_no_row_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"row|right"):
        row_of(text)


def test_two_rows_about_one_are_refused() -> None:
    with pytest.raises(ValueError, match="two rows"):
        rows_of(("token a = read", "token a = append"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"access.rows": "anonymous = read"}, "token_file"),
        ({"access.rows": "certificate x = read", "node.token_file": "TOKEN"}, "tls_cert_file"),
        ({"access.rows": "token /no/such/file = read", "node.token_file": "TOKEN"}, "no such file"),
        ({"access.rows": "anybody = read"}, "is no row"),
    ],
)
def test_a_configuration_that_cannot_work_says_so(given: dict[str, str], said: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text(OWN)
    values = {name: str(token) if value == "TOKEN" else value for name, value in given.items()}
    with pytest.raises(ConfigError, match=said):
        load({"node.id": "n0", "peers": "n0-127.0.0.1:20911", **values}, None, {}).check_node()


# --- who has which --------------------------------------------------------------------------------------------------


def test_without_rows_and_token_this_machine_may_do_all_and_others_append_and_read() -> None:
    access = Access(None, (), ())
    assert rights(access) == ALL == rights(access, "::1")
    assert rights(access, "192.0.2.1") == BOTH == rights(access, "")


def test_a_token_file_in_force_is_in_force_on_loopback_too() -> None:
    access = Access(OWN, (), ())
    assert rights(access) == BOTH == rights(access, "192.0.2.1")
    assert rights(access, token=OWN) == ALL
    assert rights(access, token=OWN[:-1]) == rights(access, token="") == rights(access, token="\ud800") == BOTH


def test_with_rows_who_is_in_none_may_do_nothing() -> None:
    rows = rows_of(("token r = read", "token w = append", "certificate billing = observe"))
    access = Access(OWN, rows, (READER, WRITER))
    assert rights(access) == rights(access, "192.0.2.1", "other") == Right.NOTHING
    assert rights(access, token=READER) == Right.READ and rights(access, token=WRITER) == Right.APPEND
    assert rights(access, certificate="billing") == Right.OBSERVE
    assert rights(access, certificate="billing", token=READER) == Right.OBSERVE | Right.READ
    assert rights(access, token=OWN) == ALL
    assert rights(Access(OWN, rows_of(("anonymous = read",)), ()), "192.0.2.1") == Right.READ


# --- an engine ------------------------------------------------------------------------------------------------------

Work = Callable[[str, int], Awaitable[None]]


def beside(tmp_path: Path, rows: list[str], work: Work) -> None:
    files = {}
    for name, token in (("own", OWN), ("reader", READER), ("writer", WRITER)):
        files[name] = tmp_path / name
        files[name].touch(0o600)
        files[name].write_text(token)

    async def both() -> None:
        (port,) = free_ports(1)
        peers = f"n0-127.0.0.1:{port}"
        said = [row.format(**files) for row in rows]
        given = {"node.id": "n0", "peers": peers, "node.data": str(tmp_path), "node.token_file": str(files["own"])}
        named = HardState(voter_state=VoterState.VOTER, group_id="5e" * 16)  # it need not give itself an id meanwhile
        store = MemoryStore(hard_state=named)
        engine = Engine(load(given | {"access.rows": ",".join(said)}, None, {}).check_node(), store)
        ready = asyncio.Event()
        running = asyncio.create_task(engine.run(lambda _port: ready.set()))
        await ready.wait()
        try:
            await work(peers, port)
        finally:
            engine.stop()
            await running

    asyncio.run(both())


ROWS = ["token {reader} = read + observe", "token {writer} = append"]


def test_each_does_what_its_row_says_and_nothing_else(tmp_path: Path) -> None:
    async def work(peers: str, _port: int) -> None:
        clients = {one: LedgerClient(peers, deadline_s=20, token=one) for one in (OWN, READER, WRITER)}
        clients["nothing"] = nobody = LedgerClient(peers, deadline_s=20)
        try:
            index = (await clients[WRITER].append(b"written")).first_index
            assert (await clients[READER].read(index, 1))[0].body == b"written"
            assert (await clients[READER].state("n0"))["role"] == "LEADER"
            for one, forbidden in (
                (clients[READER], "append"), (nobody, "append"), (nobody, "read"), (nobody, "state"),
                (clients[WRITER], "read"), (clients[WRITER], "state"), (clients[READER], "transfer"),
            ):  # fmt: skip
                right = {"state": "observe", "transfer": "operate"}.get(forbidden, forbidden)
                with pytest.raises(Denied, match=rf"the right to {right} .*token_file"):
                    if forbidden == "append":
                        await one.append(b"never")
                    elif forbidden == "read":
                        await one.read(index, 1)
                    elif forbidden == "state":
                        await one.state("n0")
                    else:
                        await one.transfer("n0")
            await clients[OWN].append(b"next")
            bodies = [bytes(entry.body) for entry in await clients[OWN].read(0, 100)]
            assert bodies == [b"written", b"next"]  # nothing came in between
            refused = (await clients[OWN].state("n0"))["connections"]["refused"]
            assert refused["append"] >= 2 and refused["read"] >= 2 and refused["observe"] >= 2
        finally:
            for client in clients.values():
                await client.close()

    beside(tmp_path, ROWS, work)


def test_a_stream_without_its_right_says_which_one_is_missing(tmp_path: Path) -> None:
    """Answers to reads and streams have no room for words."""

    async def work(peers: str, _port: int) -> None:
        client = LedgerClient(peers, deadline_s=20, token=WRITER)
        try:
            with pytest.raises(Denied, match=r"402 UNEXPECTED_MEMBER.*the right to read .*token_file") as denied:
                async for _ in client.committed("n0"):
                    raise AssertionError("a position, without the right to it")
            assert refusal_text(Right.READ) == NO_RIGHT_TO_READ
            assert "--token-file FILE" in str(failure_of(denied.value)) and failure_of(denied.value).code == Exit.DENIED
        finally:
            await client.close()

    beside(tmp_path, ROWS, work)


def test_a_client_shows_its_token_on_each_connection(tmp_path: Path) -> None:
    """What it may do here counts for one connection: after a loss it has to be said again."""

    async def work(peers: str, _port: int) -> None:
        client = LedgerClient(peers, deadline_s=20, token=WRITER)
        try:
            for number in range(3):
                await client.append(b"%d" % number)
                client.link_of("n0").give_up("a test says so")
        finally:
            await client.close()

    beside(tmp_path, ROWS, work)


def test_a_token_counts_for_its_connection_from_the_frame_that_shows_it(tmp_path: Path) -> None:
    async def work(_peers: str, port: int) -> None:
        answers: asyncio.Queue[Frame] = asyncio.Queue()
        connection = Connection(lambda _one, frame: answers.put_nowait(frame), lambda _one: None)
        await dial(connection, "127.0.0.1", port)

        async def append(**fields: str) -> int:
            body = b"".join(encode_append(AppendRequest([b"x"])))
            connection.send_frame(Frame(RequestCode.FAST_APPEND, 7, body, ext_fields=fields or None))
            return int(decode_append_answer((await answers.get()).body).code)

        denied, fine = ResponseCode.UNEXPECTED_MEMBER, ResponseCode.SUCCESS
        codes = [await append(), await append(token="guess"), await append(other=WRITER)]
        assert codes == [denied] * 3
        codes = []
        while fine not in codes:  # it may not lead yet
            assert len(codes) < 10_000
            codes.append(await append(token=WRITER))
        assert await append() == fine and await append(token="guess") == fine
        connection.send_body(RequestCode.METADATA, 0, 8, [json.dumps({"group": "default"}).encode()])
        assert json.loads(bytes((await answers.get()).body))["leaderId"] == "n0"
        connection.abort()

    beside(tmp_path, ROWS, work)
