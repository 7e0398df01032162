"""In a broker group nothing goes that the newest snapshot needs, not by force either; before there is one, nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from node.client import LedgerClient
from node.client.lane import Lane
from node.config import load
from node.engine.engine import Engine
from node.message_store.broker_kind import BrokerKind
from node.message_store.broker_kind import content_of as decoded_content
from node.message_store.record import PHYSICAL_OFFSET_AT, encode_record
from node.protocol.group_kind import Channel
from node.protocol.inert_records import content_of, inert_record
from node.protocol.snapshot_parts import split_snapshot
from node.store.file_store import FileStore
from tests.ports import free_ports
from tests.unit.message_kit import record as message_record
from tests.unit.store_fixtures import open_store, record
from tests.unit.test_engine_damage import operator_action

NOW_MS = 1_800_000_000_000
KIND = BrokerKind(lambda: NOW_MS)
AT = PHYSICAL_OFFSET_AT


def message() -> bytes:
    return encode_record(message_record(b"x" * 300, store_timestamp_ms=NOW_MS))


def parts(snapshot_id: int, as_of_index: int) -> list[bytes]:
    """Three of them, as records."""
    bodies = split_snapshot(b"state" * 100, snapshot_id, as_of_index, 220)
    assert len(bodies) == 3
    return [inert_record(Channel.SNAPSHOT_PART, one, NOW_MS) for one in bodies]


@pytest.mark.parametrize("content", [b"", b"x" * 1000])
def test_an_inert_records_content_is_found_by_its_place(content: bytes) -> None:
    body = inert_record(Channel.SNAPSHOT_PART, content, NOW_MS)
    assert content_of(body) == content == decoded_content(body)
    assert content_of(body[:80]) == b"" and content_of(body[: -len(content) - 60]) == b""


# --- the store --------------------------------------------------------------------------------------------------------
def snapshot_in(store: FileStore, snapshot_id: int, as_of_index: int, *, alone: bool) -> int:
    """Its parts, among messages or each an append of its own; the first one's index."""
    first = store.end_index + 1
    for part in parts(snapshot_id, as_of_index):
        store.append_as_leader([part], 1, channel=Channel.SNAPSHOT_PART, patch_at=AT)
        if not alone:
            store.append_as_leader([message()] * 3, 1, patch_at=AT)
    return first


@pytest.mark.parametrize("alone", [True, False])
def test_a_store_knows_from_where_on_its_newest_committed_snapshot_needs_it(tmp_path: Path, alone: bool) -> None:
    store = open_store(tmp_path / "dledger-n0", kind="broker")
    store.append_as_leader([message()] * 10, 1, patch_at=AT)
    assert store.kept_for_snapshot(9) == 0
    first = snapshot_in(store, 1, 7, alone=alone)
    end = store.end_index
    assert store.kept_for_snapshot(first + 1) == 0, "its last part is not committed yet"
    assert store.kept_for_snapshot(end) == 7, "what comes behind its as-of index is needed, too"
    second = snapshot_in(store, 2, end, alone=alone)
    assert store.kept_for_snapshot(end) == 7 and store.kept_for_snapshot(store.end_index) == end
    store.truncate(second + 1, record(store, second + 1))
    assert store.kept_for_snapshot(store.end_index) == 7, "that one was cut"
    store.truncate(first + 1, record(store, first + 1))
    assert store.kept_for_snapshot(store.end_index) == 0
    store.close()


def test_a_follower_knows_it_as_well(tmp_path: Path) -> None:
    leader = open_store(tmp_path / "a" / "dledger-n0", kind="broker")
    follower = open_store(tmp_path / "b" / "dledger-n1", node_id="n1", kind="broker")
    slabs = leader.append_as_leader([message()] * 10, 1, patch_at=AT)
    bodies = parts(1, 5)
    slabs += leader.append_as_leader(bodies, 1, channel=Channel.SNAPSHOT_PART, patch_at=AT)  # one slab, several parts
    for slab in slabs:
        follower.append_slab(slab)
    assert [store.kept_for_snapshot(12) for store in (leader, follower)] == [5, 5]
    leader.close()
    follower.close()
    assert open_store(tmp_path / "c").kept_for_snapshot(10) is None


# --- the engine -------------------------------------------------------------------------------------------------------
def test_no_force_goes_past_the_newest_snapshot(tmp_path: Path) -> None:
    peers = f"n0-127.0.0.1:{free_ports(1)[0]}"
    values = {
        "node.id": "n0", "peers": peers, "node.data": str(tmp_path), "broker.address": "127.0.0.1:10911",
        "store.mapped_file_size_for_entry_data_bytes": 4096, "store.mapped_file_size_for_entry_index_bytes": 1024,
    }  # fmt: skip
    settings = load(values, None, {})
    store = FileStore.open(
        settings.store_directory, group="default", node_id="n0", data_file_size=4096, index_file_size=1024, init=True,
        serving=True, kind="broker",
    )  # fmt: skip

    async def trim(engine: Engine, **fields: object) -> dict[str, object]:
        found: dict[str, object] = await operator_action(engine, what="trim", throughIndex=store.end_index, **fields)
        return found

    async def sent(lane: Lane, bodies: list[bytes], channel: Channel = Channel.MESSAGE) -> int:
        return (await lane.append(bodies, patch_at=AT, channel=channel)).last_index

    async def work(engine: Engine, client: LedgerClient) -> None:
        lane = await client.open_lane()
        await sent(lane, [message()] * 60)
        for forced in (False, True):
            said = await trim(engine, forced=forced)
            assert (said["removedFiles"], store.begin_index) == (0, 0), "there is no snapshot yet"
            assert "the broker's newest snapshot" in str(said["keptBy"]) + str(said["detail"])
        as_of = await sent(lane, [message()] * 20)
        await sent(lane, parts(1, as_of), Channel.SNAPSHOT_PART)
        await sent(lane, [message()] * 60)
        said = await trim(engine, forced=True)
        assert said["removedFiles"] and 0 < store.begin_index <= as_of
        assert store.base_on_record.pos % 4096 == 0

    async def both() -> int:
        engine = Engine(settings, store, kind=KIND)
        ready = asyncio.Event()
        running = asyncio.create_task(engine.run(lambda _port: ready.set()))
        await ready.wait()
        client = LedgerClient(peers, deadline_s=30.0)
        try:
            await work(engine, client)
        finally:
            await client.close()
            engine.stop()
        return await running

    assert asyncio.run(asyncio.wait_for(both(), 120)) == 0
    store.close()
