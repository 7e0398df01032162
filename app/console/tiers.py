"""The three tiers of history and how a finer one is folded into a coarser.

1 s for an hour (memory only), 10 s for a day, 5 min for 30 days. Invariants: a bucket keeps the *worst* lag (and the
band min..max) and the last of everything else; a bucket nobody sampled does not exist: gaps stay gaps.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np

from app.console.packing import NULL, Column
from app.health.group_view import MemberView
from app.times import CLOCKS_DIFFER

VALUES = ("begin", "applied", "committed", "durable", "end", "lag")
COLUMNS = ("t", *VALUES, "lag_min", "lag_max", "role", "term", "lag_bytes", "lag_ms")
ROLES = ("", "FOLLOWER", "CANDIDATE", "LEADER")


@dataclass(frozen=True, slots=True)
class Tier:
    step_s: int
    keep_s: int
    stored: bool


TIERS: tuple[Tier, ...] = (Tier(1, 3600, False), Tier(10, 86_400, True), Tier(300, 30 * 86_400, True))
Row = list[int]
T, LAG, LAG_MIN, LAG_MAX = (COLUMNS.index(name) for name in ("t", "lag", "lag_min", "lag_max"))
AHEAD_S = CLOCKS_DIFFER.total_seconds()
WORST = tuple(COLUMNS.index(name) for name in ("lag_bytes", "lag_ms"))


def row_of(at_s: int, member: MemberView, lag: int | None) -> Row:
    """One sample of one replica; of a silent one only how far behind it is. A role that is NULL marks it."""
    mark = member.mark
    in_units = (0, 0) if lag == 0 else [None if one is None else round(one) for one in (mark.lag_bytes, mark.lag_ms)]
    if member.reach == "ok":
        log = member.log
        marks = (log.begin_index, log.applied_index, log.committed_index, log.durable_index, log.end_index)
        role = ROLES.index(member.role) if member.role in ROLES else 0
        values = (*marks, lag, lag, lag, role, member.term, *in_units)
    else:
        values = (*(None for _ in VALUES[:-1]), lag, lag, lag, None, None, *in_units)
    return [at_s, *(NULL if one is None else one for one in values)]


def fold(into: Row, row: Row) -> None:
    """Adds a sample to a bucket: worst lag, last of the rest."""
    low = min((one for one in (into[LAG_MIN], row[LAG_MIN]) if one != NULL), default=NULL)
    high = max(into[LAG_MAX], row[LAG_MAX])
    at_s = into[T]
    worst = [max(into[place], row[place]) for place in WORST]
    for place, value in enumerate(row):
        if value != NULL:
            into[place] = value
    into[T], into[LAG_MIN], into[LAG_MAX], into[LAG] = at_s, low, high, high
    for place, value in zip(WORST, worst, strict=True):
        into[place] = value


@dataclass(slots=True)
class Buckets:
    """One replica's rows of one tier, ascending by time; the last one is still filling."""

    tier: Tier
    rows: list[Row] = field(default_factory=list)
    # Rows from here on have not been saved yet.
    dirty_from_s: int | None = None

    def add(self, row: Row) -> None:
        at_s = row[T] - row[T] % self.tier.step_s
        if self.rows and self.rows[-1][T] - at_s > AHEAD_S:
            del self.rows[self.place(at_s) :]  # of a clock that was ahead: until then nothing new would be seen
            self.dirty_from_s = at_s if self.dirty_from_s is None else min(self.dirty_from_s, at_s)
        if self.rows and self.rows[-1][T] >= at_s:
            fold(self.rows[-1], row)  # also when the wall clock stepped back: time never runs backwards in here
        else:
            self.rows.append([at_s, *row[1:]])
        at_s = self.rows[-1][T]
        self.dirty_from_s = at_s if self.dirty_from_s is None else min(self.dirty_from_s, at_s)

    def trim(self, now_s: int, keep_s: int) -> None:
        cut = self.place(now_s - keep_s)
        if cut > 0:
            del self.rows[:cut]

    def place(self, at_s: float) -> int:
        """Where the first row at or after `at_s` is."""
        return bisect_left(self.rows, at_s, key=lambda row: row[T])

    def between(self, since_s: float, until_s: float) -> list[Row]:
        return self.rows[self.place(since_s) : self.place(until_s + 1)]


def to_columns(rows: list[Row]) -> dict[str, Column]:
    table = np.array(rows, dtype=np.int64).reshape(len(rows), len(COLUMNS))
    return {name: np.ascontiguousarray(table[:, place]) for place, name in enumerate(COLUMNS)}


def to_rows(columns: dict[str, Column]) -> list[Row]:
    count = len(columns["t"])
    missing = np.full(count, NULL, dtype=np.int64)
    rows: list[Row] = np.stack([columns.get(name, missing) for name in COLUMNS], axis=1).tolist()
    return rows


def bucketed(rows: list[Row], step_s: int) -> list[Row]:
    """Rows folded to a coarser step."""
    out: list[Row] = []
    for row in rows:
        at_s = row[T] - row[T] % step_s
        if out and out[-1][T] == at_s:
            fold(out[-1], row)
        else:
            out.append([at_s, *row[1:]])
    return out
