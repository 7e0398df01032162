"""Pins that others ask for (an audit, a back-up, a reader of old entries), each for a bounded time.

A pin keeps entries from the retention policy; its owner renews it, and one that crashed loses it. The store keeps who
pins what (`store/pins.py`); here is until when.

Invariants: a pin ends at its time, at its owner's word, or with the engine; a shorter time replaces a longer one; what
this process pins for itself is nobody else's to move or to release, and there is always room for it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from node.protocol.entry import EntryError
from node.store.log_store import LogStore
from node.store.pins import PINS_MAX
from node.views.state import PinView

PIN_S_MAX: Final = 24 * 3600
MACHINE: Final = "the state machine"  # whose pin keeps what it needs again after a restart
SENT: Final = "a snapshot that is being sent"  # whose pin keeps what comes behind it for who gets it
OWN: Final = frozenset({MACHINE, SENT})
LEASES_MAX: Final = PINS_MAX - len(OWN)


class PinLeases:
    """One per engine; lives on its loop."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._ends: dict[str, asyncio.TimerHandle] = {}

    def pin(self, owner: str, from_index: int, for_s: int) -> None:
        """Keeps entries from `from_index` on for so long. Raises EntryError where they are gone, or too many pin."""
        if owner in OWN:
            raise EntryError(f"{owner!r} is this member's own: give your pin another name")
        if owner not in self._ends and len(self._ends) >= LEASES_MAX:
            raise EntryError(f"{LEASES_MAX} pins are held already: {owner} has to wait until an owner releases one")
        self._store.pin(from_index, owner)
        if owner in self._ends:
            self._ends[owner].cancel()
        self._ends[owner] = self._loop.call_later(min(for_s, PIN_S_MAX), self.release, owner)

    def release(self, owner: str) -> None:
        """The owner needs nothing any more; one without a pin is fine."""
        timer = self._ends.pop(owner, None)
        if timer is not None:
            timer.cancel()
            self._store.release(owner)

    def stop(self) -> None:
        for timer in self._ends.values():
            timer.cancel()

    def views(self) -> tuple[PinView, ...]:
        """Who pins what, and for how much longer; null: until its owner says so."""
        now = self._loop.time()
        ends = {owner: max(0, round(timer.when() - now)) for owner, timer in self._ends.items()}
        held = sorted(self._store.pins.held(), key=lambda pin: pin[1])
        return tuple(PinView(owner=owner, from_index=index, expires_in_s=ends.get(owner)) for owner, index in held)
