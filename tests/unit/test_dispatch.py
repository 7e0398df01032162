"""The dispatcher: the recorded brokers' queues and indexes from their commit logs, byte for byte; and going on."""

from __future__ import annotations

import errno
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.message_store.commit_log import CommitLog, Placed
from node.message_store.delay_levels import parse_delay_levels
from node.message_store.dispatch import Dispatcher
from node.message_store.dispatch_batch import (
    Batch,
    batch_of_entries,
    batch_of_records,
    columns_at_once,
    columns_one_by_one,
)
from node.message_store.dispatch_mark import DerivedSizes, LogPoint, mark_path
from node.message_store.errors import MessageFormatError, MessageStoreError, NoSpaceToWrite
from node.message_store.message_store import MessageStore
from node.message_store.properties import join_properties
from node.message_store.queue_units import SCHEDULE_TOPIC
from node.message_store.record import MessageRecord, TransactionType, encode_record, magic_for
from node.message_store.write_files import OsDisk
from node.protocol.entry import BytesLike
from tests.unit.message_broker import INDEX_ENTRIES, SLOTS, UNITS_A_FILE, filled
from tests.unit.message_kit import CALM, record, records

SIZES = DerivedSizes(UNITS_A_FILE * 20, SLOTS, INDEX_ENTRIES)
LEVELS = parse_delay_levels()


def placed_in(log: CommitLog) -> list[Placed]:
    return [one for one in log.scan() if isinstance(one, Placed)]


def batch_of(found: list[Placed]) -> Batch:
    return batch_of_records([(one.offset, one.size_bytes, encode_record(one.record)) for one in found])


def dispatched(log: CommitLog, root: Path, step: int) -> None:
    """All of a log, `step` messages a time."""
    dispatcher = Dispatcher(root, SIZES, begin=LogPoint(log.min_offset))
    found = placed_in(log)
    for at in range(0, len(found), step):
        part = found[at : at + step]
        dispatcher.dispatch(batch_of(part), LogPoint(part[-1].end))
        if at // step % 20 == 0:
            dispatcher.save()
    dispatcher.close()


def queue_files(root: Path) -> dict[str, bytes]:
    folder = root / "consumequeue"
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def index_files(root: Path) -> list[bytes]:
    """What is in them: which names they have, their clock said."""
    return [one.read_bytes() for one in sorted((root / "index").iterdir())]


@pytest.mark.parametrize("step", [1, 7, 50, 1000])
@pytest.mark.parametrize("name", ["store/data", "dledger-commitlog/single"])
def test_a_recorded_brokers_queues_index_and_checkpoint_come_out_byte_for_byte(
    vectors: Path, name: str, step: int, tmp_path: Path
) -> None:
    there = vectors / "rocketmq" / name
    dispatched(MessageStore(there).log, tmp_path, step)
    assert queue_files(tmp_path) == queue_files(there)
    assert index_files(tmp_path) == index_files(there)
    assert (tmp_path / "checkpoint").read_bytes() == (there / "checkpoint").read_bytes()


def test_a_queue_that_begins_late_is_pre_filled_as_the_recorded_broker_does(vectors: Path, tmp_path: Path) -> None:
    """reb1: its first file of the commit log was gone, with all queues. Files as in the whole store were not kept."""
    log = MessageStore(vectors / "rocketmq" / "store/data").log
    dispatcher = Dispatcher(tmp_path, SIZES, begin=LogPoint(65536))
    found = [one for one in log.scan(65536) if isinstance(one, Placed)]
    dispatcher.dispatch(batch_of(found), LogPoint(found[-1].end))
    dispatcher.close()
    case = vectors / "rocketmq" / "store-cases/reb1"
    there, ours = queue_files(vectors / "rocketmq" / "store/data") | queue_files(case), queue_files(tmp_path)
    says = json.loads((vectors / "rocketmq" / "store-cases/manifest.json").read_text())["cases"]["reb1"]["filesAfter"]
    assert {f"consumequeue/{one}" for one in ours} == {one for one in says if one.startswith("consumequeue/")}
    assert ours == {name: there[name] for name in ours}
    assert index_files(tmp_path) == index_files(case)


@pytest.mark.parametrize("cut", [20, 77, 200, 366])
def test_after_a_stop_anywhere_the_same_batches_make_the_same_bytes(vectors: Path, cut: int, tmp_path: Path) -> None:
    """Marked in the middle, then written on without a mark: what lies behind the mark is zeroed and comes again."""
    there = vectors / "rocketmq" / "dledger-commitlog/single"
    found = placed_in(MessageStore(there).log)
    first = Dispatcher(tmp_path, SIZES, begin=LogPoint(0))
    first.dispatch(batch_of(found[:cut]), LogPoint(found[cut - 1].end, cut - 1, 3, 77))
    first.save()
    first.dispatch(batch_of(found[cut:]), LogPoint(found[-1].end))
    del first  # ends without a word, as by SIGKILL
    again = Dispatcher(tmp_path)
    assert again.point == LogPoint(found[cut - 1].end, cut - 1, 3, 77)
    after_cut = queue_files(tmp_path)
    units = [struct.unpack_from(">qi", data, at) for data in after_cut.values() for at in range(0, len(data), 20)]
    assert max(offset + size for offset, size in units if size != 0x7FFFFFFF) <= again.point.position
    again.dispatch(batch_of(found[cut:]), LogPoint(found[-1].end))
    again.close()
    assert queue_files(tmp_path) == queue_files(there)
    assert index_files(tmp_path) == index_files(there)
    assert Dispatcher(tmp_path).next_offsets == again.next_offsets


@given(st.lists(records(), max_size=30), st.booleans())
@settings(CALM, max_examples=40)
def test_many_at_once_and_one_by_one_read_the_same(found: list[MessageRecord], waits: bool) -> None:
    if waits:
        found = [record(topic=SCHEDULE_TOPIC, properties_data=one.properties_data, sys_flag=0) for one in found] + found
    batch = batch_of_records([(at * 1000, one.total_size, encode_record(one)) for at, one in enumerate(found)])
    assert_same(batch)


def assert_same(batch: Batch) -> None:
    many, few = columns_at_once(batch, LEVELS), columns_one_by_one(batch, LEVELS)
    assert many.queues == few.queues and many.last_time_ms == few.last_time_ms
    assert np.array_equal(many.queued, few.queued)
    assert np.array_equal(many.keyed, few.keyed)


ODD_PROPERTIES = [
    b"", b"\x02", b"\x01\x02", b"TAGS\x01\x02", b"TAGS\x01a", b"TAGS\x01a\x02TAGS\x01\x02",
    b"TAGS\x01a\x02TAGS\x01b\x02", b"XTAGS\x01a\x02", b"KEYS\x01 a  b \x02", b"KEYS\x01 \x02",
    b"UNIQ_KEY\x01u\x01v\x02KEYS\x01u u", b"\x02\x02TAGS\x01z\x02", b"a\x01TAGS\x01b\x02",
    "TAGS\x01t\u00e4g\x02KEYS\x01\u4e2d k\x02".encode(), b"DELAY\x01x\x02", b"DELAY\x0199\x02TAGS\x01a\x02",
    b"DELAY\x010\x02TAGS\x01a\x02", b"TAGS\x01\xff\x02KEYS\x01\xfe q\x02", b"TAGS", b"KEYS\x01",
]  # fmt: skip


@pytest.mark.parametrize("topic", ["T", SCHEDULE_TOPIC, "t\u00e4" * 100])
def test_odd_properties_read_the_same_both_ways(topic: str) -> None:
    found = [record(topic=topic, magic=magic_for(topic), properties_data=one, queue_offset=at)
             for at, one in enumerate(ODD_PROPERTIES)]  # fmt: skip
    assert_same(batch_of_records([(at, one.total_size, encode_record(one)) for at, one in enumerate(found)]))


@pytest.mark.parametrize("lengths", [range(1, 6), range(1, 60)])
def test_texts_of_few_and_of_many_lengths_have_the_same_hashes(lengths: range) -> None:
    found = []
    for at, length in enumerate(lengths):
        keys = "k" * length + " " + "\u4e2d" * length if at % 2 else "K" * length
        properties = f"TAGS\x01{'t' * length}\x02KEYS\x01{keys}\x02UNIQ_KEY\x01{'~' * length}\x02"
        found.append(record(properties_data=properties.encode(), queue_offset=at))
    assert_same(batch_of_records([(at, one.total_size, encode_record(one)) for at, one in enumerate(found)]))


@given(st.data())
@CALM
def test_bytes_that_are_no_record_are_refused_both_ways(data: st.DataObject) -> None:
    """Any change of any bytes: both ways read the same or both say that it is none."""
    found = bytearray(encode_record(data.draw(records())))
    for _ in range(data.draw(st.integers(1, 3))):
        found[data.draw(st.integers(0, len(found) - 1))] = data.draw(st.integers(0, 255))
    batch = batch_of_records([(0, len(found), bytes(found))])
    try:
        few = columns_one_by_one(batch, LEVELS)
    except MessageFormatError:
        with pytest.raises(MessageFormatError):
            columns_at_once(batch, LEVELS)
        return
    assert np.array_equal(columns_at_once(batch, LEVELS).queued, few.queued)


def test_entries_that_hold_no_message_of_a_client_are_left_out() -> None:
    def entry(channel: int, body: bytes) -> bytes:
        return struct.pack(">iiqqqiIIi", 1, 48 + len(body), 0, 1, 0, channel, 0, 0, len(body)) + body

    one = encode_record(record())
    slab = entry(0, one) + entry(1, one) + entry(3, one) + entry(0, b"") + entry(0, one)
    batch = batch_of_entries(slab, 4096)
    assert batch.offsets.tolist() == [4096 + 48, 4096 + len(slab) - len(one)]
    assert batch.sizes.tolist() == [len(one)] * 2
    with pytest.raises(MessageFormatError, match="position 4096"):
        batch_of_entries(slab[: len(one)], 4096)


def put(dispatcher: Dispatcher, *numbers: int, topic: str = "T") -> dict[tuple[str, int], int]:
    at = dispatcher.point.position
    found = [record(topic=topic, queue_id=0, queue_offset=one, properties_data=join_properties([("KEYS", "k")]))
             for one in numbers]  # fmt: skip
    rows = [(at + row * 200, one.total_size, encode_record(one)) for row, one in enumerate(found)]
    return dispatcher.dispatch(batch_of_records(rows), LogPoint(at + 200 * len(rows)))


def test_a_gap_or_a_repeat_stops_it_and_nothing_is_written(tmp_path: Path) -> None:
    dispatcher = Dispatcher(tmp_path, SIZES)
    assert put(dispatcher, 0, 1) == {("T", 0): 2}
    before, point = queue_files(tmp_path), dispatcher.point
    with pytest.raises(MessageStoreError, match="goes on with queue offset 2, but the message at offset 400 says 3"):
        put(dispatcher, 3)
    with pytest.raises(MessageStoreError, match=r"goes on with queue offset 3, but .* says 2"):
        put(dispatcher, 2, 2)
    assert (queue_files(tmp_path), dispatcher.point) == (before, point)
    assert put(dispatcher, 2) == {("T", 0): 3}


def test_repeats_of_an_old_log_are_passed_over_and_counted(tmp_path: Path) -> None:
    dispatcher = Dispatcher(tmp_path, SIZES, dense_from=1000)
    assert put(dispatcher, 0, 1, 0, 1, 2) == {("T", 0): 3}
    assert dispatcher.repeats == 2
    dispatcher.close()
    with pytest.raises(MessageStoreError, match="goes on with queue offset 3"):  # the border goes with the mark
        put(Dispatcher(tmp_path), 2)


def test_a_queue_without_messages_goes_on_where_it_was(tmp_path: Path) -> None:
    """Its last unit points just before the log: Java takes pre-fill alone for two gigabytes of repeats."""
    dispatcher = Dispatcher(tmp_path, SIZES, begin=LogPoint(8192))
    dispatcher.keep_place(("T", 0), 35, 8192)
    dispatcher.close()
    data = (tmp_path / "consumequeue/T/0" / f"{32 * 20:020d}").read_bytes()
    units = [struct.unpack_from(">qiq", data, at) for at in range(0, len(data), 20)]
    assert units[:4] == [(0, 0x7FFFFFFF, 0), (0, 0x7FFFFFFF, 0), (8191, 1, 0), (0, 0, 0)]
    again = Dispatcher(tmp_path)
    assert again.next_offsets == {("T", 0): 35}
    assert put(again, 35) == {("T", 0): 36}


def test_a_topic_that_was_deleted_begins_anew(tmp_path: Path) -> None:
    dispatcher = Dispatcher(tmp_path, SIZES)
    put(dispatcher, 0, 1, 2)
    put(dispatcher, 0, topic="U")
    dispatcher.drop_topic("T")
    assert dispatcher.next_offsets == {("U", 0): 1}
    assert put(dispatcher, 0) == {("T", 0): 1}
    dispatcher.close()
    assert Dispatcher(tmp_path).next_offsets == {("T", 0): 1, ("U", 0): 1}


@pytest.mark.parametrize("topic", ["..", "a/b", "", "x" * 100 + "ä" * 100])
def test_a_topic_that_is_no_directory_is_refused(topic: str, tmp_path: Path) -> None:
    dispatcher = Dispatcher(tmp_path, SIZES)
    one = record(topic=topic, magic=magic_for(topic), queue_offset=0)
    with pytest.raises(MessageStoreError, match="can be no directory"):
        dispatcher.dispatch(batch_of_records([(0, one.total_size, encode_record(one))]), LogPoint(500))
    assert queue_files(tmp_path) == {}


def test_files_that_nothing_vouches_for_and_other_sizes_are_refused(tmp_path: Path) -> None:
    root = filled(tmp_path).write()
    with pytest.raises(MessageStoreError, match="nothing says how far they are sound"):
        Dispatcher(root, SIZES)
    other = tmp_path / "other"
    Dispatcher(other, SIZES).close()
    with pytest.raises(MessageStoreError, match="were written with"):
        Dispatcher(other, DerivedSizes())
    path = mark_path(other)
    path.write_bytes(path.read_bytes().replace(b"clean", b"cleen"))
    with pytest.raises(MessageStoreError, match="rebuild-queues"):
        Dispatcher(other)


@pytest.mark.parametrize("marked", [0, 3, UNITS_A_FILE])
def test_a_file_whose_making_was_cut_off_is_made_again(marked: int, tmp_path: Path) -> None:
    """A process that ends between a file's name and its length leaves an empty one, behind whatever is sound."""
    dispatcher = Dispatcher(tmp_path, SIZES, begin=LogPoint(0))
    put(dispatcher, *range(marked))
    dispatcher.close()
    folder = tmp_path / "consumequeue" / "T" / "0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{(marked + UNITS_A_FILE - 1) // UNITS_A_FILE * UNITS_A_FILE * 20:020d}").touch()
    dispatcher = Dispatcher(tmp_path, SIZES)
    assert put(dispatcher, marked) == {("T", 0): marked + 1}
    dispatcher.close()
    lengths = {one.stat().st_size for one in folder.iterdir()}
    assert lengths == {SIZES.queue_file_bytes}


class FullNowAndThen(OsDisk):
    """No room for some writes, of which a part may be there, for a new file's content, or for an index's slots: for the
    n-th at first, and then after one more that found room each time, so that every piece finds enough in the end."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self._gap, self._left = every, every

    def _look(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._gap += 1
            self._left = self._gap
            raise OSError(errno.ENOSPC, "No space left on device")

    def create(self, path: Path, size_bytes: int) -> None:
        self._look()
        super().create(path, size_bytes)

    def write(self, path: Path, offset: int, data: BytesLike) -> None:
        try:
            self._look()
        except OSError:
            super().write(path, offset, bytes(data)[: len(data) // 2])
            raise
        super().write(path, offset, data)

    def int32_table(self, path: Path, offset: int, count: int) -> npt.NDArray[Any]:
        self._look()
        return super().int32_table(path, offset, count)


@pytest.mark.parametrize("every", [3, 5, 8])
@pytest.mark.parametrize("step", [1, 7, 50])
def test_where_the_disk_is_full_now_and_then_the_same_bytes_come_out(
    vectors: Path, step: int, every: int, tmp_path: Path
) -> None:
    """What found no room is dispatched again, also in other pieces; what cannot be takes a new dispatcher."""
    there, tried_again = vectors / "rocketmq" / "store/data", 0
    log = MessageStore(there).log
    found, disk = placed_in(log), FullNowAndThen(every)

    def opened() -> Dispatcher:
        while True:
            try:
                return Dispatcher(tmp_path, SIZES, begin=LogPoint(log.min_offset), disk=disk)
            except OSError:
                disk.close()

    dispatcher = opened()
    while left := [one for one in found if one.offset >= dispatcher.point.position]:
        part = left[: step + tried_again % 3]
        try:
            dispatcher.dispatch(batch_of(part), LogPoint(part[-1].end))
        except NoSpaceToWrite:
            tried_again += 1
        except OSError:
            dispatcher.abandon()
            dispatcher = opened()
        else:
            dispatcher.save()
    dispatcher.close()
    assert tried_again > 5
    assert queue_files(tmp_path) == queue_files(there)
    assert index_files(tmp_path) == index_files(there)


def test_a_message_of_no_queue_that_finds_no_room_takes_nothing_back(tmp_path: Path) -> None:
    """It is in the index alone: what the dispatch before it had put into a queue was forgotten, and the next message of
    that queue could never be dispatched."""

    class Full(OsDisk):
        is_full = False

        def write(self, path: Path, offset: int, data: BytesLike) -> None:
            if self.is_full:
                raise OSError(errno.ENOSPC, "No space left on device")
            super().write(path, offset, data)

    disk = Full()
    dispatcher = Dispatcher(tmp_path, SIZES, begin=LogPoint(0), disk=disk)
    assert put(dispatcher, 0) == {("T", 0): 1}
    disk.is_full = True
    point = dispatcher.point
    prepared = record(b"x", sys_flag=TransactionType.PREPARED, physical_offset=point.position)
    found = Placed(point.position, prepared.total_size, prepared)
    with pytest.raises(NoSpaceToWrite):
        dispatcher.dispatch(batch_of([found]), LogPoint(found.end))
    assert dispatcher.next_offsets == {("T", 0): 1}
    dispatcher.abandon()


def test_a_full_disk_behind_a_clean_end_is_waited_for(tmp_path: Path) -> None:
    """The first write behind it takes back that nothing is behind the mark: it ended the broker, at each start."""

    class Full(OsDisk):
        is_full = True

        def replace(self, path: Path, data: bytes) -> None:
            if self.is_full:
                raise OSError(errno.ENOSPC, "No space left on device")
            super().replace(path, data)

    dispatcher = Dispatcher(tmp_path, SIZES, begin=LogPoint(0))
    put(dispatcher, 0)
    dispatcher.close()
    disk = Full()
    again = Dispatcher(tmp_path, disk=disk)
    with pytest.raises(NoSpaceToWrite):
        put(again, 1)
    assert not again.is_broken
    disk.is_full = False
    assert put(again, 1) == {("T", 0): 2}


@pytest.mark.parametrize("name", ["consumequeue", "index"])
def test_what_was_not_synced_is_never_vouched_for(name: str, tmp_path: Path) -> None:
    """A second sync of these pages would say that all is well: the kernel may have dropped them with the first."""

    class Failing(OsDisk):
        def sync(self, path: Path) -> None:
            if name in path.parts:
                raise OSError(errno.EIO, "Input/output error", str(path))
            super().sync(path)

    dispatcher = Dispatcher(tmp_path, SIZES, begin=LogPoint(0))
    put(dispatcher, 0)
    dispatcher.save()
    vouched = mark_path(tmp_path).read_bytes()
    put(dispatcher, 1)
    finish = dispatcher.begin_save()
    put(dispatcher, 2)  # while another thread syncs
    opened = mark_path(tmp_path).read_bytes()
    with pytest.raises(OSError, match="Input/output"):
        finish(Failing())
    with pytest.raises(MessageStoreError, match="sync failed"):
        dispatcher.save()
    dispatcher.close()
    assert mark_path(tmp_path).read_bytes() == opened == vouched
    assert Dispatcher(tmp_path, SIZES).next_offsets == {("T", 0): 1}


def test_nothing_is_dispatched_twice(tmp_path: Path) -> None:
    dispatcher = Dispatcher(tmp_path, SIZES)
    put(dispatcher, 0)
    with pytest.raises(MessageStoreError, match="not to be dispatched again"):
        dispatcher.dispatch(batch_of_records([]), LogPoint(10))
