"""`store adopt --broker`: a RocketMQ broker's directory becomes a member's, and goes back by a hand-over."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from app.cli import run
from app.commands.endings import Exit
from node.hand_over.adopt import adopt_broker
from node.hand_over.hand_over import hand_over
from node.hand_over.report import Refused
from node.message_store.adopted import read_adopted
from node.message_store.checking.verify import verify
from node.message_store.delay_levels import parse_delay_levels
from node.message_store.dispatch import Dispatcher
from node.message_store.kept_conf import delay_levels_of
from node.message_store.message_store import MessageStore
from node.message_store.queue_units import SCHEDULE_TOPIC
from node.message_store.record import encode_record
from node.protocol.codes import VoterState
from node.protocol.group_id import group_id_of
from node.store.errors import StoreError
from node.store.file_store import FileStore
from node.store.files.data_lock import DataLock
from tests.unit.broker_group_kit import FILE_BYTES, SIZES, Group, java
from tests.unit.java_rocketmq.broker import LEDGER_INDEX_BYTES, V4, V5, JavaBroker
from tests.unit.java_rocketmq.rows import WillNotStart
from tests.unit.message_kit import record
from tests.unit.test_hand_over import Crash, CrashingDisk, assert_java_has_all, copied, filled

VECTOR_SIZES = {"file_bytes": 65536, "queue_bytes": 320, "slots": 100, "index_entries": 400}


@pytest.fixture
def recorded(vectors: Path, tmp_path: Path) -> Path:
    """The directory of a real broker, 367 messages, as it stopped; its index file has its real length again."""
    root = Path(shutil.copytree(vectors / "rocketmq/dledger-commitlog/single", tmp_path / "data"))
    os.truncate(root / "dledger-n0/index" / f"{0:020d}", LEDGER_INDEX_BYTES)
    shutil.copytree(vectors / "rocketmq/broker-config/master", root / "config")
    return root


def opened(root: Path, data_file_size: int = 65536) -> FileStore:
    return FileStore.open(
        root / "dledger-n0", group="g", node_id="n0", data_file_size=data_file_size,
        index_file_size=LEDGER_INDEX_BYTES, kind="broker",
    )  # fmt: skip


def test_a_recorded_brokers_directory_becomes_a_members(recorded: Path) -> None:
    before = verify(MessageStore(recorded))
    report = adopt_broker(recorded, "g", token="a-token-of-ours", dry_run=False)
    assert (report.messages, report.committed_index, report.end_index) == (367, 366, 366)
    store = opened(recorded)
    hard = store.hard_state
    assert (store.end_index, store.sealed_from, store.kind) == (366, 367, "broker")
    assert hard.group_id == group_id_of("a-token-of-ours", "g") and hard.configurations == ()
    assert hard.voter_state is VoterState.VOTER and hard.vote_floor == hard.term
    store.close()
    for version in (V4, V5):
        with pytest.raises(WillNotStart):
            JavaBroker(recorded, version, **VECTOR_SIZES)
    after = verify(MessageStore(recorded))
    assert not [one for one in after.findings if one.fault.value != "metadata_mismatch"]
    assert (after.units, after.index_entries) == (before.units, before.index_entries)
    assert Dispatcher(recorded).next_offsets["TopicTest", 0] == 36


def test_next_offsets_and_tables_wait_for_the_first_snapshot(recorded: Path) -> None:
    adopt_broker(recorded, "g", dry_run=False)
    found = read_adopted(recorded)
    assert found is not None and found.state.as_of_index == 366 and found.border == 301373
    assert found.state.topics["TopicTest"].next_offsets == {0: 36, 1: 22, 2: 37, 3: 26}
    assert found.state.tables["consumer_offsets"]["BrkTopic@cg1"] == {"0": 16, "1": 16, "2": 16, "3": 19}
    assert found.state.tables["delay_offsets"] == {"1": 2, "2": 2, "3": 3}
    assert {"topics", "groups"} <= found.state.tables.keys()


def test_what_a_crash_cost_the_queues_comes_back(recorded: Path) -> None:
    """Oddity 6: with `abort` there, 5.x cuts 8 units for good once their places are written over."""
    (recorded / "abort").write_text("1")
    broker = JavaBroker(recorded, V5, **VECTOR_SIZES)
    assert sum(map(len, broker.units().values())) == 329
    for queue in broker.queues.values():
        for start in queue.row.starts:
            at = min(max(queue.row.written - start, 0), len(queue.row.files[start]))
            queue.row.files[start][at:] = bytes(len(queue.row.files[start]) - at)
    broker.stop()
    adopt_broker(recorded, "g", dry_run=False)
    assert verify(MessageStore(recorded)).units == 337
    assert not (recorded / "abort").exists()


def java_appends(group: Group, count: int) -> None:
    """What a Java leader writes behind our end: channel, chain and CRC 0; queue offsets go on."""
    broker = java(group.root, V5)
    assert broker.ledger is not None
    position, index, term = broker.ledger.data.written, broker.ledger.end_index, broker.ledger.end_term + 1
    for number in range(count):
        topic, queue_id = "TopicTest", number % 2
        at = group.next.get((topic, queue_id), 0)
        one = record(b"java %d" % number, topic=topic, queue_id=queue_id, queue_offset=at,
                     store_timestamp_ms=1_795_000_100_000 + number)  # fmt: skip
        data = bytearray(encode_record(one))
        size = 48 + len(data)
        left = FILE_BYTES - position % FILE_BYTES
        if size + 8 > left:
            broker.ledger.data.write(position, struct.pack(">ii", -1, left))
            position += left
        index += 1
        struct.pack_into(">q", data, 28, position + 48)
        entry = struct.pack(">iiqqqiIIi", 1, size, index, term, position, 0, 0, 0, len(data)) + data
        broker.ledger.data.write(position, entry)
        broker.ledger.index.write(index * 32, struct.pack(">iqiqq", 1, position, size, index, term))
        position += size
        group.next[topic, queue_id] = at + 1
        group.puts.setdefault((topic, queue_id), []).append(index)
    broker.ledger.end_index, broker.ledger.end_term = index, term
    broker.committed(index)
    broker.stop()
    (group.ledger / "currterm").write_text(f"voteLeader=n0\ncurrTerm={term}\n")
    group.end = group.committed = index


def test_there_and_back_and_there_again(tmp_path: Path) -> None:
    """Ours, Java's, ours, Java's: every message of each is there at the end, at its number, by its key."""
    group = filled(tmp_path / "data")
    group.stop(dispatched=group.store.end_index)
    hand_over(group.root, dry_run=False)
    java_appends(group, 50)
    report = adopt_broker(group.root, "g", dry_run=False)
    assert report.end_index == group.end
    store = opened(group.root, FILE_BYTES)
    group.store, group.term = store, store.hard_state.term
    assert store.sealed_from == group.end + 1
    group.lead()
    group.put(30)
    group.stop()
    dispatcher = Dispatcher(group.root)
    assert dispatcher.point.index == report.committed_index
    dispatcher.close()
    hand_over(group.root, dry_run=False)
    assert_java_has_all(group, keys=False)
    broker = java(group.root, V5)
    for number in range(0, 300, 7):
        assert any(broker.index.offsets(topic, f"k{number}") for topic in ("TopicTest", "Orders"))


def test_delay_levels_of_javas_configuration_are_those_of_the_queues_and_stay_for_the_way_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = filled(tmp_path / "data")
    group.put(3, topics=(SCHEDULE_TOPIC,), properties=(("DELAY", "2"),))
    group.stop()
    hand_over(group.root, dry_run=False, sizes=SIZES)
    conf = tmp_path / "broker.conf"
    given = ["store", "adopt", str(group.root), "--broker", "--group", "g", "--broker-conf", str(conf)]
    assert run(given) == Exit.USAGE
    conf.write_text("messageDelayLevel = 1s nonsense\n")
    assert run(given) == Exit.FINDING and "delay levels are" in capsys.readouterr().err
    assert delay_levels_of(group.root) == parse_delay_levels()
    conf.write_text("# of the Java brokers\nmessageDelayLevel = 1s 7m\n")
    assert run(given) == Exit.FINE and 'delay_levels = "1s 7m"' in capsys.readouterr().out
    store = MessageStore(group.root)
    for queue in store.queues(SCHEDULE_TOPIC):
        due_ms = queue.units(0, 1)["tags_code"][0]
        assert due_ms == store.in_queue(SCHEDULE_TOPIC, queue.queue_id, 0).record.store_timestamp_ms + 7 * 60_000
    assert "messageDelayLevel=1s 7m" in hand_over(group.root, dry_run=False).broker_conf


def test_a_dry_run_says_the_same_and_changes_nothing(recorded: Path) -> None:
    def seen() -> dict[str, bytes]:
        small = [path for path in recorded.rglob("*") if path.is_file() and path.stat().st_size < 1 << 20]
        return {str(path): path.read_bytes() for path in small if path.name != "lock"}

    before = seen()
    said = adopt_broker(recorded, "g", dry_run=True).as_json()
    assert seen() == before
    done = adopt_broker(recorded, "g", dry_run=False).as_json()
    assert said | {"dry_run": False} == done


def test_what_cannot_be_taken_over_is_refused_and_nothing_changes(
    recorded: Path, vectors: Path, tmp_path: Path
) -> None:
    def refused(root: Path, match: str, **options: Any) -> None:
        before = sorted(str(path) for path in root.rglob("*") if path.name != "lock")
        with pytest.raises((Refused, StoreError), match=match):
            adopt_broker(root, "g", dry_run=False, **options)
        assert sorted(str(path) for path in root.rglob("*") if path.name != "lock") == before

    local = Path(shutil.copytree(vectors / "rocketmq/store/data", tmp_path / "local"))
    refused(local, "give --id n0")
    lock = DataLock(recorded)
    refused(recorded, "stop every member")
    lock.release()
    old = Path(shutil.copytree(recorded, tmp_path / "old"))
    shutil.copytree(vectors / "rocketmq/store/data/commitlog", old / "commitlog")
    refused(old, "both give messages the same places")
    timer = recorded / "consumequeue/rmq_sys_wheel_timer/0"
    timer.mkdir(parents=True)
    unit = struct.pack(">qiq", 48, 250, 0)
    (timer / f"{0:020d}").write_bytes(unit.ljust(320, b"\0"))
    refused(recorded, "1 messages of rmq_sys_wheel_timer")
    shutil.rmtree(timer.parent)
    (recorded / "dledger-n0/checkpoint").unlink()
    refused(recorded, "does not say what is committed")


def test_the_command_for_plain_logs_does_not_leave_the_queues_behind(tmp_path: Path) -> None:
    from node.store.files.platform import OS
    from node.store.repair.adopt import adopt

    group = filled(tmp_path / "data")
    group.stop(dispatched=group.store.end_index)
    with pytest.raises(StoreError, match="--broker --group g"):
        adopt(group.ledger, OS)
    (group.ledger / "quorumscope.json").unlink()
    adopt(group.ledger, OS, "g", "n0")
    store = opened(group.root, FILE_BYTES)
    assert (store.kind, store.end_index) == ("broker", group.end)
    store.close()


def test_ended_at_any_step_it_can_be_given_again(tmp_path: Path) -> None:
    group = filled(tmp_path / "data")
    group.stop(dispatched=group.store.end_index)
    hand_over(group.root, dry_run=False)
    java_appends(group, 20)
    kept, whole = group.root, CrashingDisk(1 << 30)
    expected = adopt_broker(copied(kept, tmp_path / "whole"), "g", dry_run=False, disk=whole)
    state = read_adopted(tmp_path / "whole")
    for left in sorted({1, whole.count // 2, *range(whole.count - 10, whole.count, 2)}):
        root = copied(kept, tmp_path / f"at{left}")
        with pytest.raises(Crash):
            adopt_broker(root, "g", dry_run=False, disk=CrashingDisk(left))
        again = adopt_broker(root, "g", dry_run=False)
        assert (again.end_index, again.committed_index) == (expected.end_index, expected.committed_index)
        assert read_adopted(root) == state and not verify(MessageStore(root)).findings
        shutil.rmtree(root)


def test_the_command(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = str(recorded)
    assert run(["store", "adopt", directory, "--broker"]) == Exit.USAGE
    assert run(["store", "adopt", directory, "--drop-timers"]) == Exit.USAGE
    capsys.readouterr()
    assert run(["store", "adopt", directory, "--broker", "--group", "g", "--dry-run"]) == Exit.FINE
    assert "It would do this:" in capsys.readouterr().out
    token = ["--group-token", "a-token-of-ours"]
    assert run(["store", "adopt", directory, "--broker", "--group", "g", *token, "--json"]) == Exit.FINE
    assert json.loads(capsys.readouterr().out)["messages"] == 367
    trail = (recorded / "operator-trail.jsonl").read_text()
    assert "store adopt --broker --group g" in trail and "a-token-of-ours" not in trail
