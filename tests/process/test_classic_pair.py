"""Classic HA with real processes: what was answered is on a slave, whatever is killed, stopped or cut off."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from node.rocketmq.codes import Answer
from tests.process.classic_brokers import ClassicBrokers, Senders, acked_by, sending_pair

pytestmark = pytest.mark.process
TRIES_S = 30.0  # of a promotion
NOT_ON_SLAVES = (Answer.FLUSH_SLAVE_TIMEOUT, Answer.SLAVE_NOT_AVAILABLE)


def assert_kept(brokers: ClassicBrokers, senders: Senders, *names: str) -> None:
    """Every message that was answered SUCCESS is in each of these logs, once; the logs are the same bytes."""
    for name in names:
        found = brokers.bodies_of(name)
        assert {body: found[body] for body in senders.acknowledged if found[body] != 1} == {}, name
        assert brokers.log_of(name) == brokers.log_of(names[0]), f"{name} has another log than {names[0]}"
    assert len(senders.acknowledged) == len(set(senders.acknowledged))


def test_a_pair_under_kill_and_one_way_cuts(tmp_path: Path) -> None:
    """No answer SUCCESS while no report arrives; the slave takes over; the old master comes back as a slave."""

    async def story() -> None:
        async with ClassicBrokers(tmp_path, "a", "b") as brokers:
            senders = await sending_pair(brokers)
            for forward, backward in ((True, False), (False, True), (True, True)):  # reports, frames, both
                brokers.links.relays["b", "a"].cut(forward=forward, backward=backward)
                await senders.refused(*NOT_ON_SLAVES, count=8)  # those that were on their way, too
                before = len(senders.acknowledged)
                await senders.refused(*NOT_ON_SLAVES, count=8)
                assert len(senders.acknowledged) == before
                brokers.links.mend("b")
                await senders.more()
            brokers.signal("b", signal.SIGSTOP)
            await senders.refused(*NOT_ON_SLAVES, count=8)
            brokers.signal("b", signal.SIGCONT)
            await senders.more()
            await brokers.kill("a")
            # Consumers go on at the slave, and what they commit there reaches the master that comes back.
            await brokers.until("b", lambda said: said["following"]["state"] != "transfer")
            bodies, upto = await brokers.pulled("b", 0)
            assert bodies and bodies[0].endswith(b" of a")
            await brokers.commit("b", upto)
            await brokers.start("a", "sync_master")
            await brokers.served("a", "b")
            deadline = time.monotonic() + 30
            while await brokers.committed("a") != upto:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
            await senders.more()
            await brokers.kill("a")
            epoch, stops = await brokers.promote("b", "lacks_bytes")
            assert epoch >= 1 << 20, stops
            assert await brokers.committed("b") == upto
            senders.to = ["a", "b"]
            await brokers.start("a", "sync_master")
            await brokers.served("b", "a")
            await senders.more()
            assert (await brokers.view("a"))["role"] == "SLAVE"
            assert await brokers.send("a", b"to an old master") == Answer.SERVICE_NOT_AVAILABLE
            await senders.stop()
            await brokers.in_step("b")
            assert_kept(brokers, senders, "b", "a")

    asyncio.run(story())


def test_a_stopped_master_finds_itself_replaced(tmp_path: Path) -> None:
    """It was only stopped, the other slave is connected to it still: nothing that it takes afterwards is answered."""

    async def story() -> None:
        async with ClassicBrokers(tmp_path, "a", "b", "c") as brokers:
            await asyncio.gather(brokers.start("a", "sync_master"), *(brokers.start(one, "slave") for one in "bc"))
            await brokers.served("a", "b", "c")
            senders = Senders(brokers)
            await senders.more()
            brokers.links.relays["c", "a"].cut(backward=True)  # it gets nothing more, the other does
            await senders.more()
            brokers.signal("a", signal.SIGSTOP)
            epoch, stops = await brokers.promote("c", "lacks_bytes", "master_is_there")
            assert epoch == 0 and "another_has_more" in stops  # what was answered is on the other one
            for pair in (("a", "b"), ("b", "a")):  # the new master and the old one do not reach each other
                brokers.links.relays[pair].cut()
            brokers.links.relays["c", "a"].mend()
            epoch, stops = await brokers.promote("b", "lacks_bytes", "master_is_there")
            assert epoch >= 1 << 20, stops
            senders.to = ["a"]
            brokers.signal("a", signal.SIGCONT)
            await senders.refused(*NOT_ON_SLAVES, Answer.SERVICE_NOT_AVAILABLE, count=8)  # some were reported before
            before = senders.acknowledged_by("a")
            await senders.refused(*NOT_ON_SLAVES, Answer.SERVICE_NOT_AVAILABLE)
            assert senders.acknowledged_by("a") == before
            senders.to = ["a", "b", "c"]
            await senders.more()
            brokers.links.mend("a")
            await brokers.until("a", lambda said: said["role"] == "SLAVE")
            await brokers.served("b", "a", "c")
            await senders.more()
            await senders.stop()
            await brokers.in_step("b")
            assert_kept(brokers, senders, "b", "a", "c")

    asyncio.run(story())


class Operator:
    """Brings a pair of three back after each fault, and promotes where the master is lost."""

    def __init__(self, brokers: ClassicBrokers, rng: random.Random, role: str) -> None:
        """`role`: of a master."""
        self.brokers, self.rng, self.role = brokers, rng, role
        self.master = brokers.names[0]

    @property
    def slaves(self) -> list[str]:
        return [name for name in self.brokers.names if name != self.master]

    async def promote(self) -> None:
        """Whoever has most; the master may run on. Both slaves have to be heard: links are mended for that.

        Nobody, where the master was promoted just before and no slave met it: for them it may be a slave with more.
        """
        tries_until_s = time.monotonic() + TRIES_S
        while time.monotonic() < tries_until_s:
            for name in self.rng.sample(self.slaves, len(self.slaves)):
                epoch, stops = await self.brokers.promote(name, "lacks_bytes", "master_is_there")
                if epoch:
                    self.master = name
                    return
                if stops == {"is_master"}:  # it was stopped while one was promoted that is gone, and has met nobody yet
                    if acked_by(await self.brokers.view(name)) >= set(self.slaves) - {name}:
                        self.master = name
                        return
                    continue
                assert stops & {"another_has_more", "before_promotion", "slave_not_heard"}, (name, stops)
            for name in self.brokers.names:
                self.brokers.links.mend(name)
            await asyncio.sleep(0.05)
        for name in self.slaves:
            await self.brokers.view(name)  # they run, at least

    async def kill_a_slave(self) -> None:
        name = self.rng.choice(self.slaves)
        await self.brokers.kill(name)
        await self.brokers.start(name, self.role if self.rng.random() < 0.5 else "slave")

    async def kill_the_master(self) -> None:
        old = self.master
        await self.brokers.kill(old)
        if self.rng.random() < 0.7:
            await self.promote()
        await self.brokers.start(old, self.role)

    async def stop_somebody(self) -> None:
        name = self.rng.choice(self.brokers.names)
        self.brokers.signal(name, signal.SIGSTOP)
        await asyncio.sleep(self.rng.random())
        if name == self.master and self.rng.random() < 0.7:
            await self.promote()
        self.brokers.signal(name, signal.SIGCONT)

    async def cut_a_link(self) -> None:
        source, target = self.rng.sample(self.brokers.names, 2)
        forward = self.rng.random() < 0.6
        self.brokers.links.relays[source, target].cut(forward=forward, backward=not forward or self.rng.random() < 0.5)
        await asyncio.sleep(self.rng.random())
        if self.rng.random() < 0.2:
            self.brokers.links.relays[source, target].reset()

    async def mend(self) -> None:
        for name in self.brokers.names:
            self.brokers.links.mend(name)
        await self.brokers.served(self.master, *self.slaves)


def drawn_faults(tmp_path: Path, role: str, check: Callable[[ClassicBrokers, Senders], None]) -> None:
    """Ninety seconds of them; CLASSIC_SEED draws others."""
    rng = random.Random(os.environ.get("CLASSIC_SEED", "1"))

    async def story() -> None:
        async with ClassicBrokers(tmp_path, "a", "b", "c") as brokers:
            await asyncio.gather(brokers.start("a", role), *(brokers.start(one, "slave") for one in "bc"))
            operator = Operator(brokers, rng, role)
            await operator.mend()
            senders = Senders(brokers)
            until = time.monotonic() + 90
            faults = [operator.kill_a_slave, operator.kill_the_master, operator.stop_somebody, operator.cut_a_link]
            while time.monotonic() < until:
                await rng.choice(faults)()
                if rng.random() < 0.5:
                    await rng.choice(faults)()
                await operator.mend()
                await senders.more()
            await senders.stop()
            await brokers.in_step(operator.master)
            check(brokers, senders)

    asyncio.run(story())


@pytest.mark.long
def test_a_pair_of_three_under_drawn_faults(tmp_path: Path) -> None:
    drawn_faults(tmp_path, "sync_master", lambda brokers, senders: assert_kept(brokers, senders, *brokers.names))


@pytest.mark.long
def test_an_asynchronous_pair_of_three_under_drawn_faults(tmp_path: Path) -> None:
    """What is lost with a master lies at it, where it was cut: nothing is lost without a word."""

    def check(brokers: ClassicBrokers, senders: Senders) -> None:
        logs = [brokers.log_of(name) for name in brokers.names]
        assert logs == logs[:1] * 3
        here = brokers.bodies_of("a")
        assert not [body for body, count in here.items() if count != 1]
        aside = {name: brokers.aside_of(name) for name in brokers.names}
        lost = [body for body in senders.acknowledged if body not in here]
        for body in lost:
            assert struct.pack(">i", len(body)) + body in aside[body.decode().rpartition(" ")[2]], body

    drawn_faults(tmp_path, "async_master", check)
