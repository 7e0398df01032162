"""A pair in classic mode: metadata that follows, consumers that go on at the slave, promotion and fencing."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from unittest.mock import AsyncMock

import httpx2
import pytest

from node.broker.classic import pair as pair_module
from node.broker.classic.broker import ClassicBroker
from node.broker.classic.metadata_sync import CommittedHere, is_newer
from node.broker.classic.promotion import Finding, NotPromoted, Promotion
from node.broker.classic.role_record import RoleRecord, read_role, write_role
from node.control.app import create_app
from node.ha.asking import ask
from node.ha.client import State
from node.ha.handshake import hello_of
from node.ha.lineage import PROMOTION, Lineage, read_lineage
from node.ha.promotion import Candidate, best
from node.ha.settings import BrokerRole
from node.message_store.write_files import Disk
from node.rocketmq.bodies import DataVersion, GroupConfig, TopicConfig
from node.rocketmq.codes import Answer, Request
from node.rocketmq.header_fields import read_header
from node.rocketmq.headers import PullAnswer
from tests.unit.broker_kit import Client, pull_fields
from tests.unit.classic_kit import Served, classic, classic_settings, pair_ports, pulled, story, two
from tests.unit.engine_kit import until

COMMIT = {"consumerGroup": "G", "topic": "TopicTest", "queueId": "0"}


def offset_of(served: Served) -> int | None:
    return served.port.context.offsets.get("G", "TopicTest", 0)


async def commit(client: Client, offset: int) -> None:
    fields = COMMIT | {"commitOffset": str(offset)}
    [answer] = await client.ask((Request.UPDATE_CONSUMER_OFFSET, fields, b""))
    assert answer.code == Answer.SUCCESS, answer.remark


async def synced(slave: Served) -> None:
    """A round that began after now."""
    sync = slave.broker.sync
    assert sync is not None
    wanted = sync.rounds + 2
    while sync.rounds < wanted:
        assert not sync.trouble, sync.trouble
        sync.soon()
        await asyncio.sleep(0.01)


@story
async def test_metadata_follow_and_are_not_rewritten(tmp_path: Path) -> None:
    """FORMATS-ROCKETMQ 15, oddity 11: RocketMQ rewrites everything at every round, and topics are missing meanwhile."""
    async with two(tmp_path) as (master, slave), master.client() as client:
        await client.send(b"x")
        await commit(client, 1)
        here, there = master.port.context, slave.port.context
        here.topics.put(TopicConfig("Made", 3, 3))
        here.groups.put(GroupConfig("G2", retry_max_times=5))
        await synced(slave)
        assert there.topics.topics == here.topics.topics and there.topics.version == here.topics.version
        assert there.groups.groups == here.groups.groups and there.groups.version == here.groups.version
        assert offset_of(slave) == 1
        await slave.port._files.save()
        table, taken = there.topics.topics, slave.broker.sync.taken  # type: ignore[union-attr]
        await synced(slave)
        assert there.topics.topics is table  # no round replaces what is the same
        assert slave.broker.sync.taken == taken  # type: ignore[union-attr]
        assert slave.port._files.due() == {}


@story
async def test_an_older_set_never_replaces_a_newer_one(tmp_path: Path) -> None:
    """apache/rocketmq#1094: a master that lost its configuration took its slave's with it."""
    async with two(tmp_path) as (master, slave):
        here, there = master.port.context, slave.port.context
        for name in ("A", "B"):
            here.topics.put(TopicConfig(name, 1, 1))
        await synced(slave)
        here.topics.load({}, DataVersion(1, here.topics.version.timestamp_ms + 1))
        await synced(slave)
        assert {"A", "B"} <= set(there.topics.topics)
        said = await slave.broker._ha({})
        assert [one["about"] for one in said["problems"] if one["code"] == "metadata_older"] == ["topics"]
        here.topics.load({"C": TopicConfig("C", 1, 1)}, DataVersion(9, 1))
        await synced(slave)
        assert "C" in there.topics.topics and "A" not in there.topics.topics


def test_the_epoch_counts_before_the_counter() -> None:
    assert is_newer(DataVersion(1, 5, PROMOTION), DataVersion(9, 9))
    assert is_newer(DataVersion(2, 5), DataVersion(1, 9))
    assert not is_newer(DataVersion(1, 5), DataVersion(1, 5))


@story
async def test_a_topic_that_messages_came_of_meanwhile_stays(tmp_path: Path) -> None:
    async with two(tmp_path) as (master, slave), master.client() as client:
        master.port.context.topics.put(TopicConfig("A", 1, 1))
        await synced(slave)
        await client.send(b"x")
        await until(lambda: "TopicTest" in slave.port.context.topics.topics)
        sync = slave.broker.sync
        assert sync is not None
        sync._fresh.add(("TopicTest", 0))
        without = {"A": TopicConfig("A", 1, 1)}
        slave.port.context.topics.load(without, slave.port.context.topics.version)
        sync._learn(sync._fresh)
        assert "TopicTest" in slave.port.context.topics.topics


@story
async def test_a_slave_sends_consumers_to_a_master_that_is_there(tmp_path: Path) -> None:
    async with two(tmp_path) as (master, slave), master.client() as client, slave.client() as other:
        await client.send(b"x")
        await until(lambda: "TopicTest" in slave.port.context.topics.topics)
        [answer] = await other.ask((Request.PULL_MESSAGE, pull_fields(0), b""))
        assert answer.code == Answer.PULL_RETRY_IMMEDIATELY
        assert read_header(PullAnswer, answer.fields).suggest_which_broker_id == 0
    rules = slave.broker
    assert rules.suggests(GroupConfig("G"), is_slow=True) == 1  # its own id: no master is there any more


@pytest.mark.parametrize(("reads", "slow", "fast"), [("false", 0, 0), ("true", 7, 0)])
def test_a_master_names_a_slave_to_slow_consumers_only(tmp_path: Path, reads: str, slow: int, fast: int) -> None:
    async def story_of() -> None:
        settings = classic_settings(tmp_path, "m", "async_master", pair_ports("m"), **{"ha.slave_read_enable": reads})
        async with classic(settings) as master:
            group = GroupConfig("G", which_broker_when_slow=7)
            assert master.broker.suggests(group, is_slow=True) == slow
            assert master.broker.suggests(group, is_slow=False) == fast

    asyncio.run(story_of())


@story
async def test_consumers_go_on_at_the_slave_and_their_offsets_come_back(tmp_path: Path) -> None:
    ports = pair_ports("m", "s")
    of_master = classic_settings(tmp_path, "m", "async_master", ports)
    of_slave = classic_settings(tmp_path, "s", "slave", ports)
    bodies = [b"%d" % number for number in range(6)]
    async with AsyncExitStack() as slaves:
        async with classic(of_master) as master, master.client() as client:
            slave = await slaves.enter_async_context(classic(of_slave))
            await until(lambda: bool(master.broker.pair.service.acks()))
            await client.send(*bodies)
            await commit(client, 2)
            await until(lambda: slave.broker.store.end_position == master.broker.store.end_position)
            await synced(slave)
        await until(lambda: slave.broker.pair.client.is_closed)
        async with slave.client() as other:
            assert await pulled(other, 6) == bodies
            await commit(other, 5)
            assert slave.broker.sync is not None
            await slave.broker.sync.here.save()
            assert CommittedHere(tmp_path / "s").offsets == {("TopicTest", "G", 0): 5}
        async with classic(of_master) as master:
            assert offset_of(master) == 2
            await until(lambda: offset_of(master) == 5)
            await until(lambda: not slave.broker.sync.here.offsets)  # type: ignore[union-attr]
            assert offset_of(slave) == 5


@asynccontextmanager
async def slave_alone(root: Path, role: str = "sync_master") -> AsyncGenerator[tuple[Served, dict[str, int]], None]:
    """Its master took three messages and is gone."""
    ports = pair_ports("m", "s")
    async with AsyncExitStack() as slaves:
        async with classic(classic_settings(root, "m", role, ports)) as master, master.client() as client:
            slave = await slaves.enter_async_context(classic(classic_settings(root, "s", "slave", ports)))
            await until(lambda: bool(master.broker.pair.service.acks()))
            await client.send(b"1", b"2", b"3")
            await until(lambda: slave.broker.store.end_position == master.broker.store.end_position)
            await synced(slave)
        await until(lambda: slave.broker.pair.client.is_closed)
        yield slave, ports


@story
async def test_a_promoted_slave_goes_on_and_fences_the_old_master(tmp_path: Path) -> None:
    async with slave_alone(tmp_path) as (slave, ports):
        promotion = Promotion(slave.broker.pair, "s")
        assert [(one.code, one.stops) for one in await promotion.look()] == [("not_heard", False)]
        assert promotion.role is BrokerRole.SYNC_MASTER  # what its master was
        epoch = await promotion.promote(BrokerRole.ASYNC_MASTER, set(), "ops")
        assert epoch == PROMOTION == slave.broker.pair.lineage.epoch
        record = read_role(tmp_path / "s")
        assert record is not None and record.role is BrokerRole.ASYNC_MASTER and "ops" in record.why
        async with slave.client() as client:
            [answer] = await client.send(b"4")
            assert answer.code == Answer.SUCCESS
            assert await pulled(client, 4) == [b"1", b"2", b"3", b"4"]
        assert slave.port.context.topics.version.state_version == PROMOTION
        of_old = classic_settings(tmp_path, "m", "sync_master", ports)
        async with classic(of_old) as old, old.client() as client:
            assert old.broker.pair.role is BrokerRole.SLAVE
            [answer] = await client.send(b"5")
            assert answer.code == Answer.SERVICE_NOT_AVAILABLE
            await until(lambda: old.broker.store.end_position == slave.broker.store.end_position)
            await synced(old)
            assert old.port.context.topics.version == slave.port.context.topics.version


@pytest.mark.parametrize("role", [BrokerRole.SYNC_MASTER, BrokerRole.ASYNC_MASTER])
def test_a_slave_that_was_started_again_becomes_what_its_master_was(role: BrokerRole, tmp_path: Path) -> None:
    """Else a pair whose sends wait for a slave would go on as one whose sends do not, and nobody had asked for it."""

    @story
    async def again() -> None:
        async with slave_alone(tmp_path, role.value.lower()) as (slave, ports):
            assert Promotion(slave.broker.pair, "s").role is role
        async with classic(classic_settings(tmp_path, "s", "slave", ports)) as slave:
            assert Promotion(slave.broker.pair, "s").role is role
            await Promotion(slave.broker.pair, "s").promote(None, set(), "ops")
            assert slave.broker.pair.role is role

    again()


@story
async def test_an_old_master_that_cannot_ask_is_fenced_as_soon_as_it_is_met(tmp_path: Path) -> None:
    async with slave_alone(tmp_path, "async_master") as (slave, ports):
        of_old = classic_settings(tmp_path, "m", "async_master", ports, **{"ha.peers": ""})
        async with classic(of_old) as old, old.client() as client:
            [answer] = await client.send(b"lost")
            assert answer.code == Answer.SUCCESS  # nobody was promoted yet
            await until(lambda: bool(old.broker.pair.service.acks()))
            findings = await Promotion(slave.broker.pair, "s").look()
            assert [one.code for one in findings if one.stops][:1] == ["master_is_there"]
            with pytest.raises(NotPromoted):
                await Promotion(slave.broker.pair, "s").promote(None, set(), "ops")
            assert not slave.broker.is_master
            stops = {one.code for one in findings if one.stops}
            await Promotion(slave.broker.pair, "s").promote(None, stops, "ops")
            await until(lambda: old.broker.pair.role is BrokerRole.SLAVE)
            [answer] = await client.send(b"refused")
            assert answer.code == Answer.SERVICE_NOT_AVAILABLE


@story
async def test_a_promotion_over_rest(tmp_path: Path) -> None:
    async with slave_alone(tmp_path, "async_master") as (slave, ports):
        app = create_app(classic_settings(tmp_path, "s", "slave", ports))
        transport = httpx2.ASGITransport(app=app, client=("127.0.0.1", 1))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8431") as rest:
            said = (await rest.get("/api/v1/ha")).json()
            assert (said["role"], said["is_master"], said["broker"]) == ("SLAVE", False, "ok")
            got = await rest.post("/api/v1/ha/promote", json={"dry_run": True})
            assert got.status_code == 200 and got.json()["promoted"] is False, got.text
            for dry_run in (True, False):
                got = await rest.post("/api/v1/ha/promote", json={"if_term": said["epoch"] + 1, "dry_run": dry_run})
                assert got.status_code == 412 and not slave.broker.is_master, got.text
            with pytest.raises(NotPromoted, match="look again"):  # it moved behind the control plane's look
                await Promotion(slave.broker.pair, "s").promote(None, set(), "ops", said["epoch"] + 1)
            got = await rest.post("/api/v1/ha/promote", json={"if_term": said["epoch"]})
            assert got.json() | {"findings": []} == {
                "promoted": True, "role": "ASYNC_MASTER", "epoch": PROMOTION, "findings": [],
            }  # fmt: skip
            got = await rest.post("/api/v1/ha/promote", json={})
            assert got.status_code == 409 and "master already" in got.text
            assert (await rest.get("/leaderz")).status_code == 200
            assert (await rest.get("/api/v1/state")).status_code == 404
        async with slave.client() as client:  # whoever has no key
            asked = b'{"key": "x", "by": "", "accept": [], "role": null, "dry_run": true}'
            [answer] = await client.ask((29_102, {}, asked))
            assert answer.code == Answer.NO_PERMISSION


def test_the_best_slave_heard_of_the_newest_promotion_and_has_most() -> None:
    first = Lineage("p", ((1, 0),))
    second = first.begun("", 500, is_promoted=True)
    few, most = Candidate("few", second, 600), Candidate("most", second, 700)
    assert best([few, most, Candidate("older", first, 9000)]) is most
    third = second.begun("", 600, is_promoted=False)  # its master lost power, and what it had answered nobody
    later, tail = Candidate("later", third, 700), Candidate("tail", second, 900)
    assert best([tail, later]) is later
    assert best([Candidate("nothing of it", third, 600), tail]) is tail
    assert best([Candidate("cut", second, 400)]) is None  # it ends before the promotion
    assert best([Candidate("empty", Lineage(), 0)]) is None


@story
async def test_who_heard_of_a_promotion_follows_no_older_master(tmp_path: Path) -> None:
    """A master that was only stopped would go on with the other slaves, and what it answers would be lost."""
    async with two(tmp_path) as (master, slave), master.client() as client:
        await client.send(b"1")
        pair = slave.broker.pair
        [address] = master.broker.pair._peers
        own = hello_of(master.broker.store.log, pair.lineage.hearing(PROMOTION))
        said = await ask(address, own, None)
        assert said.end == slave.broker.store.log.max_offset
        assert read_lineage(tmp_path / "s").heard == PROMOTION  # before it was answered
        await until(lambda: not master.broker.is_master)  # the slave says so, or the master asks it
        assert pair.client.state is not State.TRANSFER
        [answer] = await client.send(b"2")
        assert answer.code == Answer.SERVICE_NOT_AVAILABLE
    of_old = classic_settings(tmp_path, "m", "sync_master", pair_ports("m"), **{"ha.peers": "127.0.0.1:1"})
    async with classic(of_old) as old:  # nor does a restart forget it
        assert not old.broker.is_master


@story
async def test_a_slave_that_is_started_as_a_master_stays_a_slave(tmp_path: Path) -> None:
    """Only a promotion makes a master of it: it would begin an epoch above that of the master that is there."""
    ports = pair_ports("m", "s")
    async with classic(classic_settings(tmp_path, "m", "async_master", ports)) as master, master.client() as client:
        async with classic(classic_settings(tmp_path, "s", "slave", ports)) as slave:
            await client.send(b"1")
            await until(lambda: slave.broker.pair.client.state is State.TRANSFER)
        async with classic(classic_settings(tmp_path, "s", "sync_master", ports)) as slave:
            assert not slave.broker.is_master
            await until(lambda: bool(master.broker.pair.service.acks()))
            assert master.broker.is_master
            record = read_role(tmp_path / "s")
            assert record is not None and "follows a master" in record.why


@story
async def test_a_slave_that_is_silent_stops_a_promotion(tmp_path: Path) -> None:
    async with slave_alone(tmp_path) as (slave, _ports):
        pair = slave.broker.pair
        pair._configured_peers.append(("127.0.0.1", 1))
        found = await Promotion(pair, "s").look()
        assert [(one.code, one.stops) for one in found] == [("not_heard", False), ("slave_not_heard", True)]
        with pytest.raises(NotPromoted):
            await Promotion(pair, "s").promote(None, set(), "ops")
        assert await Promotion(pair, "s").promote(None, {"slave_not_heard"}, "ops") == PROMOTION


@story
async def test_what_another_slave_got_until_the_promotion_counts(tmp_path: Path) -> None:
    """Between the look and the moment from which nobody follows the old master."""
    async with slave_alone(tmp_path) as (slave, ports):
        pair = slave.broker.pair
        promotion = Promotion(pair, "s")
        none: list[Finding] = []
        further = [Finding("another_has_more", "", stops=True)]
        peers = pair._configured_peers
        pair._configured_peers = [*peers, ("127.0.0.1", 1)]
        asked = await promotion.look()
        promotion.look = AsyncMock(return_value=[])  # type: ignore[method-assign]
        with pytest.raises(NotPromoted, match="may hold what was answered"):  # it was there a moment ago
            await promotion.promote(None, set(), "ops")
        assert not pair.is_master and "slave_not_heard" in {one.code for one in asked}
        pair._configured_peers = peers
        del promotion.look
        answers = iter([none, further])
        promotion._better = lambda _others: next(answers)  # type: ignore[method-assign]
        with pytest.raises(NotPromoted):
            await promotion.promote(None, set(), "ops")
        assert not pair.is_master and pair.lineage.epoch < PROMOTION
        async with classic(classic_settings(tmp_path, "m", "sync_master", ports)) as old:
            assert not old.broker.is_master  # both wait for the operator: an epoch above that one
        promotion._better = lambda _others: none  # type: ignore[method-assign]
        assert await promotion.promote(None, set(), "ops") == 3 * PROMOTION


@story
async def test_a_fenced_master_without_room_for_its_record_becomes_a_slave_once_there_is_some(tmp_path: Path) -> None:
    """It took nothing and followed nobody until somebody started it again."""
    async with two(tmp_path) as (master, _slave):
        failures = iter([OSError(errno.ENOSPC, "No space left on device")] * 2)

        def write(root: Path, record: RoleRecord, disk: Disk) -> None:
            for error in failures if root.name == "m" else ():
                raise error
            write_role(root, record, disk)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(pair_module, "write_role", write)
            master.broker.pair.service.fence(PROMOTION)
            await until(lambda: master.broker.pair.role is BrokerRole.SLAVE)
        record = read_role(tmp_path / "m")
        assert record is not None and record.role is BrokerRole.SLAVE
        assert [one[0] for one in master.notes].count("task_failed") == 2


@story
async def test_a_fenced_master_is_not_promoted_before_it_is_on_record_as_a_slave(tmp_path: Path) -> None:
    """Once there was room its record was written, behind the promotion: a slave by its role, that took sends."""
    async with two(tmp_path, "async_master") as (master, _slave):
        is_full = True

        def write(root: Path, record: RoleRecord, disk: Disk) -> None:
            if is_full and root.name == "m" and record.role is BrokerRole.SLAVE:
                raise OSError(errno.ENOSPC, "No space left on device")
            write_role(root, record, disk)

        pair, accepted = master.broker.pair, {"master_is_there", "another_has_more", "lacks_bytes"}
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(pair_module, "write_role", write)
            pair.service.fence(PROMOTION)
            with pytest.raises(NotPromoted, match="becoming a slave"):
                await Promotion(pair, "m").promote(BrokerRole.ASYNC_MASTER, accepted, "ops")
            is_full = False
            await until(lambda: pair.role is BrokerRole.SLAVE)
        assert not master.broker.store.takes_puts
        assert await Promotion(pair, "m").promote(BrokerRole.ASYNC_MASTER, accepted, "ops") >= PROMOTION
        assert master.broker.store.takes_puts and pair.is_master


@story
async def test_of_two_promotions_at_once_no_two_masters_come(tmp_path: Path) -> None:
    """Each began the same epoch, and both answered sends: what one of them took was lost."""
    ports = pair_ports("m", "s", "t")
    settings = {name: classic_settings(tmp_path, name, "slave", ports) for name in "st"}
    async with AsyncExitStack() as slaves:
        async with classic(classic_settings(tmp_path, "m", "async_master", ports)) as master, master.client() as client:
            found = {name: await slaves.enter_async_context(classic(settings[name])) for name in "st"}
            await until(lambda: len(master.broker.pair.service.acks()) == 2)
            await client.send(b"1")
            end = master.broker.store.log.max_offset
            await until(lambda: all(one.broker.store.log.max_offset == end for one in found.values()))
        asked = [Promotion(one.broker.pair, name) for name, one in found.items()]
        accepted = {"lacks_bytes", "slave_not_heard"}
        epochs = await asyncio.gather(*(one.promote(None, accepted, "ops") for one in asked), return_exceptions=True)
        masters = [one for one in found.values() if one.broker.is_master]
        assert len(masters) == len([one for one in epochs if isinstance(one, int)]) < 2, epochs
        again = await asked[0].promote(None, accepted | {"master_is_there"}, "ops") if not masters else PROMOTION
        assert again >= PROMOTION and len([one for one in found.values() if one.broker.is_master]) == 1


@story
async def test_a_later_epoch_that_is_heard_of_when_all_agreed_fences_who_was_promoted(tmp_path: Path) -> None:
    """It took sends until it asked the others again: what it answered was lost."""
    async with slave_alone(tmp_path, "async_master") as (slave, _ports), slave.client() as client:
        pair, real = slave.broker.pair, slave.broker.keeper.flushed_and_dispatched

        async def flushed() -> None:
            await real()
            pair._heard(2 * PROMOTION, lambda: None)  # another broker's, which asks this one

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(slave.broker.keeper, "flushed_and_dispatched", flushed)
            with pytest.raises(NotPromoted, match="another broker of the pair is being promoted"):
                await Promotion(pair, "s").promote(None, set(), "ops")
        [answer] = await client.send(b"x")
        assert answer.code == Answer.SERVICE_NOT_AVAILABLE
        await until(lambda: pair.role is BrokerRole.SLAVE)
        record = read_role(tmp_path / "s")
        assert record is not None and record.role is BrokerRole.SLAVE
        assert read_lineage(tmp_path / "s").newest == 2 * PROMOTION


@story
async def test_consumers_go_on_at_a_master_that_was_replaced(tmp_path: Path) -> None:
    async with AsyncExitStack() as olds:
        async with slave_alone(tmp_path, "async_master") as (slave, ports):
            old = await olds.enter_async_context(classic(classic_settings(tmp_path, "m", "async_master", ports)))
            stops = {one.code for one in await Promotion(slave.broker.pair, "s").look() if one.stops}
            await Promotion(slave.broker.pair, "s").promote(None, stops, "ops")
            await until(lambda: old.broker.pair.client.state is State.TRANSFER)
        await until(lambda: old.broker.pair.client.is_closed)
        async with old.client() as client:
            await commit(client, 2)
        assert offset_of(old) == 2


@story
async def test_the_pairs_secret_is_changed_while_it_runs(tmp_path: Path) -> None:
    """SIGHUP: one broker after the other, and what cannot be read leaves in force what was."""
    ports = pair_ports("m", "s")
    old, new = "o" * 64, "n" * 64
    files = {name: tmp_path / f"secret-{name}" for name in ports}

    def write(name: str, *secrets: str) -> None:
        files[name].touch(mode=0o600)
        files[name].write_text("\n".join(secrets))

    async with AsyncExitStack() as stack:
        brokers: dict[str, ClassicBroker] = {}
        for name, role in (("m", "async_master"), ("s", "slave")):
            write(name, old)
            settings = classic_settings(tmp_path, name, role, ports, **{"node.secret_file": str(files[name])})
            brokers[name] = (await stack.enter_async_context(classic(settings))).broker
        master, slave = brokers["m"], brokers["s"]

        async def served_again() -> None:
            slave.pair.client.close("the test wants another connection")
            await until(lambda: slave.pair.client.state is State.TRANSFER and bool(master.pair.service.acks()))

        await served_again()
        for secrets in ((old, new), (new, old), (new,)):
            for name, broker in brokers.items():
                write(name, *secrets)
                broker._rereading.again()
                await served_again()
        write("m", "short")
        master._rereading.again()
        problems = [one for one in (await master._ha({}))["problems"] if one["code"] == "not_reread"]
        assert [one["about"] for one in problems] == ["the pair's secret"] and "short" not in problems[0]["text"]
        await served_again()
        write("m", new)
        master._rereading.again()
        await served_again()
        assert not [one for one in (await master._ha({}))["problems"] if one["code"] == "not_reread"]
        write("m", old)
        master._rereading.again()
        slave.pair.client.close("the test wants another connection")
        await until(lambda: any("secret" in why for why in master.pair.service.troubles.values()))


@story
async def test_an_old_master_that_is_ahead_cuts_back_and_follows(tmp_path: Path) -> None:
    """The cut waits for a flush that runs, and the connection for the cut."""
    cuts = {"ha.cuts_back": "true"}
    ports = pair_ports("m", "s")
    settings = {name: classic_settings(tmp_path, name, "async_master", ports, **cuts) for name in ports}
    of_slave = classic_settings(tmp_path, "s", "slave", ports, **cuts)
    async with classic(settings["m"]) as master, master.client() as client:
        async with classic(of_slave) as slave:
            await until(lambda: bool(master.broker.pair.service.acks()))
            await client.send(b"both")
            await until(lambda: slave.broker.store.end_position == master.broker.store.end_position)
            await synced(slave)
        await client.send(b"lost")
    async with classic(of_slave) as slave, slave.client() as client:
        await Promotion(slave.broker.pair, "s").promote(BrokerRole.ASYNC_MASTER, {"lacks_bytes"}, "ops")
        await client.send(b"new")
        async with classic(settings["m"]) as old:
            await until(lambda: old.broker.store.end_position == slave.broker.store.end_position)
            assert old.broker.pair.client.state is State.TRANSFER
            assert "ha_cut_back" in {kind for kind, _severity, _text in old.notes}
        assert len(list((tmp_path / "m/quorumscope/cut").iterdir())) == 1


@story
async def test_topics_that_were_deleted_are_known_at_slaves(tmp_path: Path) -> None:
    """Who is promoted shows nothing old of a topic that was made again, and an old master takes what that says."""
    ports = pair_ports("m", "s")
    settings = {
        name: classic_settings(tmp_path, name, "async_master", ports, **{"ha.cuts_back": "true"}) for name in ports
    }
    of_slave = classic_settings(tmp_path, "s", "slave", ports)
    lowest = (Request.GET_MIN_OFFSET, {"topic": "TopicTest", "queueId": "0"}, b"")
    async with classic(settings["m"]) as master, master.client() as client, classic(of_slave) as slave:
        await until(lambda: bool(master.broker.pair.service.acks()))
        await client.send(b"old 1", b"old 2")
        await client.ask((Request.DELETE_TOPIC_IN_BROKER, {"topic": "TopicTest"}, b""))
        await client.send(b"new")
        await until(lambda: slave.broker.store.end_position == master.broker.store.end_position)
        await synced(slave)
        assert slave.broker.reads.min_offset("TopicTest", 0) == 2
    async with classic(of_slave) as slave, slave.client() as client:  # what it was told is on disk
        await Promotion(slave.broker.pair, "s").promote(BrokerRole.ASYNC_MASTER, {"lacks_bytes"}, "ops")
        [answer] = await client.ask(lowest)
        assert (answer.fields or {})["offset"] == "2"
        await client.send(b"newer")
        async with classic(settings["m"]) as old:
            deleted = old.port._tables.deleted
            deleted.begins["Unheard", 0] = 7  # it was replaced before its slave heard of this one
            await until(lambda: old.broker.store.end_position == slave.broker.store.end_position)
            await synced(old)
            assert deleted.begins == {("TopicTest", 0): 2}
