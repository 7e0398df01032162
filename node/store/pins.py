"""Pins: who still needs entries; from a pin on, nothing is removed from the front of the log.

A snapshot that is being sent, an applier that reads, an audit: each pins the first entry that it needs, under its name.
Invariants: one pin per owner, at most `PINS_MAX`; pins are in memory and end with the process, as their owners do.
"""

from __future__ import annotations

from typing import Final

from node.protocol.entry import EntryError
from node.store.errors import StoreError

PINS_MAX: Final = 64
OWNER_CHARS_MAX: Final = 100


class PinnedError(StoreError):
    """A prefix was to go that somebody needs; nothing was removed."""

    def __init__(self, index: int, owner: str, through_index: int) -> None:
        super().__init__(f"entries up to {through_index} stay: {owner} needs those from {index} on")
        self.index = index
        self.owner = owner


class Pins:
    """The pins of one log."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}

    def pin(self, index: int, owner: str, begin_index: int) -> None:
        """Keeps entries from `index` on; an owner's newer pin replaces the one before. Raises EntryError."""
        if index < begin_index:
            raise EntryError(
                f"entry {index} is gone, the log begins at {begin_index}: {owner or 'nobody'} cannot pin it"
            )
        if not 0 < len(owner) <= OWNER_CHARS_MAX:
            raise EntryError(f"the owner of a pin has a name of 1 to {OWNER_CHARS_MAX} characters")
        if owner not in self._of and len(self._of) >= PINS_MAX:
            raise EntryError(f"{PINS_MAX} pins are held already: {owner} has to wait until an owner releases one")
        self._of[owner] = index

    def release(self, owner: str) -> None:
        """The owner needs nothing any more; one without a pin is fine."""
        self._of.pop(owner, None)

    def refuse(self, through_index: int) -> None:
        """Raises PinnedError where an entry up to `through_index` is needed."""
        first = min(self.held(), key=lambda pin: pin[1], default=None)
        if first is not None and first[1] <= through_index:
            raise PinnedError(first[1], first[0], through_index)

    def held(self) -> list[tuple[str, int]]:
        """Owners and their pins. A copy: the writer asks while the loop pins and releases."""
        return list(self._of.items())
