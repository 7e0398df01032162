"""Every break of the demo, done to real members: the sentence names the right member and cause, or says "not known".

What is asserted at each look: once the break could be known, "in step" is not said until the member is back; whoever is
accused is the member that was broken; and in the end all is well again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from app.commands.group import look_closely, pressing_of
from app.console.addresses import Addresses
from app.console.aggregate import ClusterInfo
from app.console.nodes import Nodes
from app.console.sample import NodeSample
from app.console.settings import ConsoleSettings
from app.console.watch import Watch
from app.db.engine import open_engine, open_sessions
from app.demo.run import Demo, DemoOptions
from app.health.group_view import AuditView, GroupView
from app.security.sealed import Seal
from node.views.events import EventView

pytestmark = [pytest.mark.process, pytest.mark.slow]

MEND_AFTER_S = 7.0
KNOWABLE_S = 1.0  # members take each other for lost after so long a silence
RIGHT_WITHIN_S = 4.0  # beyond that; the figure to keep to is 2 s, on a machine with nothing else to do
SAMPLE_S = 0.5


class Watcher:
    """Looks at the group as the console does, twice a second, and keeps what it read."""

    def __init__(self, demo: Demo, watch: Watch, events: list[EventView], audits: dict[str, AuditView | None]) -> None:
        self.demo, self.watch, self.events, self.audits = demo, watch, events, audits
        self.looks: list[tuple[float, GroupView]] = []

    async def run(self) -> None:
        while True:
            self.looks.append((time.monotonic(), self.watch.assemble()))
            await asyncio.sleep(SAMPLE_S)

    @property
    def view(self) -> GroupView:
        return self.looks[-1][1]

    async def until(self, what: str, true: Callable[[GroupView], bool], seconds: float = 60.0) -> float:
        """When it was first so, from now on."""
        begun, deadline = len(self.looks), time.monotonic() + seconds
        while time.monotonic() < deadline:
            for at_s, view in self.looks[begun:]:
                if true(view):
                    return at_s
            await asyncio.sleep(0.1)
        raise AssertionError(f"never {what}: {self.view.sentence}, {self.view.unproven}")

    async def in_step(self) -> None:
        """Until all is well, and has been for as long as anything could be remembered wrongly."""
        await self.until("in step", says_in_step)


def says_in_step(view: GroupView) -> bool:
    return "in step." in view.sentence.headline and "not known" not in view.sentence.headline


def names(view: GroupView, node: str, codes: set[str]) -> bool:
    return any(one.code in codes and one.member == node for one in view.problems)


@asynccontextmanager
async def watched(tmp_path: Path) -> AsyncIterator[Watcher]:
    """A demo without pages, and a console's eyes on it."""
    (tmp_path / "demo").mkdir()
    options = DemoOptions(console=False, directory=tmp_path / "demo", mend_after_s=MEND_AFTER_S, rate_per_s=50)
    demo = Demo(options, tmp_path / "demo", lambda _text: None)
    nodes = Nodes(ConsoleSettings())
    try:
        await demo.start()
        samples = [NodeSample(one.id, one.address, one.control_url) for one in demo.members.values()]
        events: list[EventView] = []
        audits: dict[str, AuditView | None] = {}
        urls = [one.control_url for one in demo.members.values()]
        kept = open_sessions(open_engine(f"sqlite:///{tmp_path / 'console.db'}"))
        watch = Watch(
            ClusterInfo("demo", "demo", "demo", demo=True), samples, nodes, SAMPLE_S,
            addresses=Addresses(kept, Seal(tmp_path / "key"), None, urls),
            on_events=lambda _cluster, node, items: events.extend(items if node is None else []),
            on_address=lambda _cluster, _sample: None,
            audits=audits,
        )  # fmt: skip
        watch.start()
        watcher = Watcher(demo, watch, events, audits)
        looking = asyncio.create_task(watcher.run())
        try:
            await watcher.until("looked at", lambda _view: True)
            await watcher.in_step()
            yield watcher
        finally:
            looking.cancel()
            await watch.stop()
    finally:
        await nodes.close()
        await demo.stop()


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Callable[[Watcher], Awaitable[None]]) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    async def all_of_it() -> None:
        async with watched(tmp_path) as watcher:
            await work(watcher)

    asyncio.run(all_of_it())


async def broken(watcher: Watcher, what: str, node: str, codes: set[str], last_s: float = MEND_AFTER_S) -> float:
    """Breaks, reads along, and waits until all is well again; how long the right sentence took."""
    assert watcher.demo.breaker is not None
    begun_s = time.monotonic()
    await watcher.demo.breaker.do(what, node)
    right_s = await watcher.until(f"{what} of {node}", lambda view: names(view, node, codes), last_s)
    assert right_s - begun_s < KNOWABLE_S + RIGHT_WITHIN_S
    await asyncio.sleep(max(0.0, begun_s + last_s - 1.0 - time.monotonic()))
    during = [(at_s, view) for at_s, view in watcher.looks if right_s <= at_s < begun_s + last_s - 1.0]
    assert during
    for at_s, view in during:
        said = (what, node, round(at_s - begun_s, 1), view.sentence, view.problems)
        assert not says_in_step(view), said
        assert names(view, node, codes), said
        assert all(one.next_step for one in view.problems), said
        assert {one.member for one in view.problems if one.severity == "attention"} <= {node, None}, said
    await watcher.in_step()
    return right_s - begun_s


def follower_of(watcher: Watcher) -> str:
    return next(one.id for one in reversed(watcher.view.members) if one.id != watcher.view.leader_id)


def test_the_sentence_names_who_is_silent_cut_off_or_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(watcher: Watcher) -> None:
        node = follower_of(watcher)
        took = {"pause": await broken(watcher, "pause", node, {"replica_silent", "cut_off"})}
        took["slow"] = await broken(watcher, "slow", follower := follower_of(watcher), {"slow_link"})
        took["partition"] = await broken(watcher, "partition", follower, {"cut_off"})
        leader = watcher.view.leader_id
        took["partition of the leader"] = await broken(watcher, "partition", leader, {"cut_off"})
        print({what: round(seconds, 1) for what, seconds in took.items()})

    run(tmp_path, monkeypatch, work)


def test_status_says_the_same_and_a_kill_accuses_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(watcher: Watcher) -> None:
        assert watcher.demo.breaker is not None
        assert pressing_of(await look_closely(watcher.demo.target)) == []
        node = follower_of(watcher)
        await watcher.demo.breaker.do("slow", node)
        await watcher.until("slow for the console", lambda view: names(view, node, {"slow_link"}))
        summary = await look_closely(watcher.demo.target)
        assert [(one.code, one.member) for one in pressing_of(summary)] == [("slow_link", node)]
        await watcher.in_step()
        begun, killed = len(watcher.looks), follower_of(watcher)
        await watcher.demo.breaker.do("kill", killed)
        await asyncio.sleep(3)
        await watcher.in_step()
        for _, view in watcher.looks[begun:]:
            assert {one.member for one in view.problems} <= {killed, None}, view.problems

    run(tmp_path, monkeypatch, work)


def test_a_flipped_bit_is_told_once_somebody_has_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(watcher: Watcher) -> None:
        assert watcher.demo.breaker is not None
        await asyncio.sleep(2)
        flipped = await watcher.demo.breaker.do("flip", follower_of(watcher))
        begun = len(watcher.looks)
        async with httpx2.AsyncClient(trust_env=False) as client:
            url = watcher.demo.members[flipped.node].control_url
            answer = await client.post(f"{url}/api/v1/scrub", headers={"content-type": "application/json"}, timeout=10)
            assert answer.status_code == 202, answer.text
        await asyncio.sleep(3)
        await watcher.in_step()
        for _, view in watcher.looks[begun:]:
            assert {one.member for one in view.problems} <= {flipped.node, None}, view.problems
            damaged = [one for one in view.members if one.state is not None and one.state.faults]
            assert not (damaged and says_in_step(view)), "a member with a fault that it tells is not in step"

    run(tmp_path, monkeypatch, work)
