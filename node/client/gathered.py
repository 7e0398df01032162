"""Calls of one turn of the loop, carried out together.

Invariants: each call gets exactly one result or error, its own; calls leave in the order in which they were made; one
that was cancelled holds up no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from node.background import Background
from node.client.errors import LedgerError

T = TypeVar("T")
R = TypeVar("R")
BYTES_MAX: Final = 512 * 1024  # together; one call alone may be longer


class Gathered(Generic[T, R]):
    """See the module's docstring. `carry_out` gets the calls, and returns a result or an error for each."""

    def __init__(self, most: int, carry_out: Callable[[Sequence[T]], Awaitable[Sequence[R | LedgerError]]]) -> None:
        self._most, self._carry_out = most, carry_out
        self._calls: list[tuple[T, asyncio.Future[R]]] = []
        self._weight = self._bytes = 0
        self._tasks = Background()

    def add(self, call: T, weight: int, size_bytes: int) -> asyncio.Future[R]:
        """The future of its result. It counts as `weight` of the most that travel together."""
        loop = asyncio.get_running_loop()
        if self._calls and (self._weight + weight > self._most or self._bytes + size_bytes > BYTES_MAX):
            self._send()
        if not self._calls:
            loop.call_soon(self._send)
        future: asyncio.Future[R] = loop.create_future()
        self._calls.append((call, future))
        self._weight += weight
        self._bytes += size_bytes
        return future

    def _send(self) -> None:
        calls, self._calls = self._calls, []
        self._weight = self._bytes = 0
        if calls:
            self._tasks.run("what was asked of a state machine", self._run(calls))

    async def _run(self, calls: Sequence[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            found = await self._carry_out([call for call, _ in calls])
        except BaseException as error:
            for _, future in calls:
                if not future.done():
                    future.cancel() if isinstance(error, asyncio.CancelledError) else future.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        for (_, future), one in zip(calls, found, strict=True):
            if future.done():
                continue
            if isinstance(one, LedgerError):
                future.set_exception(one)
            else:
                future.set_result(one)
