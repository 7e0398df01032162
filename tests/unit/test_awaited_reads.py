"""Reads that wait for a commit: answered once there is something, or when time is over; never to one that is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from node.engine import awaited_reads
from node.engine.awaited_reads import AwaitedReads
from node.protocol.codes import RequestCode
from node.transport.awaited_frames import WAIT_MS_MAX, AwaitedRead, decode_awaited_read, encode_awaited_read
from node.transport.connection import Connection
from node.transport.remoting import Frame
from node.transport.slab_frames import BodyError, ReadMode, ReadRequest


class Reads:
    """`answered`: which connection, which request's number, and from where it reads."""

    def __init__(self) -> None:
        self.log = SimpleNamespace(committed_index=4)
        self.answered: list[tuple[Connection, int, int]] = []
        self.reads = AwaitedReads(cast(Any, self.log), self._serve)

    def _serve(self, connection: Connection, frame: Frame, request: ReadRequest) -> None:
        assert request.mode is ReadMode.UNSAFE and request.limit_bytes == 100
        self.answered.append((connection, frame.opaque, request.from_index))

    def ask(self, connection: Connection, opaque: int, from_index: int, wait_ms: int = WAIT_MS_MAX) -> None:
        body = encode_awaited_read(AwaitedRead(from_index, 100, wait_ms))
        self.reads.handle(connection, Frame(RequestCode.AWAITED_READ, opaque, body))

    def commit(self, index: int) -> None:
        self.log.committed_index = index
        self.reads.moved()


def story(work: Callable[[Reads, Connection, Connection], Any]) -> None:
    async def run() -> None:
        reads = Reads()
        outcome = work(reads, cast(Connection, object()), cast(Connection, object()))
        if outcome is not None:
            await outcome
        reads.reads.close()

    asyncio.run(run())


def test_what_is_there_is_answered_at_once_and_what_is_not_when_it_is_committed() -> None:
    def work(its: Reads, one: Connection, other: Connection) -> None:
        its.ask(one, 1, 4)
        assert its.answered == [(one, 1, 4)] and not its.reads.waiting
        its.ask(one, 2, 5)
        its.ask(other, 1, 7)
        its.commit(4)
        assert len(its.answered) == 1
        its.commit(6)
        assert its.answered[1:] == [(one, 2, 5)]
        its.commit(9)
        its.commit(10)
        assert its.answered[2:] == [(other, 1, 7)] and not its.reads.waiting

    story(work)


def test_one_of_a_connection_waits_and_so_many_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awaited_reads, "WAITING_MAX", 1)

    def work(its: Reads, one: Connection, other: Connection) -> None:
        its.ask(one, 1, 5)
        its.ask(one, 2, 6)
        assert its.answered == [(one, 1, 5)]  # as it stands: with nothing
        its.ask(other, 1, 5)
        assert its.answered[1:] == [(other, 1, 5)] and list(its.reads.waiting) == [one]

    story(work)


def test_its_time_is_over() -> None:
    async def work(its: Reads, one: Connection, other: Connection) -> None:
        its.ask(one, 1, 5, wait_ms=1)
        await asyncio.sleep(0.01)
        its.commit(5)
        assert its.answered == [(one, 1, 5)]

    story(work)


def test_the_time_of_one_that_was_answered_ends_no_later_one() -> None:
    async def work(its: Reads, one: Connection, other: Connection) -> None:
        its.ask(one, 1, 5, wait_ms=1)
        its.commit(5)
        its.ask(one, 2, 6)
        await asyncio.sleep(0.01)
        assert its.answered == [(one, 1, 5)]
        its.commit(6)
        assert its.answered[1:] == [(one, 2, 6)]

    story(work)


def test_a_connection_that_ended_is_not_answered() -> None:
    async def work(its: Reads, one: Connection, other: Connection) -> None:
        its.ask(one, 1, 5, wait_ms=1)
        its.reads.closed(one)
        its.reads.closed(other)
        its.commit(5)
        await asyncio.sleep(0.01)
        assert its.answered == []

    story(work)


def test_frames_travel_whole_and_broken_ones_are_refused() -> None:
    request = AwaitedRead(7, 1 << 20, WAIT_MS_MAX)
    body = encode_awaited_read(request)
    assert decode_awaited_read(body) == request
    for broken in (
        b"", body + b"\0", body[:-1], encode_awaited_read(request._replace(from_index=-1)),
        encode_awaited_read(request._replace(limit_bytes=0)), encode_awaited_read(request._replace(wait_ms=10_001)),
    ):  # fmt: skip
        with pytest.raises(BodyError):
            decode_awaited_read(broken)
