"""Reading a message store: its kind, scans over damage and gaps, look-ups, and a broker that goes on writing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from node.message_store.commit_log import BlankSpace, Damage, JoinedCommitLog, Placed
from node.message_store.consume_queue import PullStatus, pull
from node.message_store.errors import MessageStoreError
from node.message_store.message_store import MessageStore, StoreKind, kind_of
from node.message_store.record import encode_record
from tests.unit.message_broker import Broker, filled
from tests.unit.message_kit import record


def placed_in(store: MessageStore) -> list[int]:
    return [one.offset for one in store.log.scan() if isinstance(one, Placed)]


def damage_in(store: MessageStore) -> list[Damage]:
    return [one for one in store.log.scan() if isinstance(one, Damage)]


@pytest.mark.parametrize("ledger", [False, True])
def test_what_a_broker_wrote_is_read(tmp_path: Path, ledger: bool) -> None:
    broker = filled(tmp_path, ledger=ledger)
    store = MessageStore(broker.write())
    assert kind_of(tmp_path) is (StoreKind.LEDGER if ledger else StoreKind.LOCAL)
    assert placed_in(store) == broker.places
    assert store.max_offset() == store.log.find_end() == broker.end
    assert len([one for one in store.log.scan() if isinstance(one, BlankSpace)]) == len(store.log.files) - 1 > 2
    assert {(one.topic, one.queue_id) for one in store.queues()} == set(broker.units)
    for queue in store.queues():
        units = broker.units[queue.topic, queue.queue_id]
        assert (queue.min_offset(), queue.max_offset()) == (0, len(units))
        for number, (offset, _size, _code) in enumerate(units):
            found = store.in_queue(queue.topic, queue.queue_id, number)
            assert (found.offset, found.record.queue_offset) == (offset, number)
    found = store.by_key("TopicTest", "k3")
    assert [one.offset for one in found] == sorted(one.offset for one in found)
    assert len(found) == 4
    assert store.by_key("TopicTest", "k9") == []
    assert store.by_id(found[0].record.message_id) == found[0]
    assert [one.entry_index is not None for one in found] == [ledger] * 4


def test_old_files_and_the_replicated_log_are_one(tmp_path: Path) -> None:
    old = filled(tmp_path)
    left = old.file_bytes - len(old.log) % old.file_bytes
    old.log += left.to_bytes(4, "big") + b"\xcb\xd4\x31\x94" + bytes(left - 8)  # the upgrade ends the last file
    old.write()
    new = Broker(tmp_path, ledger=True, begin=old.end)
    new.next_offsets, new.units, new.first_units = old.next_offsets, old.units, old.first_units
    new.keys = old.keys
    for number in range(5):
        new.put("TopicTest", 0, b"new %d" % number, keys="k3")
    store = MessageStore(new.write())
    assert store.kind is StoreKind.JOINED
    assert isinstance(store.log, JoinedCommitLog)
    assert store.divided_offset == old.end
    assert damage_in(store) == []
    assert placed_in(store) == old.places + new.places
    assert store.max_offset() == new.end
    assert [one.offset for one in store.by_key("TopicTest", "k3")][-5:] == new.places
    assert [one.offset for one in store.log.scan(old.places[-1], new.places[0]) if isinstance(one, Placed)] == [
        old.places[-1], new.places[0],
    ]  # fmt: skip


def test_old_files_that_no_blank_ends_are_damage_up_to_the_border(tmp_path: Path) -> None:
    old = filled(tmp_path)
    old.write()
    border = -(-old.end // old.file_bytes) * old.file_bytes
    new = Broker(tmp_path, ledger=True, begin=border)
    new.put()
    new.write()
    store = MessageStore(tmp_path)
    assert [(one.offset, one.size_bytes) for one in damage_in(store)] == [(old.end, border - old.end)]
    assert placed_in(store) == old.places + new.places


@pytest.mark.parametrize("ledger", [False, True])
@pytest.mark.parametrize("at", [0, 4, 30])
def test_a_scan_goes_on_behind_damage_where_a_message_vouches_for_its_place(
    tmp_path: Path, ledger: bool, at: int
) -> None:
    broker = filled(tmp_path, ledger=ledger)
    victim = broker.places[5]
    begin = victim - 48 if ledger else victim
    broker.log[begin + at : begin + at + 4] = b"\xff\xff\xff\xf0"
    store = MessageStore(broker.write())
    if at == 30:  # within a place that the record says of itself, or of the entry's: all lengths are right
        assert damage_in(store) == []
        moved = [one.offset for one in store.log.scan() if isinstance(one, Placed) and not one.is_in_place]
        assert moved == ([] if ledger else [victim])
    else:
        after = broker.places[6] - (48 if ledger else 0)
        assert [(one.offset, one.offset + one.size_bytes, one.is_last) for one in damage_in(store)] == [
            (begin, after, False)
        ]
        assert placed_in(store) == broker.places[:5] + broker.places[6:]
        with pytest.raises(MessageStoreError, match=f"no message begins at offset {victim}"):
            store.log.message_at(victim)
    assert store.log.find_end() == broker.end


def test_bytes_that_only_look_like_a_message_do_not_end_damage(tmp_path: Path) -> None:
    """A message whose body holds a whole record: its place is another's, and says so."""
    broker = Broker(tmp_path)
    broker.put(body=b"first")
    holder = broker.put(body=encode_record(record(b"within")))
    last = broker.put(body=b"last")
    broker.log[holder : holder + 4] = b"\xff\xff\xff\xf0"
    store = MessageStore(broker.write())
    assert [(one.offset, one.size_bytes) for one in damage_in(store)] == [(holder, last - holder)]


def test_a_torn_end_is_the_last_thing_there_is(tmp_path: Path) -> None:
    broker = filled(tmp_path, count=10)
    torn = broker.put(body=b"x" * 50)
    broker.log[torn + 60 :] = bytes(len(broker.log) - torn - 60)
    store = MessageStore(broker.write())
    assert placed_in(store) == broker.places[:-1]
    (damage,) = damage_in(store)
    assert (damage.offset, damage.is_last) == (torn, True)


def test_a_missing_file_and_one_of_another_length_are_gaps(tmp_path: Path) -> None:
    broker = filled(tmp_path)
    broker.write()
    names = sorted(path.name for path in broker.folder.iterdir())
    (broker.folder / names[1]).unlink()
    store = MessageStore(tmp_path)
    assert [(one.offset, one.size_bytes, one.why) for one in damage_in(store)] == [(4096, 4096, "the file is missing")]
    (broker.folder / names[2]).write_bytes(b"short")
    (broker.folder / "note.txt").write_text("hello")
    store = MessageStore(tmp_path)
    assert [(one.offset, one.size_bytes) for one in damage_in(store)] == [(4096, 8192)]
    assert [name for queue, _ in store.log.files[:1] for name, _ in sorted(queue.odd_files)] == [
        names[2], "note.txt",
    ]  # fmt: skip
    with pytest.raises(MessageStoreError, match="no file holds offset 5000"):
        store.log.message_at(5000)


def test_a_file_that_says_how_a_directory_is_owned_is_passed_over(tmp_path: Path) -> None:
    broker = filled(tmp_path)
    broker.write()
    (broker.folder / "quorumscope-owns").write_bytes(b"\n")
    assert MessageStore(tmp_path).log.files[0][0].odd_files == []


def test_a_broker_that_goes_on_writing_does_no_harm(tmp_path: Path) -> None:
    broker = filled(tmp_path, count=20)
    store = MessageStore(broker.write())
    scan = store.log.scan()
    seen = [one for _ in range(5) if isinstance(one := next(scan), Placed)]
    for number in range(200):
        broker.put(body=b"later %d" % number)
    broker.write()
    (broker.folder / f"{0:020d}").unlink()  # the oldest file expires
    seen += [one for one in scan if isinstance(one, Placed)]
    assert [one.offset for one in seen] == broker.places[: len(seen)]
    for file in sorted(broker.folder.iterdir())[:3]:
        file.unlink()
    assert damage_in(store) == []  # what expired under a scan is no damage
    fresh = MessageStore(tmp_path)
    assert fresh.max_offset() == broker.end


def test_a_queue_that_was_born_late_begins_behind_its_pre_fill(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.next_offsets["T", 0] = 20
    for number in range(20):
        broker.put("T", 0, b"%d" % number)
    store = MessageStore(broker.write())
    queue = store.queue("T", 0)
    assert queue is not None
    assert (queue.min_offset(), queue.max_offset()) == (20, 40)
    assert pull(store.log, queue, 3, 32).status is PullStatus.OFFSET_TOO_SMALL
    found = pull(store.log, queue, 20, 32)
    assert (found.next_offset, len(found.messages)) == (32, 12)  # of one file of the queue
    with pytest.raises(MessageStoreError, match="it holds 20 to 39"):
        store.in_queue("T", 0, 3)


def test_messages_that_expired_are_below_the_queues_first(tmp_path: Path) -> None:
    broker = filled(tmp_path)
    broker.write()
    (broker.folder / f"{0:020d}").unlink()
    store = MessageStore(tmp_path)
    for queue in store.queues():
        low = queue.min_offset(store.log.min_offset)
        units = broker.units[queue.topic, queue.queue_id]
        assert low == len([one for one in units if one[0] < 4096])
        gone = pull(store.log, queue, low, 1)
        assert gone.status is PullStatus.FOUND


def test_a_message_that_the_log_no_longer_has_is_being_removed(tmp_path: Path) -> None:
    broker = filled(tmp_path)
    store = MessageStore(broker.write())
    queue = store.queue("TopicTest", 0)
    assert queue is not None
    assert pull(store.log, queue, 0, 5, frozenset(["nosuch"])).status is PullStatus.NO_MATCHED_MESSAGE
    for path in broker.folder.iterdir():
        path.write_bytes(bytes(4096))
    assert pull(store.log, queue, 0, 5).status is PullStatus.MESSAGE_WAS_REMOVING


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (["x"], "is no message store"),
        (["consumequeue/T/0/f"], "its commit log is elsewhere"),
        (["commitlog/f", "batchconsumequeue/T/f"], "holds batch queues"),
        (["commitlog/f", "consumequeue_ext/T/f"], "holds extended consume queue units"),
        (["commitlog/f", "consumequeue_r/f"], "in RocksDB"),
        (["dledger-n0/data/f", "dledger-n1/data/f", "index/f"], "several replicated logs"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path, make: list[str], says: str) -> None:
    for name in make:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(MessageStoreError, match=says):
        MessageStore(tmp_path)


def test_a_replicated_log_alone_is_no_message_store(tmp_path: Path) -> None:
    (tmp_path / "dledger-n0" / "data").mkdir(parents=True)
    assert kind_of(tmp_path) is None
    (tmp_path / "consumequeue").mkdir()
    assert kind_of(tmp_path) is StoreKind.LEDGER


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "../../etc", "nosuch", "a\0b"])
def test_no_topic_leads_out_of_the_directory(tmp_path: Path, topic: str) -> None:
    store = MessageStore(filled(tmp_path, count=3).write())
    assert store.queue(topic, 0) is None
    with pytest.raises(MessageStoreError, match="there is no queue 0"):
        store.in_queue(topic, 0, 0)


def test_a_broker_that_holds_the_lock_is_seen_and_no_lock_is_taken(tmp_path: Path) -> None:
    store = MessageStore(filled(tmp_path, count=3).write())
    assert store.running_in is None
    lock = tmp_path / "lock"
    lock.write_bytes(b"lock")
    assert store.running_in is None
    holder = (
        "import fcntl, sys\n"
        "held = open(sys.argv[1], 'r+')\n"
        "fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as broker:
        assert broker.stdout is not None
        assert broker.stdout.readline() == b"held\n"
        assert store.running_in == broker.pid
        broker.communicate()
    assert store.running_in is None
