"""Stores that RocketMQ wrote open here with exactly the messages, queues and indexes that their manifests list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from node.message_store.commit_log import BlankSpace, Damage, JoinedCommitLog, Placed, local_commit_log
from node.message_store.consume_queue import pull
from node.message_store.message_store import MessageStore, StoreKind, kind_of
from tests.interop.rocketmq import case_of, index_rows, manifest_of, whole

KINDS = {
    "store/data": StoreKind.LOCAL,
    "dledger-commitlog/single": StoreKind.LEDGER,
    "dledger-commitlog/upgraded": StoreKind.JOINED,
}
CASES = ["norm1", "crash1", "reb1"]  # of the others only numbers are recorded


@pytest.fixture(params=KINDS)
def opened(vectors: Path, tmp_path: Path, request: pytest.FixtureRequest) -> tuple[MessageStore, dict[str, Any]]:
    """One of the stores, whole, and its manifest."""
    source = vectors / "rocketmq" / request.param
    root = whole(source, tmp_path / "store")
    assert kind_of(root) is KINDS[request.param]
    return MessageStore(root), manifest_of(source)


@pytest.fixture(params=CASES)
def recovered(vectors: Path, tmp_path: Path, request: pytest.FixtureRequest) -> tuple[MessageStore, dict[str, Any]]:
    root, case = case_of(vectors, request.param, tmp_path / "store")
    return MessageStore(root), case


def check_queues(store: MessageStore, manifest: dict[str, Any]) -> None:
    names = {f"{topic}/{one}" for topic, ids in store.topics().items() for one in ids}
    assert names == set(manifest["consumeQueues"])
    for queue in store.queues():
        expected = manifest["consumeQueues"][f"{queue.topic}/{queue.queue_id}"]
        low, high = queue.min_offset(store.log.min_offset), queue.max_offset()
        assert (low, high) == (expected["minOffset"], expected["maxOffset"])
        rows = [[at + n, *row] for at, units in queue.pieces() for n, row in enumerate(units.tolist())]
        assert [row for row in rows if row[0] >= low] == expected["units_queueOffset_physOffset_size_tagsCode"]


def check_index(store: MessageStore, manifest: dict[str, Any]) -> None:
    rows = [(one["file"], one["entries_no_keyHash_physOffset_timeDiffSec_prev"]) for one in manifest["indexFiles"]]
    assert [(name, index_rows(file)) for name, file in store.index_files()] == rows
    for one in manifest["queries"]:
        assert store.query(one["topic"], one["key"]) == one["physOffsets"]


def test_a_scan_gives_every_message_and_blank_and_no_damage(opened: tuple[MessageStore, dict[str, Any]]) -> None:
    store, manifest = opened
    items = list(store.log.scan())
    assert [one for one in items if isinstance(one, Damage)] == []
    placed = [one for one in items if isinstance(one, Placed)]
    expected = [(one["physicalOffset"], one["size"], one["offsetMsgId"]) for one in manifest["messages"]]
    # The upgraded store's manifest lists what lies behind the files that are those of the other store.
    listed = [one for one in placed if one.offset >= expected[0][0]]
    assert [(one.offset, one.size_bytes, one.record.message_id) for one in listed] == expected
    assert all(one.is_in_place for one in placed)
    blanks = [(one.offset, one.size_bytes) for one in items if isinstance(one, BlankSpace)]
    assert blanks == [(one["offset"], one.get("declaredSize", one.get("size"))) for one in manifest["blanks"]]
    assert placed[-1].end == manifest["scanEnd"]


def test_the_log_spans_what_the_manifest_says(opened: tuple[MessageStore, dict[str, Any]]) -> None:
    store, manifest = opened
    assert (store.log.min_offset, store.max_offset()) == (manifest["minPhyOffset"], manifest["maxPhyOffset"])
    assert store.log.find_end() == store.max_offset()
    divided = manifest.get("dividedCommitlogOffset")
    # -1 at the first start of an empty store, the first file's offset from then on (FORMATS-ROCKETMQ 12).
    assert store.divided_offset == (0 if divided == -1 else divided)
    if isinstance(store.log, JoinedCommitLog):
        assert store.log.divided_offset == divided


def test_a_scan_may_begin_and_end_at_any_file(opened: tuple[MessageStore, dict[str, Any]]) -> None:
    store, _ = opened
    placed = [one for one in store.log.scan() if isinstance(one, Placed)]
    borders = [file.start for _queue, file in store.log.files]
    pieces = [list(store.log.scan(low, high)) for low, high in zip(borders, [*borders[1:], None], strict=True)]
    assert [one for piece in pieces for one in piece if isinstance(one, Placed)] == placed
    for one in placed[:: len(placed) // 20]:
        assert store.log.message_at(one.offset) == one


def test_queues_and_indexes_are_those_of_the_manifest(opened: tuple[MessageStore, dict[str, Any]]) -> None:
    check_queues(*opened)
    check_index(*opened)


def test_a_consumer_is_answered_as_the_manifest_says(opened: tuple[MessageStore, dict[str, Any]]) -> None:
    store, manifest = opened
    for one in manifest["getMessage"]:
        tags = None if one["sub"] == "*" else frozenset(map(str.strip, one["sub"].split("||")))
        queue = store.queue(one["topic"], one["queueId"])
        found = pull(store.log, queue, one["offset"], one["maxNum"], tags)
        assert found.status.value == one["status"]
        assert (found.next_offset, found.min_offset, found.max_offset) == (
            one["nextBeginOffset"], one["minOffset"], one["maxOffset"],
        )  # fmt: skip
        assert [placed.record.queue_offset for placed in found.messages] == one["queueOffsets"]


def test_every_put_is_found_by_its_id_its_queue_and_its_keys(opened: tuple[MessageStore, dict[str, Any]]) -> None:
    store, manifest = opened
    seen = 0
    for one in manifest["messages"]:
        placed = store.by_id(one["offsetMsgId"])
        assert placed.offset == one["physicalOffset"]
        if one["sysFlag"] & 0xC in (0, 8):
            assert store.in_queue(one["topic"], one["queueId"], one["queueOffset"]) == placed
        for key in placed.record.index_keys[:1] if one["sysFlag"] & 0xC != 0xC else ():
            assert placed in store.by_key(one["topic"], key)
            seen += 1
    assert seen > 80
    for put in manifest["puts"]:
        assert store.by_id(put["msgId"].split(",")[0]).offset == put["wroteOffset"]


def test_a_store_after_its_recovery_is_what_it_had_in_memory(recovered: tuple[MessageStore, dict[str, Any]]) -> None:
    store, case = recovered
    assert (store.log.min_offset, store.max_offset()) == (case["minPhyOffset"], case["maxPhyOffset"])
    placed = [one for one in store.log.scan() if isinstance(one, Placed)]
    assert len(placed) == case["messages"]
    check_queues(store, case)
    if case["indexFiles"] is not None:
        check_index(store, case)
    checkpoint = store.checkpoint()
    assert checkpoint is not None
    assert case["checkpointAfter"]["confirmPhyOffset"] == placed[-1].offset  # where the last begins, not where it ends
    assert checkpoint.confirm_offset in (0, placed[-1].offset)  # 0: the file from before the recovery
    assert store.has_abort is case["abortAfter"]


def test_files_that_classic_ha_replicated_are_read(vectors: Path, tmp_path: Path) -> None:
    """The slave's went on in the middle of a record (oddity 7): what follows is damage, and nothing sound behind it."""
    folder = vectors / "rocketmq" / "ha" / "files"
    for source, target in (("master", "master"), ("slave-ahead", "slave")):
        log = tmp_path / target / "commitlog"
        log.mkdir(parents=True)
        for path in folder.glob(f"{source}.*"):
            (log / path.name.split(".")[1]).write_bytes(path.read_bytes())
    master = list(local_commit_log(tmp_path / "master").scan())
    assert [one for one in master if isinstance(one, Damage)] == []
    slave = list(local_commit_log(tmp_path / "slave").scan())
    damage = [one for one in slave if isinstance(one, Damage)]
    assert [one.offset for one in damage] == [44137]
