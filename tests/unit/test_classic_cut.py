"""A slave's log that is cut back: in a thread, while its broker goes on, and with disks that are full."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from node.broker.classic.promotion import Promotion
from node.config import Settings
from node.ha.client import State
from node.ha.settings import BrokerRole
from node.message_store import local_log, local_store
from node.message_store.local_log import LocalCommitLog
from node.rocketmq.codes import Answer, Request
from tests.unit.broker_kit import pull_fields
from tests.unit.classic_kit import Served, classic, classic_settings, pair_ports, story
from tests.unit.engine_kit import until

CUTS = {"ha.cuts_back": "true"}


@asynccontextmanager
async def forked(root: Path) -> AsyncGenerator[tuple[Served, Settings], None]:
    """A promoted slave, and how its old master is started, which holds a message of its own."""
    ports = pair_ports("m", "s")
    of_master = classic_settings(root, "m", "async_master", ports, **CUTS)
    of_slave = classic_settings(root, "s", "slave", ports, **CUTS)
    async with classic(of_master) as master, master.client() as client:
        async with classic(of_slave) as slave:
            await until(lambda: bool(master.broker.pair.service.acks()))
            await client.send(b"both")
            await until(lambda: slave.broker.store.end_position == master.broker.store.end_position > 0)
        await client.send(b"lost")
        await until(lambda: master.broker.store.end_position == master.broker.store.log.max_offset)
    async with classic(of_slave) as slave, slave.client() as client:
        await Promotion(slave.broker.pair, "s").promote(BrokerRole.ASYNC_MASTER, {"lacks_bytes"}, "ops")
        await client.send(b"new")
        yield slave, of_master


def full(*_given: object, **_named: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


class Held:
    """Cuts begin, and end once they may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()
        cut = LocalCommitLog.cut

        def held(log: LocalCommitLog, end: int) -> int:
            self.began.set()
            assert self.may_end.wait(60), "the loop stands while the log is cut"
            return cut(log, end)

        monkeypatch.setattr(LocalCommitLog, "cut", held)


@story
async def test_a_broker_goes_on_while_its_log_is_cut(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patches:
        held = Held(patches)
        async with forked(tmp_path) as (slave, of_master), classic(of_master) as old, old.client() as client:
            await until(held.began.is_set)
            said = (await old.broker._ha({}))["following"]
            assert said["state"] == "cutting" and "is cut back from" in said["reason"]
            [answer] = await client.ask((Request.PULL_MESSAGE, pull_fields(0), b""))
            assert answer.code == Answer.PULL_RETRY_IMMEDIATELY
            removing = asyncio.create_task(old.broker._retention.look(0.0))
            promoting = asyncio.create_task(
                Promotion(old.broker.pair, "m").promote(None, {"another_has_more", "master_is_there"}, "ops")
            )
            asked = asyncio.create_task(old.broker._ha({}))
            await until(asked.done)
            assert not removing.done() and not promoting.done()
            assert old.broker.pair.lineage.epoch < slave.broker.pair.lineage.epoch
            held.may_end.set()
            await promoting
            log = old.broker.store.log
            assert log.read(0, log.max_offset).count(b"lost") == 0  # its epoch began when the cut was over
            assert old.broker.pair.lineage.epochs[-1][1] == log.max_offset
            assert await removing == 0


@story
async def test_a_broker_that_ends_while_its_log_is_cut_ends_with_it(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patches:
        held = Held(patches)
        async with forked(tmp_path) as (slave, of_master):
            ended = asyncio.Event()

            async def until_it_cuts() -> None:
                async with classic(of_master):
                    await until(held.began.is_set)
                ended.set()

            running = asyncio.create_task(until_it_cuts())
            await until(held.began.is_set)
            for _ in range(20):  # its end is asked for, and waits
                await asyncio.sleep(0.01)
            assert not ended.is_set()
            held.may_end.set()
            await running
            async with classic(of_master) as old:
                await until(lambda: old.broker.store.end_position == slave.broker.store.end_position)
                assert old.broker.store.log.cuts == 0  # it was done


@story
async def test_a_cut_for_whose_copy_there_is_no_room_is_tried_again(tmp_path: Path) -> None:
    """Nothing was changed, and the log is none that is at its end."""
    async with forked(tmp_path) as (slave, of_master):
        with pytest.MonkeyPatch.context() as patches:
            patches.setattr(local_log, "keep_aside", full)
            async with classic(of_master) as old:
                await until(lambda: "No space" in old.broker.pair.client.trouble)
                log = old.broker.store.log
                assert log.read(0, log.max_offset).count(b"lost") == 1 and not log.broken_by
                patches.undo()
                await until(lambda: old.broker.store.end_position == slave.broker.store.end_position)
                assert old.broker.pair.client.state is State.TRANSFER and not old.broker.pair.client.trouble


@story
async def test_queues_that_cannot_be_written_anew_end_the_log(tmp_path: Path) -> None:
    """Or the slave would take its master's bytes, and dispatch from a place behind them on."""
    async with forked(tmp_path) as (slave, of_master):
        with pytest.MonkeyPatch.context() as patches:
            patches.setattr(local_store, "rebuild_derived", full)
            async with classic(of_master) as old:
                await until(lambda: bool(old.broker.store.log.broken_by))
                await until(lambda: "written anew" in old.broker.pair.client.trouble)
                assert old.broker.pair.client.state is not State.TRANSFER
                codes = {one["code"] for one in (await old.broker._ha({}))["problems"]}
                assert "log_broken" in codes
        async with classic(of_master) as old:
            await until(lambda: old.broker.store.end_position == slave.broker.store.end_position)
            assert old.broker.pair.client.state is State.TRANSFER
