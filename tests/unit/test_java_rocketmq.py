"""The model of a Java broker's start, held against what the recorded ones did (store-cases, dledger-commitlog)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from node.message_store.store_files import decode_checkpoint
from tests.conftest import VECTORS
from tests.unit.java_rocketmq.broker import V4, V5, JavaBroker
from tests.unit.java_rocketmq.records import Request
from tests.unit.java_rocketmq.rows import WillNotStart

ROCKETMQ = VECTORS / "rocketmq"
pytestmark = pytest.mark.skipif(not ROCKETMQ.is_dir(), reason="the recorded vectors are not part of a clone")
SIZES = {"file_bytes": 65536, "queue_bytes": 320, "slots": 100, "index_entries": 400}


def manifest(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROCKETMQ / name).read_text())
    return found


def copied(name: str, root: Path) -> Path:
    return Path(shutil.copytree(ROCKETMQ / name, root / "store"))


def start(root: Path, version: str = V5, *, ledger: bool = False) -> JavaBroker:
    size = 0
    if ledger:
        size = next((root / "dledger-n0/index").iterdir()).stat().st_size
    return JavaBroker(root, version, ledger=ledger, ledger_index_bytes=size, **SIZES)


def units_said(case: dict[str, Any]) -> dict[tuple[str, int], dict[int, tuple[int, int, int]]]:
    found = {}
    for name, queue in case["consumeQueues"].items():
        topic, _slash, number = name.rpartition("/")
        rows = {row[0]: (row[1], row[2], row[3]) for row in queue["units_queueOffset_physOffset_size_tagsCode"]}
        if rows:
            found[topic, int(number)] = rows
    return found


def prepare(case: str, root: Path) -> None:
    """The directory as the manifest says that it was before the start."""
    if case != "norm1" and case != "corruptN":
        (root / "abort").write_text("4711")
    if case.startswith("corrupt"):
        path = root / "commitlog" / f"{196608:020d}"
        data = bytearray(path.read_bytes())
        at = 202749 - 196608
        assert int.from_bytes(data[at + 84 : at + 88], "big") > 0  # it has a body
        data[at + 88] ^= 0xFF
        path.write_bytes(bytes(data))
    if case == "crash1":
        said = bytearray((root / "checkpoint").read_bytes())
        said[:16] = bytes(16)
        (root / "checkpoint").write_bytes(bytes(said))
    if case == "reb1":
        (root / "commitlog" / f"{0:020d}").unlink()
        shutil.rmtree(root / "consumequeue")
        shutil.rmtree(root / "index")
        (root / "checkpoint").unlink()


@pytest.mark.parametrize("case", ["norm1", "crash1", "corrupt1", "corruptN", "reb1"])
def test_the_recorded_recoveries_come_out_as_they_did(case: str, tmp_path: Path) -> None:
    said = manifest("store-cases/manifest.json")["cases"][case]
    root = copied("store/data", tmp_path)
    prepare(case, root)
    broker = start(root)
    assert broker.max_offset == said["maxPhyOffset"]
    assert broker.min_offset == said["minPhyOffset"]
    assert broker.units() == units_said(said)
    if said["indexFiles"] is not None:
        assert broker.index.entries == [max(one["indexCount"] - 1, 0) for one in said["indexFiles"]]


def test_the_first_message_behind_the_queues_is_passed_over(tmp_path: Path) -> None:
    """Oddity 2: the last four units zeroed, a clean stop before; three come back, the one at 253077 does not."""
    root = copied("store/data", tmp_path)
    whole = units_said(manifest("store/manifest.json"))
    last = sorted(((unit[0], name, number) for name, rows in whole.items() for number, unit in rows.items()))[-4:]
    for _offset, (topic, queue_id), number in last:
        at = number * 20
        path = root / "consumequeue" / topic / str(queue_id) / f"{at // 320 * 320:020d}"
        data = bytearray(path.read_bytes())
        data[at % 320 : at % 320 + 20] = bytes(20)
        path.write_bytes(bytes(data))
    found = {unit[0] for rows in start(root).units().values() for unit in rows.values()}
    assert {offset for offset, _name, _number in last} - found == {253077}


def test_what_was_cut_comes_back(tmp_path: Path) -> None:
    """Oddity 4a: units that a recovery cut are still in the file, and the next clean start takes them."""
    root = copied("dledger-commitlog/single", tmp_path)
    (root / "abort").write_text("1")
    first = start(root, ledger=True)
    assert sum(map(len, first.units().values())) == 329
    first.stop()
    assert start(root, ledger=True).units() == units_said(manifest("dledger-commitlog/single/manifest.json"))


def test_a_recorded_replicated_log_opens_as_it_was(tmp_path: Path) -> None:
    said = manifest("dledger-commitlog/single/manifest.json")
    root = copied("dledger-commitlog/single", tmp_path)
    for version in (V4, V5):
        broker = start(root, version, ledger=True)
        assert broker.ledger is not None
        assert (broker.ledger.end_index, broker.ledger.committed_index) == (366, 366)
        assert broker.max_offset == said["maxPhyOffset"] == broker.ledger.data.written
        assert broker.units() == units_said(said)


def test_an_abort_file_costs_the_newer_broker_units(tmp_path: Path) -> None:
    """Oddity 6, to the number: the end comes out at 298829, 8 of 337 units go; the older broker loses none."""
    root = copied("dledger-commitlog/single", tmp_path)
    (root / "abort").write_text("1")
    broker = start(root, V5, ledger=True)
    assert max(queue.max_physic for queue in broker.queues.values()) <= 298829 < broker.max_offset
    assert sum(map(len, broker.units().values())) == 329
    assert sum(map(len, start(root, V4, ledger=True).units().values())) == 337


def test_an_upgraded_store_opens_as_it_was(tmp_path: Path) -> None:
    said = manifest("dledger-commitlog/upgraded/manifest.json")
    root = copied("dledger-commitlog/upgraded", tmp_path)
    for path in (ROCKETMQ / "store/data/commitlog").iterdir():
        if not (root / "commitlog" / path.name).exists():
            shutil.copy(path, root / "commitlog")
    for version in (V4, V5):
        broker = start(root, version, ledger=True)
        assert broker.ledger is not None and broker.ledger.data.starts[0] == said["dividedCommitlogOffset"]
        assert broker.max_offset == said["maxPhyOffset"]
        assert broker.units() == units_said(said)


def test_queues_that_are_gone_are_made_anew_by_the_older_one_only(tmp_path: Path) -> None:
    """5.x begins to dispatch where the log is committed: what is missing before stays so, unless `abort` is there.

    4.9.8 knows no version 2 (a topic of more than 127 letters): it skips the rest of what it has read behind one.
    """
    said = manifest("dledger-commitlog/single/manifest.json")
    root = copied("dledger-commitlog/single", tmp_path)
    shutil.rmtree(root / "consumequeue")
    assert start(root, V5, ledger=True).units() == {}
    first_v2 = min(one["physicalOffset"] for one in said["messages"] if one["magic"] == "daa320ab")
    found = {unit[0] for rows in start(root, V4, ledger=True).units().values() for unit in rows.values()}
    due = {unit[0] for rows in units_said(said).values() for unit in rows.values()}
    assert {one for one in due if one < first_v2} <= found < due


def test_a_file_of_one_byte_keeps_it_out(tmp_path: Path) -> None:
    root = copied("dledger-commitlog/single", tmp_path)
    for folder in ("dledger-n0/data", "commitlog"):
        (root / folder).mkdir(exist_ok=True)
        (root / folder / "quorumscope-owns").write_bytes(b"\n")
        with pytest.raises(WillNotStart, match="has 1 bytes"):
            start(root, V4, ledger=True)
        (root / folder / "quorumscope-owns").unlink()
    start(root, V5, ledger=True)


@pytest.mark.parametrize("version", [V4, V5])
def test_an_entry_of_another_magic_ends_the_log_and_what_lies_behind_is_cut(version: str, tmp_path: Path) -> None:
    """Why a broker group's log has magic 1 only: an entry of magic 2 costs all that is behind it."""
    root = copied("dledger-commitlog/single", tmp_path)
    path = root / "dledger-n0/data" / f"{262144:020d}"
    data = bytearray(path.read_bytes())
    data[3] = 2
    path.write_bytes(bytes(data))
    broker = start(root, version, ledger=True)
    assert broker.ledger is not None and broker.ledger.data.written == 262144
    assert all(unit[0] < 262144 for rows in broker.units().values() for unit in rows.values())


def test_a_new_record_over_a_cut_leads_on_into_what_was_cut(tmp_path: Path) -> None:
    """Oddity 4b: one of the same size at the cut, and the next start has the 95 messages behind it again."""
    root = copied("store/data", tmp_path)
    path = root / "commitlog" / f"{196608:020d}"
    sound = path.read_bytes()[202749 - 196608 :][:203]
    prepare("corruptN", root)
    first = start(root)
    assert first.max_offset == 202749
    first.stop()
    with path.open("r+b") as file:
        file.seek(202749 - 196608)
        file.write(sound)
    assert start(root).max_offset == 253946


def test_keys_of_new_messages_below_the_end_of_an_index_that_was_not_cut_are_lost(tmp_path: Path) -> None:
    """Oddity 5: after the cut at 202749 the index still ends at 253739."""
    root = copied("store/data", tmp_path)
    prepare("corruptN", root)
    index = start(root).index
    for number in range(60):
        index.put(Request(1000, 1000, True, "T", 0, number, 202749 + number * 1000, store_ms=1, keys=[f"new{number}"]))
    found = [number for number in range(60) if index.offsets("T", f"new{number}")]
    assert found == [number for number in range(60) if 202749 + number * 1000 >= 253739]


def test_a_file_that_begins_with_version_2_is_none_that_a_recovery_begins_with(tmp_path: Path) -> None:
    """Oddity 14: with `abort` there 5.x looks for a file whose first record is old enough, and knows version 1 only."""
    said = manifest("dledger-commitlog/single/manifest.json")
    broker = start(copied("dledger-commitlog/single", tmp_path), ledger=True)
    assert broker.ledger is not None
    broker.min_ms = 1 << 60
    matches = {
        one["magic"]: broker._matches(broker.ledger.data, one["physicalOffset"]) for one in said["messages"]
    }  # fmt: skip
    assert matches == {"daa320a7": True, "daa320ab": False}


def test_without_dledgers_checkpoint_nothing_can_be_read_until_there_is_a_leader(tmp_path: Path) -> None:
    """Oddity 15: so a hand-over writes it."""
    root = copied("dledger-commitlog/single", tmp_path)
    (root / "dledger-n0/checkpoint").unlink()
    broker = start(root, ledger=True)
    assert broker.max_offset == 0
    broker.committed(366)
    assert broker.max_offset == 301373 and sum(map(len, broker.units().values())) == 337


def test_the_confirmed_offset_stays_0_in_a_replicated_log(vectors: Path) -> None:
    """Oddity 16; what ours writes is the same, byte for byte (test_dispatch)."""
    for name, confirmed in (("dledger-commitlog/single", 0), ("store-cases/crash1", 253739)):
        assert decode_checkpoint((vectors / "rocketmq" / name / "checkpoint").read_bytes()).confirm_offset == confirmed
