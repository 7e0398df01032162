"""Requests that cost more than their bytes say (a look at the whole state, a large read): one a turn of the loop.

A read of the socket may bring hundreds of them. Invariants: a connection's are served in their order, and not while it
has not taken ANSWER_BYTES_AHEAD of earlier answers; those of a connection that ended are dropped.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from typing import Final

from node.transport.connection import Connection

ANSWER_BYTES_AHEAD: Final = 2 * 1024 * 1024
WAITING_MAX: Final = 16  # of a connection: it is not read from until there are fewer, and then little at once
LOOK_AGAIN_S: Final = 0.01
WHY: Final = "slow requests"


class SlowRequests:
    """One per engine."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[Connection, deque[Callable[[], None]]] = {}
        self._due = False

    def add(self, connection: Connection, serve: Callable[[], None]) -> None:
        """Serves it in a later turn."""
        waiting = self._waiting.setdefault(connection, deque())
        waiting.append(serve)
        if len(waiting) > WAITING_MAX:
            connection.stop_reading(WHY)
            connection.read_little()
        if not self._due:
            self._due = True
            self._loop.call_soon(self._serve_one)

    def _serve_one(self) -> None:
        self._due = False
        for connection in list(self._waiting):
            waiting = self._waiting.pop(connection)
            if connection.closed:
                continue
            if connection.backlog_bytes > ANSWER_BYTES_AHEAD:
                self._waiting[connection] = waiting
                continue
            serve = waiting.popleft()
            if waiting:
                self._waiting[connection] = waiting  # behind the others
            if len(waiting) <= WAITING_MAX // 2:
                connection.resume_reading(WHY)
            self._look_soon(0)
            serve()
            return
        self._look_soon(LOOK_AGAIN_S)

    def _look_soon(self, after_s: float) -> None:
        if self._waiting and not self._due:
            self._due = True
            if after_s:
                self._loop.call_later(after_s, self._serve_one)
            else:
                self._loop.call_soon(self._serve_one)
