"""The commands that problems of a classic pair print, run as they are printed: the problem closes.

As test_next_steps.py for groups. How a broker that is gone was started is known to who heard it before: to a console.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.console.addresses import Addresses
from app.console.aggregate import ClusterInfo
from app.console.nodes import Nodes
from app.console.sample import NodeSample
from app.console.settings import ConsoleSettings
from app.console.watch import Watch
from app.db.engine import open_engine, open_sessions
from app.demo.pair import PAIR, ROLES, PairDemo
from app.demo.run import DemoOptions
from app.health.group_view import GroupView, Problem
from app.security.sealed import Seal
from tests.process.failing_disks import FailingDisks, can_fail
from tests.process.test_next_steps import started_by, steps_path

__all__ = ["steps_path"]
pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.usefixtures("steps_path")]
WITHIN_S = 120.0
LOOK_EVERY_S = 0.5


class Watched:
    """A pair, and the console that looks at it."""

    def __init__(self, demo: PairDemo, watch: Watch) -> None:
        self.demo, self.watch = demo, watch

    async def until(self, true: Callable[[GroupView], object]) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not true(self.watch.assemble()):  # noqa: ASYNC110 - no event
                await asyncio.sleep(LOOK_EVERY_S)

    async def in_step(self) -> None:
        await self.until(lambda view: not view.problems and view.sentence.headline == "Both slaves are in step.")

    async def problem(self, node: str, code: str) -> Problem:
        found: list[Problem] = []

        def named(view: GroupView) -> bool:
            found[:] = [one for one in view.problems if (one.member, one.code) == (node, code)]
            return bool(found)

        await self.until(named)
        return found[0]


@asynccontextmanager
async def watched(directory: Path) -> AsyncIterator[Watched]:
    (directory / "demo").mkdir()
    demo, nodes = PairDemo(DemoOptions(console=False, noted=False), directory / "demo", print), Nodes(ConsoleSettings())
    try:
        await demo.start()
        samples = [NodeSample(one, f"127.0.0.1:{demo.brokers[one]}", demo.controls[one]) for one in ROLES]
        kept = open_sessions(open_engine(f"sqlite:///{directory / 'console.db'}"))
        watch = Watch(
            ClusterInfo(PAIR, PAIR, PAIR), samples, nodes, LOOK_EVERY_S,
            addresses=Addresses(kept, Seal(directory / "key"), None, list(demo.controls.values())),
            on_events=lambda *_: None, on_address=lambda *_: None, audits={},
        )  # fmt: skip
        watch.start()
        try:
            made = Watched(demo, watch)
            await made.in_step()
            yield made
        finally:
            await watch.stop()
    finally:
        await nodes.close()
        await demo.stop()


def over(tmp_path: Path, work: Callable[[Watched], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        async with watched(tmp_path) as pair:
            await work(pair)

    asyncio.run(all_of_it())


@pytest.mark.long
def test_a_broker_whose_node_was_killed_is_started_as_it_was(tmp_path: Path) -> None:
    async def work(pair: Watched) -> None:
        node = pair.demo.processes.running["s1"]
        node.kill()
        await node.wait()
        one = await pair.problem("s1", "ha_silent")
        assert one.command is not None and one.command.startswith("quorumscope node "), one
        await started_by(one.command, pair.in_step)

    over(tmp_path, work)


@pytest.mark.long
@pytest.mark.skipif(not can_fail(), reason="NOT RUN: no C compiler on this machine")
def test_a_broker_whose_disk_failed_is_ended_and_started_on_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks = FailingDisks(tmp_path)
    for name, value in disks.variables.items():
        monkeypatch.setenv(name, value)

    async def work(pair: Watched) -> None:
        for name in disks.variables:
            monkeypatch.delenv(name)
        disks.fail("s1")
        one = await pair.problem("s1", "ha_log_broken")
        assert "replace the disk" in one.step and one.command is not None, one
        node = pair.demo.processes.running["s1"]
        node.terminate()
        await node.wait()
        disks.replace("s1")
        await started_by(one.command, pair.in_step)

    over(tmp_path, work)
