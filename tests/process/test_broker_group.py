"""A real engine of a broker group: what it leaves on disk, however it ends, and what never opens that directory."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from node.client.lane import Lane
from node.message_store.message_store import MessageStore, StoreKind
from node.message_store.record import PHYSICAL_OFFSET_AT, decode_record, encode_record
from node.message_store.record_check import judge
from node.protocol.entry import HEAD_BYTES, Magic
from node.protocol.group_kind import Channel
from node.protocol.inert_records import inert_record
from node.store.files.java_files import COMMIT_LOG, OWNER
from node.store.reader import StoreReader
from tests.process.group import Group
from tests.unit.message_kit import record

pytestmark = [pytest.mark.process, pytest.mark.long]
ROLLS: tuple[str, ...] = (
    "--set", "store.mapped_file_size_for_entry_data_bytes=65536",
    "--set", "store.mapped_file_size_for_entry_index_bytes=167772160",
)  # fmt: skip


def is_owned(data: Path) -> bool:
    """Whether Java finds a file of the wrong length wherever it looks, and nothing sends it into its other recovery."""
    files = (data / COMMIT_LOG / OWNER, data / "dledger-n0" / "data" / OWNER)
    return all(one.is_file() and one.stat().st_size == 1 for one in files) and not (data / "abort").exists()


async def fill(lane: Lane, count: int) -> int:
    """So many messages and a change of metadata; the index of the last entry."""
    time_ms = lane.last_time_ms
    bodies = [encode_record(record(b"x" * (number % 700), store_timestamp_ms=time_ms)) for number in range(count)]
    for first in range(0, count, 50):
        await lane.append(bodies[first : first + 50], patch_at=PHYSICAL_OFFSET_AT)
    change = inert_record(Channel.METADATA, b"\x01{}", time_ms)
    return (await lane.append([change], patch_at=PHYSICAL_OFFSET_AT, channel=Channel.METADATA)).last_index


def test_every_entry_is_a_record_and_java_is_kept_out_however_it_ends(tmp_path: Path) -> None:
    group = Group(tmp_path, size=1)
    group.token += ("--broker", "127.0.0.1:10911", *ROLLS)
    data = tmp_path / "n0"

    async def use() -> int:
        client = group.client()
        try:
            return await fill(await client.open_lane(), 150)
        finally:
            await client.close()

    try:
        group.start("n0")
        assert is_owned(data)
        asyncio.run(use())
        group.kill("n0")
        assert is_owned(data), "after a crash"
        group.start("n0")
        last = asyncio.run(use())
        assert group.kill("n0", signal.SIGTERM) == 0
        assert is_owned(data), "and after a clean stop"
        plain = group.spawn([word for word in group.arguments("n0") if word not in ("--broker", "127.0.0.1:10911")])
        assert plain.wait(60) == 3 and "born as a broker's" in plain.communicate()[1]
    finally:
        group.close()
    reader = StoreReader(data / "dledger-n0")
    assert reader.end_index == last and reader.verify().problems == []
    times, channels = [], set()
    for index in range(reader.begin_index, reader.end_index + 1):
        entry = reader.entry(index)
        times.append(judge(entry.body).store_timestamp_ms)
        channels.add(entry.channel)
        assert entry.magic == Magic.NORMAL
        assert decode_record(entry.body).physical_offset == entry.pos + HEAD_BYTES
    assert times == sorted(times) and channels == {0, 1, 3}
    assert len([one for one in (data / "dledger-n0" / "data").iterdir() if one.name.isdigit()]) > 1
    store = MessageStore(data)
    assert store.kind is StoreKind.LEDGER and not store.has_abort
