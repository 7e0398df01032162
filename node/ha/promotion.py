"""Which slave of a pair may become its master without losing what was answered.

What a SYNC_MASTER answered is on as many slaves as it waited for, so on the slave that has most of those it could have
waited for: the ones that heard of the newest promotion. One whose log ends before that promotion lacks what was
answered before it, however much of an older branch it holds. A master that lost power begins an epoch where its log
ends then: what a slave holds beyond, of the epoch before, was never answered, so the later epoch goes before the length
(Raft, section 5.4.1).

Invariant: nothing is decided here; an operator is shown what follows.
"""

from __future__ import annotations

from collections.abc import Sequence

from node.ha.lineage import PROMOTION, Lineage
from node.protocol.value_class import value_class


@value_class(slots=True, frozen=True)
class Candidate:
    """A broker of the pair: its epochs, and where its log ends."""

    name: str
    lineage: Lineage
    end: int


def era_of(lineage: Lineage) -> int:
    """How many promotions it heard of."""
    return lineage.epoch // PROMOTION


def best(candidates: Sequence[Candidate]) -> Candidate | None:
    """The one that lacks least; None: none of them has what was answered before the newest promotion."""
    era = max((era_of(one.lineage) for one in candidates), default=0)
    heard = [one for one in candidates if one.lineage.pair and era_of(one.lineage) == era]
    found = max(heard, key=_newest_held, default=None)
    return None if found is None or found.end < max(began(found.lineage), 1) else found


def _newest_held(one: Candidate) -> tuple[int, int]:
    """The epoch of the last byte, and where that is."""
    return max((number for number, start in one.lineage.epochs if start < one.end), default=0), one.end


def began(lineage: Lineage) -> int:
    """Where the log ended at the newest promotion that it heard of."""
    era = era_of(lineage)
    return min((start for number, start in lineage.epochs if number // PROMOTION == era), default=0)
