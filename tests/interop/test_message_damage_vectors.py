"""Damage in RocketMQ's own stores: named exactly, with what its recovery made of it (store-cases/manifest.json)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from node.message_store.checking.findings import Fault
from node.message_store.checking.verify import verify
from node.message_store.message_store import MessageStore
from tests.interop.rocketmq import case_of, copied, manifest_of, whole

STORES = ["store/data", "dledger-commitlog/single", "dledger-commitlog/upgraded"]


@pytest.fixture
def cases(vectors: Path) -> dict[str, Any]:
    loaded = json.loads((vectors / "rocketmq" / "store-cases" / "manifest.json").read_bytes())
    return loaded["cases"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", STORES)
def test_a_store_that_rocketmq_closed_has_no_fault(vectors: Path, tmp_path: Path, name: str) -> None:
    source = vectors / "rocketmq" / name
    found = verify(MessageStore(whole(source, tmp_path / "store")))
    manifest = manifest_of(source)
    assert found.findings == []
    assert (found.min_offset, found.max_offset) == (manifest["minPhyOffset"], manifest["maxPhyOffset"])
    queues = manifest["consumeQueues"].values()
    assert found.queues == len(manifest["consumeQueues"])
    assert found.units == sum(one["maxOffset"] - one["minOffset"] for one in queues)
    assert found.index_entries == sum(one["indexCount"] - 1 for one in manifest["indexFiles"])


def test_a_copy_of_a_running_store_has_no_fault(vectors: Path, tmp_path: Path) -> None:
    """Its checkpoint is empty still, and abort is there (FORMATS-ROCKETMQ 6)."""
    root = copied(vectors / "rocketmq" / "store" / "data", tmp_path / "store")
    for name in ("abort", "checkpoint"):
        (root / name).write_bytes((vectors / "rocketmq" / "store" / f"{name}.running").read_bytes())
    found = verify(MessageStore(root))
    assert found.findings == []
    assert found.recovery is not None
    assert (found.recovery.after_crash, found.recovery.looks_from, found.recovery.cut_at) == (True, 0, None)


@pytest.mark.parametrize("name", ["norm1", "reb1"])
def test_a_store_after_a_sound_recovery_has_no_fault(vectors: Path, tmp_path: Path, name: str) -> None:
    root, case = case_of(vectors, name, tmp_path / "store")
    found = verify(MessageStore(root))
    assert found.findings == []
    assert (found.messages, found.min_offset) == (case["messages"], case["minPhyOffset"])


def test_entries_that_a_recovery_indexed_twice_are_named(vectors: Path, tmp_path: Path) -> None:
    """Oddity 3: the record at endPhyOffset of the file that is kept comes again, with each of its keys."""
    root, case = case_of(vectors, "crash1", tmp_path / "store")
    kept, rebuilt = case["indexFiles"]
    found = verify(MessageStore(root)).findings
    assert {(one.fault, one.offset, one.file) for one in found} == {
        (Fault.INDEX_EXTRA, kept["endPhyOffset"], f"index/{rebuilt['file']}")
    }
    before = manifest_of(vectors / "rocketmq" / "store" / "data")["indexFiles"][1]
    assert sum(one.count for one in found) == rebuilt["indexCount"] - before["indexCount"] == 2


@pytest.mark.parametrize(("name", "with_abort"), [("corruptN", False), ("corrupt1", True)])
def test_a_flipped_byte_is_named_with_what_the_next_start_would_cut(
    vectors: Path, tmp_path: Path, cases: dict[str, Any], name: str, with_abort: bool
) -> None:
    case = cases[name]
    root = copied(vectors / "rocketmq" / "store" / "data", tmp_path / "store")
    victim = MessageStore(root).log.message_at(case["maxPhyOffset"])
    changed = next(one for one in case["filesChangedVsStore"] if one.startswith("commitlog/"))
    data = bytearray((root / changed).read_bytes())
    at = victim.offset - int(changed.rpartition("/")[2])
    body = data.index(victim.record.body, at)
    data[body] ^= 0xFF
    (root / changed).write_bytes(data)
    if with_abort:
        (root / "abort").write_bytes(b"1")
    found = verify(MessageStore(root))
    assert [(one.fault, one.offset, one.file) for one in found.findings] == [
        (Fault.BODY_CRC_INVALID, case["maxPhyOffset"], changed)
    ]
    assert (found.findings[0].topic, found.findings[0].queue_offset) == (
        victim.record.topic, victim.record.queue_offset,
    )  # fmt: skip
    start = found.recovery
    assert start is not None
    assert start.after_crash is with_abort
    assert (start.cut_at, start.messages_left) == (case["maxPhyOffset"], case["messages"])
    all_messages = len(manifest_of(vectors / "rocketmq" / "store" / "data")["messages"])
    assert start.messages_lost == all_messages - case["messages"]


def test_a_message_that_a_normal_recovery_skips_is_named(vectors: Path, tmp_path: Path) -> None:
    """Oddity 2: of the last four units, zeroed, the first is not put back. What is missing is named, unit by unit."""
    root = copied(vectors / "rocketmq" / "store" / "data", tmp_path / "store")
    queues = manifest_of(vectors / "rocketmq" / "store" / "data")["consumeQueues"]
    units = sorted((row[1], name, row[0]) for name, one in queues.items() for row in rows_of(one))[-4:]
    for _offset, name, number in units:
        start = number * 20 // 320 * 320
        path = root / "consumequeue" / name / f"{start:020d}"
        data = bytearray(path.read_bytes())
        data[number * 20 - start : number * 20 - start + 20] = bytes(20)
        path.write_bytes(data)
    found = verify(MessageStore(root)).findings
    missing = sorted((one.offset, f"{one.topic}/{one.queue_id}", one.queue_offset) for one in found)
    assert {one.fault for one in found} == {Fault.CQ_MISSING}
    assert missing == units
    assert units[0][0] == 253077


def rows_of(queue: dict[str, Any]) -> list[list[int]]:
    return queue["units_queueOffset_physOffset_size_tagsCode"]  # type: ignore[no-any-return]


def test_units_that_a_recovery_of_the_replicated_log_cut_are_named(vectors: Path, tmp_path: Path) -> None:
    """Oddity 6: 5.x sums sizes without the entries' heads, takes 298829 for the end and cuts eight good units."""
    source = vectors / "rocketmq" / "dledger-commitlog" / "single"
    root = copied(source, tmp_path / "store")
    cut = 298829
    expected = 0
    for name, one in manifest_of(source)["consumeQueues"].items():
        for number, offset, _size, _code in rows_of(one):
            if offset >= cut:
                start = number * 20 // 320 * 320
                path = root / "consumequeue" / name / f"{start:020d}"
                data = bytearray(path.read_bytes())
                data[number * 20 - start : number * 20 - start + 20] = bytes(20)
                path.write_bytes(data)
                expected += 1
    found = verify(MessageStore(root)).findings
    assert {one.fault for one in found} == {Fault.CQ_MISSING}
    assert sum(one.count for one in found) == expected == 8


def test_a_slave_that_was_ahead_holds_bytes_that_nobody_can_read(vectors: Path, tmp_path: Path) -> None:
    """Oddity 7: the master went on in the middle of a record."""
    log = tmp_path / "commitlog"
    log.mkdir()
    (path,) = (vectors / "rocketmq" / "ha" / "files").glob("slave-ahead.*")
    (log / path.name.partition(".")[2]).write_bytes(path.read_bytes())
    found = [one for one in verify(MessageStore(tmp_path)).findings if one.fault is not Fault.CQ_MISSING]
    assert (found[0].fault, found[0].offset) == (Fault.RECORD_INVALID, 44137)
    # There is no queue that would know what lay there: the queue offsets behind show that it was a message.
    assert {one.fault for one in found[1:]} == {Fault.QUEUE_OFFSET_GAP}
    assert all(one.offset is not None and one.offset > 44137 for one in found[1:])
