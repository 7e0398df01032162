"""`tail -f` is told of what is committed; where a member does not know the stream it asks now and then."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.commands.following import print_from
from node.client import LedgerClient
from node.protocol.codes import RequestCode
from node.protocol.entry import BODY_BYTES_MAX, Entry
from tests.unit.test_committed_stream import group, run, until


async def followed(client: LedgerClient, shown: list[Entry], wanted: int) -> None:
    try:
        await print_from(client, 0, True, wanted, shown.append, end=-1)
    finally:
        await client.close()


@pytest.mark.parametrize("known", [True, False])
def test_entries_are_printed_as_they_are_committed(
    known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.commands.following.TAIL_POLL_S", 3600.0 if known else 0.02)

    async def work() -> None:
        async with group(tmp_path) as (engines, client):
            if not known:
                requests = engines[0].client_requests
                for served in (requests._handlers, *requests._served.values()):
                    served.pop(RequestCode.COMMITTED_STREAM, None)
            shown: list[Entry] = []
            tailing = asyncio.create_task(followed(LedgerClient(client.peers), shown, 3))
            for number in range(3):
                await client.append(b"%d" % number)
                await until(lambda wanted=number + 1: len(shown) == wanted)  # type: ignore[misc]
            await tailing
            assert [bytes(one.body) for one in shown] == [b"0", b"1", b"2"]

    run(work)


def test_a_leader_that_goes_away_is_waited_for_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("app.commands.following.TAIL_POLL_S", 0.02)

    async def work() -> None:
        async with group(tmp_path) as (engines, client):
            await client.append(b"a")
            shown: list[Entry] = []
            hasty = LedgerClient(client.peers, deadline_s=0.2)
            tailing = asyncio.create_task(followed(hasty, shown, 2))
            await until(lambda: bool(shown))
            for connection in list(engines[0].process.port.connections):
                connection.abort()
            monkeypatch.setattr(engines[0].group_end, "on_frame", lambda connection, _frame: connection.abort())
            await until(lambda: "waiting" in capsys.readouterr().err)
            monkeypatch.undo()
            await client.append(b"b")
            await tailing
            assert [bytes(one.body) for one in shown] == [b"a", b"b"]

    run(work)


def test_large_entries_are_shown_before_more_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a tail of entries of the largest size holds gigabytes of them, and shows none before it holds them all."""
    held: list[int] = []
    shown: list[Entry] = []
    read_once = LedgerClient._read_once

    async def counted(client: LedgerClient, *asked: Any) -> tuple[list[Entry], int | None]:
        entries, committed_index = await read_once(client, *asked)
        if entries:
            held.append(entries[-1].index + 1 - (shown[-1].index + 1 if shown else 0))
        return entries, committed_index

    monkeypatch.setattr(LedgerClient, "_read_once", counted)

    async def work() -> None:
        async with group(tmp_path) as (_, client):
            for _ in range(5):
                await client.append(bytes(BODY_BYTES_MAX))
            await followed(LedgerClient(client.peers), shown, 5)
            assert len(shown) == 5 and max(held) <= 2, held  # the leader's own first entry comes with one of them

    run(work)
