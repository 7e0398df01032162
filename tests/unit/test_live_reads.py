"""Reads of a store from its files: what expires meanwhile, what cannot be read, limits of one answer."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from node.message_store import live_reads
from node.message_store.consume_queue import PullStatus
from node.message_store.dispatch_mark import DerivedSizes
from node.message_store.errors import MessageStoreError
from node.message_store.live_reads import LiveReads, store_time_of
from node.message_store.read_files import OsFiles
from node.message_store.recent_entries import RecentEntries
from node.message_store.record import decode_record
from node.store.files.java_files import own_commit_log
from tests.unit import message_broker
from tests.unit.message_broker import Broker

ALL_IN_MEMORY = 1 << 40


def store_of(root: Path, count: int = 40) -> Broker:
    broker = Broker(root, ledger=True)
    for number in range(count):
        broker.put(body=b"%d" % number * 20)
    broker.write()
    return broker


def reads_of(broker: Broker, memory_bytes: int = ALL_IN_MEMORY, sizes: DerivedSizes | None = None) -> LiveReads:
    ends: Mapping[tuple[str, int], int] = broker.next_offsets
    dispatched = SimpleNamespace(
        queue_end=lambda queue: ends.get(queue, 0), end_position=broker.end,
        dispatcher=None if sizes is None else SimpleNamespace(sizes=sizes),
    )  # fmt: skip
    return LiveReads(broker.root, dispatched, RecentEntries(), memory_bytes)


def test_what_is_far_from_the_end_comes_from_the_disk_in_smaller_answers(tmp_path: Path) -> None:
    broker = store_of(tmp_path)
    got = reads_of(broker).get("TopicTest", 0, 3)
    assert (got.status, len(got.records), got.next_offset, got.suggests_slave) == (PullStatus.FOUND, 13, 16, False)
    got = reads_of(broker, 0).get("TopicTest", 0, 3)
    assert (got.status, len(got.records), got.next_offset, got.suggests_slave) == (PullStatus.FOUND, 8, 11, True)
    assert [decode_record(one).body for one in got.records] == [b"%d" % number * 20 for number in range(3, 11)]
    one = reads_of(broker).get("TopicTest", 0, 3, bytes_max=1)  # the first always goes
    assert (len(one.records), one.next_offset) == (1, 4)


def test_a_message_whose_file_went_away_is_passed_over(tmp_path: Path) -> None:
    broker = store_of(tmp_path)
    reads = reads_of(broker)
    assert reads.get("TopicTest", 0, 0).status is PullStatus.FOUND
    (broker.folder / f"{0:020d}").unlink()
    got = reads.get("TopicTest", 0, 0)  # it knows only now
    assert (got.status, got.next_offset, got.records) == (PullStatus.MESSAGE_WAS_REMOVING, 16, ())
    low = reads.min_offset("TopicTest", 0)
    assert low > 0 and broker.places[low] >= broker.file_bytes
    late = reads.get("TopicTest", 0, 0)
    assert (late.status, late.next_offset, late.min_offset) == (PullStatus.OFFSET_TOO_SMALL, low, low)


def test_when_a_message_was_stored_is_unknown_where_its_disk_fails(tmp_path: Path) -> None:
    """Asked of the first delayed message that waits, it was an error of all that a broker says of itself."""
    broker = store_of(tmp_path)

    class Failing(OsFiles):
        def read(self, path: Path, offset: int, length: int) -> bytes:
            if path.parent == broker.folder:
                raise OSError(5, "Input/output error")
            return super().read(path, offset, length)

    reads = reads_of(broker)
    assert reads.stored_at_ms("TopicTest", 0, 3) > 0
    reads._files = Failing()
    reads.forget_all()
    assert reads.stored_at_ms("TopicTest", 0, 3) == -1


def test_a_queue_begins_where_its_messages_do_also_in_files_that_were_made_meanwhile(tmp_path: Path) -> None:
    broker = store_of(tmp_path, 10)
    reads = reads_of(broker)
    assert len(reads.get("TopicTest", 0, 0).records) == 10
    first_file = broker.file_bytes
    while broker.end < 2 * first_file:
        broker.put(body=bytes(20))
    broker.write()
    expected = sum(one < first_file for one in broker.places)
    assert expected > 16, "in the queue's second file"
    (broker.folder / f"{0:020d}").unlink()
    reads.refresh()
    assert reads.min_offset("TopicTest", 0) == expected


def test_a_search_by_time_reads_no_bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(tmp_path, ledger=True)
    for _ in range(20):
        broker.put(body=bytes(1000))
    broker.write()
    reads = reads_of(broker)
    read_bytes: list[int] = []
    whole = LiveReads._from_file

    def counted(self: LiveReads, offset: int, least_bytes: int, most_bytes: int) -> bytes:
        found = whole(self, offset, least_bytes, most_bytes)
        read_bytes.append(len(found))
        return found

    monkeypatch.setattr(LiveReads, "_from_file", counted)
    times = [reads.stored_at_ms("TopicTest", 0, number) for number in range(20)]
    assert times == [store_time_of(reads.get("TopicTest", 0, number, 1).records[0]) for number in range(20)]
    read_bytes.clear()
    assert reads.offset_at("TopicTest", 0, times[7]) == times.index(times[7])
    assert read_bytes and max(read_bytes) < 100


def test_a_message_that_cannot_be_read_is_never_passed_over(tmp_path: Path) -> None:
    broker = store_of(tmp_path)
    with (broker.folder / f"{0:020d}").open("r+b") as file:
        file.seek(broker.places[5])
        file.write(bytes(8))
    reads = reads_of(broker)
    got = reads.get("TopicTest", 0, 2)
    assert (got.status, len(got.records), got.next_offset) == (PullStatus.FOUND, 3, 5)
    stuck = reads.get("TopicTest", 0, 5)
    assert (stuck.status, stuck.next_offset, stuck.records) == (PullStatus.OFFSET_FOUND_NULL, 5, ())
    assert reads.get("TopicTest", 0, 6).status is PullStatus.FOUND  # who asks for it gets it


def test_what_is_not_what_was_written_any_more_is_given_to_nobody(tmp_path: Path) -> None:
    """A consumer got it, and a delayed or half message was stored again with a new CRC over it, on all members."""
    broker = store_of(tmp_path)
    for place in broker.places:  # as our engine writes entries
        size = int.from_bytes(broker.log[place : place + 4], "big")
        struct.pack_into(">II", broker.log, place - 12, 7, zlib.crc32(broker.log[place : place + size]))
    broker.write()
    reads, damaged = reads_of(broker), list[int]()
    reads.on_damage = damaged.append
    assert len(reads.get("TopicTest", 0, 2).records) == 14 and not damaged
    flip(broker, broker.places[5] + 95)
    got = reads.get("TopicTest", 0, 2)
    assert (got.status, len(got.records), got.next_offset) == (PullStatus.FOUND, 3, 5)
    stuck = reads.get("TopicTest", 0, 5)
    assert (stuck.status, stuck.next_offset, stuck.records) == (PullStatus.OFFSET_FOUND_NULL, 5, ())
    with pytest.raises(MessageStoreError, match="damaged"):
        reads.message_at(broker.places[5])
    assert set(damaged) == {5} and len(damaged) == 3
    assert reads.get("TopicTest", 0, 6).status is PullStatus.FOUND
    flip(broker, broker.places[5] + 95)  # it is healed
    assert len(reads.get("TopicTest", 0, 5).records) == 11


@pytest.mark.parametrize("ledger", [True, False], ids=["entries of Java's", "a classic or old commit log"])
@pytest.mark.parametrize("at", [4, 9, 95], ids=["magic", "CRC", "body"])
def test_what_java_wrote_has_no_checksum_and_is_judged_by_the_crc_of_the_body(
    ledger: bool, at: int, tmp_path: Path
) -> None:
    """It was given as it is on the disk; a delayed message or a retry was stored again, with a new CRC over it."""
    broker = Broker(tmp_path, ledger=ledger)
    for number in range(40):
        broker.put(body=b"%d" % number * 20)
    broker.put(body=b"")
    broker.write()
    reads, rotten = reads_of(broker), list[int]()
    reads.on_rot = lambda place, _record: rotten.append(place)
    assert not [one for one in range(41) if reads.get("TopicTest", 0, one, 1).status is not PullStatus.FOUND]
    assert not rotten
    flip(broker, broker.places[5] + at)
    assert reads.get("TopicTest", 0, 2).next_offset == 5
    stuck = reads.get("TopicTest", 0, 5)
    assert (stuck.status, stuck.next_offset, stuck.records) == (PullStatus.OFFSET_FOUND_NULL, 5, ())
    with pytest.raises(MessageStoreError):
        reads.message_at(broker.places[5])
    assert set(rotten) == {broker.places[5]}
    assert reads.get("TopicTest", 0, 6).status is PullStatus.FOUND
    flip(broker, broker.places[5] + at)  # its file was put back
    assert len(reads.get("TopicTest", 0, 5, 4).records) == 4


def flip(broker: Broker, at: int) -> None:
    with (broker.folder / f"{0:020d}").open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_records_that_lie_near_one_another_come_with_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = store_of(tmp_path)
    reads = reads_of(broker)
    from_file, asked = reads._from_file, list[int]()
    monkeypatch.setattr(reads, "_from_file", lambda *said: asked.append(said[0]) or from_file(*said))  # type: ignore[func-returns-value]
    together = [bytes(one) for one in reads.get("TopicTest", 0, 3, 8).records]
    assert asked == [broker.places[3] - 48]  # with the head of its entry
    assert together == [bytes(reads.record(broker.places[at], len(together[at - 3])) or b"") for at in range(3, 11)]
    asked.clear()
    monkeypatch.setattr(live_reads, "GAP_BYTES_MAX", 0)  # an entry's head stands between two records
    assert [bytes(one) for one in reads.get("TopicTest", 0, 3, 8).records] == together
    assert asked == [broker.places[at] - 48 for at in range(3, 11)]
    asked.clear()
    monkeypatch.setattr(live_reads, "GAP_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(live_reads, "READ_BYTES_MAX", broker.places[6] - broker.places[3])
    assert [bytes(one) for one in reads.get("TopicTest", 0, 3, 8).records] == together
    assert asked == [broker.places[at] - 48 for at in (3, 6, 9)]


def test_units_whose_file_is_missing_say_where_the_next_begins(tmp_path: Path) -> None:
    broker = store_of(tmp_path)
    (tmp_path / "consumequeue/TopicTest/0" / f"{320:020d}").unlink()
    got = reads_of(broker).get("TopicTest", 0, 17)
    assert (got.status, got.next_offset) == (PullStatus.OFFSET_FOUND_NULL, 32)


def test_times_are_searched_in_the_queue(tmp_path: Path) -> None:
    broker = store_of(tmp_path)
    reads = reads_of(broker)
    times = [reads.stored_at_ms("TopicTest", 0, number) for number in range(40)]
    assert times == sorted(times) and store_time_of(reads.message_at(broker.places[7])) == times[7]
    for number in (0, 1, 20, 39):
        assert reads.offset_at("TopicTest", 0, times[number]) == number
    assert reads.offset_at("TopicTest", 0, times[-1] + 1) == 39
    assert reads.offset_at("NoTopic", 0, 0) == 0


def test_a_log_of_which_nothing_is_dispatched_need_not_be_there_yet(tmp_path: Path) -> None:
    """A broker is asked as soon as it listens; its engine makes the first file with the first entry."""
    dispatched = SimpleNamespace(queue_end=lambda _queue: 0, end_position=0, dispatcher=None)
    reads = LiveReads(tmp_path, dispatched, RecentEntries(), ALL_IN_MEMORY)
    assert (reads.min_offset("TopicTest", 0), list(reads.query("TopicTest", "key"))) == (0, [])
    assert reads.get("TopicTest", 0, 0).status is PullStatus.NO_MESSAGE_IN_QUEUE
    assert (reads.stored_at_ms("TopicTest", 0, 0), reads.offset_at("TopicTest", 0, 1)) == (-1, 0)


def test_a_log_that_holds_no_message_yet_is_a_store_without_queues_and_index(tmp_path: Path) -> None:
    """The first entry of a term is dispatched, and changes neither; our file says that the log is a broker's."""
    own_commit_log(tmp_path / "dledger-n0")
    (tmp_path / "dledger-n0" / "data").mkdir(parents=True)
    dispatched = SimpleNamespace(queue_end=lambda _queue: 0, end_position=100, dispatcher=None)
    reads = LiveReads(tmp_path, dispatched, RecentEntries(), ALL_IN_MEMORY)
    assert (list(reads.query("TopicTest", "key")), reads.index_end()) == ([], (0, 0))
    assert reads.store.topics() == {}


@pytest.mark.parametrize("count", [1, 2, 40])
def test_an_index_of_any_number_of_slots_is_read_by_what_its_writer_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """The number is nowhere in the file, and this one (maxHashSlotNum 33) is none that could be guessed."""
    monkeypatch.setattr(message_broker, "SLOTS", 33)
    broker = Broker(tmp_path, ledger=True)
    for number in range(count):
        broker.put(body=b"%d" % number, keys=f"k{number}")
    broker.write()
    written = DerivedSizes(index_slots=33, index_entries=message_broker.INDEX_ENTRIES)
    reads = reads_of(broker, sizes=written)
    for number in range(count):
        assert [decode_record(one).body for one in reads.query("TopicTest", f"k{number}") if one] == [b"%d" % number]
    assert reads.index_end()[1] == broker.places[-1]
    assert list(reads_of(broker).query("TopicTest", "k0")) == []  # nobody said it
    monkeypatch.setattr(message_broker, "SLOTS", 50)  # a file from before the writer had these sizes shows its own
    broker.write_index()
    again = list(reads_of(broker, sizes=written).query("TopicTest", f"k{count - 1}"))
    assert [decode_record(one).body for one in again if one] == [b"%d" % (count - 1)]
