"""Real members whose disks rot: what was flipped in their files comes back from their peers, byte for byte."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from node.client import LedgerClient, LedgerError
from node.protocol.entry import HEAD_BYTES
from node.store.reader import StoreReader
from tests.process.group import Group, append_surely

pytestmark = pytest.mark.process

IDS = ("n0", "n1", "n2")
WITHIN_S = 60.0


class Repairing(Group):
    """Scrubs as fast as it is told to."""

    scrub: tuple[str, ...] = ("--set", "store.scrub_bytes_per_s=0")

    def arguments(self, node_id: str, *more: str) -> list[str]:
        return super().arguments(node_id, *self.scrub, *more)

    def store(self, node_id: str) -> Path:
        return self.directory / node_id / f"dledger-{node_id}"

    def flip(self, node_id: str, index: int, offset: int) -> None:
        """One byte of an entry's record, `offset` from its start, as a disk would that lost it."""
        reader = StoreReader(self.store(node_id))
        entry = reader.entry(index)
        assert entry is not None and entry.index == index
        file_bytes = reader.segments()[0].size_bytes
        name = f"{entry.pos // file_bytes * file_bytes:020d}"
        with (self.store(node_id) / "data" / name).open("r+b") as file:
            file.seek(entry.pos % file_bytes + offset)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 0x40]))

    def records(self, node_id: str, last_index: int) -> bytes:
        """Every record up to `last_index`, in order, as it lies in the files; all of the log is verified."""
        reader = StoreReader(self.store(node_id))
        assert reader.verify().problems == [] and reader.end_index >= last_index
        return b"".join(bytes(slab.data) for slab in reader.slabs(0, last_index))

    def bodies(self, node_id: str, indexes: list[int]) -> list[bytes]:
        reader = StoreReader(self.store(node_id))
        found = [reader.entry(index) for index in indexes]
        return [b"" if entry is None else entry.body for entry in found]


@pytest.fixture
def group(tmp_path: Path) -> Any:
    made = Repairing(tmp_path)
    try:
        yield made
    finally:
        made.close()


async def until(what: str, holds: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        try:
            if await holds():
                return
        except LedgerError:
            pass
        await asyncio.sleep(0.05)
    raise AssertionError(f"it did not come about: {what}")


class Load:
    """Appends, one after the other, for as long as it is told to; keeps what was acknowledged."""

    def __init__(self, group: Group) -> None:
        self.client = group.client(deadline_s=WITHIN_S)
        self.acknowledged: dict[int, bytes] = {}
        self.stopped = False
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        number = 0
        while not self.stopped:
            number += 1
            body = b"%06d " % number + b"x" * 400
            try:
                self.acknowledged[(await self.client.append(body)).first_index] = body
            except LedgerError:
                await asyncio.sleep(0.05)

    async def reached(self, count: int) -> None:
        async def enough() -> bool:
            return len(self.acknowledged) >= count

        await until(f"{count} appends", enough)

    async def stop(self) -> None:
        self.stopped = True
        await self.task
        await self.client.close()


async def repairs_of(client: LedgerClient, node_id: str) -> list[dict[str, Any]]:
    reported = await client.introspect(node_id, "events")
    return [one["detail"] for one in reported["items"] if one["kind"] == "repair"]


async def sound(client: LedgerClient, *node_ids: str) -> None:
    for node_id in node_ids:

        async def whole(one: str = node_id) -> bool:
            state = await client.state(one)
            return state["faults"] == [] and not [a for a in state["alarms"] if a["code"].startswith("log_")]

        await until(f"{node_id} is sound", whole)


async def level(client: LedgerClient, index: int) -> None:
    for node_id in IDS:

        async def there(one: str = node_id) -> bool:
            return bool((await client.state(one))["log"]["committed_index"] >= index)

        await until(f"{node_id} has entry {index}", there)


def same_everywhere(group: Repairing, acknowledged: dict[int, bytes]) -> None:
    """After an orderly end: logs that hold everything that was acknowledged, byte for byte the same up to there.

    (Whoever is ended last may lead once more, and say so in an entry of its own.)
    """
    for node_id in list(group.processes):
        assert group.kill(node_id, signal.SIGTERM) == 0
    indexes = sorted(acknowledged)
    logs = [group.records(node_id, indexes[-1]) for node_id in IDS]
    assert logs[0] == logs[1] == logs[2]
    assert group.bodies("n1", indexes) == [acknowledged[index] for index in indexes]


def test_members_that_were_damaged_while_they_were_down_come_back_whole_under_load(group: Repairing) -> None:
    async def run() -> None:
        load = Load(group)
        await load.reached(300)
        before = sorted(load.acknowledged)
        await level(load.client, before[-1])
        group.kill("n1")
        group.flip("n1", before[60], HEAD_BYTES + 3)  # a body
        group.flip("n1", before[90], 20)  # a head: the term
        group.flip("n1", before[91], 40)  # its neighbour's chain
        group.kill("n2")
        group.flip("n2", before[200], HEAD_BYTES + 399)
        group.start("n1", "n2")
        client = group.client(deadline_s=WITHIN_S)
        await sound(client, "n1", "n2")
        healed = await repairs_of(client, "n1")
        assert [(one["first_index"], one["last_index"]) for one in healed] == [
            (before[60], before[60]),
            (before[90], before[91]),
        ]
        assert all(one["peer"] in ("n0", "n2") for one in healed)
        assert [one["first_index"] for one in await repairs_of(client, "n2")] == [before[200]]
        await load.reached(len(load.acknowledged) + 100)
        await load.stop()
        await level(client, max(load.acknowledged))
        await client.close()
        same_everywhere(group, load.acknowledged)

    group.start_all()
    asyncio.run(run())


def test_the_scrub_finds_rot_while_members_run_the_leader_too(group: Repairing) -> None:
    async def run() -> None:
        load = Load(group)
        await load.reached(200)
        client = group.client(deadline_s=WITHIN_S)
        before = sorted(load.acknowledged)
        await level(client, before[-1])
        leader = await client.leader()
        follower = next(one for one in IDS if one != leader)
        for number, victim in enumerate((follower, leader)):
            index = before[50 + 60 * number]
            group.flip(victim, index, HEAD_BYTES + 7)

            async def repaired(one: str = victim, at: int = index) -> bool:
                return at in [detail["first_index"] for detail in await repairs_of(client, one)]

            await until(f"{victim} found and repaired entry {index}", repaired)
        await sound(client, *IDS)
        await load.reached(len(load.acknowledged) + 50)
        await load.stop()
        await level(client, max(load.acknowledged))
        await client.close()
        same_everywhere(group, load.acknowledged)

    group.scrub = ("--set", "store.scrub_bytes_per_s=16777216", "--set", "store.scrub_pause_s=1")
    group.start_all()
    asyncio.run(run())


def test_what_nobody_can_give_is_said_and_the_others_go_on(group: Repairing) -> None:
    """Two of three lost the same committed entry, and the third is down: nothing is given up, nobody leads without it;
    when the third comes back, everything heals."""

    async def run() -> None:
        client = group.client(deadline_s=WITHIN_S)
        indexes = [await append_surely(client, b"entry %d" % number) for number in range(50)]
        await level(client, indexes[-1])
        for node_id in IDS:
            group.kill(node_id, signal.SIGTERM)
        for node_id in ("n0", "n1"):
            group.flip(node_id, indexes[20], HEAD_BYTES + 2)
        group.start("n0", "n1")

        async def waits(node_id: str) -> bool:
            state = await client.state(node_id)
            return [one["first_index"] for one in state["faults"]] == [indexes[20]] and state["role"] == "CANDIDATE"

        await until("n0 is damaged", lambda: waits("n0"))
        await until("n1 is damaged", lambda: waits("n1"))
        group.start("n2")
        await sound(client, "n0", "n1")
        last = await append_surely(client, b"after")
        await level(client, last)
        await client.close()
        same_everywhere(group, {index: b"entry %d" % number for number, index in enumerate(indexes)} | {last: b"after"})

    group.start_all()
    asyncio.run(run())
