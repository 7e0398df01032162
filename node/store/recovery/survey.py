"""Walking a log *past* its damage: recovery, `store verify` and the scrub all see damage through this alone.

Invariants: reads only; every bad record is reported once, with its index and file; a torn tail above the durable index
and a Java node's remnants are no damage; after damage the walk goes on where a record can be placed again by evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from node.protocol.entry import Slab
from node.store.faults.ranges import merged
from node.store.faults.results import Fault
from node.store.files.segment_list import SegmentList
from node.store.recovery.damage import Ending, judge, read_unit
from node.store.recovery.resync import Resync
from node.store.recovery.walk import SEALED_NEVER, Cursor, Stop, Walk


@dataclass(slots=True, frozen=True)
class Finding:
    """One thing that is wrong. `kind` is a class of DESIGN 8; `index` None: no single entry; `last_index` None: itself.
    `cause` is the detail without the place in the file: what findings side by side may have in common."""

    kind: str
    index: int | None
    file: str
    detail: str
    last_index: int | None = None
    cause: str = ""

    @property
    def end(self) -> int | None:
        """The last entry it is about."""
        return self.index if self.last_index is None else self.last_index


@dataclass(slots=True, frozen=True)
class Trust:
    """What a survey may rely on besides the bytes.

    `durable_index` -1: unknown, so nothing is above it. `vouched`: the cursor behind the durable entry, as the
    checkpoint slot says. `torn_first`: what looks torn above the durable index is a torn tail even where sound records
    follow (power was lost since, and the slot is the newest one); otherwise sound records behind make it damage.
    """

    durable_index: int = -1
    vouched: Cursor | None = None
    torn_first: bool = True


class Survey:
    """One pass over a log from `start` to its end, or up to `last_index`."""

    def __init__(
        self,
        data: SegmentList,
        index: SegmentList,
        start: Cursor,
        *,
        java: bool,
        trust: Trust | None = None,
        last_index: int | None = None,
        into_java: bool = False,
    ) -> None:
        """`into_java`: where only unsealed records follow, a Java node went on with a log of ours: on with them, under
        its rules. Otherwise each of them is a finding, for it is not for an engine to judge."""
        self._data = data
        self._index = index
        self._java = java
        self._trust = trust or Trust()
        self._last_index = last_index
        self._resync = Resync(data, index, self._trust.vouched)
        self.end = start  # the cursor behind the last entry seen
        self.proven = start  # the last cursor that sound records, the chain or the checkpoint vouch for
        self.stop = Stop(start, "", "not walked yet")  # where the last walk ended
        self.ending = Ending.CLEAN  # what is behind `end`
        self.sealed_count = 0
        self._into_java = into_java
        self.unsealed_from: int | None = None  # where a Java node went on

    def run(self) -> Iterator[Slab | Finding]:
        """Sound slabs and findings, in the log's order."""
        cursor: Cursor | None = self.end
        while cursor is not None:
            walk = Walk(self._data, cursor, last_index=self._last_index)
            for slab in walk.slabs():
                self.end = self.proven = replace(walk.cursor, pos=slab.end_pos)
                yield slab
            self.sealed_count += walk.sealed_count
            self.stop = walk.stop
            if self._last_index is not None and walk.stop.cursor.index > self._last_index:
                return
            if self._into_java and walk.stop.is_alien and self._only_unsealed(walk.stop.cursor):
                self._java, self.unsealed_from = True, walk.stop.cursor.index
                cursor = self.end = replace(walk.stop.cursor, sealed_from=SEALED_NEVER)
                continue
            cursor, finding = self._after(walk.stop)
            if finding is not None:
                yield finding
            if cursor is not None:
                self.end = cursor

    def _after(self, stop: Stop) -> tuple[Cursor | None, Finding | None]:
        """Where to go on after a walk ended, and what to say about it."""
        place: tuple[Cursor, bool] | None = None
        if stop.cursor.index <= self._trust.durable_index and not self._java:
            if not self._data.has_bytes(stop.cursor.pos):
                return None, None  # nothing at all is left: history was lost (SAFETY E8), no record is damaged
            place = self._resync.after(stop)
        else:
            if not self._trust.torn_first and not stop.is_alien and self._data.has_bytes(stop.cursor.pos):
                place = self._resync.after(stop)
                if place is not None and not self._data.has_bytes(place[0].pos):
                    place = None  # the last record: a process that was killed while it wrote leaves that, too
            if place is None:
                self.ending, _ = judge(self._data, self._index, stop, java=self._java)
                if self.ending in (Ending.CLEAN, Ending.REMNANT):
                    return None, None
                if self.ending is Ending.TORN and not (self._java and self._is_claimed(stop.cursor)):
                    return None, None
                place = self._resync.after(stop)
        self.ending = Ending.CORRUPT if place is None else Ending.CLEAN
        if place is not None and place[1]:
            self.proven = place[0]
        return (place[0] if place is not None else None), self._finding(stop)

    def _only_unsealed(self, at: Cursor) -> bool:
        """Whether no sealed record follows, as far as a walk gets."""
        walk = Walk(self._data, replace(at, sealed_from=SEALED_NEVER))
        return not any(walk.sealed_count for _ in walk.slabs())

    def _is_claimed(self, at: Cursor) -> bool:
        claimed = read_unit(self._index, at.index)
        return claimed is not None and claimed.pos == at.pos

    def _finding(self, stop: Stop) -> Finding:
        at = stop.cursor
        segment = self._data.find(at.pos)
        if segment is None:
            name = self._data.name_at(at.pos)
            return Finding("missing", at.index, name, f"there is no file for position {at.pos}: {name} is missing")
        name = f"data/{segment.path.name}"
        cause = stop.detail
        if stop.is_alien and self._into_java:
            cause = "its CRCs are 0 where sealed entries follow: its seal is gone"
        detail = f"{cause} (at {at.pos - segment.start} of {name})"
        return Finding(stop.problem or "record_invalid", at.index, name, detail, cause=cause)


def in_ranges(findings: Iterable[Finding]) -> list[Finding]:
    """Equal findings about entries side by side as one, which tells the place of the first."""
    joined: list[Finding] = []
    for one in findings:
        last = joined[-1] if joined else None
        if last is not None and last.end is not None and one.index == last.end + 1:
            same = last.kind == one.kind and last.cause == one.cause
            if same and (one.cause or last.file == one.file):
                detail = last.detail if last.cause or last.last_index is not None else f"{last.detail} (the first one)"
                joined[-1] = replace(last, last_index=one.end, detail=detail)
                continue
        joined.append(one)
    return joined


class FaultCollector:
    """Turns what a survey yields into ranges: a finding lasts until the next sound entry, or the next finding's place.

    A finding whose index turns out to be sound (only the filler before it was damaged) makes no fault.
    """

    def __init__(self) -> None:
        self._found: list[Fault] = []
        self._open: Finding | None = None

    def add(self, item: Slab | Finding) -> None:
        """The next item of the survey."""
        if isinstance(item, Slab):
            self.close(item.first_index - 1)
        elif item.index is not None:
            self.close(item.index - 1)
            self._open = item

    def close(self, last_index: int) -> None:
        """The range that is open ends here."""
        item, self._open = self._open, None
        if item is not None and item.index is not None and item.index <= last_index:
            self._found.append(Fault(item.index, last_index, item.kind, item.detail))

    def faults(self, begin_index: int, end_index: int) -> tuple[Fault, ...]:
        """All of them inside [begin_index, end_index], after the survey has ended at `end_index`."""
        self.close(end_index)
        return merged(self._found, begin_index, end_index)


def faults_of(items: Iterable[Slab | Finding], begin_index: int, end_index: int) -> tuple[Fault, ...]:
    """The faults that a whole survey found between two entries."""
    collector = FaultCollector()
    for item in items:
        collector.add(item)
    return collector.faults(begin_index, end_index)
