"""Who returns to a pair: an old master in every order of start, one on a new disk, and what consumers had committed."""

from __future__ import annotations

import asyncio
import re
import shutil
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from node.broker.classic import metadata_sync, queue_ends
from node.broker.classic import pair as pair_module
from node.broker.classic.metadata_sync import CommittedHere
from node.broker.classic.promotion import Promotion
from node.broker.classic.role_record import read_role
from node.ha.asking import NoMaster
from node.ha.client import State
from node.ha.handshake import Hello
from node.ha.lineage import PROMOTION
from node.ha.settings import BrokerRole
from node.message_store.local_log import LocalCommitLog
from node.message_store.message_store import MessageStore
from node.message_store.rebuild import rebuild
from node.message_store.record import decode_record
from node.message_store.write_files import OsDisk
from node.rocketmq.codes import Answer, Request
from node.rocketmq.java_json import BodyError
from tests.unit.broker_kit import SIZES, pull_fields
from tests.unit.classic_kit import Served, classic, classic_settings, pair_ports, story
from tests.unit.engine_kit import until
from tests.unit.ha_kit import put
from tests.unit.test_classic_pair import commit, offset_of, slave_alone, synced

CUTS = {"ha.cuts_back": "true"}


@asynccontextmanager
async def both_ended(root: Path) -> AsyncGenerator[dict[str, int], None]:
    """m was master, then s was promoted; neither runs."""
    async with slave_alone(root, "async_master") as (slave, ports):
        await Promotion(slave.broker.pair, "s").promote(None, set(), "ops")
    yield ports


def was_master(served: Served) -> bool:
    return "ha_master" in {kind for kind, _severity, _text in served.notes}


@pytest.mark.parametrize("order", ["ms", "sm"])
@story
async def test_an_old_master_is_replaced_whoever_starts_first(order: str, tmp_path: Path) -> None:
    async with both_ended(tmp_path) as ports:
        settings = {name: classic_settings(tmp_path, name, "async_master", ports) for name in "ms"}
        async with classic(settings[order[0]]) as first, classic(settings[order[1]]) as second:
            old, new = (first, second) if order == "ms" else (second, first)
            await until(lambda: old.broker.pair.role is BrokerRole.SLAVE and new.broker.is_master)
            async with old.client() as client:
                [answer] = await client.send(b"to the old one")
            assert answer.code == Answer.SERVICE_NOT_AVAILABLE and new.broker.is_master
            assert was_master(old) is (order == "ms")  # alone it cannot know


@story
async def test_an_old_master_whose_queues_are_written_anew_stays_a_slave(tmp_path: Path) -> None:
    """`store rebuild-queues` took its epochs, its role and what it had kept aside: it was master of another pair."""
    async with both_ended(tmp_path) as ports:
        settings = {name: classic_settings(tmp_path, name, "async_master", ports) for name in "ms"}
        async with classic(settings["s"]), classic(settings["m"]) as old:
            await until(lambda: old.broker.pair.role is BrokerRole.SLAVE and old.broker.pair.lineage.epoch >= PROMOTION)
        (tmp_path / "m/quorumscope/cut").mkdir()
        (tmp_path / "m/quorumscope/cut/0-0").write_bytes(b"the only copy")
        before = {path.name for path in (tmp_path / "m/quorumscope").iterdir()}
        assert rebuild(MessageStore(tmp_path / "m"), -1, dry_run=False, sizes=SIZES).messages == 3
        assert {path.name for path in (tmp_path / "m/quorumscope").iterdir()} == before
        async with classic(settings["m"]) as old:
            assert not was_master(old) and old.broker.pair.lineage.epoch >= PROMOTION
            assert old.broker.next_offsets["TopicTest", 0] == 3


@story
async def test_of_two_that_start_at_once_the_old_one_is_never_master(tmp_path: Path) -> None:
    """It asked before the other one listened, and did not listen itself when that one asked: both took messages."""
    async with both_ended(tmp_path) as ports:
        asked, new_is_up = asyncio.Event(), asyncio.Event()
        real = pair_module.ask

        async def ask(address: tuple[str, int], own: Hello, *rest: object) -> Hello:
            if own.lineage.epoch >= PROMOTION:
                return await real(address, own, *rest)  # type: ignore[arg-type]
            asked.set()
            await new_is_up.wait()  # nobody listened there when it asked, and it takes a while to know
            raise NoMaster("connection refused")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pair_module, "ask", ask)
            started: asyncio.Future[Served] = asyncio.get_running_loop().create_future()
            over = asyncio.Event()

            async def old_one() -> None:
                async with classic(classic_settings(tmp_path, "m", "async_master", ports)) as old:
                    started.set_result(old)
                    await over.wait()

            running = asyncio.create_task(old_one())
            await asked.wait()
            async with classic(classic_settings(tmp_path, "s", "async_master", ports)) as new:
                assert new.broker.is_master
                new_is_up.set()
                old = await started
                assert old.broker.pair.role is BrokerRole.SLAVE and not was_master(old)
                over.set()
                await running


@story
async def test_a_master_whose_disk_was_replaced_begins_no_other_pair(tmp_path: Path) -> None:
    """It took messages from offset 0 on, and its slave, the only copy, was said to need an empty directory."""
    async with slave_alone(tmp_path, "async_master") as (slave, ports):
        (tmp_path / "m").rename(tmp_path / "lost")
        async with classic(classic_settings(tmp_path, "m", "async_master", ports)) as empty, empty.client() as client:
            assert not was_master(empty) and empty.broker.pair.role is BrokerRole.SLAVE
            record = read_role(tmp_path / "m")
            assert record is not None and "its log is empty" in record.why
            assert any(kind == "ha_slave" and record.why == text for kind, _severity, text in empty.notes)
            [answer] = await client.send(b"x")
            assert answer.code == Answer.SERVICE_NOT_AVAILABLE
            await Promotion(slave.broker.pair, "s").promote(None, set(), "ops")
            await until(lambda: empty.broker.store.end_position == slave.broker.store.end_position > 0)


@story
async def test_a_first_master_and_one_of_an_old_directory_begin_as_they_are_told(tmp_path: Path) -> None:
    ports = pair_ports("m", "s")
    async with (
        classic(classic_settings(tmp_path, "s", "slave", ports)),
        classic(classic_settings(tmp_path, "m", "async_master", ports)) as master,
    ):
        assert master.broker.is_master  # its slave is of no pair either


@story
async def test_what_was_committed_of_messages_that_are_cut_is_brought_to_no_master(tmp_path: Path) -> None:
    """Others came in their place, and the consumer passed over them."""
    ports = pair_ports("m", "s", "t")
    settings = {
        name: classic_settings(tmp_path, name, "async_master" if name == "m" else "slave", ports, **CUTS)
        for name in ports
    }
    async with classic(settings["m"]) as master, master.client() as client:
        async with classic(settings["s"]) as slave:
            await client.send(b"1", b"2")
            await until(lambda: slave.broker.store.end_position == master.broker.store.end_position)
            await synced(slave)
        async with classic(settings["t"]) as other:
            await client.send(b"lost 3", b"lost 4", b"lost 5")
            await until(lambda: other.broker.store.end_position == master.broker.store.end_position)
            await synced(other)
    async with classic(settings["t"]) as other, other.client() as client:
        await commit(client, 5)  # it has read all five here
        await until(lambda: bool(CommittedHere(tmp_path / "t").offsets))
    assert CommittedHere(tmp_path / "t").offsets == {("TopicTest", "G", 0): 5}
    async with classic(settings["s"]) as slave, slave.client() as client:
        promotion = Promotion(slave.broker.pair, "s")
        await promotion.promote(None, {one.code for one in await promotion.look()}, "ops")
        await client.send(b"3")
        async with classic(settings["t"]) as other:
            await until(lambda: other.broker.pair.client.state is State.TRANSFER)
            assert "ha_cut_back" in {kind for kind, _severity, _text in other.notes}
            await until(lambda: other.broker.store.end_position == slave.broker.store.end_position)
            await synced(other)
            assert offset_of(slave) == 2 and offset_of(other) == 2
            assert not other.broker.sync.here.offsets  # type: ignore[union-attr]


@story
async def test_an_offset_behind_the_end_of_a_slaves_log_is_brought_to_no_master(tmp_path: Path) -> None:
    """Its master's, which a commit of another queue of the topic took along."""
    async with classic(classic_settings(tmp_path, "s", "slave", pair_ports("m", "s"))) as slave:
        sync, offsets = slave.broker.sync, slave.port.context.offsets
        assert sync is not None
        log = SimpleNamespace(max_offset=1, cuts=0, flushed_offset=1)
        sync._store = SimpleNamespace(  # type: ignore[assignment]
            log=log, end_position=1, next_offsets={("T", 0): 80, ("T", 1): 20}
        )
        offsets.take("T", "G", {0: 100, 2: 7})
        offsets.put("G", "T", 1, 15)
        assert sync.here.offsets == {("T", "G", 0): 80, ("T", "G", 1): 15}  # of queue 2 nothing is here


@story
async def test_a_promoted_slave_forgets_what_was_committed_while_it_was_one(tmp_path: Path) -> None:
    """Its offsets are the pair's from then on: one that was set back came again when it was a slave once more."""
    async with slave_alone(tmp_path, "async_master") as (slave, _ports), slave.client() as client:
        await commit(client, 3)
        sync = slave.broker.sync
        assert sync is not None
        await sync.here.save()
        assert CommittedHere(tmp_path / "s").offsets == {("TopicTest", "G", 0): 3}
        await Promotion(slave.broker.pair, "s").promote(None, set(), "ops")
        await until(lambda: not CommittedHere(tmp_path / "s").offsets)
        assert offset_of(slave) == 3


def test_a_save_that_a_promotion_meets_leaves_nothing_of_a_slave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread went on when its task was ended, and what it wrote was there for good: the file was thought empty."""
    begun, goes_on = threading.Event(), threading.Event()

    class Slow(OsDisk):
        def replace(self, path: Path, data: bytes) -> None:
            if b"TopicTest" in data:
                begun.set()
                assert goes_on.wait(30)
            super().replace(path, data)

    monkeypatch.setattr(metadata_sync, "OsDisk", Slow)

    async def work() -> None:
        here = CommittedHere(tmp_path)
        here.put("TopicTest", "G", {0: 3}, {("TopicTest", 0): 3})
        as_slave = asyncio.create_task(here.save())
        assert await asyncio.to_thread(begun.wait, 30)
        as_slave.cancel()
        here.offsets.clear()
        as_master = asyncio.create_task(here.save())
        await asyncio.sleep(0)
        goes_on.set()
        await as_master

    asyncio.run(work())  # which waits for its threads
    assert not CommittedHere(tmp_path).offsets


@story
async def test_of_an_asynchronous_master_it_is_said_that_more_may_be_lost(tmp_path: Path) -> None:
    """The slave heard of no byte more, and so nothing was said to be lacking."""
    async with slave_alone(tmp_path, "async_master") as (slave, ports):
        found = {one.code: one for one in await Promotion(slave.broker.pair, "s").look()}
        assert set(found) == {"not_heard", "may_lack"} and not found["may_lack"].stops
        assert re.match(r"its master was last heard \d+ s ago", found["may_lack"].text)
    async with classic(classic_settings(tmp_path, "s", "slave", ports)) as slave:
        found = {one.code: one for one in await Promotion(slave.broker.pair, "s").look()}
        assert found["may_lack"].text.startswith("its master was last heard before this broker started")


@story
async def test_messages_in_place_of_deleted_ones_that_a_slave_never_had_are_shown(tmp_path: Path) -> None:
    """Its master's topic ended at 7 when it was deleted, this log at 3: what was sent from 3 to 7 on was hidden."""
    async with slave_alone(tmp_path, "async_master") as (slave, _ports), slave.client() as client:
        deleted = slave.port._tables.deleted
        await deleted.follow(b'[["TopicTest", 0, 7], ["Unheard", 0, 9]]')
        await Promotion(slave.broker.pair, "s").promote(None, set(), "ops")
        assert deleted.begins == {("TopicTest", 0): 3}
        await client.send(b"new")
        assert slave.broker.reads.min_offset("TopicTest", 0) == 3
        said = pull_fields(3)
        [answer] = await client.ask((Request.PULL_MESSAGE, said, b""))
        assert answer.code == Answer.SUCCESS and decode_record(bytes(answer.body)).body == b"new"
        await until(lambda: b"7" not in (tmp_path / "s/quorumscope/deleted-topics").read_bytes())


@story
async def test_a_queue_that_a_slave_never_had_messages_of_goes_on_where_it_was(tmp_path: Path) -> None:
    """The slave began empty when they had expired: promoted it gave their offsets again, and the old master, which knew
    better, took nothing of its log into its queues any more, and ended at every start."""
    ports = pair_ports("m", "s")
    settings = {name: classic_settings(tmp_path, name, "async_master", ports) for name in ports}
    of_slave = classic_settings(tmp_path, "s", "slave", ports)
    async with classic(settings["m"]) as master, master.client() as client:
        await client.send(b"1", b"2", e="1")
        await client.send(*[bytes(20_000)] * 9)
        log = master.broker.store.log
        await until(lambda: log.flushed_offset == log.max_offset)
        assert log.remove_below(log.starts[2])
        async with classic(of_slave) as slave:
            await until(lambda: slave.broker.store.end_position == master.broker.store.end_position)
            await synced(slave)
            assert slave.broker.next_offsets == master.broker.next_offsets
            assert slave.broker.next_offsets["TopicTest", 1] == 2
    async with classic(of_slave) as slave, slave.client() as client:
        await Promotion(slave.broker.pair, "s").promote(None, {"lacks_bytes"}, "ops")
        await client.send(b"3", e="1")
        [answer] = await client.ask((Request.PULL_MESSAGE, pull_fields(2, 1), b""))
        assert decode_record(answer.body).body == b"3"
        async with classic(settings["m"]) as old:
            await until(lambda: old.broker.store.end_position == slave.broker.store.end_position)
            assert old.broker.next_offsets["TopicTest", 1] == 3


@story
async def test_a_slave_of_rocketmqs_passes_over_offsets_that_its_master_gives_again(tmp_path: Path) -> None:
    """A topic that is deleted there and made again begins at 0: the slave ended at its first message, at each start."""
    java = LocalCommitLog(tmp_path / "java", 65_536)
    end = put(java, 0, 1, 0, 1, 2)
    settings = classic_settings(tmp_path, "s", "slave", pair_ports("m", "s"))
    async with classic(settings) as slave:
        store = slave.broker.store
        store.append_data(0, java.read(0, end))
        slave.broker.keeper.wake()
        await until(lambda: store.end_position == end)
        assert list(store.next_offsets.values()) == [3] and store.dispatcher.repeats == 2
        await Promotion(slave.broker.pair, "s").promote(None, {"no_pair"}, "ops")
        assert store.dispatcher.dense_from == end  # of what ours puts none comes twice


@story
async def test_an_empty_slave_takes_what_rocketmq_put_before_its_master_began(tmp_path: Path) -> None:
    """Its master passes over offsets that come twice there: the slave did not, and ended."""
    old = LocalCommitLog(tmp_path / "m", 65_536)
    end = put(old, 0, 1, 0, 1, 2)
    old.close()
    ports = pair_ports("m", "s")
    settings = {
        name: classic_settings(tmp_path, name, role, ports) for name, role in (("m", "async_master"), ("s", "slave"))
    }
    async with classic(settings["m"]) as master, master.client() as client:
        async with classic(settings["s"]) as slave:
            await client.send(b"of ours")
            store = slave.broker.store
            await until(lambda: store.end_position == master.broker.store.end_position > end)
            assert slave.broker.next_offsets == master.broker.next_offsets
            assert store.dispatcher.dense_from == master.broker.store.dispatcher.dense_from == end
        (tmp_path / "s/quorumscope/dispatched").unlink()  # a crash before the first was written
        shutil.rmtree(tmp_path / "s/consumequeue")
        shutil.rmtree(tmp_path / "s/index", ignore_errors=True)
        async with classic(settings["s"]) as slave:
            await until(lambda: slave.broker.store.end_position == master.broker.store.end_position)


@pytest.mark.parametrize(
    "said", [b"", b"[]", b'{"end":1}', b'{"end":-1,"queues":{}}', b'{"end":1,"queues":{"T":{"0":1.5}}}', b"[" * 100_000]
)
def test_ends_of_queues_that_cannot_be_are_refused(said: bytes) -> None:
    with pytest.raises(BodyError, match="ends of the master's queues"):
        queue_ends._decoded(said)
