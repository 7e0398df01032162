"""The background reading of a classic broker's log: what was flushed is read again and again, and judged by its CRCs.

A disk that loses or changes bytes says nothing until somebody reads them: a consumer that stops there, or a slave that
gets them. One pass reads from the log's begin to where it was flushed, at `[store] scrub_bytes_per_s`, and rests for
`scrub_pause_s`. Damage is an alarm and a problem until a pass finds the place sound; nothing is changed here, for which
broker of the pair holds the right bytes its audit says.

Invariants: files are read and judged in a thread; a place that was cut or removed meanwhile is no damage, and neither
is one that reads well when it is read once more; findings are bounded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from node.message_store.framing import MESSAGE_BYTES_MAX
from node.message_store.local_log import LocalCommitLog
from node.message_store.local_records import Stop, walk
from node.message_store.local_recovery import MAGIC_BEGINS
from node.message_store.record import RECORD_BYTES_MIN
from node.protocol.entry import BytesLike
from node.protocol.value_class import value_class

STEP_BYTES: Final = 1 << 20
MAGIC_AT: Final = 4  # of a record: behind its size
DAMAGES_MAX: Final = 64
TEXT_MAX: Final = 300
Note = Callable[[str, str, str], None]


@value_class(slots=True, frozen=True)
class Damage:
    """From `offset` to `end`, where the next sound record begins, or the file ends."""

    offset: int
    end: int
    why: str

    @property
    def text(self) -> str:
        return f"{self.end - self.offset:,} bytes from {self.offset} on cannot be read as they were written: {self.why}"


class LogScrub:
    """See the module's docstring. `bytes_per_s` 0: none. `is_cutting`: the log is under somebody's hands."""

    def __init__(
        self, log: LocalCommitLog, bytes_per_s: int, pause_s: float, note: Note, is_cutting: Callable[[], bool],
        sleep: Callable[[float], Any] = asyncio.sleep, now_s: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._log, self._bytes_per_s, self._pause_s = log, bytes_per_s, pause_s
        self._note, self._is_cutting, self._sleep, self._now_s = note, is_cutting, sleep, now_s
        self.place = log.min_offset  # of the pass that is under way
        self.passes = 0
        self._ended_s: float | None = None
        self._found: list[Damage] = []  # of this pass
        self._before: list[Damage] = []  # of the one before, at places that this one has not come to

    @property
    def damages(self) -> list[Damage]:
        """What is known to be damaged, ascending."""
        begin, end = self._log.min_offset, self._log.max_offset
        return [one for one in (*self._found, *self._before) if begin <= one.offset < end]

    def as_said(self) -> dict[str, Any]:
        ended_s = self._ended_s
        return {
            "offset": self.place, "passes": self.passes,
            "last_pass_ended_ms": None if ended_s is None else round((self._now_s() - ended_s) * 1000),
            "damaged": [{"from_offset": one.offset, "to_offset": one.end, "why": one.why} for one in self.damages],
        }  # fmt: skip

    def problems(self) -> list[dict[str, str]]:
        return [{"code": "log_damaged", "about": str(one.offset), "text": one.text} for one in self.damages]

    def met(self, place: int, record: BytesLike) -> None:
        """A read for a consumer met it before a pass did: it is damage until a pass comes there."""
        known = {one.offset for one in self.damages}
        if place not in known and not self._is_cutting():
            self._add(Damage(place, place + len(record), "it is no record whose body has its CRC"), known)

    async def run(self) -> None:
        """For ever. Without passes, what reads met is looked at again."""
        while True:
            await (self.look() if self._bytes_per_s else self._look_again())
            await self._sleep(self._pause_s)

    async def _look_again(self) -> None:
        self._found = self.damages  # without what has expired
        for one in list(self._found):
            if not (await asyncio.to_thread(self._step, one.offset, self._log.max_offset))[1]:
                self._found.remove(one)

    async def look(self) -> None:
        """One pass, to where the log is flushed when it ends. Raises OSError where a file cannot be read at all."""
        self.place = self._log.min_offset
        self._before, self._found = self.damages, []
        while True:
            began_s, cuts = self._now_s(), self._log.cuts
            self.place = max(self.place, self._log.min_offset)
            upto = self._log.flushed_offset
            if self.place >= upto:
                break
            if self._is_cutting():
                await self._sleep(1.0)
                continue
            ahead, damage = await asyncio.to_thread(self._step, self.place, upto)
            if cuts != self._log.cuts or self._is_cutting():
                self.place = min(self.place, self._log.max_offset)
                continue
            known = {one.offset for one in self.damages}
            self._before = [one for one in self._before if one.offset >= ahead]
            self._found = [one for one in self._found if not self.place <= one.offset < ahead]
            if damage is not None and damage.offset >= self._log.min_offset:
                self._add(damage, known)
            read_bytes, self.place = ahead - self.place, ahead
            await self._sleep(max(0.0, read_bytes / self._bytes_per_s - (self._now_s() - began_s)))
        self.passes += 1
        self._ended_s, self._before = self._now_s(), []

    def _add(self, damage: Damage, known: set[int]) -> None:
        if len(self._found) < DAMAGES_MAX:
            if damage.offset not in known:
                self._note("ha_log_damaged", "error", damage.text)
            self._found.append(damage)

    def _step(self, place: int, upto: int) -> tuple[int, Damage | None]:
        """In a thread: on to the next border, or behind the damage that begins at `place`. Raises OSError."""
        ahead, why = self._read(place, upto)
        if not why or not self._log.min_offset <= place < self._log.max_offset:  # it expired, or was cut
            return max(ahead, self._log.min_offset), None
        ahead, why = self._read(place, upto)  # once more: a border is looked for in what is there now
        if not why:
            return ahead, None
        start = place - place % self._log.file_bytes
        end = min(start + self._log.file_bytes, upto)
        sound = self._sound_behind(place, end)
        return sound, Damage(place, sound, why[:TEXT_MAX])

    def _sound_behind(self, place: int, end: int) -> int:
        """Where the next sound record begins; `end`: there is none."""
        at, log = place, self._log
        while at < end:
            data = log.read(at, min(STEP_BYTES, end - at))
            found = data.find(MAGIC_BEGINS)
            while found >= 0:
                there = at + found - MAGIC_AT
                if there > place:
                    size = int.from_bytes(log.read(there, MAGIC_AT), "big")
                    fits = RECORD_BYTES_MIN <= size <= min(MESSAGE_BYTES_MAX, end - there)
                    if fits and walk(log.read(there, size), there, log.file_bytes).starts:
                        return there
                found = data.find(MAGIC_BEGINS, found + 1)
            if len(data) <= len(MAGIC_BEGINS):
                break
            at += len(data) - len(MAGIC_BEGINS) + 1
        return end

    def _read(self, place: int, upto: int) -> tuple[int, str]:
        """Behind the whole records that begin at `place`, and why there are none."""
        log = self._log
        data = log.read(place, min(STEP_BYTES, upto - place))
        found = walk(data, place, log.file_bytes)
        if not found.at and found.stop is Stop.PARTIAL and found.needs <= upto - place:
            data = log.read(place, found.needs)
            found = walk(data, place, log.file_bytes)
        if found.at:
            return place + found.at, ""
        partly = "a record there reaches behind what was written"
        return place, found.why or (partly if found.stop is Stop.PARTIAL else "nothing is written there")
