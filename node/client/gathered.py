"""Calls of one turn of the loop, carried out together.

A call is a future and two list entries; everything else is done once for all of a turn. Invariants: each call gets
exactly one result or error, its own; calls leave in the order in which they were made; one that was cancelled holds up
no other, and where it waits yet it is not sent at all. Large ones wait here for room, as appends do: their deadline
begins when they leave.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from threading import get_ident
from typing import Any, Final, Generic, TypeVar

from node.background import Background
from node.client.errors import LedgerError, WrongLoop
from node.loop_home import LoopHome

T = TypeVar("T")
R = TypeVar("R")
BYTES_MAX: Final = 512 * 1024  # together; one call alone may be longer
UNDER_WAY_BYTES_MAX: Final = 16 * 1024 * 1024  # and those that travelled together with the last of them
Futures = Sequence["asyncio.Future[R]"]


class Gathered(Generic[T, R]):
    """See the module's docstring. `carry_out` gets what was asked for, and returns a result or an error for each: a
    list of both, or an iterator of results alone that raises nothing."""

    def __init__(
        self,
        most: int,
        carry_out: Callable[[Sequence[T]], Awaitable[list[R | LedgerError] | Iterator[R]]],
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self._most, self._carry_out, self._bytes_max = most, carry_out, bytes_max
        self._calls: list[T] = []
        self._futures: list[asyncio.Future[R]] = []
        self._weight = self._bytes = 0
        self._waiting: deque[tuple[Sequence[T], Futures[R], int]] = deque()  # for room, with their bytes
        self._under_way_bytes = 0
        self._tasks = Background()
        self._home = LoopHome(WrongLoop)
        self._new_future: Callable[[], asyncio.Future[R]]

    def add(self, call: T, weight: int, size_bytes: int) -> asyncio.Future[R]:
        """The future of its result. It counts as `weight` of the most that travel together. Raises WrongLoop."""
        calls = self._calls
        if not calls or self._weight + weight > self._most or self._bytes + size_bytes > self._bytes_max:
            calls = self._begin()
        elif get_ident() != self._home.thread:
            self._home.check()
        self._weight += weight
        self._bytes += size_bytes
        calls.append(call)
        future = self._new_future()
        self._futures.append(future)
        return future

    def _begin(self) -> list[T]:
        """Whoever comes next is the first of those that travel together."""
        loop = self._home.check()  # not for each: in Python 3.11 it costs system calls
        self._new_future = loop.create_future
        self._send()
        loop.call_soon(self._send)
        return self._calls

    def _send(self) -> None:
        calls, self._calls = self._calls, []
        futures, self._futures = self._futures, []
        size_bytes, self._weight, self._bytes = self._bytes, 0, 0
        if calls:
            self._waiting.append((calls, futures, size_bytes))
            self._let_out()

    def _let_out(self) -> None:
        """What waits, as long as there is room."""
        while self._waiting and self._under_way_bytes < UNDER_WAY_BYTES_MAX:
            calls, futures, size_bytes = self._waiting.popleft()
            if True in map(asyncio.Future.done, futures):  # nobody wants it any more, and nothing of it was sent
                wanted = [(call, future) for call, future in zip(calls, futures, strict=True) if not future.done()]
                if not wanted:
                    continue
                calls, futures = [call for call, _ in wanted], [future for _, future in wanted]
            self._under_way_bytes += size_bytes
            self._tasks.run("what was asked of a state machine", self._until_done(calls, futures, size_bytes))

    async def _until_done(self, calls: Sequence[T], futures: Futures[R], size_bytes: int) -> None:
        await self._run(calls, futures)  # raises only what ends the loop, which begins nothing more then
        self._under_way_bytes -= size_bytes
        self._let_out()

    async def _run(self, calls: Sequence[T], futures: Futures[R]) -> None:
        try:
            found = await self._carry_out(calls)
        except BaseException as error:
            for future in futures:
                if not future.done():
                    future.cancel() if isinstance(error, asyncio.CancelledError) else future.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        settle: Callable[[Any, Any], None] = _settle if isinstance(found, list) else asyncio.Future.set_result
        settled = map(settle, futures, found)
        while True:
            try:
                deque(settled, 0)  # all of it, in C
                return
            except asyncio.InvalidStateError:
                continue  # that one was cancelled; on with the next


def _settle(future: asyncio.Future[R], found: R | LedgerError) -> None:
    if isinstance(found, LedgerError):
        future.set_exception(found)
    else:
        future.set_result(found)
