"""Pins that others ask for: whose name is taken, how many there are, and that those of a client that died end."""

from __future__ import annotations

import asyncio
import random

import pytest

from node.engine.pin_leases import LEASES_MAX, MACHINE, SENT, PinLeases
from node.protocol.entry import EntryError
from node.store.memory_store import MemoryStore


def test_nobody_moves_or_releases_what_this_member_pins_for_itself() -> None:
    """An operator's pin of that name took the place of the state machine's, and its end released it."""

    async def main() -> None:
        store = MemoryStore()
        leases = PinLeases(store)
        for own in (MACHINE, SENT):
            store.pin(0, own)
            with pytest.raises(EntryError, match="own"):
                leases.pin(own, 0, 1)
            leases.release(own)
        assert store.pins.held() == [(MACHINE, 0), (SENT, 0)]
        leases.stop()

    asyncio.run(main())


def test_however_many_pins_others_hold_there_is_room_for_this_members_own() -> None:
    async def main() -> None:
        store, rng = MemoryStore(), random.Random(11)
        leases = PinLeases(store)
        names = [f"{rng.randrange(10**9)} {number}" for number in range(LEASES_MAX)]
        for name in names:
            leases.pin(name, 0, rng.randrange(1, 10**6))
        with pytest.raises(EntryError, match=f"{LEASES_MAX} pins"):
            leases.pin("one more", 0, 60)
        leases.pin(names[0], 0, 60)  # the same again
        store.pin(0, MACHINE)
        store.pin(0, SENT)
        leases.release(names[1])
        leases.pin("one more", 0, 60)
        assert len(store.pins.held()) == LEASES_MAX + 2
        leases.stop()

    asyncio.run(main())


def test_a_pin_of_a_client_that_died_ends_by_itself() -> None:
    async def main() -> None:
        store = MemoryStore()
        leases = PinLeases(store)
        for owner in ("died", "died too"):
            leases.pin(owner, 0, 0)
        for _ in range(6000):
            await asyncio.sleep(0.01)
            if not store.pins.held():
                return
        raise AssertionError(store.pins.held())

    asyncio.run(main())


def test_a_renewed_pin_lasts_for_its_new_time() -> None:
    """The time of the pin before is over at once: it must not take the new one with it."""

    async def main() -> None:
        store = MemoryStore()
        leases = PinLeases(store)
        leases.pin("audit", 0, 0)
        leases.pin("audit", 0, 3600)
        leases.pin("other", 0, 0)
        for _ in range(6000):
            await asyncio.sleep(0.01)
            if ("other", 0) not in store.pins.held():
                break
        assert store.pins.held() == [("audit", 0)]
        leases.stop()

    asyncio.run(main())
