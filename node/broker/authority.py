"""Whether this broker may answer now what another one could answer otherwise, so that no two masters can be observed.

Such an answer (offsets of queues and groups, locks, routes, a correction of an offset) rests on one of two things: the
lease that the engine pushed with its last committed position, until which no other member can have been elected; or,
where there is none (lease reads are off, the process was stopped meanwhile), a linearizable read that began after the
request came, up to which this broker has dispatched; at a master nothing of a later term may be among that. A slave's
reads rest on such a read, too: who asks it may take it for the master that it was.

Invariants: without either there is no answer; reads are shared, and one that has begun serves nobody who came later;
what everybody waits for ends in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from node.background import Background

CONFIRMED_WITHIN_S: Final = 2.5  # as a put's answer
Read = Callable[[], Awaitable[int]]


class Authority:
    """See the module's docstring. `read`: a linearizable read's committed index; `reached`: waits for its dispatch;
    `term_in_log`: of the last entry that is dispatched."""

    def __init__(
        self, read: Read, reached: Callable[[int], Awaitable[None]], term_in_log: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._read, self._reached, self._term_in_log, self._clock = read, reached, term_in_log, clock
        self._master_term: int | None = None
        self._lease_until_s, self._lease_term = float("-inf"), -1
        self._next: asyncio.Future[bool] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._background = Background()

    def pushed(self, term: int, lease_until_s: float) -> None:
        """By a position of the own engine, which leads that term."""
        self._lease_term, self._lease_until_s = term, lease_until_s

    def is_master(self, term: int | None) -> None:
        """Notes that this broker is the master of `term`; None: it no longer is."""
        self._master_term = term

    def holds(self) -> bool:
        """Whether the leader's lease of the term in which this broker became master still runs."""
        return self._lease_term == self._master_term and self._clock() < self._lease_until_s

    def confirm(self) -> asyncio.Future[bool]:
        """Ends once it is known whether this was the master after now, where it is one; and whether what is here is as
        new as the group's was then."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        if self._reading is None:
            self._reading = self._background.run("confirmation", self._confirm_all())
        return self._next

    async def _confirm_all(self) -> None:
        try:
            while self._next is not None:
                waiting, self._next = self._next, None
                try:
                    found = await self._confirmed()
                except Exception:  # of whatever kind: it could not be asked
                    found = False
                except BaseException:
                    waiting.cancel()
                    raise
                if not waiting.done():
                    waiting.set_result(found)
        finally:
            self._reading = None

    async def _confirmed(self) -> bool:
        term = self._master_term
        async with asyncio.timeout(CONFIRMED_WITHIN_S):
            await self._reached(await self._read())
        return self._master_term == term and (term is None or term == self._term_in_log())

    async def close(self) -> None:
        """Ends the question that is under way; whoever waits for `confirm` is cancelled."""
        await self._background.stop()
        if self._next is not None:
            self._next.cancel()
