"""LocalCommitLog: the recorded brokers' commit logs byte for byte, and what a start does with every kind of end."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.message_store.commit_log import Placed
from node.message_store.errors import MessageStoreError
from node.message_store.local_log import BadBytes, LocalCommitLog
from node.message_store.local_mark import LastRecord, log_mark_path, read_log_mark
from node.message_store.message_store import MessageStore
from node.message_store.new_message import NewMessage
from node.message_store.record import MessageRecord, encode_record
from node.message_store.record_building import QueueOffsets
from node.message_store.write_files import OsDisk
from tests.simulation.disk import SimulatedCrash, SimulatedPlatform
from tests.simulation.message_disk import MessageDisk
from tests.unit.message_kit import record

FILE_BYTES = 2048
ROOT = Path("/store")


def message_of(one: MessageRecord) -> NewMessage:
    return NewMessage(
        one.topic, one.queue_id, one.body, one.born_host, one.store_host, one.properties_data, one.flag, one.sys_flag,
        one.born_timestamp_ms, one.reconsume_times, one.prepared_transaction_offset,
    )  # fmt: skip


def one_record(number: int, body_bytes: int = 60) -> bytes:
    body = random.Random(number).randbytes(body_bytes)
    return encode_record(record(body, queue_offset=number, store_timestamp_ms=1_795_000_000_000 + number))


def put(log: LocalCommitLog, number: int, body_bytes: int = 60) -> int:
    data = one_record(number, body_bytes)
    log.make_room(len(data))
    return log.append([data])[0]


def test_the_recorded_brokers_puts_give_the_same_files(vectors: Path, tmp_path: Path) -> None:
    """All 323 puts, batches among them: every byte but the two of a clock's is determined, and the clock is given."""
    there = vectors / "rocketmq" / "store"
    puts = json.loads((there / "manifest.json").read_text())["puts"]
    records = iter([one.record for one in MessageStore(there / "data").log.scan() if isinstance(one, Placed)])
    log = LocalCommitLog(tmp_path, 65_536)
    offsets = QueueOffsets(lambda _topic, _queue: 0)
    for one in puts:
        taken = [next(records) for _ in range(one.get("msgNum") or 0)] if one["appendStatus"] == "PUT_OK" else []
        if not taken:
            continue
        built = offsets.build([message_of(found) for found in taken], taken[0].store_timestamp_ms)
        log.make_room(sum(map(len, built.records)))
        places = log.append(built.records)
        assert places[0] == one["wroteOffset"] and sum(map(len, built.records)) == one["wroteBytes"]
        ids = one["msgId"].split(",")
        assert [found.message_id for found in taken] == ids
        assert built.first_offset == one["logicsOffset"]
    assert next(records, None) is None
    log.close()
    for file in sorted((there / "data/commitlog").iterdir()):
        assert (tmp_path / "commitlog" / file.name).read_bytes() == file.read_bytes(), file.name
    assert len(list((tmp_path / "commitlog").iterdir())) == 4


def test_a_recorded_brokers_directory_is_opened_to_its_last_message(vectors: Path, tmp_path: Path) -> None:
    shutil.copytree(vectors / "rocketmq" / "store/data", tmp_path, dirs_exist_ok=True, copy_function=shutil.copyfile)
    log = LocalCommitLog(tmp_path, 65_536)
    assert (log.min_offset, log.max_offset) == (0, 253_946)
    assert log.recovered.was_clean and not log.recovered.cut_bytes
    (tmp_path / "abort").write_bytes(b"1")
    log_mark_path(tmp_path).unlink()
    assert LocalCommitLog(tmp_path, 65_536).max_offset == 253_946


def test_a_flipped_byte_refuses_to_open_a_clean_stop_and_cuts_aside_with_abort(vectors: Path, tmp_path: Path) -> None:
    """corrupt1 of the vectors: RocketMQ cuts 95 sound messages with the damaged one, and forgets them."""
    shutil.copytree(vectors / "rocketmq" / "store/data", tmp_path, dirs_exist_ok=True, copy_function=shutil.copyfile)
    file = tmp_path / "commitlog/00000000000000196608"
    data = bytearray(file.read_bytes())
    data[202_749 - 196_608 + 90] ^= 1
    file.write_bytes(data)
    with pytest.raises(MessageStoreError, match="sound messages lie behind it"):
        LocalCommitLog(tmp_path, 65_536)
    assert file.read_bytes() == data and not log_mark_path(tmp_path).exists()
    (tmp_path / "abort").write_bytes(b"1")
    log = LocalCommitLog(tmp_path, 65_536)
    assert log.max_offset == 202_749
    assert not any(file.read_bytes()[202_749 - 196_608 :])
    (kept,) = (tmp_path / "quorumscope/cut").iterdir()
    assert kept.read_bytes() == bytes(data[202_749 - 196_608 : 253_946 - 196_608])


def test_a_record_of_the_size_of_a_cut_one_does_not_bring_the_rest_back(tmp_path: Path) -> None:
    """Oddity 4b."""
    log = LocalCommitLog(tmp_path, FILE_BYTES)
    places = [put(log, number) for number in range(6)]
    end = log.max_offset
    log.cut(places[2])
    assert put(log, 99) == places[2] and log.max_offset == places[3]
    log.close()
    (tmp_path / "abort").write_bytes(b"1")
    log_mark_path(tmp_path).unlink()
    again = LocalCommitLog(tmp_path, FILE_BYTES)
    assert again.max_offset == places[3] < end
    (kept,) = (tmp_path / "quorumscope/cut").iterdir()
    assert len(kept.read_bytes()) == end - places[2]


def test_a_message_that_fits_no_file_burns_none(tmp_path: Path) -> None:
    """Oddity 1."""
    log = LocalCommitLog(tmp_path, FILE_BYTES)
    put(log, 1)
    before = log.max_offset
    with pytest.raises(MessageStoreError, match="do not fit a file"):
        log.make_room(FILE_BYTES - 7)
    assert log.max_offset == before and len(log.starts) == 1
    log.make_room(FILE_BYTES - 8)
    assert log.starts == [0, FILE_BYTES]


def test_a_record_that_leaves_exactly_the_blanks_bytes_fits(tmp_path: Path) -> None:
    log = LocalCommitLog(tmp_path, FILE_BYTES)
    fixed = len(one_record(0, 0))
    assert put(log, 0, FILE_BYTES - 8 - fixed) == 0
    assert put(log, 1) == FILE_BYTES
    assert (tmp_path / "commitlog" / f"{0:020d}").read_bytes()[-8:] == (8).to_bytes(4, "big") + b"\xcb\xd4\x31\x94"


def test_damage_below_what_was_flushed_refuses_and_changes_nothing(tmp_path: Path) -> None:
    log = LocalCommitLog(tmp_path, FILE_BYTES)
    for number in range(5):
        put(log, number)
    log.save()
    file = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    data[log.last_record.offset + 100] ^= 1
    file.write_bytes(data)
    (tmp_path / "abort").write_bytes(b"1")
    with pytest.raises(MessageStoreError, match="is not the one that was flushed"):
        LocalCommitLog(tmp_path, FILE_BYTES)
    assert file.read_bytes() == data


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda folder: (folder / "x").write_bytes(b""), "no file of a commit log"),
        (lambda folder: (folder / f"{0:020d}").unlink(), "is missing|is no multiple|was flushed"),
        (lambda folder: (folder / f"{FILE_BYTES:020d}").unlink(), "is missing|was flushed"),
        (lambda folder: (folder / f"{0:020d}").write_bytes(b"1" * 100), "has 100 bytes"),
        (lambda folder: (folder / f"{9 * FILE_BYTES:020d}").write_bytes(bytes(FILE_BYTES)), "is missing"),
        (lambda folder: (folder / "quorumscope-owns").write_bytes(b"1"), "belongs to a broker group"),
    ],
)
def test_files_that_are_no_whole_log_are_refused(spoil: object, says: str, tmp_path: Path) -> None:
    log = LocalCommitLog(tmp_path, FILE_BYTES)
    for number in range(30):
        put(log, number)
    log.close()
    assert len(log.starts) > 2
    spoil(tmp_path / "commitlog")  # type: ignore[operator]
    before = {one.name: one.read_bytes() for one in (tmp_path / "commitlog").iterdir()}
    if f"{0:020d}" in before:
        with pytest.raises(MessageStoreError, match=says):
            LocalCommitLog(tmp_path, FILE_BYTES)
        assert {one.name: one.read_bytes() for one in (tmp_path / "commitlog").iterdir()} == before
    else:  # the oldest file may have expired
        assert LocalCommitLog(tmp_path, FILE_BYTES).min_offset == FILE_BYTES
    with pytest.raises(MessageStoreError, match="keeps the size that it began with"):
        LocalCommitLog(tmp_path, FILE_BYTES * 2)


def test_a_slave_takes_whole_records_that_lie_where_they_say_and_nothing_else(tmp_path: Path) -> None:
    master = LocalCommitLog(tmp_path / "master", FILE_BYTES)
    for number in range(40):
        put(master, number)
    slave = LocalCommitLog(tmp_path / "slave", FILE_BYTES)
    first = master.read(0, FILE_BYTES)
    with pytest.raises(BadBytes, match="nothing is written"):
        slave.append_data(0, bytes(FILE_BYTES))
    with pytest.raises(BadBytes, match="says that it lies at 0"):
        slave.append_data(FILE_BYTES, first)
    torn = bytearray(first)
    torn[100] ^= 1
    with pytest.raises(BadBytes, match="CRC"):
        slave.append_data(0, bytes(torn))
    assert slave.is_empty
    while slave.max_offset < master.max_offset:  # in pieces that end within records
        place = slave.max_offset
        taken = slave.append_data(place, master.read(place, 333))
        assert taken == slave.max_offset - place
        slave.append_data(slave.max_offset, master.read(slave.max_offset, FILE_BYTES))
    with pytest.raises(BadBytes, match="this log ends at"):
        slave.append_data(0, first)
    assert slave.crc_of(0, slave.max_offset) == master.crc_of(0, master.max_offset)
    assert slave.last_records(8) == master.last_records(8) and len(slave.last_records(8)) == 8
    assert slave.border_flaw(slave.last_record.offset) == ""
    assert "neither a record nor a blank" in slave.border_flaw(slave.last_record.offset + 1)
    master.close()
    slave.close()
    for start in master.starts:
        name = f"commitlog/{start:020d}"
        assert (tmp_path / "slave" / name).read_bytes() == (tmp_path / "master" / name).read_bytes()


def test_an_empty_slave_begins_where_its_master_does_and_comes_up_again(tmp_path: Path) -> None:
    master = LocalCommitLog(tmp_path / "master", FILE_BYTES)
    for number in range(40):
        put(master, number)
    master.save()
    assert master.remove_below(2 * FILE_BYTES + 5) == [0, FILE_BYTES]
    slave = LocalCommitLog(tmp_path / "slave", FILE_BYTES)
    slave.append_data(2 * FILE_BYTES, master.read(2 * FILE_BYTES, FILE_BYTES))
    assert slave.min_offset == master.min_offset == 2 * FILE_BYTES
    again = LocalCommitLog(tmp_path / "slave", FILE_BYTES)
    assert (again.min_offset, again.max_offset) == (2 * FILE_BYTES, slave.max_offset)
    assert LocalCommitLog(tmp_path / "master", FILE_BYTES).min_offset == 2 * FILE_BYTES


def work(log: LocalCommitLog, acked: list[int], disk: MessageDisk, is_ahead: bool) -> Iterator[int]:
    """What a master does with small files; `acked` gets the end of what was flushed. Yields each new end."""
    for number in range(18):
        if is_ahead and not (log.next_file.is_ready or log.next_file.is_named):
            log.next_file.make(disk)
            log.next_file.is_ready = True
        put(log, number, 40 + 13 * number)
        yield log.max_offset
        if number % 3 == 2:
            log.flush()
            acked.append(log.max_offset)
        if number % 5 == 4:
            log.save()
            acked.append(log.max_offset)
    log.cut(acked[2])
    del acked[3:]
    put(log, 500, 1000)
    log.flush()
    acked.append(log.max_offset)
    yield log.max_offset


def run(platform: SimulatedPlatform, acked: list[int], ends: list[int], is_ahead: bool) -> set[LastRecord]:
    """All records that were ever written."""
    disk = MessageDisk(platform)
    log = LocalCommitLog(ROOT, FILE_BYTES, disk=disk, files=disk)
    written: set[LastRecord] = set()
    for end in work(log, acked, disk, is_ahead):
        ends.append(end)
        written.add(log.last_record)
    return written


@pytest.mark.parametrize("is_ahead", [False, True], ids=["", "ahead"])
@pytest.mark.parametrize("power", [False, True], ids=["killed", "power"])
def test_a_crash_at_every_call_leaves_a_log_that_goes_on(power: bool, is_ahead: bool) -> None:
    """A process that is killed loses nothing that was written, a power loss nothing that was flushed; the end is a
    border, what is there is what was written, and the next record follows it."""
    whole = SimulatedPlatform(random.Random(1), lambda: 0, "calls")
    acked_in_all: list[int] = []
    written = run(whole, acked_in_all, [], is_ahead)
    places = {one.offset for one in written if one.offset < acked_in_all[2]}
    calls = whole.op_count
    assert calls > 100
    for seed, at in enumerate(range(1, calls + 1)):
        platform = SimulatedPlatform(random.Random(seed), lambda: 0, "m")
        platform.faults.crash_at_op = at
        acked: list[int] = []
        ends: list[int] = []
        with contextlib.suppress(SimulatedCrash):
            run(platform, acked, ends, is_ahead)
        if power:
            platform.lose_power()
        else:
            platform.crash_process()
        disk = MessageDisk(platform)
        log = LocalCommitLog(ROOT, FILE_BYTES, disk=disk, files=disk)
        sure = acked if power else ends
        floor = sure[-1] if sure else 0
        if len(acked) > 2:  # the cut may have begun
            floor = min(floor, acked[2])
        assert log.max_offset >= floor, (at, acked, ends)
        here = log.last_records(1000)
        assert {one.offset for one in here} >= {one for one in places if one < log.max_offset}
        assert set(here) <= written
        place = put(log, 1000, 100)
        assert log.last_records(2)[-1].offset == place
        log.close()
        disk = MessageDisk(platform)
        assert LocalCommitLog(ROOT, FILE_BYTES, disk=disk, files=disk).last_record.offset == place


def test_a_torn_record_whose_properties_alone_are_lost_is_cut() -> None:
    """No CRC covers properties: a sector of zeros in them says that the power loss took it."""
    platform = SimulatedPlatform(random.Random(1), lambda: 0, "m")
    disk = MessageDisk(platform)
    log = LocalCommitLog(ROOT, 8192, disk=disk, files=disk)
    put(log, 0)
    log.save()
    data = encode_record(record(b"body", properties_data=b"KEYS\x01" + b"k" * 2000 + b"\x02"))
    log.make_room(len(data))
    (place,) = log.append([data])
    platform.forget(ROOT / "commitlog" / f"{0:020d}", 1024, 512)
    platform.crash_process()
    again = MessageDisk(platform)
    found = LocalCommitLog(ROOT, 8192, disk=again, files=again)
    assert found.max_offset == place and "hole" in found.recovered.why


def test_after_a_write_that_failed_nothing_more_is_written() -> None:
    platform = SimulatedPlatform(random.Random(1), lambda: 0, "m")
    disk = MessageDisk(platform)
    log = LocalCommitLog(ROOT, FILE_BYTES, disk=disk, files=disk)
    put(log, 0)
    platform.faults.fsync_error_next = True
    with pytest.raises(OSError):
        log.flush()
    with pytest.raises(MessageStoreError, match="open it anew"):
        put(log, 1)
    platform.crash_process()
    full = MessageDisk(platform)
    log = LocalCommitLog(ROOT, FILE_BYTES, disk=full, files=full)
    while log.max_offset < FILE_BYTES - 300:
        put(log, 2)
    platform.faults.enospc = True
    before = log.max_offset
    with pytest.raises(OSError):
        log.make_room(1000)
    assert log.max_offset == before and not log.broken_by
    platform.faults.clear()
    assert put(log, 3, 800) == FILE_BYTES


def test_the_mark_says_what_is_on_disk(tmp_path: Path) -> None:
    log = LocalCommitLog(tmp_path, FILE_BYTES)
    put(log, 0)
    mark = read_log_mark(tmp_path)
    assert mark is not None and mark.flushed == 0
    log.save()
    mark = read_log_mark(tmp_path)
    assert mark is not None and (mark.flushed, mark.last) == (log.max_offset, log.last_record)
    log_mark_path(tmp_path).write_bytes(b"00000000 {}\n")
    with pytest.raises(MessageStoreError, match="cannot be read"):
        LocalCommitLog(tmp_path, FILE_BYTES)


def test_a_roll_takes_the_file_that_was_made_ahead_and_syncs_nothing(tmp_path: Path) -> None:
    synced: list[str] = []

    class Watched(OsDisk):
        def sync(self, path: Path) -> None:
            synced.append(path.name)
            super().sync(path)

        def sync_folder(self, path: Path) -> None:
            synced.append(path.name)
            super().sync_folder(path)

    log = LocalCommitLog(tmp_path, FILE_BYTES, disk=Watched())
    put(log, 0, 1000)
    log.next_file.make(OsDisk())
    log.next_file.is_ready = True
    synced.clear()
    put(log, 1, 1500)
    assert log.starts == [0, FILE_BYTES] and not synced
    put(log, 2, 1500)  # the next one is not there yet, and that one's name is on no disk: as if there were none
    assert log.starts[-1] == 2 * FILE_BYTES and "commitlog" in synced
    synced.clear()
    log.flush()
    assert synced[0] == "commitlog" and not log.next_file.is_named
    log.next_file.make(OsDisk())
    log.next_file.is_ready = True
    log.close()
    assert sorted(path.name for path in (tmp_path / "quorumscope").iterdir()) == ["commitlog"]
    (tmp_path / "quorumscope/next-file").write_bytes(b"of a process that ended")
    again = LocalCommitLog(tmp_path, FILE_BYTES)
    assert again.max_offset == log.max_offset and not (tmp_path / "quorumscope/next-file").exists()
