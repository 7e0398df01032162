"""Work that many callers ask for at once is done once, and a bounded number of different ones at a time.

What control planes do for others must not grow with how many ask: the same digests are computed once for all who ask
while they are computed; beyond `works_max` different ones a caller is asked to come again (503).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from node.control.problems import Problem

R = TypeVar("R")


class SharedWork(Generic[R]):
    def __init__(self, works_max: int) -> None:
        self.works_max = works_max
        self.running: dict[Hashable, asyncio.Future[R]] = {}

    async def get(self, key: Hashable, work: Callable[[], Awaitable[R]]) -> R:
        """A caller that goes away leaves the work to the others. Raises Problem."""
        known = self.running.get(key)
        if known is None:
            if len(self.running) >= self.works_max:
                text = "Others are being answered; try again."
                raise Problem(503, "Busy", text, headers={"retry-after": "1"})
            known = self.running[key] = asyncio.ensure_future(work())
            known.add_done_callback(lambda done: self.ended(key, done))
        return await asyncio.shield(known)

    def ended(self, key: Hashable, done: asyncio.Future[R]) -> None:
        self.running.pop(key, None)
        if not done.cancelled():
            done.exception()  # whoever waits gets it; nobody may be left
