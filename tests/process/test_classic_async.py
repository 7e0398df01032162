"""An ASYNC_MASTER whose links break: it goes on, says who lacks what, and what is lost with it lies at it."""

from __future__ import annotations

import asyncio
import signal
import struct
from pathlib import Path
from typing import Any

import pytest

from node.rocketmq.codes import Answer
from tests.process.classic_brokers import ClassicBrokers, Senders
from tests.process.test_classic_pair import assert_kept

pytestmark = pytest.mark.process
QUICK = {"ha.housekeeping_ms": "1500", "ha.heartbeat_ms": "300"}


def is_alone(said: dict[str, Any]) -> bool:
    return "no_slave" in {one["code"] for one in said["problems"]}


def is_lost(said: dict[str, Any]) -> bool:
    return "no_master" in {one["code"] for one in said["problems"]}


def lags(said: dict[str, Any]) -> bool:
    return any(one["state"] == "transfer" and one["lag_bytes"] and one["lag_ms"] for one in said["connections"])


def test_an_async_master_goes_on_whatever_becomes_of_its_slave(tmp_path: Path) -> None:
    async def story() -> None:
        async with ClassicBrokers(tmp_path, "a", "b", **QUICK) as brokers:
            await asyncio.gather(brokers.start("a", "async_master"), brokers.start("b", "slave"))
            await brokers.served("a", "b")
            senders = Senders(brokers)
            senders.to = ["a"]
            await senders.more()
            link = brokers.links.relays["b", "a"]
            for forward, backward in ((True, False), (False, True), (True, True)):  # reports, frames, both
                link.cut(forward=forward, backward=backward)
                # Until its connection is dropped, it is said how far it is behind.
                await asyncio.gather(brokers.until("a", lags), senders.more(40))
                await asyncio.gather(brokers.until("a", is_alone), brokers.until("b", is_lost))
                await senders.more(40)
                brokers.links.mend("b")
                await brokers.served("a", "b")
            link.lose()  # half open: both ends of the old connection hear nothing, a new one is whole
            await senders.more(40)
            await brokers.until("b", is_lost)
            await brokers.served("a", "b")
            link.bytes_per_s = 2_000.0
            await brokers.until("a", lags)
            await senders.more(40)
            brokers.links.mend("b")
            brokers.signal("b", signal.SIGSTOP)
            await senders.more(40)
            await brokers.until("a", is_alone)
            brokers.signal("b", signal.SIGCONT)
            await brokers.served("a", "b")
            brokers.signal("a", signal.SIGSTOP)
            await brokers.until("b", is_lost)
            brokers.signal("a", signal.SIGCONT)
            await brokers.served("a", "b")
            await senders.more()
            await senders.stop()
            await brokers.in_step("a")
            assert set(senders.codes) == {Answer.SUCCESS}
            assert_kept(brokers, senders, "a", "b")

    asyncio.run(story())


@pytest.mark.long
def test_what_an_async_master_takes_with_it_is_said_and_kept(tmp_path: Path) -> None:
    """Nothing that its slave had is lost; the rest lies aside at the old master, whole, once that follows."""

    async def story() -> None:
        async with ClassicBrokers(tmp_path, "a", "b", **QUICK) as brokers:
            await asyncio.gather(brokers.start("a", "async_master"), brokers.start("b", "slave"))
            await brokers.served("a", "b")
            first = Senders(brokers)
            first.to = ["a"]
            await first.more(100)
            await first.stop()
            await brokers.in_step("a")
            brokers.links.relays["b", "a"].cut()
            alone = Senders(brokers)
            alone.to, alone._number = ["a"], 1_000_000
            await alone.more(60)
            await alone.stop()
            await brokers.until("b", is_lost)
            await brokers.kill("a")
            look = await brokers.look("b")
            assert {"may_lack", "not_heard"} <= {one["code"] for one in look}
            epoch, stops = await brokers.promote("b", "lacks_bytes")
            assert epoch >= 1 << 20, stops
            later = Senders(brokers)
            later.to, later._number = ["b"], 2_000_000
            await later.more()
            brokers.links.mend("b")
            await brokers.start("a", "async_master")
            await brokers.served("b", "a")
            await later.more()
            await later.stop()
            await brokers.in_step("b")
            assert_kept(brokers, first, "b", "a")
            assert_kept(brokers, later, "b", "a")
            here = brokers.bodies_of("b")
            aside = brokers.aside_of("a")
            for body in alone.acknowledged:
                assert body not in here and struct.pack(">i", len(body)) + body in aside

    asyncio.run(story())
