"""The retry policy of a client's calls. Invariant: no pause ends after the deadline."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from node.client.errors import NotAppended, Unreachable

T = TypeVar("T")
BACK_OFF_S_MIN: Final = 0.005
BACK_OFF_S_MAX: Final = 0.1
# A pause that doubles would end, on average, half as late again as what it waits for: an election, a transfer.
BACK_OFF_GROWTH: Final = 1.5
HINT_KEPT_S: Final = 2.0
HINT_SHARE: Final = 8  # of a very long one: what many send in vain stays some times what there is room for


def sleeps_s(hint_s: float) -> float:
    """For how long a client that was given a time when there will be room sleeps before it asks again.

    A long time is an estimate, reckoned from what the links carried just before. After a standstill of the machine it
    is several times too long, and the links would lie idle while all sleep. Who asks again keeps its place.
    """
    return min(hint_s, max(HINT_KEPT_S, hint_s / HINT_SHARE))


class Retry:
    """One call's patience: a deadline, and pauses that grow."""

    def __init__(self, deadline_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + deadline_s
        self._wait_s = BACK_OFF_S_MIN
        self.reason = ""
        self.not_appended: NotAppended | None = None
        self.at_once, self._was_at_once = False, False
        self.hint_s = 0.0  # when the member that refused said to come back; for one pause

    def left_s(self) -> float:
        return max(0.001, self._deadline - self._loop.time())

    async def within(self, work: Coroutine[Any, Any, T]) -> T | None:
        """What it returns; None where the deadline came first."""
        try:
            async with asyncio.timeout(self.left_s()):
                return await work
        except TimeoutError:
            return None

    async def pause(self) -> None:
        """Waits before the next try. Raises Unreachable, or the last refusal, when there is no time for one.

        A client that was given a time when there will be room comes then, and not before: until then it is others'
        turn (but see `sleeps_s`). What is tried again at once is so no second time in a row: two members that each name
        the other would be asked as fast as they answer.
        """
        hint_s, self.hint_s = self.hint_s, 0.0
        if self._loop.time() + max(self._wait_s, hint_s) > self._deadline:
            if self.not_appended is not None:
                raise self.not_appended
            raise Unreachable(self.reason or "no member answers")
        at_once, self.at_once = self.at_once and not self._was_at_once, False
        self._was_at_once = at_once
        if at_once:
            return
        if hint_s:
            await asyncio.sleep(sleeps_s(hint_s) * random.uniform(1.0, 1.05))
            self._wait_s = BACK_OFF_S_MIN
            return
        await asyncio.sleep(self._wait_s * random.uniform(0.5, 1.0))
        self._wait_s = min(self._wait_s * BACK_OFF_GROWTH, BACK_OFF_S_MAX)
