"""`store hand-over`: after every kind of stop and crash, Java's model reads what we handed over and loses nothing."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.cli import run
from app.commands.endings import Exit
from node.hand_over.hand_over import Known, clear_tail, hand_over
from node.hand_over.prove import prove
from node.hand_over.report import Refused, Report
from node.message_store.checking.verify import verify
from node.message_store.delay_levels import DEFAULT_DELAY_LEVELS
from node.message_store.dispatch import Dispatcher
from node.message_store.dispatch_mark import LogPoint
from node.message_store.kept_conf import write_conf
from node.message_store.message_store import MessageStore
from node.message_store.queue_units import SCHEDULE_TOPIC
from node.message_store.rebuild import rebuild
from node.message_store.write_files import OsDisk
from node.protocol.broker_state import BrokerState, TopicOffsets, encode_metadata, encode_state
from node.protocol.entry import BytesLike
from node.protocol.group_kind import Channel
from node.protocol.group_members import GroupMembers
from node.protocol.snapshot_parts import split_snapshot
from node.store.errors import StoreError
from node.store.files.data_lock import DataLock
from tests.unit.broker_group_kit import SIZES, Group, java
from tests.unit.java_rocketmq.broker import V4, V5
from tests.unit.java_rocketmq.rows import WillNotStart


def handed(group: Group, **options: Any) -> Report:
    return hand_over(group.root, dry_run=False, sizes=SIZES if options.pop("fresh", False) else None, **options)


def assert_java_has_all(group: Group, *, keys: bool = True) -> None:
    """Both versions: every committed message is in its queue, at its number, and is found by its key; and the log
    goes on to its end, whoever leads."""
    for version in (V4, V5):
        broker = java(group.root, version)
        assert broker.ledger is not None
        assert broker.ledger.end_index == group.end
        assert broker.ledger.committed_index == group.committed
        units = broker.units()
        assert {name: len(rows) for name, rows in units.items()} == group.committed_puts()
        assert all(sorted(rows) == list(range(len(rows))) for rows in units.values())
        for name, rows in units.items():
            for number, (offset, size, _code) in rows.items():
                raw = broker.ledger.data.read(offset, size)
                assert struct.unpack_from(">qq", raw, 20) == (number, offset), name
        if keys:
            assert sum(broker.index.entries) == sum(group.committed_puts().values())
        broker.committed(broker.ledger.end_index)
        assert sum(len(rows) for rows in broker.units().values()) == sum(map(len, group.puts.values()))


def copied(root: Path, to: Path) -> Path:
    """DLedger's index files are 160 MiB of nearly nothing, and stay so."""
    subprocess.run(["cp", "-a", "--sparse=always", str(root), str(to)], check=True)
    return to


def filled(root: Path) -> Group:
    """Three terms over several data files; a change of the group and metadata in between."""
    group = Group(root)
    for _ in range(3):
        group.lead()
        group.put(60)
        group.inert(Channel.METADATA, encode_metadata({"groups": {"g1": {"groupName": "g1"}}}))
        group.put(40)
    return group


@pytest.mark.parametrize("cleanly", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("uncommitted", [0, 7], ids=["all", "tail"])
@pytest.mark.parametrize("dispatched", ["never", "half", "all"])
def test_java_loses_nothing_after_any_stop(dispatched: str, uncommitted: int, cleanly: bool, tmp_path: Path) -> None:
    group = filled(tmp_path / "data")
    end = group.store.end_index
    committed = end - uncommitted
    upto = {"never": None, "half": end // 2, "all": committed}[dispatched]
    group.stop(committed, dispatched=upto, cleanly=cleanly)
    report = handed(group, fresh=dispatched == "never")
    assert report.committed_index == committed and report.end_index == end
    assert_java_has_all(group)
    assert not list(group.root.rglob("quorumscope-owns")) and not (group.root / "abort").exists()


def test_what_lies_behind_the_end_is_zeroed(tmp_path: Path) -> None:
    """DLedger would read on in it; and `abort` would send 5.x into its recovery (oddity 6)."""
    group = filled(tmp_path / "data")
    group.stop(dispatched=group.store.end_index)
    (group.root / "abort").write_text("1")
    report = handed(group)
    assert_java_has_all(group)
    assert any("no byte is written" in one for one in report.proven)

    data = sorted((group.ledger / "data").iterdir())
    end = java(group.root, V5).ledger.data.written  # type: ignore[union-attr]
    known = Known(16384, 167_772_160, 0, group.end, end, group.committed, None)
    later = group.ledger / "data" / f"{len(data) * 16384:020d}"
    unit = group.ledger / "index" / f"{0:020d}"
    for path, at in ((data[-1], end % 16384 + 100), (later, 50), (unit, (group.end + 3) * 32)):
        path.touch()
        os.truncate(path, max(path.stat().st_size, 16384))
        with path.open("r+b") as file:
            file.seek(at)
            file.write(b"\x01" * 48)
        with pytest.raises(Refused, match="behind the end of the log"):
            prove(group.root, group.ledger, end, group.end, LogPoint(end, group.end), report)
        clear_tail(group.ledger, known, OsDisk())
    prove(group.root, group.ledger, end, group.end, LogPoint(end, group.end), report)
    assert_java_has_all(group)


def test_inert_records_are_in_no_queue_and_no_index_and_the_last_one_is_no_end(tmp_path: Path) -> None:
    group = filled(tmp_path / "data")
    group.lead()
    group.stop(dispatched=group.store.end_index)
    handed(group)
    assert_java_has_all(group)


def test_next_offsets_of_expired_queues_and_metadata_come_from_the_log(tmp_path: Path) -> None:
    group = filled(tmp_path / "data")
    topics = {"Gone": {"topicName": "Gone", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}}
    tables: dict[str, Any] = {"topics": topics, "delay_offsets": {"1": 5}, "consumer_offsets": {"Orders@g1": {"0": 3}}}
    state = BrokerState(group.store.end_index, {"Gone": TopicOffsets(-1, {2: 41})}, tables)
    for part in split_snapshot(encode_state(state), 1, group.store.end_index, part_bytes=200):
        group.inert(Channel.SNAPSHOT_PART, part)
    group.inert(Channel.METADATA, encode_metadata({"consumer_offsets": {"Orders@g1": {"0": 8}}}))
    group.stop(dispatched=group.store.end_index)
    handed(group)
    config = group.root / "config"
    assert b'"offsetTable":{1:5}' in (config / "delayOffset.json").read_bytes()
    assert b'"offsetTable":{"Orders@g1":{0:8}}' in (config / "consumerOffset.json").read_bytes()
    assert {"Gone", "Orders", "TopicTest"} <= json.loads((config / "topics.json").read_bytes())[
        "topicConfigTable"
    ].keys()
    assert java(group.root, V5).next_offset("Gone", 2) in (0, 41)  # the log begins at 0: there is nothing to keep


def test_a_dry_run_says_the_same_and_changes_nothing(tmp_path: Path) -> None:
    group = filled(tmp_path / "data")
    group.stop(dispatched=group.store.end_index // 2)

    def seen() -> dict[str, tuple[int, bytes]]:
        small = [path for path in group.root.rglob("*") if path.is_file() and path.stat().st_size < 1 << 20]
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in small}

    before = seen()
    said = hand_over(group.root, dry_run=True)
    assert {name: one for name, one in seen().items() if not name.endswith("/lock")} == {
        name: one for name, one in before.items() if not name.endswith("/lock")
    }
    done = handed(group)
    assert [said.messages, said.committed_index, said.broker_conf] == [
        done.messages, done.committed_index, done.broker_conf,
    ]  # fmt: skip
    assert said.done[0] == done.done[0]


def test_the_lines_of_broker_conf_are_what_the_files_were_written_with(tmp_path: Path) -> None:
    group = filled(tmp_path / "data")
    group.stop(dispatched=group.store.end_index)
    peers = "n0-h0:20911;n1-h1:20911;n2-h2:20911"
    assert handed(group, peers=peers).broker_conf == [
        f"storePathRootDir={group.root}", "mappedFileSizeCommitLog=16384", "mappedFileSizeConsumeQueue=320",
        "maxHashSlotNum=100", "maxIndexNum=400", "enableDLegerCommitLog=true", "dLegerGroup=g", f"dLegerPeers={peers}",
        "dLegerSelfId=n0", "forceVerifyPropCRC=false", f"messageDelayLevel={DEFAULT_DELAY_LEVELS}",
    ]  # fmt: skip


def test_the_peers_are_those_of_the_newest_entry_that_the_log_holds(tmp_path: Path) -> None:
    """A change that was written down, and whose entry never came, is none."""
    group = filled(tmp_path / "data")
    bodies = [GroupMembers({"n0": "h0:1", "n1": "h1:1", one: "h2:1"}).body(one) for one in ("n2", "n3")]
    places = [group.inert(Channel.CONFIG_CHANGE, bodies[0]), group.store.end_index + 2]
    group.put(5)
    records = tuple((at, body.decode()) for at, body in zip(places, bodies, strict=True))
    group.store.save_hard_state(replace(group.store.hard_state, configurations=records))
    group.stop(dispatched=group.store.end_index)
    lines = handed(group).broker_conf
    assert [line for line in lines if "Peers" in line] == ["dLegerPeers=n0-h0:1;n1-h1:1;n2-h2:1"]


@pytest.mark.parametrize("rebuilt", [False, True])
def test_java_is_given_the_levels_with_which_messages_wait_and_what_else_the_broker_was_configured_with(
    tmp_path: Path, rebuilt: bool
) -> None:
    """Units of waiting messages say when they are due, whoever dispatched them; `verify` reads them so."""
    group = filled(tmp_path / "data")
    group.put(3, topics=(SCHEDULE_TOPIC,), properties=(("DELAY", "2"),))
    group.stop(dispatched=group.store.end_index // 2)
    conf = {"brokerName": "g", "messageDelayLevel": "1s 7m", "listenPort": "10911"}
    disk = OsDisk()
    write_conf(group.root, conf, disk)
    disk.close()
    if rebuilt:
        rebuild(MessageStore(group.root), group.committed, dry_run=False)
    report = handed(group)
    assert report.broker_conf[-3:] == ["messageDelayLevel=1s 7m", "brokerName=g", "listenPort=10911"]
    assert not any("messageDelayLevel" in one for one in report.notes)
    store = MessageStore(group.root)
    for queue in store.queues(SCHEDULE_TOPIC):
        due_ms = queue.units(0, 1)["tags_code"][0]
        assert due_ms == store.in_queue(SCHEDULE_TOPIC, queue.queue_id, 0).record.store_timestamp_ms + 7 * 60_000
    assert not verify(store).findings


def test_what_may_not_be_handed_over_is_refused_with_the_reason(tmp_path: Path) -> None:
    group = filled(tmp_path / "data")
    with pytest.raises(StoreError, match="open in another process"):
        hand_over(group.root, dry_run=True)
    group.stop(dispatched=group.store.end_index)
    lock = DataLock(group.root)
    with pytest.raises(StoreError, match="stop every member"):
        handed(group)
    lock.release()
    copy = copied(group.root, tmp_path / "damaged")
    path = copy / "dledger-n0/data" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[2000] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises((Refused, StoreError), match=r"damaged|healed|repair"):
        hand_over(copy, dry_run=False)
    assert (copy / "dledger-n0/data/quorumscope-owns").exists()
    (group.root / "quorumscope/dispatched").unlink()
    with pytest.raises(Refused, match="rebuild-queues"):
        handed(group)
    assert (group.ledger / "data/quorumscope-owns").exists()


def test_plain_logs_and_directories_without_a_log_are_refused(tmp_path: Path) -> None:
    from tests.unit.store_fixtures import open_store

    open_store(tmp_path / "plain/dledger-n0").close()
    with pytest.raises(Refused, match="no broker group's"):
        hand_over(tmp_path / "plain", dry_run=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(Refused, match="no replicated log"):
        hand_over(tmp_path / "empty", dry_run=True)


class Crash(Exception):
    """The process ends here."""


class CrashingDisk:
    """Every operation that changes anything, up to the one at which it ends."""

    def __init__(self, left: int) -> None:
        self._disk = OsDisk()
        self._left = left
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._disk, name)
        if name == "close":
            return found

        def counted(*arguments: Path | int | BytesLike) -> Any:
            self.count += 1
            if self.count > self._left:
                raise Crash
            return found(*arguments)

        return counted


def test_ended_at_any_step_it_is_ours_or_javas_and_can_be_given_again(tmp_path: Path) -> None:
    """At each operation of the hand-over: while an owner file is there Java is kept out, our engine and dispatcher
    open, and the hand-over goes through at the second time; once the last one is gone, Java loses nothing."""
    group = filled(tmp_path / "data")
    group.stop(group.store.end_index - 3, dispatched=group.store.end_index // 2)
    whole = CrashingDisk(1 << 30)
    kept = group.root
    group.root = copied(kept, tmp_path / "whole")
    group.ledger = group.root / "dledger-n0"
    hand_over(group.root, dry_run=False, disk=whole)
    assert_java_has_all(group)
    steps = sorted({*range(0, whole.count, max(whole.count // 4, 1)), *range(whole.count - 9, whole.count)})
    for left in steps:
        group.root = copied(kept, tmp_path / f"at{left}")
        group.ledger = group.root / "dledger-n0"
        with pytest.raises(Crash):
            hand_over(group.root, dry_run=False, disk=CrashingDisk(left))
        if list(group.root.rglob("quorumscope-owns")):
            with pytest.raises(WillNotStart):
                java(group.root, V5)
            hand_over(group.root, dry_run=False)
        else:
            with pytest.raises(Refused, match="handed over already"):
                hand_over(group.root, dry_run=False)
        assert_java_has_all(group)
        shutil.rmtree(group.root)


def test_ours_goes_on_after_a_hand_over_that_nobody_took(tmp_path: Path) -> None:
    group = filled(tmp_path / "data")
    group.stop(dispatched=group.store.end_index)
    handed(group)
    store = group.reopened()
    assert store.end_index == group.end and not store.faults
    store.close()
    assert (group.ledger / "data/quorumscope-owns").exists()
    handed(group)
    assert_java_has_all(group)
    os.rename(group.root / "quorumscope/handed-over", group.root / "quorumscope/dispatched")
    assert Dispatcher(group.root).point.index == group.committed


def test_the_command_says_what_it_did_and_leaves_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group = filled(tmp_path / "data")
    group.stop(dispatched=group.store.end_index)
    assert run(["store", "hand-over", str(group.root)]) == Exit.USAGE
    assert run(["store", "hand-over", str(group.root), "--to", "java", "--dry-run"]) == Exit.FINE
    assert "It would do this:" in capsys.readouterr().out
    assert run(["store", "hand-over", str(group.root), "--to", "java", "--json"]) == Exit.FINE
    said = json.loads(capsys.readouterr().out)
    assert said["messages"] == 300 and len(said["proven"]) == 4 and "dLegerSelfId=n0" in said["broker_conf"]
    assert "store hand-over --to java" in (group.root / "operator-trail.jsonl").read_text()
    assert_java_has_all(group)


def test_a_queue_whose_messages_have_all_expired_goes_on_at_javas(tmp_path: Path) -> None:
    """Its next offset is in the newest snapshot of the log alone; pre-fill alone would make 5.x and 4.9 take what lies
    in the first two gigabytes for repeats."""
    group = Group(tmp_path / "data")
    group.lead()
    group.put(9, topics=("Gone",))
    group.put(150)
    offsets: dict[str, dict[int, int]] = {}
    for (topic, queue_id), number in group.next.items():
        offsets.setdefault(topic, {})[queue_id] = number
    state = BrokerState(group.store.end_index, {name: TopicOffsets(-1, one) for name, one in offsets.items()}, {})
    for part in split_snapshot(encode_state(state), 1, group.store.end_index):
        group.inert(Channel.SNAPSHOT_PART, part)
    group.put(60)
    group.trim(120)
    begin = group.store.begin_index
    assert begin > 20  # the files that lie wholly below
    group.stop()
    handed(group, fresh=True)
    for version in (V4, V5):
        broker = java(group.root, version)
        assert [broker.next_offset("Gone", queue_id) for queue_id in range(3)] == [3, 3, 3]
        for (topic, queue_id), indexes in group.puts.items():
            left = [number for number, index in enumerate(indexes) if index >= begin]
            units = broker.units()[topic, queue_id]
            there = {number for number, unit in units.items() if unit[0] >= broker.min_offset}
            assert sorted(there) == left
        assert broker.min_offset > 0


def test_a_queue_that_was_kept_goes_on_with_new_messages(tmp_path: Path) -> None:
    """As the one above, then Java puts into it: the message is dispatched to the number that was kept."""
    group = Group(tmp_path / "data")
    group.lead()
    group.put(9, topics=("Gone",))
    group.put(150)
    state = BrokerState(group.store.end_index, {"Gone": TopicOffsets(-1, {0: 3, 1: 3, 2: 3})}, {})
    for part in split_snapshot(encode_state(state), 1, group.store.end_index):
        group.inert(Channel.SNAPSHOT_PART, part)
    group.trim(120)
    assert group.store.begin_index > 20
    committed = group.store.end_index
    group.put(3, topics=("Gone",))
    group.stop(committed)
    handed(group, fresh=True)
    for version in (V4, V5):
        broker = java(group.root, version)
        assert broker.next_offset("Gone", 0) == 3
        broker.committed(group.end)
        assert all(3 in broker.units()["Gone", queue_id] for queue_id in range(3))
