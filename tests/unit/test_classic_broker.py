"""A master and a slave in classic mode: RocketMQ's requests over sockets, roles, epochs."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from node.broker import client_port
from node.broker.classic.kept_behind import BehindMaster, DelayOffsetsBehindFlush
from node.broker.classic.promotion import Promotion
from node.broker.classic.tables import LOG_END
from node.broker.requests.topics import HALF_TOPIC, OP_TOPIC
from node.broker.schedule import COMMIT_EVERY_S
from node.broker.transactions import GROUP
from node.config import ConfigError, load
from node.ha import keeper
from node.message_client.link import Link
from node.message_store.errors import MessageStoreError
from node.message_store.queue_units import SCHEDULE_TOPIC
from node.message_store.write_files import OsDisk
from node.rocketmq.bodies import delay_offsets_answer, offsets_answer
from node.rocketmq.codes import Answer, Request
from node.rocketmq.command import Command
from node.rocketmq.header_fields import read_header
from node.rocketmq.headers import SendAnswer
from node.views.ha import HaView
from tests.unit.broker_kit import pull_fields
from tests.unit.classic_kit import Served, classic, classic_settings, pair_ports, pulled, story, two
from tests.unit.engine_kit import until

READS = {"ha.slave_read_enable": "true"}


def view(said: dict[str, object]) -> HaView:
    own = {"as_of": "", "broker": "ok", "name": "pair", "self_id": "m", "address": "", "ha_address": ""}
    return HaView.model_validate(own | said)


@story
async def test_what_the_master_acknowledges_is_read_at_both(tmp_path: Path) -> None:
    bodies = [b"one", b"two", b"three"]
    async with two(tmp_path, **READS) as (master, slave), master.client() as client, slave.client() as other:
        answers = await client.send(*bodies)
        assert [one.code for one in answers] == [Answer.SUCCESS] * 3
        assert [read_header(SendAnswer, one.fields).queue_offset for one in answers] == [0, 1, 2]
        assert await pulled(client, 3) == bodies
        assert await pulled(other, 3) == bodies
        refused = (await other.send(b"four"))[0]
        assert refused.code == Answer.SERVICE_NOT_AVAILABLE
        said = view(await master.broker.pair_view.answer({}))
        assert (said.role, said.is_master, said.epoch, said.problems) == ("SYNC_MASTER", True, 1, ())
        assert said.connections is not None
        [one] = said.connections
        assert (one.peer_id, one.kind, one.state, one.lag_bytes) == ("s", "ours", "transfer", 0)
        assert one.acked_offset == said.end_offset == master.broker.store.log.max_offset > 0
        there = view(await slave.broker.pair_view.answer({}))
        assert there.role == "SLAVE" and there.following is not None and there.following.state == "transfer"


@story
async def test_a_held_pull_is_answered_by_the_next_message(tmp_path: Path) -> None:
    async with two(tmp_path, **READS) as (master, slave), master.client() as client, slave.client() as other:
        await client.send(b"first")
        await pulled(other, 1)
        held = asyncio.create_task(
            other.ask((Request.PULL_MESSAGE, pull_fields(1) | {"sysFlag": "6"}, b""))  # it may wait
        )
        await until(lambda: slave.port.requests.pulls.held == 1)
        await client.send(b"second")
        [answer] = await held
        assert answer.code == Answer.SUCCESS and b"second" in bytes(answer.body)


@story
async def test_a_sync_master_without_a_slave_says_so_and_keeps_the_message(tmp_path: Path) -> None:
    ports = pair_ports("m", "s")
    settings = classic_settings(tmp_path, "m", "sync_master", ports)
    async with classic(settings) as master, master.client() as client:
        [answer] = await client.send(b"alone")
        assert answer.code == Answer.SLAVE_NOT_AVAILABLE
        assert await pulled(client, 1) == [b"alone"]
        [answer] = await client.send(b"unasked", i="WAIT\x01false")
        assert answer.code == Answer.SUCCESS
        said = view(await master.broker.pair_view.answer({}))
        assert [one.code for one in said.problems] == ["too_few_slaves"]
    async with classic(settings) as master, master.client() as client:  # and an epoch later
        assert await pulled(client, 2) == [b"alone", b"unasked"]
        assert master.broker.pair.lineage.epoch == 2


@story
async def test_topics_and_offsets_are_there_after_a_restart(tmp_path: Path) -> None:
    settings = classic_settings(tmp_path, "m", "async_master", pair_ports("m"))
    made = {
        "topic": "Made", "defaultTopic": "TBW102", "readQueueNums": "3", "writeQueueNums": "3", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    commit = {"consumerGroup": "G", "topic": "TopicTest", "queueId": "0", "commitOffset": "1"}
    async with classic(settings) as master, master.client() as client:
        await client.send(b"x")
        [answer] = await client.ask((Request.UPDATE_AND_CREATE_TOPIC, made, b""))
        assert answer.code == Answer.SUCCESS
        assert b"Made" in (tmp_path / "m/config/topics.json").read_bytes()  # before it is answered
        [answer] = await client.ask((Request.UPDATE_CONSUMER_OFFSET, commit, b""))
        assert answer.code == Answer.SUCCESS
        version = master.port.context.topics.version
    async with classic(settings) as master:
        topic = master.port.context.topics.get("Made")
        assert topic is not None and topic.read_queues == 3
        assert master.port.context.offsets.get("G", "TopicTest", 0) == 1
        assert master.port.context.topics.version == version


@story
async def test_an_old_master_that_returns_becomes_a_slave(tmp_path: Path) -> None:
    """Whichever of the two notices first."""
    ports = pair_ports("m", "n")
    mine = classic_settings(tmp_path, "m", "async_master", ports)
    async with classic(mine) as old, old.client() as client:
        await client.send(b"before")
        lineage = old.broker.pair.lineage
    later = classic_settings(tmp_path, "n", "async_master", ports)
    async with classic(later) as new:
        pair = new.broker.pair
        pair.service.lineage = lineage.begun("", 0, is_promoted=True)
        async with classic(mine) as old, old.client() as client:
            assert not old.broker.pair.is_master
            [answer] = await client.send(b"after")
            assert answer.code == Answer.SERVICE_NOT_AVAILABLE
            assert "epoch 1048576" in (tmp_path / "m/quorumscope/role").read_text()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ha.role": "slave", "ha.address": "127.0.0.1:1"}, "broker] address"),
        ({"ha.role": "slave"}, "--ha"),
        ({"ha.address": "127.0.0.1:1"}, "--role"),
        ({"ha.role": "king", "ha.address": "127.0.0.1:1"}, "sync_master"),
        ({"ha.role": "slave", "ha.address": "127.0.0.1:1", "broker.address": "127.0.0.1:2"}, "--ha-peers"),
        (
            {"ha.role": "sync_master", "ha.address": "10.0.0.1:1", "broker.address": "127.0.0.1:2"},
            "secret_file",
        ),
        (
            {"ha.role": "sync_master", "ha.address": "127.0.0.1:1", "broker.address": "127.0.0.1:2", "peers": "n0-a:1"},
            "exclude",
        ),
    ],
)
def test_what_cannot_be_started_says_what_is_missing(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("[", r"\[").replace("]", r"\]")):
        load({"node.id": "m"} | given, None, {}).check_node()


@story
async def test_a_topic_that_is_made_again_shows_nothing_old(tmp_path: Path) -> None:
    """RocketMQ's queues stay, and show what was sent before."""
    settings = classic_settings(tmp_path, "m", "async_master", pair_ports("m"))
    lowest = {"topic": "TopicTest", "queueId": "0"}
    async with classic(settings) as master, master.client() as client:
        await client.send(b"old 1", b"old 2")
        [answer] = await client.ask((Request.DELETE_TOPIC_IN_BROKER, {"topic": "TopicTest"}, b""))
        assert answer.code == Answer.SUCCESS
        assert (tmp_path / "m/quorumscope/deleted-topics").exists()  # before it is answered
        [answer] = await client.ask((Request.PULL_MESSAGE, pull_fields(0), b""))
        assert answer.code == Answer.TOPIC_NOT_EXIST
        [answer] = await client.send(b"new")
        assert read_header(SendAnswer, answer.fields).queue_offset == 2
    async with classic(settings) as master, master.client() as client:
        [answer] = await client.ask((Request.GET_MIN_OFFSET, lowest, b""))
        assert (answer.fields or {})["offset"] == "2"
        [answer] = await client.ask((Request.PULL_MESSAGE, pull_fields(0), b""))
        assert answer.code == Answer.PULL_OFFSET_MOVED and (answer.fields or {})["nextBeginOffset"] == "2"
        [answer] = await client.ask((Request.PULL_MESSAGE, pull_fields(2), b""))
        assert answer.code == Answer.SUCCESS and b"new" in bytes(answer.body)
    (tmp_path / "m/quorumscope/deleted-topics").write_text("what")
    with pytest.raises(MessageStoreError, match="deleted-topics cannot be read"):
        async with classic(settings):
            pass


@pytest.mark.parametrize("properties", ["KEYS\x01k\x02", "DELAY\x011\x02"])  # each goes a way of its own
@story
async def test_a_send_that_meets_a_failed_write_is_said_to_be_not_known(properties: str, tmp_path: Path) -> None:
    """It may be in the log at the next start; our producer, and REST, said that nothing was stored."""
    settings = classic_settings(tmp_path, "m", "async_master", pair_ports("m"))
    async with classic(settings) as master, master.client() as client:
        await client.send(b"before")

        def fails(_disk: OsDisk, path: Path, _offset: int, _data: object) -> None:
            raise OSError(errno.EIO, "Input/output error", str(path))

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(OsDisk, "write", fails)
            [answer] = await client.send(b"meets it", i=properties)
        assert answer.code == Answer.SYSTEM_ERROR and "not known whether it is stored" in (answer.remark or "")


@story
async def test_a_delayed_message_whose_delivery_meets_a_failed_write_is_delivered_after_the_restart(
    tmp_path: Path,
) -> None:
    """It counted as one that never can be delivered, and its delay offset passed it over for good."""
    levels = {"broker.delay_levels": "1s"}
    settings = classic_settings(tmp_path, "m", "async_master", pair_ports("m", "s"), **levels)
    async with classic(settings) as master, master.client() as client:
        await client.send(b"late", i="DELAY\x011")
        schedule, log = master.broker.schedule, master.broker.store.log
        assert schedule is not None
        with pytest.MonkeyPatch.context() as patched:

            def fails(_disk: OsDisk, path: Path, _offset: int, _data: object) -> None:
                raise OSError(errno.EIO, "Input/output error", str(path))

            patched.setattr(OsDisk, "write", fails)
            await until(lambda: bool(log.broken_by))
            await asyncio.sleep(2 * COMMIT_EVERY_S)
        assert not [said for said in master.notes if said[0] == "delivery_impossible"]
        assert schedule.next_offsets == {1: 0} and master.broker._tables is not None
        assert not master.broker._tables.delays
    async with classic(settings) as master, master.client() as client:
        assert await pulled(client, 1) == [b"late"]


@story
async def test_units_say_when_a_delayed_message_is_due_by_the_configured_levels(tmp_path: Path) -> None:
    """By RocketMQ's own: `store verify` called them damaged, and a Java broker that took over delivered too early."""

    def check(served: Served) -> None:
        reads = served.broker.reads
        [(_place, _size, code)] = reads.units(SCHEDULE_TOPIC, 0, 0, 1)
        assert code == reads.stored_at_ms(SCHEDULE_TOPIC, 0, 0) + 7 * 60_000

    levels = {"broker.delay_levels": "7m"}
    async with two(tmp_path, "async_master", **levels) as (master, slave), master.client() as client:
        await client.send(b"late", i="DELAY\x011")
        await until(lambda: slave.broker.store.end_position == master.broker.store.end_position > 0)
        check(master)
        check(slave)
    (tmp_path / "s/quorumscope/dispatched").unlink()  # they are written anew
    async with classic(classic_settings(tmp_path, "s", "slave", pair_ports("m", "s"), **levels)) as slave:
        check(slave)


@story
async def test_what_finds_no_room_in_its_queue_is_answered_once_there_is_some(tmp_path: Path) -> None:
    """The broker ended, again and again, and no consumer was served."""
    settings = classic_settings(tmp_path, "m", "async_master", pair_ports("m", "s"))
    write, is_full = OsDisk.write, True

    def full(disk: OsDisk, path: Path, offset: int, data: bytes) -> None:
        if is_full and "consumequeue" in path.parts:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(disk, path, offset, data)

    async with classic(settings) as master, master.client() as client, master.client() as other:
        await client.send(b"before")
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(OsDisk, "write", full)
            waiting = asyncio.create_task(client.send(b"full"))
            store = master.broker.store
            await until(lambda: bool(store.stuck_by))
            [refused] = await other.send(b"refused")
            assert refused.code == Answer.SERVICE_NOT_AVAILABLE and "the disk is full" in (refused.remark or "")
            assert await pulled(other, 1) == [b"before"] and not waiting.done()
            assert "disk_full" in {one["code"] for one in (await master.broker._ha({}))["problems"]}
            assert "No space left" in master.broker.state()["dispatch"]["stopped_by"]
            is_full = False
            [sent] = await waiting
        assert sent.code == Answer.SUCCESS and not store.full
        [after] = await client.send(b"after")
        assert after.code == Answer.SUCCESS and await pulled(client, 3) == [b"before", b"full", b"after"]


@story
async def test_offsets_that_cannot_be_saved_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were lost with the next stop, also with a clean one, and a line of the log was all that said so."""
    monkeypatch.setattr(client_port, "SAVE_EVERY_S", 0.02)
    settings = classic_settings(tmp_path, "m", "async_master", pair_ports("m", "s"))
    async with classic(settings) as master, master.client() as client:
        await client.send(b"one")
        folder = settings.node.data / "config"
        await until(lambda: (folder / "topics.json").exists())
        in_the_way = folder / "consumerOffset.json.tmp"  # no file can be there

        def is_made() -> bool:
            with suppress(FileExistsError):  # one is being saved right now
                in_the_way.mkdir()
            return in_the_way.is_dir()

        await until(is_made)
        fields = {"consumerGroup": "G", "topic": "TopicTest", "queueId": "0", "commitOffset": "1"}
        await client.ask((Request.UPDATE_CONSUMER_OFFSET, fields, b""))

        async def problems() -> list[dict[str, str]]:
            found: list[dict[str, str]] = (await master.broker._ha({}))["problems"]
            return [one for one in found if one["code"] == "config_not_saved"]

        await until(lambda: "config_not_saved" in [one[0] for one in master.notes])
        [said] = await problems()
        assert str(folder) in said["text"]
        in_the_way.rmdir()
        await until(lambda: not master.port._files.unsaved_by)
        assert b"TopicTest@G" in (folder / "consumerOffset.json").read_bytes() and not await problems()


@story
async def test_a_log_that_had_no_room_is_opened_anew_once_there_is_some(tmp_path: Path) -> None:
    """It refused every send until somebody started it by hand."""
    settings = classic_settings(tmp_path, "m", "async_master", pair_ports("m", "s"))
    write, has_room = OsDisk.write, False

    def full(disk: OsDisk, path: Path, offset: int, data: bytes) -> None:
        if "commitlog" in path.parts:
            write(disk, path, offset, bytes(data)[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        write(disk, path, offset, data)

    async def story() -> None:
        async with classic(settings) as master, master.client() as client:
            store = master.broker.store
            await client.send(b"before")
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(OsDisk, "write", full)
                store._free_bytes = lambda: 1 << 40 if has_room or not store.log.broken_by else 0
                [unknown] = await client.send(b"unknown")
                assert unknown.code == Answer.SYSTEM_ERROR
                [refused] = await client.send(b"refused")
                assert refused.code == Answer.SERVICE_NOT_AVAILABLE
                assert await pulled(client, 1) == [b"before"]
            nonlocal has_room
            has_room = True
            await until(master.running.done)

    with pytest.raises(OSError, match="there is room again"):
        await story()
    async with classic(settings) as master, master.client() as client:
        [after] = await client.send(b"after")
        assert after.code == Answer.SUCCESS and await pulled(client, 2) == [b"before", b"after"]


@story
async def test_a_delay_offset_is_kept_once_what_was_delivered_is_on_disk(tmp_path: Path) -> None:
    """Its file is synced at once, and the log twice a second: a power loss in between took a message for good."""
    settings = classic_settings(
        tmp_path, "m", "async_master", pair_ports("m", "s"), **{"node.flush": "async", "broker.delay_levels": "1s"}
    )
    async with classic(settings) as master, master.client() as client:
        await client.send(b"late", i="DELAY\x011")
        schedule, log, tables = master.broker.schedule, master.broker.store.log, master.broker._tables
        assert schedule is not None and tables is not None
        with pytest.MonkeyPatch.context() as patched:
            await until(lambda: log.flushed_offset == log.max_offset)
            patched.setattr(keeper, "FLUSH_EVERY_MS", 1 << 40)
            assert await pulled(client, 1) == [b"late"]
            await until(lambda: schedule.next_offsets == {1: 1})
            await asyncio.sleep(3 * COMMIT_EVERY_S)
            assert log.flushed_offset < log.max_offset and not tables.delays
        await until(lambda: tables.delays == {1: 1})
        assert log.flushed_offset == log.max_offset


@pytest.mark.parametrize("is_busy", [False, True])
def test_delay_offsets_wait_for_the_flush_of_what_was_there_when_they_were_reached(is_busy: bool) -> None:
    class Log:
        max_offset = flushed_offset = 100
        broken_by = ""

    class Kept:
        def __init__(self) -> None:
            self.offsets: dict[int, int] = {}

        def get(self, level: int) -> int | None:
            return self.offsets.get(level)

        def commit(self, offsets: Mapping[int, int]) -> bool:
            self.offsets |= offsets
            return True

    log, kept = Log(), Kept()
    delays = DelayOffsetsBehindFlush(kept, log)
    assert delays.commit({1: 1}) and kept.offsets == {1: 1}  # all is on disk
    log.max_offset = 200
    assert not delays.commit({1: 2}) and kept.offsets == {1: 1}
    log.max_offset, log.flushed_offset = 300, 200  # it is always behind: what is on disk is kept all the same
    assert not delays.commit({1: 3, 2: 1}) and kept.offsets == {1: 2}
    assert not delays.commit({1: 3, 2: 1})
    log.max_offset, log.flushed_offset = (400, 300) if is_busy else (300, 300)
    assert delays.commit({1: 3, 2: 1}) and kept.offsets == {1: 3, 2: 1}
    log.max_offset = 500
    assert not delays.commit({1: 4}) and delays.get(1) == 3  # another mastership: of the first one nothing is kept
    log.max_offset = log.flushed_offset = 600
    assert delays.commit({2: 2}) and kept.offsets == {1: 3, 2: 2}
    log.broken_by = "a sync that failed"
    assert not delays.commit({2: 3}) and kept.offsets == {1: 3, 2: 2}


@story
async def test_what_is_committed_at_a_slave_while_it_asks_its_master_does_not_go_back(tmp_path: Path) -> None:
    """The master's offsets, said before that, took its place: a consumer that asked then began further back."""
    settings = classic_settings(tmp_path, "s", "slave", pair_ports("m", "s"))
    async with classic(settings) as slave:
        sync, offsets = slave.broker.sync, slave.port.context.offsets
        assert sync is not None
        sync._store = SimpleNamespace(next_offsets={("T", 0): 20, ("T", 1): 20})  # type: ignore[assignment]
        merged: list[str] = []

        class Master(Link):
            async def ask(self, code: int, fields: Mapping[str, str], _body: bytes, _within_s: float) -> Command:
                body = offsets_answer({"T@G": {0: 5, 1: 7}}) if code == Request.GET_ALL_CONSUMER_OFFSET else b""
                if not body:
                    merged.append(fields["commitOffset"])
                    offsets.put("G", "T", 0, 12)  # a consumer goes on
                    offsets.put("G", "T", 1, 8)
                return Command(Answer.SUCCESS, 1, 1, {}, None, body)

        offsets.put("G", "T", 0, 10)
        await sync._offsets(Master("127.0.0.1:1"))
        assert merged == ["10"]
        assert offsets.queues("T", "G") == {0: 12, 1: 8}
        assert sync.here.offsets == {("T", "G", 0): 12, ("T", "G", 1): 8}
        await sync._offsets(Master("127.0.0.1:1"))
        assert merged == ["10", "12", "8"] and offsets.queues("T", "G") == {0: 12, 1: 8} and not sync.here.offsets


@story
async def test_what_is_merged_back_does_not_overtake_a_consumers_commit_at_the_master(tmp_path: Path) -> None:
    """The slave had read 5 there; by the time it said 10 a consumer had committed 12, and its next one read from 10."""
    async with two(tmp_path) as (master, slave), master.client() as client:
        sync, offsets = slave.broker.sync, master.port.context.offsets
        assert sync is not None
        sync.here.offsets["T", "G", 0] = 10

        class Late(Link):
            async def ask(self, code: int, fields: Mapping[str, str], body: bytes, within_s: float) -> Command:
                if code == Request.GET_ALL_CONSUMER_OFFSET:
                    offsets.put("G", "T", 0, 5)
                    said = await super().ask(code, dict(fields), body, within_s)
                    offsets.put("G", "T", 0, 12)
                    return said
                return await super().ask(code, dict(fields), body, within_s)

        link = Late(f"127.0.0.1:{master.bound}")
        try:
            await sync._offsets(link)
            assert offsets.queues("T", "G") == {0: 12}
            sync.here.offsets["T", "G", 0] = 20
            await sync._offsets(link)
        finally:
            await link.close()
        assert offsets.queues("T", "G") == {0: 20}
        back = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "3"}
        await client.ask((Request.UPDATE_CONSUMER_OFFSET, back, b""))
        assert offsets.queues("T", "G") == {0: 3}, "clients go back, as RocketMQ lets them"


class SlaveLog:
    """Of a slave: what is flushed, and how often its end was cut off."""

    flushed_offset, cuts = 100, 0


def test_a_slave_goes_on_to_its_masters_places_once_it_has_what_they_speak_of() -> None:
    log = SlaveLog()
    behind = BehindMaster(log)
    assert behind.take({}, {1: 4}, 100) == {1: 4}  # all that the master has is here
    assert behind.take({1: 4}, {1: 6}, 200) == {1: 4}
    log.flushed_offset = 199
    assert behind.take({1: 4}, {1: 7}, 300) == {1: 4}
    log.flushed_offset = 250  # it is always behind: what was said two rounds ago counts all the same
    assert behind.take({1: 4}, {1: 8}, 400) == {1: 6}
    log.flushed_offset = 400
    assert behind.take({1: 6}, {1: 9}, 400) == {1: 9}
    assert behind.take({1: 9, 2: 5}, {1: 3}, 500) == {1: 3}  # lower is safe at once; 2: from its queue's begin
    log.flushed_offset, log.cuts = 600, 1
    assert behind.take({1: 3}, {1: 9}, 700) == {1: 3}  # its end was cut off: these bytes are others
    behind.forget()
    log.flushed_offset = 700
    assert behind.take({1: 3}, {1: 10}, 800) == {1: 3}
    assert behind.take({1: 3}, {1: 10}, None) == {1: 10}  # RocketMQ's says no end


@story
async def test_a_slave_does_not_pass_over_a_delivery_that_it_lacks(tmp_path: Path) -> None:
    """It took the master's delay offsets, and those of transactions, ahead of the bytes that they speak of: promoted
    without these, it never delivered the message."""
    settings = classic_settings(tmp_path, "s", "slave", pair_ports("m", "s"))
    async with classic(settings) as slave:
        sync, offsets, tables = slave.broker.sync, slave.port.context.offsets, slave.broker._tables
        assert sync is not None and tables is not None
        places = {
            Request.GET_ALL_CONSUMER_OFFSET: offsets_answer({
                f"{HALF_TOPIC}@{GROUP}": {0: 5}, f"{OP_TOPIC}@{GROUP}": {0: 4}, "T@G": {0: 9},
            }),
            Request.GET_ALL_DELAY_OFFSET: delay_offsets_answer({1: 3}),
        }  # fmt: skip
        end = slave.broker.store.log.flushed_offset + 1

        class Master(Link):
            async def ask(self, code: int, _fields: Mapping[str, str], _body: bytes, _within_s: float) -> Command:
                known = code in places
                body = places[Request(code)] if known else b""
                return Command(Answer.SUCCESS if known else 1, 1, 1, {LOG_END: str(end)}, None, body)

        link = Master("127.0.0.1:1")
        for _round in range(2):
            await sync._places(link, await sync._offsets(link))
            assert offsets.queues("T", "G") == {0: 9} and not tables.delays
            assert not offsets.queues(HALF_TOPIC, GROUP) and not offsets.queues(OP_TOPIC, GROUP)
        end -= 1
        await sync._places(link, await sync._offsets(link))
        assert tables.delays == {1: 3}
        assert offsets.queues(HALF_TOPIC, GROUP) == {0: 5} and offsets.queues(OP_TOPIC, GROUP) == {0: 4}


@story
async def test_offsets_ahead_of_a_new_masters_log_are_lowered_to_its_end(tmp_path: Path) -> None:
    """A consumer that came back passed over the messages that took the place of those that were lost."""
    ports = pair_ports("m", "s")
    async with classic(classic_settings(tmp_path, "s", "slave", ports)) as slave:
        sync, offsets = slave.broker.sync, slave.port.context.offsets
        assert sync is not None
        async with (
            classic(classic_settings(tmp_path, "m", "async_master", ports)) as master,
            master.client() as client,
        ):
            await client.send(b"one", b"two")
            end = master.broker.store.log.max_offset
            await until(lambda: slave.broker.store.log.max_offset == end and sync.rounds > 0)
        offsets.take("TopicTest", "G", {0: 7, 1: 3})
        offsets.take("TopicTest", "H", {0: 1})
        promotion = Promotion(slave.broker.pair, "s")
        await promotion.promote(None, {one.code for one in await promotion.look()}, "ops")
        assert offsets.queues("TopicTest", "G") == {0: 2, 1: 0} and offsets.queues("TopicTest", "H") == {0: 1}
        assert [text for code, _severity, text in slave.notes if code == "offsets_lowered"] == [
            "consumers of TopicTest were ahead of this log, which lacks what they had: they go on at its end"
        ]


@story
async def test_a_broker_whose_clock_is_set_forward_stays_registered_at_itself(tmp_path: Path) -> None:
    """Its own name service dropped it, and all others', until they said so again: no route for half a minute."""
    async with classic(classic_settings(tmp_path, "m", "async_master", pair_ports("m"))) as master:
        registry, wall_ms = master.port.registry, master.port.context.now_ms
        await until(lambda: "pair" in registry.brokers)
        master.port.context.now_ms = lambda: wall_ms() + 3_600_000
        for look in (registry.expire, lambda _now: master.port._look()):
            look(master.port.context.steady_ms())
            assert "pair" in registry.brokers
