"""LocalMessageStore: put results, statuses of the disk, queues and index behind a log that stops and is cut."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from node.message_store.commit_log import Placed
from node.message_store.consume_queue import PullStatus
from node.message_store.dispatch_mark import DerivedSizes
from node.message_store.errors import MessageStoreError
from node.message_store.live_reads import LiveReads
from node.message_store.local_flush import FlushMode
from node.message_store.local_lock import StoreLock
from node.message_store.local_mark import log_mark_path
from node.message_store.local_store import LocalMessageStore, LocalSettings
from node.message_store.message_store import MessageStore
from node.message_store.new_message import NewMessage
from node.message_store.properties import join_properties
from node.message_store.put_result import PutResult, PutStatus
from node.message_store.recent_entries import RecentEntries
from node.message_store.record import Host
from node.message_store.write_files import OsDisk
from node.protocol.entry import BytesLike
from tests.unit.message_broker import INDEX_ENTRIES, SLOTS, UNITS_A_FILE
from tests.unit.test_local_log import message_of

SIZES = DerivedSizes(UNITS_A_FILE * 20, SLOTS, INDEX_ENTRIES)
HOST = Host(bytes([10, 0, 0, 1]), 10911)
NOW_MS = 1_795_000_000_000


class Clock:
    def __init__(self) -> None:
        self.ms = NOW_MS

    def __call__(self) -> int:
        self.ms += 1
        return self.ms


def store_at(root: Path, flush: FlushMode = FlushMode.ASYNC_FLUSH, **more: object) -> LocalMessageStore:
    settings = LocalSettings(file_bytes=4096, flush=flush, sizes=SIZES)
    found = LocalMessageStore(root, settings, Clock(), **more)  # type: ignore[arg-type]
    found.become_master()
    return found


def message(number: int, queue_id: int = 0, **more: str) -> NewMessage:
    properties = join_properties([("KEYS", f"k{number}"), ("TAGS", "TagA"), *more.items()])
    return NewMessage("TopicTest", queue_id, b"body %d" % number, HOST, HOST, properties)


def put(store: LocalMessageStore, number: int, queue_id: int = 0, **more: str) -> list[PutResult]:
    answers: list[PutResult] = []
    store.put(message(number, queue_id, **more), answers.append)
    store.dispatch()
    return answers


def reads(store: LocalMessageStore) -> LiveReads:
    return LiveReads(store.root, store, RecentEntries(), 1 << 30)


def files_of(root: Path, name: str) -> dict[str, bytes]:
    return {
        str(one.relative_to(root)): one.read_bytes() for one in sorted((root / name).rglob("*")) if one.is_file()
    }  # fmt: skip


def test_the_recorded_brokers_messages_give_its_queues_index_and_checkpoint(vectors: Path, tmp_path: Path) -> None:
    there = vectors / "rocketmq" / "store/data"
    settings = LocalSettings(file_bytes=65_536, sizes=SIZES)
    clock = Clock()
    store = LocalMessageStore(tmp_path, settings, lambda: clock.ms)
    store.become_master()
    records = iter([one.record for one in MessageStore(there).log.scan() if isinstance(one, Placed)])
    answers: list[PutResult] = []
    for one in json.loads((vectors / "rocketmq" / "store/manifest.json").read_text())["puts"]:
        if one["appendStatus"] != "PUT_OK":
            continue
        messages = [next(records) for _ in range(one["msgNum"])]
        clock.ms = messages[0].store_timestamp_ms
        store.log.make_room(one["wroteBytes"])
        store.append([message_of(found) for found in messages], answers.append)
        store.dispatch()
        assert answers[-1].message_ids == one["msgId"] and answers[-1].status is PutStatus.PUT_OK
        assert answers[-1].queue_offset == one["logicsOffset"]
    store.close()
    for name in ("commitlog", "consumequeue"):
        assert files_of(tmp_path, name) == files_of(there, name)
    assert list(files_of(tmp_path, "index").values()) == list(files_of(there, "index").values())
    assert (tmp_path / "checkpoint").read_bytes() == (there / "checkpoint").read_bytes()
    assert not (tmp_path / "abort").exists()


def test_who_gets_an_answer_can_read_the_message(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    for number in range(40):
        (answer,) = put(store, number, number % 3)
        assert answer.status is PutStatus.PUT_OK and answer.queue_offset == number // 3
    got = reads(store).get("TopicTest", 1, 0)
    assert got.status is PullStatus.FOUND and len(got.records) == 13
    (found,) = reads(store).query("TopicTest", "k7")
    assert b"body 7" in bytes(found)
    assert len(store.log.starts) > 1


def test_sync_flush_answers_when_it_is_on_disk_and_says_so_when_it_is_not_in_time(tmp_path: Path) -> None:
    store = store_at(tmp_path, FlushMode.SYNC_FLUSH)
    first, second, third = put(store, 1), put(store, 2), put(store, 3, WAIT="false")
    assert [first, second, third] == [[], [], []] and store.end_position == 0
    flush = store.begin_flush()
    fourth = put(store, 4)
    flush.sync(store._disk)
    store.flushed(flush)
    store.dispatch()
    assert [one[0].status for one in (first, second, third)] == [PutStatus.PUT_OK] * 3
    assert fourth == []
    store.tick(NOW_MS + 10_000)
    assert fourth[0].status is PutStatus.FLUSH_DISK_TIMEOUT and fourth[0].physical_offsets
    fifth = put(store, 5)
    store.flush_failed(OSError("gone"))
    assert fifth[0].status is PutStatus.FLUSH_DISK_TIMEOUT
    assert put(store, 6)[0].status is PutStatus.SERVICE_NOT_AVAILABLE


def test_of_two_statuses_the_slaves_one_is_answered(tmp_path: Path) -> None:
    """RocketMQ writes the replica's status over the disk's."""

    class Slow:
        def handle_ha(self, _next_offset: int, _now_ms: int, done: Callable[[PutStatus], None]) -> None:
            done(PutStatus.FLUSH_SLAVE_TIMEOUT)

    store = store_at(tmp_path, FlushMode.SYNC_FLUSH)
    store.slaves = Slow()
    answer = put(store, 1)
    store.tick(NOW_MS + 10_000)
    assert [one.status for one in answer] == [PutStatus.FLUSH_SLAVE_TIMEOUT]


def test_who_is_replaced_while_a_flush_runs_answers_nothing_as_stored(tmp_path: Path) -> None:
    """Its slaves had it, but nobody knows what the new master has."""
    store = store_at(tmp_path, FlushMode.SYNC_FLUSH)
    waiting = put(store, 1)
    flush = store.begin_flush()
    store.become_slave()
    flush.sync(store._disk)
    store.flushed(flush)
    store.dispatch()
    assert [one.status for one in waiting] == [PutStatus.FLUSH_SLAVE_TIMEOUT]


@pytest.mark.parametrize("begins_a_file", [False, True])
def test_a_write_that_fails_says_nothing_of_the_message_that_no_later_try_could_change(
    begins_a_file: bool, tmp_path: Path
) -> None:
    """A part of it may be in the log, or (only the blank before it was to be written) nothing of it is."""

    class Failing(OsDisk):
        fails = False

        def write(self, path: Path, offset: int, data: BytesLike) -> None:
            if self.fails and "commitlog" in path.parts:
                raise OSError(errno.EIO, "Input/output error", str(path))
            super().write(path, offset, data)

    def again(number: int) -> list[PutStatus]:
        """The first put that meets it, in one way or another, and the next one."""
        store = store_at(tmp_path / str(number), disk=(disk := Failing()))
        for filling in range(20 if begins_a_file else 1):
            put(store, filling)
        while begins_a_file and store.log._left > 700:
            put(store, number)
        disk.fails = True
        found: list[PutResult] = []
        said: list[PutStatus] = []
        one = replace(message(1), body=bytes(600))
        if number == 0:
            store.put(one, found.append)
        elif number == 1:
            store.put_own(one, found.append)
        elif not store.put_record("TopicTest", 0, 800, lambda _at, _ms: bytes(800), lambda how, _at: said.append(how)):
            store.put(one, found.append)
        return [*said, *(result.status for result in found), put(store, 2)[0].status]

    first = PutStatus.SERVICE_NOT_AVAILABLE if begins_a_file else PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
    assert [again(number) for number in range(3)] == [[first, PutStatus.SERVICE_NOT_AVAILABLE]] * 3


def test_what_is_refused_takes_no_queue_offset(tmp_path: Path) -> None:
    """Oddity 1 among them: a message that is larger than a file of the log."""
    free = [1 << 40]
    store = store_at(tmp_path, free_bytes=lambda: free[0])
    assert put(store, 0)[0].queue_offset == 0
    before = store.log.max_offset
    answers: list[PutResult] = []
    store.put(NewMessage("TopicTest", 0, bytes(4096), HOST, HOST), answers.append)
    store.put(NewMessage("a topic", 0, b"x", HOST, HOST), answers.append)
    free[0] = 0
    answers += put(store, 1)
    free[0] = 1 << 40
    store.become_slave()
    answers += put(store, 1)
    assert [one.status.value for one in answers] == [
        "MESSAGE_ILLEGAL", "MESSAGE_ILLEGAL", "SERVICE_NOT_AVAILABLE", "SERVICE_NOT_AVAILABLE",
    ]  # fmt: skip
    assert "4096" in answers[0].reason and "slave" in answers[3].reason and store.log.max_offset == before
    store.become_master()
    assert put(store, 1)[0].queue_offset == 1


def test_a_stop_of_any_kind_goes_on_with_no_message_twice_or_missing(tmp_path: Path) -> None:
    """Oddities 2 and 3."""
    store = store_at(tmp_path)
    for number in range(30):
        put(store, number)
        if number == 17:
            store.save()
    shutil.copytree(tmp_path, tmp_path / "killed", ignore=shutil.ignore_patterns("killed"))
    store.close()
    killed = store_at(tmp_path / "killed")
    assert not killed.log.recovered.was_clean and killed.end_position == killed.log.max_offset
    assert put(killed, 30)[0].queue_offset == 30
    again = store_at(tmp_path)
    assert again.log.recovered.was_clean and put(again, 30)[0].queue_offset == 30
    for one in (killed, again):
        one.close()
    assert files_of(tmp_path / "killed", "consumequeue") == files_of(tmp_path, "consumequeue")
    assert list(files_of(tmp_path / "killed", "index").values()) == list(files_of(tmp_path, "index").values())


def test_queues_and_index_follow_a_log_that_was_cut(tmp_path: Path) -> None:
    """Oddities 4a and 5: no cut unit comes back, and messages behind the cut are found by their keys."""
    store = store_at(tmp_path)
    places = [put(store, number, number % 2)[0].physical_offsets[0] for number in range(30)]
    store.save()
    store.log.cut(places[11])
    store._disk.close()
    again = store_at(tmp_path)
    assert again.next_offsets == {("TopicTest", 0): 6, ("TopicTest", 1): 5}
    assert list(reads(again).query("TopicTest", "k20")) == []
    for number in range(100, 130):
        put(again, number, number % 2)
    assert all(
        len(list(reads(again).query("TopicTest", f"k{number}"))) == 1 for number in [*range(11), *range(100, 130)]
    )
    assert again.next_offsets == {("TopicTest", 0): 21, ("TopicTest", 1): 20}
    again.close()


def test_a_queue_without_messages_goes_on_where_it_was(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    put(store, 0, 7)
    put(store, 1, 7)
    for number in range(100):
        put(store, number)
    store.save()
    store.log.remove_below(store.log.starts[2])
    place = put(store, 100)[0].physical_offsets[0]
    store.save()
    store.log.cut(place)
    store._disk.close()
    again = store_at(tmp_path)
    assert again.next_offsets == {("TopicTest", 0): 100, ("TopicTest", 7): 2}


def emptied(root: Path) -> LocalMessageStore:
    """A master's store, none of whose messages of queue 7 is left in the log."""
    store = store_at(root)
    for queue_id in (7, 7, *[0] * 100):
        put(store, 1, queue_id)
    store.save()
    assert store.log.remove_below(store.log.starts[2])
    return store


def follow(master: LocalMessageStore, slave: LocalMessageStore) -> None:
    """A slave gets what it lacks, and dispatches it."""
    while slave.log.max_offset < master.log.max_offset:
        at = max(slave.log.max_offset, master.log.min_offset)
        slave.append_data(at, master.log.read(at, 1 << 20))
        slave.dispatch()


def test_an_empty_slave_dispatches_from_where_its_masters_log_begins(tmp_path: Path) -> None:
    """It looked for the log's first record at 0, found none, and ended."""
    master = emptied(tmp_path / "m")
    slave = LocalMessageStore(tmp_path / "s", LocalSettings(file_bytes=4096, sizes=SIZES), Clock())
    slave.append_data(master.log.min_offset, b"")  # its log begins there, and has nothing yet
    assert slave.dispatch() == {} and slave.end_position == slave.log.max_offset == master.log.min_offset
    follow(master, slave)
    assert slave.end_position == slave.log.max_offset == master.log.max_offset
    assert slave.next_offsets == {("TopicTest", 0): 100}


def test_a_directory_of_rocketmqs_is_taken_up_with_queues_written_anew(vectors: Path, tmp_path: Path) -> None:
    there = vectors / "rocketmq" / "store/data"
    shutil.copytree(there, tmp_path, dirs_exist_ok=True, copy_function=shutil.copyfile)
    store = LocalMessageStore(tmp_path, LocalSettings(file_bytes=65_536, sizes=SIZES), Clock())
    assert files_of(tmp_path, "consumequeue") == files_of(there, "consumequeue")
    store.close()
    with pytest.raises(MessageStoreError, match="keeps the size"):
        LocalMessageStore(tmp_path, LocalSettings(file_bytes=4096), Clock())
    assert log_mark_path(tmp_path).exists()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    held = StoreLock(tmp_path)
    assert (tmp_path / "lock").read_bytes() == b"lock"
    with pytest.raises(MessageStoreError, match="another broker runs"):
        StoreLock(tmp_path)
    held.release()
    StoreLock(tmp_path).release()
