"""RocketMQ's old commit log below the replicated one (dividedCommitlogOffset): taken over, read, expired."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from app.cli import run
from app.commands.endings import Exit
from node.broker.broker import Broker
from node.config import Settings, load
from node.hand_over.adopt import adopt_broker
from node.hand_over.hand_over import hand_over
from node.hand_over.report import Refused
from node.message_store.adopted import read_adopted
from node.message_store.checking.verify import verify
from node.message_store.commit_log import Placed
from node.message_store.consume_queue import PullStatus
from node.message_store.dispatch import Dispatcher
from node.message_store.dispatch_mark import DerivedSizes, mark_path, read_mark
from node.message_store.errors import MessageStoreError
from node.message_store.log_pieces import old_records
from node.message_store.message_store import MessageStore, StoreKind, log_begin
from node.message_store.old_part import old_begin
from node.message_store.properties import join_properties
from node.message_store.put_result import PutStatus
from node.message_store.queue_units import SCHEDULE_TOPIC
from node.message_store.rebuild import known_next_offsets, rebuild
from node.message_store.record import PHYSICAL_OFFSET_AT, decode_record, encode_record, message_id
from node.protocol.codes import VoterState
from node.protocol.entry import EntryError
from node.store.errors import StoreRefused
from node.store.file_store import FileStore
from node.store.files.old_log import BEFORE_ENTRY_0
from node.store.retention import Limits, plan_by_policy
from tests.ports import free_ports
from tests.unit.broker_kit import broker_of, engine_of, message
from tests.unit.engine_kit import until
from tests.unit.java_rocketmq.broker import LEDGER_INDEX_BYTES, V4, V5, JavaBroker
from tests.unit.java_rocketmq.rows import WillNotStart
from tests.unit.message_kit import record as message_record
from tests.unit.store_fixtures import record
from tests.unit.test_dispatch import index_files, queue_files
from tests.unit.test_engine_damage import operator_action
from tests.unit.test_hand_over import Crash, CrashingDisk, copied

DIVIDED = 262_144
FILE_BYTES = 65_536
OLD_MESSAGES = 367
NEXT = 43  # of TopicTest's queue 0, behind RocketMQ's last message
SIZES = DerivedSizes(queue_file_bytes=320, index_slots=100, index_entries=400)
VECTOR_SIZES = {"file_bytes": FILE_BYTES, "queue_bytes": 320, "slots": 100, "index_entries": 400}
POLICY = Limits(3600, frozenset({4}), 0, 0.75, 0.85, force_clean=True)


@pytest.fixture
def classic(vectors: Path, tmp_path: Path) -> Path:
    """A recorded broker that never had a replicated log."""
    return all_delivered(Path(shutil.copytree(vectors / "rocketmq/store/data", tmp_path / "classic")))


def all_delivered(root: Path) -> Path:
    """No delayed message waits."""
    waiting = {queue: at for (topic, queue), at in known_next_offsets(root).items() if topic == SCHEDULE_TOPIC}
    (root / "config").mkdir(exist_ok=True)
    delays = {str(queue + 1): at for queue, at in waiting.items()}
    (root / "config/delayOffset.json").write_text(json.dumps({"offsetTable": delays}))
    return root


@pytest.fixture
def upgraded(vectors: Path, tmp_path: Path) -> Path:
    """The same broker after RocketMQ itself went over to DLedger: 50 messages more, from 262192 on."""
    root = Path(shutil.copytree(vectors / "rocketmq/dledger-commitlog/upgraded", tmp_path / "upgraded"))
    for path in (vectors / "rocketmq/store/data/commitlog").iterdir():
        if not (root / "commitlog" / path.name).exists():
            shutil.copy(path, root / "commitlog")
    os.truncate(root / "dledger-n0/index" / f"{0:020d}", LEDGER_INDEX_BYTES)
    return all_delivered(root)


def tree(root: Path) -> dict[str, bytes]:
    """All files but DLedger's own index, which is 160 MiB of nearly nothing."""
    found = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if not name.startswith("dledger-n0/index")}


def opened(root: Path, node_id: str = "n0", *, init: bool = False) -> FileStore:
    return FileStore.open(
        root / f"dledger-{node_id}", group="g", node_id=node_id, data_file_size=FILE_BYTES,
        index_file_size=LEDGER_INDEX_BYTES, kind="broker", init=init,
    )  # fmt: skip


def settings_of(root: Path) -> Settings:
    given = {
        "node.id": "n0", "node.group": "g", "peers": f"n0-127.0.0.1:{free_ports(1)[0]}", "node.data": str(root),
        "broker.address": "127.0.0.1:10911", "store.mapped_file_size_for_entry_data_bytes": str(FILE_BYTES),
        "node.init": "true",
    }  # fmt: skip
    return load(given, None, {})


def with_broker(root: Path, work: Callable[[Broker], object]) -> None:
    """What a master on that directory answers; `work` may be async."""
    settings = settings_of(root)

    async def serve() -> None:
        async with engine_of(settings), broker_of(settings) as broker:
            found = work(broker)
            if asyncio.iscoroutine(found):
                await found

    asyncio.run(asyncio.wait_for(serve(), 60))


# --- taking over ------------------------------------------------------------------------------------------------------
def test_an_upgraded_brokers_directory_is_taken_over_with_its_old_files(upgraded: Path) -> None:
    before = verify(MessageStore(upgraded))
    found = tree(upgraded)
    planned = adopt_broker(upgraded, "g", dry_run=True)
    assert tree(upgraded).keys() - found.keys() <= {"lock"}, "a dry run changes nothing"
    assert {name: data for name, data in tree(upgraded).items() if name in found} == found
    report = adopt_broker(upgraded, "g", dry_run=False)
    assert (report.messages, report.begin_index, report.end_index) == (OLD_MESSAGES + 50, 0, 49)
    assert planned.old_log == report.old_log == json.loads((upgraded / "quorumscope/old-log.json").read_bytes())
    assert report.old_log is not None and report.old_log["divided_offset"] == DIVIDED
    for _start in range(2):  # the place of entry 0 is on record: a start does not look for it at 0
        store = opened(upgraded)
        assert (store.begin_index, store.end_index, store.files.begin_pos) == (0, 49, DIVIDED)
        assert store.alarms == () and store.hard_state.voter_state is VoterState.VOTER
        store.close()
    assert MessageStore(upgraded).kind is StoreKind.JOINED
    after = verify(MessageStore(upgraded))
    assert (after.messages, after.units, after.index_entries) == (before.messages, before.units, before.index_entries)
    assert after.findings == []
    changed = {name for name, data in tree(upgraded).items() if name in found and found[name] != data}
    assert not any(name.startswith(("commitlog/", "dledger-n0/data/")) for name in changed), "no entry is changed"


def test_a_commit_log_alone_is_closed_as_rocketmq_closes_it(classic: Path, upgraded: Path, vectors: Path) -> None:
    with pytest.raises(Refused, match="--id n0"):
        adopt_broker(classic, "g", dry_run=True)
    files = tree(classic)
    adopt_broker(classic, "g", node_id="n0", dry_run=True)
    assert {name: data for name, data in tree(classic).items() if name in files} == files
    adopt_broker(classic, "g", node_id="n0", dry_run=False)
    last = f"commitlog/{DIVIDED - FILE_BYTES:020d}"
    recorded = (vectors / "rocketmq/dledger-commitlog/upgraded" / last).read_bytes()
    assert (classic / last).read_bytes() == recorded, "the blank is the one that RocketMQ wrote there"
    adopt_broker(upgraded, "g", dry_run=False)
    names = {json.loads((one / "quorumscope/old-log.json").read_bytes())["name"] for one in (classic, upgraded)}
    assert len(names) == 1, "who went over in RocketMQ and who does it here have the same old log"
    store = opened(classic, init=True)
    assert (store.end_index, store.files.end.end_pos) == (-1, DIVIDED)
    assert store.hard_state.voter_state is VoterState.FORMING
    store.close()
    assert Dispatcher(classic).next_offsets["TopicTest", 0] == 36
    assert adopt_broker(classic, "g", dry_run=False).messages == OLD_MESSAGES
    with pytest.raises(Refused, match="another --group-token"):
        adopt_broker(classic, "g", token="another-one", dry_run=False)


def test_whoever_has_another_old_log_is_of_another_group(classic: Path, tmp_path: Path) -> None:
    """Raft never carries these files: that all members have the same is in the group's id, which HELLO compares."""
    other = Path(shutil.copytree(classic, tmp_path / "other"))
    last = other / "commitlog" / f"{DIVIDED - FILE_BYTES:020d}"
    data = bytearray(last.read_bytes())
    end = MessageStore(other).log.find_end() - (DIVIDED - FILE_BYTES)
    data[end - 1 : end] = b"Z"  # the last property's last letter, which no CRC covers
    last.write_bytes(data)
    for root, node_id in ((classic, "n0"), (other, "n1")):
        adopt_broker(root, "g", node_id=node_id, token="the-same-token", dry_run=False)
    ids = []
    for root, node_id in ((classic, "n0"), (other, "n1")):
        store = opened(root, node_id)
        ids.append(store.hard_state.group_id)
        store.close()
    assert None not in ids and ids[0] != ids[1]
    with pytest.raises(Refused, match=f"{DIVIDED - FILE_BYTES:020d} is not the file that"):
        adopt_broker(other, "g", other_old_log=classic / "quorumscope/old-log.json", dry_run=True)


def test_another_members_list_is_compared_to_the_byte(
    classic: Path, upgraded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adopt_broker(classic, "g", node_id="n0", dry_run=False)
    listed = classic / "quorumscope/old-log.json"
    (upgraded / "commitlog" / f"{0:020d}").unlink()  # it has expired there already
    arguments = ["store", "adopt", str(upgraded), "--broker", "--group", "g", "--old-log", str(listed), "--json"]
    assert run([*arguments, "--dry-run"]) == Exit.FINE
    assert "3 of these files are on record" in capsys.readouterr().out
    said = json.loads(listed.read_bytes())
    said["divided_offset"] += FILE_BYTES
    listed.write_text(json.dumps(said))
    assert run(arguments) == Exit.FINDING
    assert "every member has to have the same one" in capsys.readouterr().err
    listed.write_text("[]")
    assert run(arguments) == Exit.FINDING
    assert "is no old-log.json" in capsys.readouterr().err
    assert run(["store", "adopt", str(upgraded / "dledger-n0"), "--old-log", "x"]) == Exit.USAGE


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("flip", "its CRC is another; bring this file from another member"),
        ("missing", "is missing; bring it from another member"),
        ("last", "the files between are missing"),
        ("short", "move it away, or bring the right one"),
        ("stranger", "move it away, or bring the right one"),
    ],
)
def test_an_old_log_with_a_doubtful_byte_is_refused_and_nothing_changes(damage: str, said: str, upgraded: Path) -> None:
    folder = upgraded / "commitlog"
    if damage == "flip":
        found = MessageStore(upgraded).in_queue("TopicTest", 0, 20)
        path = folder / f"{found.offset // FILE_BYTES * FILE_BYTES:020d}"
        data = bytearray(path.read_bytes())
        data[data.index(found.record.body, found.offset % FILE_BYTES)] ^= 1
        path.write_bytes(data)
    elif damage == "missing":
        (folder / f"{FILE_BYTES:020d}").unlink()
    elif damage == "last":
        (folder / f"{DIVIDED - FILE_BYTES:020d}").unlink()
    elif damage == "short":
        os.truncate(folder / f"{FILE_BYTES:020d}", 1000)
    else:
        (folder / "notes.txt").write_text("mine")
    before = tree(upgraded)
    with pytest.raises(Refused, match=said):
        adopt_broker(upgraded, "g", dry_run=False)
    assert {name: data for name, data in tree(upgraded).items() if name != "lock"} == {
        name: data for name, data in before.items() if name != "lock"
    }


def test_a_group_is_not_born_beside_an_old_log_by_itself(classic: Path) -> None:
    with pytest.raises(StoreRefused, match="store adopt"):
        opened(classic, init=True)


# --- members ----------------------------------------------------------------------------------------------------------
def test_a_new_member_needs_a_copy_of_the_old_files_first(classic: Path, tmp_path: Path) -> None:
    """Its positions are the group's: without the old files its first entry would lie at 0, which no store takes."""
    joins = tmp_path / "joins"
    shutil.copytree(classic / "commitlog", joins / "commitlog")
    adopt_broker(classic, "g", node_id="n0", dry_run=False)
    leader = opened(classic, init=True)
    slabs = leader.append_as_leader([encode_record(message_record(b"first"))], 1, patch_at=PHYSICAL_OFFSET_AT)
    assert slabs[0].pos == DIVIDED and MessageStore(classic).log.message_at(DIVIDED + 48).record.body == b"first"
    empty = opened(tmp_path / "empty", "n2")
    with pytest.raises(EntryError, match="would lie at 0 here"):
        empty.append_slab(slabs[0])
    empty.close()
    report = adopt_broker(joins, "g", node_id="n1", dry_run=False)
    assert report.messages == OLD_MESSAGES
    follower = opened(joins, "n1")
    assert follower.hard_state.voter_state is VoterState.REJOINING, "it joins, and is no voter of a birth"
    assert follower.hard_state.group_id == leader.hard_state.group_id
    follower.append_slab(slabs[0])
    assert follower.files.end == leader.files.end
    leader.close()
    follower.close()


# --- serving ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("was_upgraded_by", ["RocketMQ", "us"])
def test_everything_is_read_across_the_border(was_upgraded_by: str, classic: Path, upgraded: Path) -> None:
    """By queue in one batch, by place, id, key and time; and by RocketMQ after a hand-over, with new messages in it."""
    root = upgraded if was_upgraded_by == "RocketMQ" else classic
    adopt_broker(root, "g", node_id="n0", dry_run=False)
    first_new = {"RocketMQ": Dispatcher(root).next_offsets["TopicTest", 0], "us": 36}[was_upgraded_by]

    async def work(broker: Broker) -> None:
        keys = [join_properties([("KEYS", f"new{at}")]) for at in range(12)]
        results = [await broker.lane.put(message(b"new", properties_data=one)) for one in keys]
        assert {one.status for one in results} == {PutStatus.PUT_OK}
        assert [one.queue_offset for one in results] == list(range(first_new, first_new + 12))
        assert broker.reads.min_offset("TopicTest", 0) == 0
        got = broker.reads.get("TopicTest", 0, 33, 9)
        assert got.status is PullStatus.FOUND and got.next_offset == 42, "one answer has both sides of the border"
        records = [decode_record(one) for one in got.records]
        assert [one.queue_offset for one in records] == list(range(33, 42))
        sides = [one.physical_offset < DIVIDED for one in records]
        assert sides == [True] * 3 + [False] * 6
        for one, raw in zip(records, got.records, strict=True):
            assert bytes(broker.reads.message_at(one.physical_offset)) == bytes(raw)
            low = broker.reads.offset_at("TopicTest", 0, one.store_timestamp_ms)
            assert broker.reads.stored_at_ms("TopicTest", 0, low) == one.store_timestamp_ms
        old_key = next(key for one in records[:3] for key in one.index_keys)
        for key in ("new3", old_key):
            places = MessageStore(root).query("TopicTest", key)
            assert [bytes(one) for one in broker.reads.query("TopicTest", key) if one] == [
                bytes(broker.reads.message_at(place)) for place in places
            ]
            assert places
        assert len(list(broker.reads.query("TopicTest", "new3"))) == 1
        if was_upgraded_by == "us":
            assert broker.log.dispatcher is not None
            own = [one for one in records if one.physical_offset >= DIVIDED]
            assert own[0].physical_offset >= DIVIDED + 48

    with_broker(root, work)
    found = verify(MessageStore(root))
    assert [one for one in found.findings if one.fault.value != "metadata_mismatch"] == []
    report = hand_over(root, dry_run=False)
    assert report.proven
    for version in (V4, V5):
        java = JavaBroker(root, version, **VECTOR_SIZES)
        assert java.min_offset == 0
        assert sorted(java.units()["TopicTest", 0]) == list(range(first_new + 12))


def test_rot_in_the_old_part_is_given_to_nobody_and_said_until_the_file_is_put_back(upgraded: Path) -> None:
    """Its records have the CRC of their bodies only. Nobody looked at it: what lay on the disk went to consumers, and
    into the log anew, with a new CRC over it."""
    adopt_broker(upgraded, "g", node_id="n0", dry_run=False)

    async def work(broker: Broker) -> None:
        place = broker.reads.units("TopicTest", 0, 20, 1)[0][0]
        at = place % FILE_BYTES + 150
        path = upgraded / "commitlog" / f"{place - place % FILE_BYTES:020}"
        flip(path, at)
        assert broker.reads.get("TopicTest", 0, 18).next_offset == 20
        assert broker.reads.get("TopicTest", 0, 20).status is PullStatus.OFFSET_FOUND_NULL
        broker._rotten.look_again()
        assert broker.state()["damaged_messages"] == [{"offset": place, "message": "TopicTest, queue 0, offset 20"}]
        flip(path, at)
        broker._rotten.look_again()
        assert broker.state()["damaged_messages"] == []
        assert broker.reads.get("TopicTest", 0, 20).status is PullStatus.FOUND

    with_broker(upgraded, work)


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


# --- recovery: what RocketMQ lost on such directories -----------------------------------------------------------------
def lose(root: Path, *names: str) -> None:
    for name in names:
        shutil.rmtree(root / name, ignore_errors=True)


@pytest.mark.parametrize("online", [True, False])
def test_queues_and_index_are_written_anew_from_both_parts(online: bool, upgraded: Path, vectors: Path) -> None:
    """Old files first, then the replicated log: the same bytes as RocketMQ's, by the broker and by the command."""
    adopt_broker(upgraded, "g", dry_run=False)
    queues, index = queue_files(upgraded), index_files(upgraded)
    assert queues == queue_files(vectors / "rocketmq/dledger-commitlog/upgraded")
    lose(upgraded, "consumequeue", "index")
    mark_path(upgraded).unlink()
    if online:

        def work(broker: Broker) -> None:
            assert broker.log.next_offset("TopicTest", 0) == NEXT

        with_broker(upgraded, work)
        after = queue_files(upgraded)
        assert {name: after[name] for name in queues} == queues
    else:
        rebuild(MessageStore(upgraded), 49, dry_run=False, sizes=SIZES)
        assert (queue_files(upgraded), index_files(upgraded)) == (queues, index)
    assert read_mark(upgraded) is not None


@pytest.mark.parametrize("at", [0, 100, 200, 366])
def test_rocketmq_1397_a_start_never_leaves_a_queue_out_of_order(at: int, upgraded: Path) -> None:
    """apache/rocketmq#1397: after a crash a DLedger broker took queues as they were found, went on behind them, and
    logged "logic queue order maybe wrong" for ever after: units were missing in the middle. Here a start takes what its
    mark vouches for, zeroes the rest and goes on from there, also where that is in the old files."""
    adopt_broker(upgraded, "g", dry_run=False)
    queues = queue_files(upgraded)
    lose(upgraded, "consumequeue", "index")
    mark_path(upgraded).unlink()
    dispatcher = Dispatcher(upgraded, SIZES, begin=old_begin(upgraded))
    done = 0
    for piece in old_records(upgraded, 0):
        dispatcher.dispatch(piece.batch, piece.end)
        done += len(piece.batch)
        if done > at:
            break
    dispatcher.save()
    for path in (upgraded / "consumequeue").rglob("[0-9]" * 20):  # units of the crashed broker that no mark vouches for
        units = path.read_bytes()
        used = len(units.rstrip(b"\0")) // 20 * 20 + 20
        if used < len(units):
            path.write_bytes(units[:used] + b"\1" * 20 + units[used + 20 :])
    dispatcher.abandon()
    with_broker(upgraded, lambda broker: None)
    after = queue_files(upgraded)
    assert {name: after[name] for name in queues} == queues
    assert [one for one in verify(MessageStore(upgraded)).findings if one.fault.value != "metadata_mismatch"] == []


def test_rocketmq_7355_the_tail_of_the_queues_comes_back_after_a_power_loss(upgraded: Path) -> None:
    """apache/rocketmq#7355: the machine went down, the queues' newest pages were never written, and DLedger mode had no
    recovery that dispatches what the log still has: those messages were in no queue any more."""
    adopt_broker(upgraded, "g", dry_run=False)

    async def puts(broker: Broker) -> None:
        results = await asyncio.gather(*(broker.lane.put(message(b"%d" % at)) for at in range(20)))
        assert {one.status for one in results} == {PutStatus.PUT_OK}

    mark = mark_path(upgraded).read_bytes()
    before = {path: path.read_bytes() for path in (upgraded / "consumequeue/TopicTest/0").iterdir()}
    with_broker(upgraded, puts)
    mark_path(upgraded).write_bytes(mark)  # as of before the puts, and so are the units
    for path in (upgraded / "consumequeue/TopicTest/0").iterdir():
        path.write_bytes(before.get(path, bytes(320)))
    (upgraded / "abort").write_text("")  # what RocketMQ's broker leaves, and nobody here looks at

    def work(broker: Broker) -> None:
        assert broker.log.next_offset("TopicTest", 0) == NEXT + 20
        found, offset = [], NEXT
        while offset < NEXT + 20:  # an answer ends with a file of the queue
            got = broker.reads.get("TopicTest", 0, offset, 32)
            found += [decode_record(one).body for one in got.records]
            offset = got.next_offset
        assert found == [b"%d" % at for at in range(20)]

    with_broker(upgraded, work)


def test_rocketmq_5883_a_place_is_read_on_both_sides_of_the_border(upgraded: Path) -> None:
    """apache/rocketmq#5883: a read by physical offset (`getData`) went to the old files alone, so that in DLedger mode
    whatever lay behind them could not be read: the timer store stood still."""
    adopt_broker(upgraded, "g", dry_run=False)

    def work(broker: Broker) -> None:
        seen = {True: 0, False: 0}
        for placed in MessageStore(upgraded).log.scan():
            if isinstance(placed, Placed) and not placed.channel and placed.offset < broker.reads.end_offset():
                raw = bytes(broker.reads.message_at(placed.offset))
                assert decode_record(raw).physical_offset == placed.offset
                assert broker.reads.record(placed.offset, placed.size_bytes) is not None
                host = placed.record.store_host
                assert bytes(broker.reads.by_id(message_id(host, placed.offset))) == raw
                seen[placed.offset < DIVIDED] += 1
        assert seen[True] == OLD_MESSAGES and seen[False] >= 50
        for wrong in (DIVIDED, DIVIDED - 8, DIVIDED + 47):
            with pytest.raises(MessageStoreError):
                broker.reads.message_at(wrong)

    with_broker(upgraded, work)


def test_rocketmq_7283_the_log_begins_with_its_first_file_that_can_be_read(upgraded: Path) -> None:
    """apache/rocketmq#7283: a first file that could be removed only by half stayed in the list, and the broker gave its
    beginning as the log's: consumers were sent there for ever, and found nothing."""
    adopt_broker(upgraded, "g", dry_run=False)
    first = upgraded / "commitlog" / f"{0:020d}"

    async def work(broker: Broker) -> None:
        assert broker.reads.get("TopicTest", 0, 0).status is PullStatus.FOUND
        os.truncate(first, 0)
        broker.reads.refresh()
        assert broker.reads.store.log.min_offset == FILE_BYTES == log_begin(upgraded)
        low = broker.reads.min_offset("TopicTest", 0)
        got = broker.reads.get("TopicTest", 0, 0)
        assert (got.status, got.next_offset) == (PullStatus.OFFSET_TOO_SMALL, low) and low > 0
        assert broker.reads.get("TopicTest", 0, low).status is PullStatus.FOUND

    with_broker(upgraded, work)


# --- expiry -----------------------------------------------------------------------------------------------------------
def test_old_files_go_first_and_by_age_and_then_it_is_as_without(upgraded: Path) -> None:
    """Whole files from the front, also the last one; until then no file of the replicated log, however full the disk
    is (RocketMQ: forced cleaning off, ten years)."""
    adopt_broker(upgraded, "g", dry_run=False)
    known = dict(Dispatcher(upgraded).next_offsets)
    store = opened(upgraded)
    now_s = store.survey(10).now_s
    old = sorted((upgraded / "commitlog").glob("[0-9]*"))
    for at, path in enumerate(old):
        os.utime(path, (now_s, now_s - (7200 if at < 2 else 0)))
    survey = dataclasses.replace(store.survey(10), hour=4, disk_total_bytes=None, disk_free_bytes=None)
    plan = plan_by_policy(POLICY, survey, [], 48)
    assert [one.size_bytes for one in plan.files] == [FILE_BYTES] * 2 and plan.through_index == -1
    assert plan_by_policy(POLICY, dataclasses.replace(survey, hour=5), [], 48).files == ()
    full = dataclasses.replace(survey, disk_total_bytes=1 << 20, disk_free_bytes=0)
    assert plan_by_policy(POLICY, full, [], 48).through_index == -1
    assert len(plan_by_policy(POLICY, full, [], 48).files) <= len(old), "a full disk takes old files, and no others"
    assert plan_by_policy(POLICY, survey, [], -2).files == (), "nothing goes before this member has a committed entry"
    data = sorted((upgraded / "dledger-n0/data").glob("[0-9]*"))
    for left in (3, 2, 1, 0):
        store.remove_prefix(BEFORE_ENTRY_0)
        assert len(store.files.old_log.files()) == left
        assert log_begin(upgraded) == DIVIDED - left * FILE_BYTES
    assert sorted((upgraded / "dledger-n0/data").glob("[0-9]*")) == data
    store.remove_prefix(BEFORE_ENTRY_0)  # nothing is left, and nothing happens
    assert [one.first_index for one in store.survey(10).files] != [-1]
    store.close()
    assert MessageStore(upgraded).kind is StoreKind.LEDGER
    store = opened(upgraded)
    assert (store.begin_index, store.files.begin_pos, store.end_index) == (0, DIVIDED, 49)
    store.close()

    def work(broker: Broker) -> None:
        low = broker.reads.min_offset("TopicTest", 0)
        assert broker.log.next_offset("TopicTest", 0) == NEXT > low >= 36
        emptied = [one for one, end in known.items() if broker.reads.min_offset(*one) == end]
        assert {one: broker.log.next_offset(*one) for one in known} == known and len(emptied) > 3

    with_broker(upgraded, work)


def test_before_the_first_snapshot_no_old_file_goes_and_a_trim_takes_them_first(upgraded: Path) -> None:
    """What they hold of queues is nowhere else in the log until then; and an order by hand goes from the front, too."""
    adopt_broker(upgraded, "g", dry_run=False)
    settings = settings_of(upgraded)

    async def work() -> None:
        async with engine_of(settings) as engine:
            said = await operator_action(engine, what="trim", throughIndex=10, forced=True)
            assert said["removedFiles"] == 0 and "snapshot" in str(said)
            async with broker_of(settings) as broker:
                await until(lambda: broker.snapshots.written == 1)
                said = await operator_action(engine, what="trim", throughIndex=10, forced=False)
                assert said["removedFiles"] == 4 and not list((upgraded / "commitlog").glob("[0-9]*"))
                await asyncio.to_thread(broker.reads.refresh)
                assert broker.reads.min_offset("TopicTest", 0) >= 36

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_log_that_begins_behind_entry_0_has_no_old_files(upgraded: Path) -> None:
    """Where this member's log was given another beginning, the others' old files had gone first: its own go, too."""
    adopt_broker(upgraded, "g", dry_run=False)
    store = opened(upgraded)
    base = store.base_on_record
    meta = store.meta(49)
    assert base.pos == DIVIDED and meta is not None
    store.begin_behind(
        dataclasses.replace(base, meta=meta, pos=DIVIDED + FILE_BYTES, is_installed=True), record(store, 0)
    )
    assert store.begin_index == 50 and store.files.old_log.files() == []
    store.close()
    store = opened(upgraded)
    assert (store.begin_index, store.files.begin_pos) == (50, DIVIDED + FILE_BYTES)
    store.close()


def test_an_identity_that_is_lost_gets_the_place_of_entry_0_again(upgraded: Path) -> None:
    adopt_broker(upgraded, "g", dry_run=False)
    (upgraded / "dledger-n0/quorumscope.json").unlink()
    assert run(["store", "adopt", str(upgraded / "dledger-n0"), "--group", "g", "--id", "n0"]) == Exit.FINE
    store = opened(upgraded)
    assert (store.end_index, store.files.begin_pos, store.alarms) == (49, DIVIDED, ())
    store.close()


def test_an_adoption_ended_at_any_step_can_be_given_again(classic: Path, tmp_path: Path) -> None:
    kept = classic
    before = {one: data for one, data in tree(kept).items() if one != "lock"}
    whole = CrashingDisk(1 << 30)
    adopt_broker(copied(kept, tmp_path / "whole"), "g", node_id="n0", dry_run=False, disk=whole)
    state, named = read_adopted(tmp_path / "whole"), (tmp_path / "whole/quorumscope/old-log.json").read_bytes()
    files = {one: data for one, data in tree(tmp_path / "whole").items() if one.startswith("commitlog/")}
    for left in (0, 1, 2, whole.count // 2, whole.count - 4, whole.count - 1):
        root = copied(kept, tmp_path / f"at{left}")
        with pytest.raises(Crash):
            adopt_broker(root, "g", node_id="n0", dry_run=False, disk=CrashingDisk(left))
        if list(root.rglob("quorumscope-owns")):
            with pytest.raises(WillNotStart):
                JavaBroker(root, V5, **VECTOR_SIZES)
        else:
            assert {one: data for one, data in tree(root).items() if one in before} == before
        adopt_broker(root, "g", node_id="n0", dry_run=False)
        assert read_adopted(root) == state and not verify(MessageStore(root)).findings
        assert (root / "quorumscope/old-log.json").read_bytes() == named
        assert {one: data for one, data in tree(root).items() if one.startswith("commitlog/")} == files
        shutil.rmtree(root)
