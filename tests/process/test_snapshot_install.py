"""A member with an empty disk, or a new one in place of another, in a key-value group whose logs were trimmed, becomes
a voter with all keys.

With real processes and disks; what follows from losing messages, power or leaders is the simulator's to find.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from node.client import LedgerClient, LedgerError
from node.client.kv import KvClient
from node.transport.slab_frames import ReadMode
from tests.ports import free_ports
from tests.process.group import all_hold, all_vote
from tests.process.test_members import command, until, voters_of
from tests.process.test_trimmed_group import TrimmedGroup, begins_at

pytestmark = [pytest.mark.process, pytest.mark.long]
KEYS = 40
VALUE_BYTES = 8192


async def put_surely(store: KvClient, key: bytes, value: bytes) -> int:
    """Until it is acknowledged: the same value again is harmless. Where it is in the log."""
    while True:
        try:
            return await store.put(key, value)
        except LedgerError:
            await asyncio.sleep(0.05)


def test_an_emptied_and_a_new_member_of_a_trimmed_key_value_group_have_all_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = TrimmedGroup(tmp_path)
    group.kind = ("--state-machine", "kv", "--set", "node.snapshot_entries=50", "--set", "node.snapshots_kept=1")
    try:
        group.start_all()
        asyncio.run(work(group, capsys))
    finally:
        group.close()


async def work(group: TrimmedGroup, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    client = LedgerClient({**group.peers, "n3": address}, group=group.group, deadline_s=60.0)
    store = KvClient(client)
    expected: dict[bytes, bytes] = {}

    async def put(number: int) -> int:
        key, value = b"key %d" % (number % KEYS), b"%d " % number * (VALUE_BYTES // 4)
        expected[key] = value
        return await put_surely(store, key, value)

    async def trimmed() -> bool:
        return all([await begins_at(client, one) > 0 for one in ("n0", "n1", "n2")])

    try:
        last = -1
        for number in range(3 * KEYS):
            last = await put(number)
        await until(trimmed)
        for round_number in range(2):  # FORMATS 6.10: the second one of the same leader is as good as the first
            group.kill("n2")
            shutil.rmtree(group.directory / "n2")
            group.start("n2")
            last = await put(round_number)
            await all_vote(client, ["n2"])
            await all_hold(client, ["n2"], last)
            assert await begins_at(client, "n2") > 0
        await holds_all(group, "n2", expected)

        group.kill("n2")  # all its snapshots rot, and its log does not go back to the first entry
        for data in (group.directory / "n2").glob("dledger-n2/snapshot/snapshot_*/data"):
            content = bytearray(data.read_bytes())
            content[len(content) // 2] ^= 1
            data.write_bytes(content)
        group.start("n2")
        await put(5)
        await holds_all(group, "n2", expected)

        await asyncio.to_thread(group.join, "n3", address)
        code, text = await asyncio.to_thread(command, capsys, group, "replace", "n1", "n3", address, "--yes")
        assert code == 0, text

        async def replaced() -> bool:
            return await voters_of(client, "n3") == ["n0", "n2", "n3"]

        await until(replaced)
        group.kill("n1")
        del group.peers["n1"]
        last = await put(7)
        await all_hold(client, ["n3"], last)
        assert await begins_at(client, "n3") > 0
        await holds_all(group, "n3", expected)
    finally:
        await client.close()


async def holds_all(group: TrimmedGroup, member_id: str, expected: dict[bytes, bytes]) -> None:
    """Linearizable reads of that very member."""
    client = group.client(deadline_s=60.0)
    try:
        store = KvClient(client, member_id=member_id)
        for key, value in expected.items():
            item = await store.get(key, mode=ReadMode.READ_INDEX)
            assert item is not None and item.value == value, key
    finally:
        await client.close()
