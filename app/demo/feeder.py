"""Appends the demo's messages at a steady rate, until the cap.

Invariants: no message is sent twice (an unknown outcome is counted, not repeated); what was missed while the group had
no leader is not made up for in a burst; with the cap reached the feeder says so and rests.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from node.background import Background, reason_of
from node.client import AppendResult, LedgerError, NotAppended, OutcomeUnknown

TICK_S: Final = 0.05
PAUSE_AFTER_FAILURE_S: Final = 0.2
TICKS_IN_FLIGHT_MAX: Final = 40


@dataclass(slots=True)
class Fed:
    """What the feeder can say for certain. `last_index` -1: nothing was acknowledged yet."""

    appended: int = 0
    unknown: int = 0
    refused: int = 0
    body_bytes: int = 0
    last_index: int = -1
    rounds: int = 0
    capped: bool = False


class Appends(Protocol):
    """What takes the messages: the group's client, or a producer in front of its brokers."""

    async def append(self, body: bytes) -> AppendResult: ...


class Feeder:
    """Reads from `source` over and over; `body_bytes_max` bounds the sum of all bodies."""

    def __init__(
        self,
        client: Appends,
        source: Iterable[bytes],
        rate_per_s: float,
        body_bytes_max: int,
        remark: Callable[[str], None],
    ) -> None:
        self.client = client
        self.source = source
        self.rate_per_s = rate_per_s
        self.body_bytes_max = body_bytes_max
        self.remark = remark
        self.fed = Fed()
        self._flights = Background(lambda name, error: remark(f"{name}: {reason_of(error)}"))
        self._resting = False

    async def run(self) -> None:
        """Feeds until cancelled or capped."""
        loop = asyncio.get_running_loop()
        messages = self._messages()
        began, due = loop.time(), 0
        try:
            while not self.fed.capped:
                await asyncio.sleep(TICK_S)
                if self._resting or len(self._flights) >= TICKS_IN_FLIGHT_MAX:
                    began, due = loop.time(), 0
                    continue
                count = int((loop.time() - began) * self.rate_per_s) - due
                due += count
                bodies = list(itertools.islice(messages, count))
                if not bodies and count:
                    break
                if bodies:
                    self._flights.run("feeding", self._send(bodies))
            await asyncio.gather(*self._flights.tasks)
        finally:
            await self._flights.stop()

    def _messages(self) -> Iterator[bytes]:
        while True:
            empty = True
            for body in self.source:
                if self.fed.body_bytes + len(body) > self.body_bytes_max:
                    self.fed.capped = True
                    self.remark(
                        f"the cap of {self.body_bytes_max // 1_000_000} MB of messages is reached: feeding stops,"
                        " everything else goes on (--max-mb raises it)"
                    )
                    return
                self.fed.body_bytes += len(body)
                empty = False
                yield body
            if empty:
                self.remark("there is nothing to feed")
                return
            self.fed.rounds += 1
            if self.fed.rounds == 1:
                self.remark("all messages were fed once; they start over")

    async def _send(self, bodies: list[bytes]) -> None:
        # Singles, as an application would: the client merges what one tick holds into one frame.
        await asyncio.gather(*(self._append(body) for body in bodies))

    async def _append(self, body: bytes) -> None:
        try:
            result = await self.client.append(body)
        except OutcomeUnknown:
            self.fed.unknown += 1
        except NotAppended:
            self.fed.refused += 1
        except LedgerError:
            self.fed.refused += 1
            await self._rest()
        else:
            self.fed.appended += 1
            self.fed.last_index = max(self.fed.last_index, result.last_index)

    async def _rest(self) -> None:
        self._resting = True
        await asyncio.sleep(PAUSE_AFTER_FAILURE_S)
        self._resting = False
