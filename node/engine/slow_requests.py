"""Requests that cost more than their bytes say (a look at the whole state, a large read): one a turn of the loop.

A read of the socket may bring hundreds of them, and hundreds of connections may bring them. Invariants: they take at
most half of the loop's time, however many wait: for as long as they took, none is served, and those of connections that
have taken little yet an eighth: a flood of these is no reason for a leader to be late; a connection's are served in
their order, and not while it has more answers to take than `ahead_bytes` says: as much as it took before, so that a new
connection that takes nothing costs little, however often another one follows it; of those that take nothing a few are
looked at again at a time, in turns; those of a connection that ended are dropped at once; while one of a connection's
reads the disk (`cold_turns.py`), its others wait; how many wait of each is bounded, and more closely while many
connections have some: each is several objects, and hundreds of thousands of them hold up the loop by being
made, looked at by the collector, and freed.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

from node.transport.connection import Connection

ANSWER_BYTES_AHEAD: Final = 2 * 1024 * 1024
ANSWER_BYTES_FIRST: Final = 64 * 1024  # of one that has taken nothing yet
NEW_BYTES: Final = 4 * ANSWER_BYTES_FIRST  # until then it is new; the kernel takes about half of it by itself
SHARE: Final = 2  # of the loop's time slow requests take one part in so many ...
SHARE_OF_NEW: Final = 8  # ... and those of new connections
WAITING_MAX: Final = 16  # of a connection: beyond it is not read from until none waits, and then little at once
CROWD: Final = 256  # of all connections: then of each one only so many
CROWDED_MAX: Final = 4
LOOK_AGAIN_S: Final = 0.01
LOOKED_AT_MAX: Final = 32  # of those that take nothing, each time: a look at a thousand of them holds the loop for 2 ms
WAIT_NS_MIN: Final = 1_000_000  # timers have a grain of 1 ms: a shorter wait is added to the next one
TOOK_NS_MAX: Final = (
    100_000_000  # none takes so long: the process was paused meanwhile, and that is no work to wait for
)
WHY: Final = "slow requests"


class SlowRequests:
    """One per engine. `now_ns`: the engine's clock."""

    def __init__(self, loop: AbstractEventLoop, now_ns: Callable[[], int]) -> None:
        self._loop, self._now_ns = loop, now_ns
        self._next_ns = 0  # until then the loop is everything else's
        self._waiting: dict[Connection, deque[Callable[[], None]]] = {}
        self._not_taking: dict[Connection, deque[Callable[[], None]]] = {}  # not looked at before `_look_again_ns`
        self._parked: dict[Connection, deque[Callable[[], None]]] = {}  # a read of the disk is under way of each
        self._look_again_ns = 0
        self._due = False
        self._count = 0  # of all that wait
        self._given_bytes: dict[Connection, int] = {}  # long answers to each, taken or not

    def add(self, connection: Connection, serve: Callable[[], None]) -> None:
        """Serves it in a later turn."""
        if connection.closed:
            return
        waiting = self._not_taking.get(connection, self._parked.get(connection))
        if waiting is None:
            waiting = self._waiting.setdefault(connection, deque())
        waiting.append(serve)
        self._count += 1
        if len(waiting) > self._limit:
            connection.stop_reading(WHY)
            connection.read_little()
        self._look_soon()

    def now_or_later(self, connection: Connection, serve: Callable[[], None]) -> None:
        """Serves it at once where nothing waits and the loop has had its time: most reads are of one at a time."""
        is_held = connection in self._not_taking or connection in self._parked
        if self._waiting or self._due or is_held or self._now_ns() < self._next_ns:
            self.add(connection, serve)
        else:
            self._serve(connection, serve)

    def drop(self, connection: Connection) -> None:
        """It has ended: what waits of it goes at once, not when its turn would have come."""
        for group in (self._waiting, self._not_taking, self._parked):
            self._count -= len(group.pop(connection, ()))
        self._given_bytes.pop(connection, None)

    def park(self, connection: Connection) -> None:
        """Nothing more of it is served until `unpark`."""
        waiting = self._waiting.pop(connection, None) or self._not_taking.pop(connection, None)
        self._parked[connection] = deque() if waiting is None else waiting

    def unpark(self, connection: Connection) -> None:
        """What waits of it meanwhile goes behind that of the others."""
        waiting = self._parked.pop(connection, None)
        if waiting:
            self._waiting[connection] = waiting
            self._look_soon()

    def share_of(self, connection: Connection) -> int:
        """What is done for it takes one part in so many of the time."""
        return SHARE_OF_NEW if self._given_bytes.get(connection, 0) < NEW_BYTES else SHARE

    def gave(self, connection: Connection, answer_bytes: int) -> None:
        """A long answer was sent there."""
        if not connection.closed:
            self._given_bytes[connection] = self._given_bytes.get(connection, 0) + answer_bytes

    def ahead_bytes(self, connection: Connection) -> int:
        """How much of its answers may wait to be taken: as much as it has taken so far, within bounds."""
        taken = self._given_bytes.get(connection, 0) - connection.backlog_bytes
        return min(ANSWER_BYTES_AHEAD, max(ANSWER_BYTES_FIRST, taken))

    @property
    def _limit(self) -> int:
        return WAITING_MAX if self._count <= CROWD else CROWDED_MAX

    def _serve_one(self) -> None:
        self._due = False
        now_ns = self._now_ns()
        if now_ns >= self._look_again_ns:
            for one in list(islice(self._not_taking, LOOKED_AT_MAX)):
                self._waiting[one] = self._not_taking.pop(one)
            self._look_again_ns = now_ns + round(LOOK_AGAIN_S * 1e9)
        while self._waiting:
            connection = next(iter(self._waiting))
            waiting = self._waiting.pop(connection)
            if connection.backlog_bytes > self.ahead_bytes(connection):
                self._not_taking[connection] = waiting
                continue
            serve = waiting.popleft()
            self._count -= 1
            if waiting:
                self._waiting[connection] = waiting  # behind the others
            else:  # not before: what one that takes nothing would send on is work as well
                connection.resume_reading(WHY)
            self._serve(connection, serve)
            return
        self._look_soon()

    def _serve(self, connection: Connection, serve: Callable[[], None]) -> None:
        share = self.share_of(connection)
        began_ns = self._now_ns()
        self._due = True  # what comes meanwhile waits as well
        try:
            serve()
        finally:
            took_ns = min(self._now_ns() - began_ns, TOOK_NS_MAX)
            self._next_ns = max(self._next_ns, began_ns) + share * took_ns
            self._due = False
            self._look_soon()

    def _look_soon(self) -> None:
        if self._due or not (self._waiting or self._not_taking):
            return
        self._due = True
        wait_ns = self._next_ns - self._now_ns()
        after_s = wait_ns / 1e9 if wait_ns >= WAIT_NS_MIN else 0.0
        if not self._waiting:
            after_s = max(after_s, LOOK_AGAIN_S)
        if after_s:
            self._loop.call_later(after_s, self._serve_one)
        else:
            self._loop.call_soon(self._serve_one)
