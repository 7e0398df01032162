"""Clients' reads of what is on the disk only: one at a time, connection by connection, half of a thread's time at most.

The threads that read are the log's own: followers that catch up, the state machine and the scrub wait for them, and
while one reads and checks, the loop waits for the interpreter. Invariants: whatever clients ask for, one thread is
free for everything else; they take as large a share of a thread's time as of the loop's (`slow_requests.py`), and
connections that have taken little yet a smaller one; nothing else of a connection is served while its read waits or is
under way.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable
from functools import partial

from node.engine.slow_requests import TOOK_NS_MAX, WAIT_NS_MIN, SlowRequests
from node.transport.connection import Connection

Ended = Callable[[], None]
Read = Callable[[Ended], None]  # begins it; what it is given is to be called on the loop when it has ended


class ColdTurns:
    """One per engine. `now_ns`: the engine's clock."""

    def __init__(self, loop: AbstractEventLoop, now_ns: Callable[[], int], slow: SlowRequests) -> None:
        self._loop, self._now_ns, self._slow = loop, now_ns, slow
        self._waiting: dict[Connection, tuple[Read, Callable[[], None]]] = {}
        self._next_ns = 0  # until then the threads are everything else's
        self._is_reading = self._looks_later = False

    def add(self, connection: Connection, read: Read, cancel: Callable[[], None]) -> None:
        """In its turn; `cancel` is called instead where the connection has ended by then."""
        if connection.closed:
            cancel()
            return
        self._slow.park(connection)
        self._waiting[connection] = read, cancel
        self._look()

    def drop(self, connection: Connection) -> None:
        """It has ended."""
        waiting = self._waiting.pop(connection, None)
        if waiting is not None:
            waiting[1]()

    def _look(self) -> None:
        if self._is_reading or self._looks_later or not self._waiting:
            return
        began_ns = self._now_ns()
        wait_ns = self._next_ns - began_ns
        if wait_ns >= WAIT_NS_MIN:
            self._looks_later = True
            self._loop.call_later(wait_ns / 1e9, self._look_again)
            return
        connection = next(iter(self._waiting))
        read, _cancel = self._waiting.pop(connection)
        self._is_reading = True
        read(partial(self._ended, connection, began_ns))

    def _look_again(self) -> None:
        self._looks_later = False
        self._look()

    def _ended(self, connection: Connection, began_ns: int) -> None:
        self._is_reading = False
        took_ns = min(self._now_ns() - began_ns, TOOK_NS_MAX)
        self._next_ns = max(self._next_ns, began_ns) + self._slow.share_of(connection) * took_ns
        self._slow.unpark(connection)
        self._look()
