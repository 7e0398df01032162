"""Holds messages back until a record is durable: those that speak of a term, vote or state being saved.

Saves happen off the loop, one after the other, and each has a number. A save that messages speak of holds back every
message from its batch on, in their order; one that only records peers holds back nothing (the core counts nobody before
it hears that the record is durable).

What waited is looked at once more when it would leave (`Replica.as_it_leaves`): the vote may have been given up since,
the log have grown, a transfer's time be up. What is stale is dropped; the core repeats what still holds.

Invariants: nothing leaves before the newest save that had been ordered when it was made, and that is spoken of, is
durable; the order stays; what waits is bounded (messages may get lost: the core repeats what matters).
"""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

T = TypeVar("T")
WAITING_MAX: Final = 4096


class HeldBack(Generic[T]):
    """One per driver; it sends what is released."""

    def __init__(self) -> None:
        self._ordered = 0
        self._needed = 0  # the newest save that messages speak of
        self._durable = 0
        self._waiting: deque[tuple[int, T]] = deque()

    @property
    def closed(self) -> bool:
        """Whether what is made now has to wait."""
        return self._needed > self._durable

    def ordered(self, *, spoken_of: bool) -> int:
        """A save was ordered; its number."""
        self._ordered += 1
        if spoken_of:
            self._needed = self._ordered
        return self._ordered

    def hold(self, item: T) -> None:
        """Keeps it for later, behind what is kept already."""
        if len(self._waiting) < WAITING_MAX:
            self._waiting.append((self._needed, item))

    def durable(self, number: int) -> list[T]:
        """That save is durable: what may leave now, in order."""
        self._durable = max(self._durable, number)
        free: list[T] = []
        while self._waiting and self._waiting[0][0] <= self._durable:
            free.append(self._waiting.popleft()[1])
        return free
