"""A demo without pages, and a console that looks at it: what is said of a real group, look by look.

`Observer` reads the group as the console does (the same pollers, rules and sentence), twice a second, and keeps each
view with its time. `bench sentences` and tests of sentences stand on it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

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
from node.background import Background
from node.views.events import EventView

LOOK_EVERY_S: Final = 0.5
WAIT_S: Final = 120.0
CALM_LOOKS: Final = 4
STOOD_STILL_MS: Final = 800  # who was not given the processor for so long is taken for silent, and rightly


class Observer:
    """Looks at the group as the console does and keeps what it read."""

    def __init__(self, demo: Demo, watch: Watch, events: list[EventView], audits: dict[str, AuditView | None]) -> None:
        self.demo, self.watch, self.events, self.audits = demo, watch, events, audits
        self.looks: list[tuple[float, GroupView]] = []

    async def run(self) -> None:
        while True:
            self.looks.append((time.monotonic(), self.watch.assemble()))
            await asyncio.sleep(LOOK_EVERY_S)

    @property
    def view(self) -> GroupView:
        return self.looks[-1][1]

    async def until(self, what: str, true: Callable[[GroupView], bool], seconds: float = WAIT_S) -> int:
        """The number of the first look, from now on, at which it was so. Raises TimeoutError."""
        at, deadline = len(self.looks), time.monotonic() + seconds
        while time.monotonic() < deadline:
            while at < len(self.looks):
                if true(self.looks[at][1]):
                    return at
                at += 1
            await asyncio.sleep(0.1)
        raise TimeoutError(f"never {what}: {self.view.sentence}, {self.view.unproven}, {self.view.problems}")

    async def in_step(self) -> None:
        await self.until("in step", says_in_step)

    def forget(self) -> None:
        """What was read so far."""
        del self.looks[:-1]

    async def calm(self) -> None:
        """Until all is well for some looks in a row."""
        begun = len(self.looks)

        def is_calm(_view: GroupView) -> bool:
            newest = self.looks[max(begun, len(self.looks) - CALM_LOOKS) :]
            return len(newest) == CALM_LOOKS and all(says_in_step(view) for _, view in newest)

        await self.until("in step for a while", is_calm)

    def longest_gaps_ms(self) -> dict[str, float]:
        """For how long each engine's ticks stood still at most since it started, as it says."""
        states = [one.state for one in self.view.members if one.state is not None]
        return {one.self_id: float(one.tick_gap_max_ms or 0) for one in states}

    def may_be_accused(self, node: str, before: Mapping[str, float] = MappingProxyType({})) -> set[str | None]:
        """Who was broken, and who was not given the processor for a while, since `before`."""
        now = self.longest_gaps_ms()
        stood = {one for one, gap in now.items() if gap > max(STOOD_STILL_MS, before.get(one, 0.0))}
        return {node, None} | stood


def says_in_step(view: GroupView) -> bool:
    return "in step." in view.sentence.headline and "not known" not in view.sentence.headline


def names(view: GroupView, node: str, codes: frozenset[str] | set[str]) -> bool:
    return any(one.code in codes and one.member == node for one in view.problems)


@asynccontextmanager
async def observed(directory: Path, options: DemoOptions) -> AsyncIterator[Observer]:
    """A demo in `directory` with those options, looked at, in step."""
    demo = Demo(options, directory, lambda _text: None)
    nodes = Nodes(ConsoleSettings())
    try:
        await demo.start()
        samples = [NodeSample(one.id, one.address, one.control_url) for one in demo.members.values()]
        events: list[EventView] = []
        audits: dict[str, AuditView | None] = {}
        urls = [one.control_url for one in demo.members.values()]
        kept = open_sessions(open_engine(f"sqlite:///{directory / 'observer.db'}"))
        watch = Watch(
            ClusterInfo("demo", "demo", "demo", demo=True), samples, nodes, LOOK_EVERY_S,
            addresses=Addresses(kept, Seal(directory / "key"), None, urls),
            on_events=lambda _cluster, node, items: events.extend(items if node is None else []),
            on_address=lambda _cluster, _sample: None,
            audits=audits,
        )  # fmt: skip
        watch.start()
        one = Observer(demo, watch, events, audits)
        looking = Background()
        looking.keep("looking", one.run)
        try:
            await one.until("looked at", lambda _view: True)
            await one.in_step()
            yield one
        finally:
            await looking.stop()
            await watch.stop()
    finally:
        await nodes.close()
        await demo.stop()
