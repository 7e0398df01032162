"""Two commit logs of a classic pair, one file of both: byte against byte, and where they differ record against record.

Where both hold the same bytes, they are walked once: a record that is bad in both is bad. Where they differ, each
record is judged by itself, by its lengths, its own place and the CRC of its body: if one of the two is sound, the other
is the damaged one; if both are sound, the logs say different things.

Invariants: bytes are compared as they lie, whatever they mean; memory is bounded by a window, or by one record where
that is larger; a walk goes on behind damage where a record vouches for its own place.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

from app.audit.pair_logs import Bytes, PairLog
from app.audit.pair_records import side_of
from app.audit.segments import ReadFailed
from node.message_store.framing import MESSAGE_BYTES_MAX
from node.message_store.local_records import Stop, flaw_of, walk
from node.message_store.record import PHYSICAL_OFFSET_AT

WINDOW_BYTES: Final = 8 << 20
STEP_BYTES: Final = 64 << 10
SHOWN_BYTES: Final = 128  # of what is no record on either side
_MAGIC_BEGINS: Final = b"\xda\xa3\x20"
_MAGIC_AT: Final = 4
_BLANK_HEAD: Final = 8


class Seen(StrEnum):
    """What is seen of a range of offsets."""

    CRC = "crc"  # of `logs`: the body is not the one that was sent
    RECORD = "record"  # of `logs`: neither a record nor a blank that can be
    MISSING = "missing"  # of `logs`: no file
    DIFFERS = "differs"  # both sound, and not the same
    PARTED = "parted"  # both sound, of other lengths: from here on nothing lies where the other has it
    UNREAD = "unread"


@dataclass(slots=True)
class Fact:
    """`logs`: whom it is about; `good`: who holds the range sound; `sides`: the first record, side by side."""

    seen: Seen
    begin: int
    end: int
    logs: tuple[str, ...]
    good: tuple[str, ...] = ()
    note: str = ""
    records: int = 1
    sides: list[dict[str, Any]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Fact:
        return cls(**{**data, "seen": Seen(data["seen"]), "logs": tuple(data["logs"]), "good": tuple(data["good"])})


@dataclass(slots=True)
class Side:
    """One of the two logs within one file: what it has is `begin`..`end`."""

    log: PairLog
    source: Bytes
    begin: int
    end: int

    @property
    def id(self) -> str:
        return self.log.id

    def read(self, offset: int, length: int) -> bytes:
        """Zeros where a file is shorter than its log says."""
        length = max(0, min(length, self.end - offset))
        data = self.source.read(offset, length) if length else b""
        return data if len(data) == length else data.ljust(length, b"\0")


@dataclass(slots=True)
class Compared:
    """`records`, `size_bytes`: read, of both; `same_bytes`: equal in both."""

    facts: list[Fact] = field(default_factory=list)
    records: int = 0
    size_bytes: int = 0
    same_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Unit:
    """What begins at an offset: a record, a blank, or nothing sound (`why`)."""

    data: bytes
    is_record: bool
    why: str = ""


def compare_file(logs: Sequence[tuple[PairLog, Bytes]], start: int, window_bytes: int = WINDOW_BYTES) -> Compared:
    """One file of one log, or of two. The first of two is the master."""
    found = Compared()
    sides: list[Side] = []
    for log, source in logs:
        end = log.upto(start)
        if start in log.starts:
            sides.append(Side(log, source, start, end))
        elif log.begin < start < log.end:
            found.facts.append(Fact(Seen.MISSING, start, end, (log.id,), records=0, note="its file is not there"))
    if not sides:
        return found
    if found.facts:
        found.facts[0].good = tuple(one.id for one in sides)
    try:
        _Walk(sides, found, window_bytes).run()
    except ReadFailed as failed:  # also where a file expired since the audit began
        found.facts.append(Fact(Seen.UNREAD, start, max(one.end for one in sides), _ids(sides), note=str(failed)))
    return found


class _Walk:
    def __init__(self, sides: list[Side], found: Compared, window_bytes: int) -> None:
        self.sides = sides
        self.found = found
        self.window_bytes = window_bytes
        self._step_bytes = window_bytes  # small behind a difference: records that differ need not be neighbours
        self.file_bytes = sides[0].log.file_bytes

    def run(self) -> None:
        at, behind = self.sides[0].begin, 0
        upto = max(one.end for one in self.sides)
        while at < upto:
            live = [one for one in self.sides if one.end > at]
            data = [one.read(at, self._step_bytes) for one in live]
            self.found.size_bytes += sum(map(len, data))
            shared = min(map(len, data))
            if len(data) < 2 or data[0][:shared] == data[1][:shared]:
                at, behind = self._same(live, data, at, behind)
                continue
            at, behind = self._differ(live, data, at, behind)
        facts = self.found.facts
        if (
            facts
            and facts[-1].seen is Seen.DIFFERS
            and facts[-1].end == behind
            and at >= self.sides[0].begin + self.file_bytes
        ):
            facts[-1].end = self.sides[0].begin + self.file_bytes  # nothing but the blank lies behind it

    def _same(self, live: list[Side], data: list[bytes], at: int, behind: int) -> tuple[int, int]:
        """One walk over the longest, of which the other is the beginning."""
        longest = max(data, key=len)
        walked = walk(longest, at, self.file_bytes)
        reached = at + walked.at
        for has in data:
            self.found.records += bisect_left(walked.starts, len(has))
        if len(data) == 2:
            self.found.same_bytes += min(*map(len, data), walked.at)
        if walked.starts:
            behind = at + walked.starts[-1] + walked.sizes[-1]
        if walked.stop is Stop.END:
            self._step_bytes = max(self._step_bytes, min(2 * self._step_bytes, self.window_bytes))
            return reached, behind
        if walked.stop is Stop.PARTIAL and at + len(longest) < max(one.end for one in live):
            self._step_bytes = max(walked.needs, min(2 * self._step_bytes, self.window_bytes))
            return reached, behind
        bad = [one for one in live if one.end > reached]
        why = walked.why or ("it is not whole" if walked.stop is Stop.PARTIAL else "nothing is written there")
        after = self._next_sound(bad, reached + 1)
        self._add(Fact(_kind(why), reached, after, _ids(bad), note=why, sides=self._shown(bad, reached)))
        return after, after

    def _differ(self, live: list[Side], data: list[bytes], at: int, behind: int) -> tuple[int, int]:
        """Record by record through the window; what is equal before the first difference is walked at once."""
        shared = min(map(len, data))
        differs = _first_difference(data[0], data[1], shared)
        walked = walk(data[0][:differs], at, self.file_bytes)
        if walked.starts:
            behind = at + walked.starts[-1] + walked.sizes[-1]
        self.found.records += 2 * len(walked.starts)
        self.found.same_bytes += walked.at
        here = at + walked.at
        if walked.stop in (Stop.BAD, Stop.UNWRITTEN):
            return self._judge(live, here, behind)
        if walked.at:
            return here, behind
        return self._judge(live, here, behind)

    def _judge(self, live: list[Side], at: int, behind: int) -> tuple[int, int]:
        """The units at `at` of two sides, and on through all that follow while they differ."""
        self._step_bytes = min(STEP_BYTES, self.window_bytes)
        while True:
            units = [self._unit(one, at) for one in live]
            sound = [not one.why for one in units]
            self.found.records += sum(one.is_record for one in units)
            if all(sound):
                if units[0].data == units[1].data:
                    self.found.same_bytes += len(units[0].data)
                    return at + len(units[0].data), at + len(units[0].data) if units[0].is_record else behind
                if len(units[0].data) != len(units[1].data) or not units[0].is_record:
                    return self._parted(live, at), behind
                after = at + len(units[0].data)
                self._add(Fact(Seen.DIFFERS, at, after, _ids(live), sides=self._shown(live, at)))
            elif any(sound):
                good, bad = (0, 1) if sound[0] else (1, 0)
                after = at + len(units[good].data)
                why = units[bad].why
                ids = (live[bad].id,)
                sides = self._shown([live[bad], live[good]], at)
                self._add(Fact(_kind(why), at, after, ids, (live[good].id,), why, sides=sides))
            else:
                after = self._next_sound(live, at + 1)
                for one, unit in zip(live, units, strict=True):
                    self._add(Fact(_kind(unit.why), at, after, (one.id,), note=unit.why, sides=self._shown(live, at)))
            at = behind = after
            if any(one.end <= at for one in live) or at >= self.sides[0].begin + self.file_bytes:
                return at, behind

    def _parted(self, live: list[Side], at: int) -> int:
        """Both histories go on by themselves; each is still held against itself."""
        end = max(one.end for one in live)
        fact = Fact(Seen.PARTED, at, end, _ids(live), sides=self._shown(live, at))
        self._add(fact)
        for one in live:
            alone = Compared()
            other = Side(one.log, one.source, self.sides[0].begin, one.end)
            _Walk([other], alone, self.window_bytes).alone(at)
            self.found.facts += alone.facts
            self.found.records += alone.records
        return end

    def alone(self, at: int) -> None:
        """One side from `at` on, against itself."""
        behind = at
        while at < self.sides[0].end:
            at, behind = self._same(self.sides, [self.sides[0].read(at, self.window_bytes)], at, behind)

    def _unit(self, side: Side, at: int) -> Unit:
        head = side.read(at, _BLANK_HEAD)
        size = int.from_bytes(head[:4], "big", signed=True)
        left = min(side.end, self.sides[0].begin + self.file_bytes) - at
        if not 0 < size <= min(left, MESSAGE_BYTES_MAX):
            size = min(left, _BLANK_HEAD)
        data = side.read(at, size)
        walked = walk(data, at, self.file_bytes)
        if walked.at != len(data):
            why = walked.why or ("it is not whole" if walked.stop is Stop.PARTIAL else "nothing is written there")
            return Unit(b"", False, why)
        return Unit(data, bool(walked.starts))

    def _next_sound(self, sides: Sequence[Side], at: int) -> int:
        """Where the next record begins, in any of the sides, that says itself that it lies there and is sound."""
        found = [place for one in sides if (place := self._next_in(one, at)) is not None]
        return min(found, default=max(one.end for one in sides))

    def _next_in(self, side: Side, at: int) -> int | None:
        for base, piece in _pieces(side, at, self.window_bytes):
            near = piece.find(_MAGIC_BEGINS)
            while near >= 0:
                place = base + near - _MAGIC_AT
                if place >= at and self._vouches(side, place):
                    return place
                near = piece.find(_MAGIC_BEGINS, near + 1)
        return None

    def _vouches(self, side: Side, place: int) -> bool:
        head = side.read(place, PHYSICAL_OFFSET_AT + 8)
        if int.from_bytes(head[PHYSICAL_OFFSET_AT:], "big", signed=True) != place:
            return False
        unit = self._unit(side, place)
        return unit.is_record and not flaw_of(unit.data, 0, place)

    def _shown(self, sides: Sequence[Side], at: int) -> list[dict[str, Any]]:
        """Only of a fact that begins a run: whoever reads wants the first."""
        facts = self.found.facts
        if facts and facts[-1].end == at and facts[-1].seen is Seen.DIFFERS:
            return []
        units = [self._unit(one, at).data for one in sides]
        size = max(map(len, units)) or SHOWN_BYTES
        data = [unit or one.read(at, size) for one, unit in zip(sides, units, strict=True)]
        differs = _first_difference(data[0], data[1], min(map(len, data))) if len(data) == 2 else 0
        return [side_of(one.id, part, at, differs) for one, part in zip(sides, data, strict=True)]

    def _add(self, fact: Fact) -> None:
        """Runs of the same kind, about the same logs, are one fact."""
        for last in reversed(self.found.facts[-2:]):
            same = (last.seen, last.logs, last.good) == (fact.seen, fact.logs, fact.good)
            if same and last.end == fact.begin and fact.seen is not Seen.PARTED:
                last.end = fact.end
                last.records += fact.records
                return
        self.found.facts.append(fact)


def _pieces(side: Side, at: int, size_bytes: int) -> Iterator[tuple[int, bytes]]:
    while at < side.end:
        data = side.read(at, size_bytes)
        yield at, data
        at += max(len(data) - len(_MAGIC_BEGINS) + 1, 1) if len(data) > len(_MAGIC_BEGINS) else len(data) or 1


def _first_difference(one: bytes, other: bytes, shared: int) -> int:
    """Halving: comparing slices is a hundred times as fast as comparing bytes one by one."""
    low, high = 0, shared
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _kind(why: str) -> Seen:
    return Seen.CRC if "CRC" in why else Seen.RECORD


def _ids(sides: Sequence[Side]) -> tuple[str, ...]:
    return tuple(one.id for one in sides)
