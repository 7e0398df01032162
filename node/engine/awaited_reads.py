"""Reads that wait until what they ask for is committed: so who follows the log has it with no further round trip.

Invariants: a connection has one that waits at most, and there are WAITING_MAX in all: one beyond that is answered as it
stands; each is answered once, when its entry is committed or its time is over, and not at all when its connection ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from node.transport.awaited_frames import decode_awaited_read
from node.transport.connection import Connection
from node.transport.remoting import Frame
from node.transport.slab_frames import ReadMode, ReadRequest

WAITING_MAX: Final = 64


class Log(Protocol):
    """What is needed of the replica."""

    @property
    def committed_index(self) -> int: ...


@dataclass(slots=True)
class _Waiting:
    frame: Frame
    request: ReadRequest
    timer: asyncio.TimerHandle


class AwaitedReads:
    """One per engine. `serve` reads what is committed and answers. `waiting`: empty as long as nobody waits."""

    def __init__(self, log: Log, serve: Callable[[Connection, Frame, ReadRequest], None]) -> None:
        self._log, self._serve = log, serve
        self._loop = asyncio.get_running_loop()
        self.waiting: dict[Connection, _Waiting] = {}

    def handle(self, connection: Connection, frame: Frame) -> None:
        """A client's request. Raises BodyError."""
        from_index, limit_bytes, wait_ms = decode_awaited_read(frame.body)
        self._answer(connection)  # the one before it
        request = ReadRequest(from_index, limit_bytes, ReadMode.UNSAFE)
        if from_index <= self._log.committed_index or len(self.waiting) >= WAITING_MAX:
            self._serve(connection, frame, request)
            return
        timer = self._loop.call_later(wait_ms / 1000, self._answer, connection)
        self.waiting[connection] = _Waiting(frame, request, timer)

    def moved(self) -> None:
        """The end of a turn: more may be committed. Only called while somebody waits."""
        committed = self._log.committed_index
        for connection in [one for one, its in self.waiting.items() if its.request.from_index <= committed]:
            self._answer(connection)

    def _answer(self, connection: Connection) -> None:
        """With what there is, where one of it waits."""
        one = self.waiting.pop(connection, None)
        if one is not None:
            one.timer.cancel()
            self._serve(connection, one.frame, one.request)

    def closed(self, connection: Connection) -> None:
        """It has ended, and what waits of it."""
        one = self.waiting.pop(connection, None)
        if one is not None:
            one.timer.cancel()

    def close(self) -> None:
        """The engine ends; connections close by themselves."""
        for connection in list(self.waiting):
            self.closed(connection)
