"""The fence: what each replica held when the audit began, and so what it covers.

Invariants: nothing above a replica's durable end at that moment is read from it. A difference above the committed index
is innocent, and that index is the highest that any replica vouches for; but for a difference between replicas of which
one cannot tell its own (a Java node's store does not persist it) it is unknown (None): what is unknown excuses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from app.audit.segments import Segment

SEALED_FOR_GOOD = (1 << 63) - 1


class FenceError(Exception):
    """The audit makes no sense as asked for; the message says why."""


@dataclass(frozen=True, slots=True)
class Truncated:
    """One record of a replica's truncation archive; `entries` are (index, term) of what it holds, where asked for."""

    seq: int
    from_index: int
    to_index: int
    committed_index: int | None
    leader_id: str | None
    reason: str
    time: str
    entries: tuple[tuple[int, int], ...] = ()
    begins_behind: int = -1  # what is archived was replaced by a log that begins behind that entry
    # Archived entries that stand in the committed log today, as (first, last) of a run; found after the fence.
    committed_again: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ReplicaFence:
    """One replica at the fence. `problem` is set where it could not be read at all; then the indexes mean nothing."""

    id: str
    source: str
    kind: str  # "http" or "directory"
    group: str | None = None
    java: bool = False
    begin_index: int = 0
    end_index: int = -1
    committed_index: int | None = None
    sealed_from: int | None = None
    sealed_until: int | None = None  # where a Java node went on with a store of ours; None: nowhere
    etag: str | None = None
    segments: tuple[Segment, ...] = ()
    truncations: tuple[Truncated, ...] = ()
    problem: str | None = None

    @property
    def empty(self) -> bool:
        return self.end_index < self.begin_index

    @property
    def sealed_range(self) -> tuple[int, int] | None:
        """From where on, and below which index, every entry has to carry its seal; None: nobody says."""
        if self.sealed_from is None:
            return None
        return self.sealed_from, SEALED_FOR_GOOD if self.sealed_until is None else self.sealed_until

    def holds(self, index: int) -> bool:
        return self.problem is None and self.begin_index <= index <= self.end_index

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ReplicaFence:
        segments = tuple(Segment(**one) for one in data["segments"])
        truncations = tuple(
            Truncated(**{**one, "entries": tuple((i, t) for i, t in one["entries"])}) for one in data["truncations"]
        )
        return cls(**{**data, "segments": segments, "truncations": truncations})

    def summary(self) -> dict[str, Any]:
        """What the result says of a replica."""
        known = self.problem is None
        return {
            "id": self.id,
            "source": self.source,
            "kind": self.kind,
            "java": self.java if known else None,
            "begin_index": self.begin_index if known else None,
            "end_index": (self.end_index if not self.empty else -1) if known else None,
            "committed_index": self.committed_index if known else None,
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True)
class Fence:
    """All replicas, and the asked-for range clipped to what at least one of them holds."""

    replicas: tuple[ReplicaFence, ...]
    asked_from: int | None = None
    asked_to: int | None = None
    taken_at: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def readable(self) -> tuple[ReplicaFence, ...]:
        return tuple(r for r in self.replicas if r.problem is None)

    @property
    def holders(self) -> tuple[ReplicaFence, ...]:
        """Readable replicas with at least one entry."""
        return tuple(r for r in self.readable if not r.empty)

    @property
    def from_index(self) -> int:
        low = min((r.begin_index for r in self.holders), default=0)
        return low if self.asked_from is None else max(low, self.asked_from)

    @property
    def to_index(self) -> int:
        high = max((r.end_index for r in self.holders), default=-1)
        return high if self.asked_to is None else min(high, self.asked_to)

    @property
    def committed_index(self) -> int | None:
        """The highest committed index that any readable replica vouches for."""
        return max((r.committed_index for r in self.readable if r.committed_index is not None), default=None)

    def committed_for(self, replica_ids: Sequence[str]) -> int | None:
        """The bound above which a difference among these replicas is innocent; None where one cannot tell."""
        involved = [r for r in self.readable if r.id in replica_ids]
        if any(r.committed_index is None for r in involved):
            return None
        return self.committed_index

    def replica(self, replica_id: str) -> ReplicaFence:
        return next(r for r in self.replicas if r.id == replica_id)

    def end_within(self, replica: ReplicaFence) -> int:
        return min(replica.end_index, self.to_index)

    def begin_within(self, replica: ReplicaFence) -> int:
        return max(replica.begin_index, self.from_index)

    def as_json(self) -> dict[str, Any]:
        return {
            "from_index": self.from_index,
            "to_index": self.to_index,
            "committed_index": self.committed_index,
            "taken_at": self.taken_at,
        }


def coverage(fence: Fence) -> list[tuple[int, int, tuple[str, ...]]]:
    """The fence's range cut where the set of replicas that hold it changes; ranges that nobody holds are left out."""
    edges = {fence.from_index, fence.to_index + 1}
    for replica in fence.holders:
        for edge in (replica.begin_index, replica.end_index + 1):
            if fence.from_index < edge <= fence.to_index:
                edges.add(edge)
    ordered = sorted(edges)
    cuts: list[tuple[int, int, tuple[str, ...]]] = []
    for low, after in pairwise(ordered):
        ids = tuple(r.id for r in fence.holders if r.holds(low))
        if ids and low < after:
            cuts.append((low, after - 1, ids))
    return cuts
