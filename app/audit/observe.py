"""Facts: what the comparison of one block saw, without a verdict; small, for they travel from worker to driver.

A fact covers a run of indexes with the same signature. Invariant: facts of neighbouring blocks that continue each other
join into the one fact that a single large block would have given (`join`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any


class Seen(StrEnum):
    """The kinds of facts."""

    MISSING = "missing"
    RECORD = "record"
    INDEX = "index"
    CRC = "crc"
    CHAIN = "chain"
    FILLER = "filler"
    UNREAD = "unread"
    DIFFERS = "differs"
    HISTORY = "history"  # equal entries on different chains: what came before them differs
    POSITION = "position"


@dataclass(frozen=True, slots=True)
class Fact:
    """`replicas` it is about; `good` hold a sound record there; `sides` (DIFFERS) are the groups of equal content."""

    seen: Seen
    from_index: int
    to_index: int
    replicas: tuple[str, ...]
    good: tuple[str, ...] = ()
    sides: tuple[tuple[str, ...], ...] = ()
    terms: tuple[int, ...] = ()  # of each side, at from_index
    same_terms: bool = False
    note: str = ""

    @property
    def count(self) -> int:
        return self.to_index - self.from_index + 1

    def as_json(self) -> list[Any]:
        return [
            self.seen.value, self.from_index, self.to_index, self.replicas, self.good, self.sides, self.terms,
            self.same_terms, self.note,
        ]  # fmt: skip

    @classmethod
    def from_json(cls, row: Sequence[Any]) -> Fact:
        seen, low, high, replicas, good, sides, terms, same_terms, note = row
        return cls(
            Seen(seen), low, high, tuple(replicas), tuple(good), tuple(tuple(side) for side in sides), tuple(terms),
            same_terms, note,
        )  # fmt: skip


def join(facts: Iterable[Fact]) -> list[Fact]:
    """Joins facts that continue each other; the first one's terms and note stay. Sorted by where they start."""
    open_runs: dict[tuple[Any, ...], Fact] = {}
    done: list[Fact] = []
    for fact in sorted(facts, key=lambda f: (f.from_index, f.seen)):
        key = (fact.seen, fact.replicas, fact.good, fact.sides, fact.same_terms)
        before = open_runs.get(key)
        if before is not None and before.to_index + 1 == fact.from_index:
            open_runs[key] = replace(before, to_index=fact.to_index)
            continue
        if before is not None:
            done.append(before)
        open_runs[key] = fact
    return sorted([*done, *open_runs.values()], key=lambda f: (f.from_index, f.seen, f.replicas))
