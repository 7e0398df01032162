"""Every planted fault of a message store is found where it is, and nothing else; a sound store has none."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

import node.message_store.checking.verify as verify_module
from node.message_store.checking.facts import facts_of, joined
from node.message_store.checking.findings import MEANS, Fault, Finding
from node.message_store.checking.queues import check_queue
from node.message_store.checking.verify import Verified, verify
from node.message_store.dispatch_index import IndexMark
from node.message_store.dispatch_mark import DerivedSizes, LogPoint, Mark, mark_path, write_mark
from node.message_store.message_store import MessageStore
from node.message_store.read_files import OWNER_FILE
from node.message_store.write_files import OsDisk
from tests.unit.message_broker import Broker, filled
from tests.unit.message_faults import PLANTS, Plant, missing_tail, overwritten, planted, wrong_body


def checked(root: Path) -> Verified:
    return verify(MessageStore(root))


@pytest.mark.parametrize("ledger", [False, True])
def test_a_sound_store_has_no_fault(tmp_path: Path, ledger: bool) -> None:
    broker = filled(tmp_path, ledger=ledger)
    found = checked(broker.write())
    assert found.findings == []
    assert (found.messages, found.queues, found.index_entries) == (60, len(broker.units), len(broker.keys))
    assert found.units == sum(map(len, broker.units.values()))
    assert (found.min_offset, found.max_offset, found.not_dispatched) == (0, broker.end, 0)


def test_an_empty_store_has_no_fault(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    found = checked(tmp_path)
    assert (found.findings, found.messages, found.max_offset) == ([], 0, 0)


@pytest.mark.parametrize("ledger", [False, True])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("plant", PLANTS, ids=lambda one: one.__name__)
def test_a_planted_fault_is_found_where_it_is_and_nothing_else(
    tmp_path: Path, plant: Plant, seed: int, ledger: bool
) -> None:
    _, expected = planted(tmp_path, plant, seed, ledger=ledger)
    found = checked(tmp_path).findings
    assert [(one.fault.value, one.offset) for one in found] == [(expected.fault, expected.offset)]
    if expected.queue_offset is not None:
        assert (found[0].queue_offset, found[0].count) == (expected.queue_offset, expected.count)
    shown = found[0].as_json()
    assert shown["means"]
    assert shown["detail"]
    assert not shown["file"].startswith("/")


def test_every_class_is_planted_and_has_a_meaning() -> None:
    assert set(MEANS) == set(Fault)
    names = {"cq_missing", "cq_extra", "cq_mismatch", "queue_offset_gap", "queue_offset_duplicate"}
    names |= {"physical_offset_mismatch", "index_missing", "index_extra", "body_crc_invalid", "metadata_mismatch"}
    assert names <= {one.value for one in Fault}


def test_ranges_that_are_read_apart_say_the_same_as_the_whole(tmp_path: Path) -> None:
    for name, plant in (("a", wrong_body), ("b", overwritten)):
        planted(tmp_path / name, plant, 1, ledger=False)
        log = MessageStore(tmp_path / name).log
        whole = facts_of(log.scan())
        borders = [file.start for _queue, file in log.files]
        parts = [facts_of(log.scan(low, high)) for low, high in zip(borders, [*borders[1:], None], strict=True)]
        assert len(parts) > 3
        found = joined(parts)
        assert (found.queues, found.messages, found.end) == (whole.queues, whole.messages, whole.end)
        assert (found.units == whole.units).all()
        assert (found.keys == whole.keys).all()
        assert (found.damage, found.bad_bodies) == (whole.damage, whole.bad_bodies)
        assert (found.first_bad, found.messages_before_bad) == (whole.first_bad, whole.messages_before_bad)


def test_damage_says_how_many_messages_the_queues_know_there(tmp_path: Path) -> None:
    broker = filled(tmp_path)
    broker.write()
    path = broker.folder / f"{4096:020d}"
    path.write_bytes(bytes(range(256)) * 16)
    known = sum(4096 <= offset < 8192 for units in broker.units.values() for offset, *_ in units)
    found = checked(tmp_path).findings
    lost = [one for one in found if one.fault is Fault.RECORD_INVALID]
    assert [(one.offset, one.count) for one in lost] == [(4096, known)]
    assert len(found) == 1


def test_a_torn_end_of_a_broker_that_crashed_is_no_damage_of_what_was_acknowledged(tmp_path: Path) -> None:
    broker = filled(tmp_path)
    torn = broker.put(body=b"x" * 50, dispatch=False)
    broker.log[torn + 60 :] = bytes(len(broker.log) - torn - 60)
    broker.write()
    (found,) = checked(tmp_path).findings
    assert (found.fault, found.offset) == (Fault.RECORD_INVALID, torn)
    (tmp_path / "abort").write_bytes(b"1")
    (found,) = checked(tmp_path).findings
    assert (found.fault, found.offset) == (Fault.TORN_END, torn)


def test_what_a_running_broker_has_yet_to_dispatch_is_no_fault(tmp_path: Path) -> None:
    broker = filled(tmp_path)
    for number in range(5):
        broker.put("TopicTest", 0, b"waits %d" % number, keys="later", dispatch=False)
    broker.write()
    assert {one.fault for one in checked(tmp_path).findings} == {Fault.CQ_MISSING, Fault.INDEX_MISSING}
    (tmp_path / "abort").write_bytes(b"4711")
    found = checked(tmp_path)
    assert (found.findings, found.not_dispatched) == ([], 5)


def test_what_a_broker_group_has_yet_to_dispatch_is_no_fault(tmp_path: Path) -> None:
    """Its broker writes no `abort`: it was killed, runs under load, or never ran since the log was restored."""
    broker = filled(tmp_path, ledger=True)
    for number in range(5):
        broker.put("TopicTest", 0, b"waits %d" % number, keys="later", dispatch=False)
    broker.write()
    of_broker_group(tmp_path)
    found = checked(tmp_path)
    assert (found.findings, found.not_dispatched) == ([], 5)
    write_mark(tmp_path, Mark(LogPoint(broker.end), DerivedSizes(), IndexMark()), OsDisk())
    found = checked(tmp_path)
    assert {one.fault for one in found.findings} == {Fault.CQ_MISSING}  # the mark vouches for them
    mark_path(tmp_path).write_bytes(b"00000000 {}")
    found = checked(tmp_path)
    assert [(one.fault, one.file) for one in found.findings] == [(Fault.FILE_INVALID, "quorumscope/dispatched")]


def test_a_restored_log_of_a_broker_group_has_no_queues_yet_and_no_fault(tmp_path: Path) -> None:
    broker = filled(tmp_path, ledger=True)
    broker.write()
    for name in ("consumequeue", "index"):
        shutil.rmtree(tmp_path / name)
    of_broker_group(tmp_path)
    found = checked(tmp_path)
    assert (found.findings, found.queues, found.not_dispatched) == ([], 0, sum(map(len, broker.units.values())))


def of_broker_group(root: Path) -> None:
    (root / "commitlog").mkdir()
    (root / "commitlog" / OWNER_FILE).write_bytes(b"\0")


def test_what_a_running_broker_stores_while_it_is_looked_at_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is read first: queues and index name what came afterwards, more from one queue to the next."""
    broker = filled(tmp_path)
    broker.write()
    (tmp_path / "abort").write_bytes(b"4711")

    def looked_at(*arguments: Any) -> list[Finding]:
        for number in range(20):
            broker.put("TopicTest", number % 2, b"meanwhile %d" % number, keys="later")
        broker.write()
        return check_queue(*arguments)

    monkeypatch.setattr(verify_module, "check_queue", looked_at)
    found = checked(tmp_path)
    assert (found.findings, found.messages) == ([], 60)
    assert broker.end > found.max_offset


def test_a_crash_does_not_hide_what_is_missing_in_the_middle(tmp_path: Path) -> None:
    _, expected = planted(tmp_path, missing_tail, 2, ledger=False)
    (tmp_path / "abort").write_bytes(b"1")
    assert [one.fault.value for one in checked(tmp_path).findings] == [expected.fault]


def test_units_that_a_recovery_left_behind_are_extra(tmp_path: Path) -> None:
    """Oddity 4a: a cut moves positions only, and the units are back at the next start."""
    broker = filled(tmp_path)
    broker.write()
    cut = broker.places[40]
    whole = bytes(broker.log)
    del broker.log[cut:]
    broker.write()
    for path in sorted(broker.folder.iterdir()):
        if int(path.name) > cut:
            path.write_bytes(bytes(broker.file_bytes))
    found = checked(tmp_path).findings
    left = sum(offset >= cut for units in broker.units.values() for offset, *_ in units)
    assert sum(one.count for one in found if one.fault is Fault.CQ_EXTRA) == left > 0
    # Oddity 5: the index still knows what was cut, and what comes new below its end is not put into it.
    assert sum(one.count for one in found if one.fault is Fault.INDEX_EXTRA) == sum(at >= cut for _, at in broker.keys)
    assert {one.fault for one in found} == {Fault.CQ_EXTRA, Fault.INDEX_EXTRA}
    assert len(whole) > cut


def test_a_log_that_goes_on_into_old_bytes_has_queue_offsets_twice(tmp_path: Path) -> None:
    """Oddity 4b: cut at a bad record, then a new one of the same length: what was cut is back behind it."""
    broker = Broker(tmp_path)
    for number in range(6):
        broker.put("T", 0, b"body %d" % number)
    new = Broker(tmp_path / "new")
    for number in range(3):
        new.put("T", 0, b"body %d" % number)
    again = new.put("T", 0, b"anew 3")
    size = broker.places[4] - broker.places[3]
    assert again == broker.places[3]
    broker.log[again : again + size] = new.log[again : again + size]
    # The old message at the next place has the queue offset that the next new one gets, elsewhere.
    broker.next_offsets["T", 0] = 4
    behind = broker.put("T", 0, b"new 4", dispatch=False)
    broker.write()
    found = checked(tmp_path).findings
    assert [(one.fault, one.offset, one.queue_offset) for one in found] == [(Fault.QUEUE_OFFSET_DUPLICATE, behind, 4)]


def test_what_the_next_start_would_cut_is_said(tmp_path: Path) -> None:
    broker = filled(tmp_path)
    broker.write()
    borders = sorted(int(path.name) for path in broker.folder.iterdir())
    last = [one for one in broker.places if one >= borders[-1]]
    victim = next(one for one in last[1:] if broker.log[one + 87] > 3)  # it has a body
    path = broker.folder / f"{borders[-1]:020d}"
    data = bytearray(path.read_bytes())
    data[victim - borders[-1] + 89] ^= 0xFF
    path.write_bytes(data)
    start = checked(tmp_path).recovery
    assert start is not None
    left = broker.places.index(victim)
    assert (start.after_crash, start.looks_from, start.cut_at) == (False, borders[-1], victim)
    assert (start.messages_left, start.messages_lost) == (left, 60 - left)
    # After a crash it begins where the checkpoint says, here nowhere: at the first file.
    (tmp_path / "abort").write_bytes(b"")
    crashed = checked(tmp_path).recovery
    assert crashed is not None
    assert (crashed.after_crash, crashed.looks_from, crashed.cut_at) == (True, 0, victim)
    # A clean start does not look at older files: damage there stays as it is.
    path.write_bytes(broker.log[borders[-1] :].ljust(broker.file_bytes, b"\0"))
    (tmp_path / "abort").unlink()
    first = broker.folder / f"{0:020d}"
    data = bytearray(first.read_bytes())
    struct.pack_into(">i", data, broker.places[3], -1)
    first.write_bytes(data)
    kept = checked(tmp_path).recovery
    assert kept is not None
    assert (kept.looks_from, kept.cut_at) == (borders[-1], None)
