"""The schedule service: messages that wait for their time, delivered once they are due. On the master only.

A message with a delay level lies in the level's queue of the schedule topic, in the order in which it came, so that of
each queue the first is due first. Once due it is put into its real topic and queue, as 4.9.8's ScheduleMessageService
does: with all its properties (also DELAY, REAL_TOPIC and REAL_QID), its sender and its time of birth.

How far a level has been delivered is a delay offset, which is in the group's metadata: it follows what is delivered.

A message is due by its record's time and the wall clock, or once this broker has known of it for the whole delay by a
clock that nobody sets, whichever comes first. Records never go back in time: behind a clock that was set back, or a
former master's that was ahead, they all carry the same time for as long as that lasts.

Invariants: an offset is committed only behind what was stored of the messages before it, so no delivery is lost; a
message is delivered twice only where the master changed before its offset was committed, or what an ended lane left
cannot be looked for; one that cannot be delivered at all is noted, and holds up none behind it for long.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, Protocol

from node.background import Background
from node.broker.metadata import Metadata, NotNow
from node.broker.requests.store import Puts, Reads
from node.broker.requests.topics import HALF_TOPIC
from node.message_store.broker_tables import DELAY_OFFSETS
from node.message_store.consume_queue import PullStatus
from node.message_store.new_message import TIMER_NAMES, NewMessage, without
from node.message_store.properties import REAL_QID, REAL_TOPIC
from node.message_store.put_result import PutResult, PutStatus
from node.message_store.queue_units import SCHEDULE_TOPIC
from node.message_store.record import MessageRecord, decode_record

AT_ONCE: Final = 32  # messages of a level that are under way together
LOOK_S_MAX: Final = 1.0  # so often at least the clock is asked, which may have been set
AGAIN_S: Final = 0.1
ARRIVALS_APART: Final = 1000  # notes of arrivals within one delay
COMMIT_EVERY_S: Final = 0.2
# What no later try changes.
NEVER_TAKEN: Final = frozenset(
    {PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED, PutStatus.UNKNOWN_ERROR}
)  # fmt: skip
Note = Callable[[str, str, str], None]


class Store(Protocol):
    """A broker's messages."""

    @property
    def lane(self) -> Puts: ...
    @property
    def reads(self) -> Reads: ...


class DelayOffsets(Protocol):
    """By level, from 1 on: the next message that is to be delivered."""

    def get(self, level: int) -> int | None: ...

    def commit(self, offsets: Mapping[int, int]) -> bool:
        """False: not now."""


class DelayOffsetsInLog:
    """Those of the group's metadata."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def get(self, level: int) -> int | None:
        found = self._metadata.value(DELAY_OFFSETS, str(level))
        return found if type(found) is int else None

    def commit(self, offsets: Mapping[int, int]) -> bool:
        try:
            self._metadata.change({DELAY_OFFSETS: {str(level): offset for level, offset in offsets.items()}})
        except NotNow:
            return False
        return True


@dataclass(frozen=True, slots=True)
class LevelPending:
    """What waits in one level: how many, when the first of them is due (epoch; None: it cannot be read now), and for
    how long it has been."""

    level: int
    delay_ms: int
    waiting: int
    due_ms: int | None
    overdue_ms: int


@dataclass(slots=True)
class Arrival:
    """Below `upto_offset` all had come at `at_ms`, and none behind the note before it at `begun_ms`."""

    upto_offset: int
    begun_ms: int
    at_ms: int


class Arrivals:
    """Since when this broker has known of a level's messages: exact to a thousandth of the delay, in bounded memory."""

    def __init__(self, delay_ms: int) -> None:
        self.delay_ms = delay_ms
        self._notes: list[Arrival] = []

    def note(self, upto_offset: int, now_ms: int) -> None:
        notes = self._notes
        if notes and upto_offset < notes[-1].upto_offset:  # a log that was cut
            notes.clear()
        if notes and upto_offset == notes[-1].upto_offset:
            return
        if notes and now_ms - notes[-1].begun_ms < self.delay_ms // ARRIVALS_APART:
            notes[-1].upto_offset, notes[-1].at_ms = upto_offset, now_ms
        else:
            notes.append(Arrival(upto_offset, now_ms, now_ms))
        while len(notes) > 1 and now_ms - notes[1].at_ms >= self.delay_ms:
            del notes[0]  # both are due

    def waits_ms(self, offset: int, now_ms: int) -> int:
        """Until the message has waited for its delay; 0 or less: it has."""
        found = bisect_right(self._notes, offset, key=lambda one: one.upto_offset)
        return self.delay_ms - (now_ms - self._notes[found].at_ms if found < len(self._notes) else 0)


class ScheduleService:
    """See the module's docstring. `levels_ms`: level 1 first; `now_ms`: the wall clock, `steady_ms`: one that nobody
    sets."""

    def __init__(
        self, store: Store, offsets: DelayOffsets, levels_ms: Sequence[int], now_ms: Callable[[], int],
        steady_ms: Callable[[], int], note: Note,
    ) -> None:  # fmt: skip
        self._store, self._offsets, self._levels_ms = store, offsets, tuple(levels_ms)
        self._now_ms, self._steady_ms, self._note = now_ms, steady_ms, note
        self._arrivals = {level: Arrivals(delay_ms) for level, delay_ms in enumerate(self._levels_ms, 1)}
        self._background = Background(lambda name, error: note("schedule_failed", "error", f"{name}: {error}"))
        self._came = {level: asyncio.Event() for level in range(1, len(self._levels_ms) + 1)}
        self.next_offsets: dict[int, int] = {}  # of this mastership
        self._committed: dict[int, int] = {}
        self.delivered = 0

    # --- as a master ----------------------------------------------------------------------------------------------
    def start(self) -> None:
        """From the offsets that are committed."""
        self.next_offsets, self._committed = {}, {}
        for level in self._came:
            self._arrived(level)
            self._background.keep(f"level {level}", partial(self._deliver, level))
        self._background.keep("delay offsets", self._commit_now_and_then)

    def stop(self) -> None:
        """At once: what is under way may still be stored, and is delivered again by the next master."""
        for task in self._background.tasks:
            task.cancel()

    def pending(self) -> list[LevelPending]:
        """Of each level with messages that wait; what a slave knows is nothing."""
        reads, found = self._store.reads, []
        for level, next_offset in sorted(self.next_offsets.items()):
            first = max(next_offset, reads.min_offset(SCHEDULE_TOPIC, level - 1))
            waiting = reads.max_offset(SCHEDULE_TOPIC, level - 1) - first
            if waiting > 0:
                stored_ms, now_ms = reads.stored_at_ms(SCHEDULE_TOPIC, level - 1, first), self._now_ms()
                due_ms = now_ms + self._waits_ms(first, stored_ms, level, now_ms) if stored_ms >= 0 else None
                overdue_ms = 0 if due_ms is None else max(0, now_ms - due_ms)
                found.append(LevelPending(level, self._levels_ms[level - 1], waiting, due_ms, overdue_ms))
        return found

    def as_said(self) -> dict[str, Any]:
        """For `node/broker/introspection.py`."""
        levels = [asdict(one) for one in self.pending()]
        return {"waiting": sum(one["waiting"] for one in levels), "delivered": self.delivered, "levels": levels}

    def arrived(self, queues: Iterable[tuple[str, int]]) -> None:
        """These queues have got messages."""
        for topic, queue_id in queues:
            if topic == SCHEDULE_TOPIC and queue_id + 1 in self._came:
                self._arrived(queue_id + 1)
                self._came[queue_id + 1].set()

    def _arrived(self, level: int) -> None:
        self._arrivals[level].note(self._store.reads.max_offset(SCHEDULE_TOPIC, level - 1), self._steady_ms())

    # --- one level ------------------------------------------------------------------------------------------------
    async def _deliver(self, level: int) -> None:
        """For ever."""
        reads, came = self._store.reads, self._came[level]
        offset = self.next_offsets.setdefault(level, self._committed.setdefault(level, self._offsets.get(level) or 0))
        while True:
            came.clear()
            got = reads.get(SCHEDULE_TOPIC, level - 1, offset, AT_ONCE)
            wait_s: float | None = None
            if got.status is PullStatus.FOUND:
                records = [decode_record(one) for one in got.records]
                now = self._now_ms()
                waits_ms = [self._waits_ms(one.queue_offset, one.store_timestamp_ms, level, now) for one in records]
                due = next((at for at, one_ms in enumerate(waits_ms) if one_ms > 0), len(records))
                if due:
                    await self._put_all(records[:due], level)
                    offset = records[due - 1].queue_offset + 1
                else:
                    wait_s = min(waits_ms[0] / 1000, LOOK_S_MAX)
            elif got.next_offset != offset:  # removed, or in front of the queue's first
                offset = got.next_offset
            elif got.status is PullStatus.OFFSET_FOUND_NULL:  # it cannot be read now
                wait_s = AGAIN_S
            else:
                await came.wait()
            self.next_offsets[level] = offset
            if wait_s is not None:
                await asyncio.sleep(wait_s)

    def _waits_ms(self, offset: int, stored_ms: int, level: int, now_ms: int) -> int:
        """Until it is due; 0 or less: it is. Never longer than its level says."""
        by_clock_ms = stored_ms + self._levels_ms[level - 1] - now_ms
        return min(by_clock_ms, self._arrivals[level].waits_ms(offset, self._steady_ms()))

    async def _put_all(self, records: Sequence[MessageRecord], level: int) -> None:
        """Returns once each is stored, or never can be."""
        while records:
            puts = [self._put(record) for record in records]
            failed = []
            for record, put in zip(records, puts, strict=True):
                result = None if put is None else await put
                status = PutStatus.MESSAGE_ILLEGAL if result is None else result.status
                if status.is_stored:
                    self.delivered += 1
                elif status in NEVER_TAKEN:
                    why = "it has no real topic" if result is None else result.reason
                    where = f"level {level}, offset {record.queue_offset}"
                    self._note("delivery_impossible", "error", f"{where}: {status.value}: {why}")
                else:
                    failed.append(record)
            records = failed
            if records:
                await asyncio.sleep(AGAIN_S)

    def _put(self, record: MessageRecord) -> asyncio.Future[PutResult] | None:
        """None: RocketMQ delivers none to that topic either."""
        message = delivered(record)
        return (
            None if message is None or message.topic == HALF_TOPIC else self._store.lane.put_own(message, patient=True)
        )

    # --- offsets --------------------------------------------------------------------------------------------------
    async def _commit_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_EVERY_S)
            changed = {
                level: offset for level, offset in self.next_offsets.items() if self._committed.get(level) != offset
            }
            if changed and self._offsets.commit(changed):
                self._committed |= changed


def delivered(record: MessageRecord) -> NewMessage | None:
    """As it comes into its real topic and queue; None: it does not say which."""
    known = record.properties
    topic, queue = known.get(REAL_TOPIC), known.get(REAL_QID, "")
    if not topic or not queue.isascii() or not queue.isdigit() or len(queue) > 9:
        return None
    return NewMessage(
        topic, int(queue), record.body, record.born_host, record.store_host,
        without(record.properties_data, *TIMER_NAMES), record.flag, record.sys_flag, record.born_timestamp_ms,
        record.reconsume_times,
    )  # fmt: skip
