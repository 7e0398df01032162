"""Which members a step touched: what the invariants have to look at after it.

Theory. An invariant asks about a member's own state, and that changes only while something of the member runs: its
loop or one of its threads, or what starts, stops and ends it. Whoever runs one of these sets the member's `touched`. So
after a step it is enough to look at those who are touched, and at what time alone makes wrong (a leader that hears
nobody).

Invariants: a member that is not touched is what it was after the step before, in everything that an invariant reads
after a step (`test_touched.py` compares it all, in every kind of world); every hundredth step everybody counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

EVERYBODY_EVERY = 100


class Touchable(Protocol):
    """A member, in a world of either kind."""

    touched: bool


T = TypeVar("T", bound=Touchable)


def take_touched(members: Iterable[T], steps: int) -> list[T]:
    """Who was touched since this was asked last, in the order of `members`; `steps`: the number of this step."""
    everybody = steps % EVERYBODY_EVERY == 0
    found = [one for one in members if one.touched or everybody]
    for one in found:
        one.touched = False
    return found
