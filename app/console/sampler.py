"""Samples the control planes: one poller per node, so that a silent one delays nobody.

Invariants: a poller has one round in flight. What a node said last stays until it says something new; how old that is,
`NodeSample` knows: three missed samples make it stale. Only a leader is asked for watermarks, dispatchers and closures.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from app.console.errors import ConsoleError
from app.console.nodes import Nodes
from app.db.base import utc_now

MISSES_UNTIL_STALE = 3
EVENTS_EVERY_ROUNDS = 4
EVENTS_LIMIT = 200

Json = dict[str, Any]
EventSink = Callable[[str, list[Json]], None]


@dataclass(slots=True)
class NodeSample:
    """What one node said last, and when."""

    node_id: str
    address: str
    control_url: str | None
    added_at: datetime = field(default_factory=utc_now)
    last_seen: datetime | None = None
    last_seen_ns: int | None = None
    misses: int = 0
    problem: str | None = None
    state: Json | None = None
    watermarks: Json | None = None
    dispatchers: Json | None = None
    closures: Json | None = None
    events_cursor: str | None = None
    rounds: int = 0

    @property
    def reach(self) -> str:
        """ok | stale | never | down (the control plane answers, its engine does not run)."""
        if self.last_seen is None:
            return "never"
        if self.misses >= MISSES_UNTIL_STALE:
            return "stale"
        engine = (self.state or {}).get("engine", "ok")
        return {"ok": "ok", "stale": "stale"}.get(engine, "down")

    @property
    def leads(self) -> bool:
        return self.reach == "ok" and (self.state or {}).get("role") == "LEADER"


class Poller:
    """Polls one node until it is stopped."""

    def __init__(self, sample: NodeSample, nodes: Nodes, interval_s: float, on_events: EventSink) -> None:
        self.sample = sample
        self.nodes = nodes
        self.interval_s = interval_s
        self.on_events = on_events
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.task = asyncio.create_task(self.run(), name=f"poll {self.sample.node_id}")

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.task

    async def run(self) -> None:
        while True:
            started = time.monotonic()
            await self.round()
            await asyncio.sleep(max(0.05, self.interval_s - (time.monotonic() - started)))

    async def round(self) -> None:
        """One sample: state first, the leader's views with it, events now and then."""
        sample = self.sample
        if sample.control_url is None:
            sample.problem = "no member has named its control plane's address"
            return
        try:
            state = await self.nodes.get(sample.control_url, "state")
        except ConsoleError as error:
            sample.misses += 1
            sample.problem = error.detail
            return
        if state.get("self_id", sample.node_id) != sample.node_id:
            sample.misses += 1
            sample.problem = f"{sample.control_url} is {state.get('self_id')}, not {sample.node_id}"
            return
        sample.state = state
        sample.misses, sample.problem = 0, None
        sample.last_seen, sample.last_seen_ns = utc_now(), time.monotonic_ns()
        sample.rounds += 1
        if sample.leads:
            await self.leader_views()
        if sample.rounds % EVENTS_EVERY_ROUNDS == 1:
            await self.poll_events()

    async def leader_views(self) -> None:
        """Each view on its own: one that fails leaves the others and its own last answer is dropped."""
        names = ("watermarks", "dispatchers", "closures")
        assert self.sample.control_url is not None
        answers = await asyncio.gather(
            *(self.nodes.get(self.sample.control_url, name) for name in names), return_exceptions=True
        )
        for name, answer in zip(names, answers, strict=True):
            setattr(self.sample, name, answer if isinstance(answer, dict) else None)

    async def poll_events(self) -> None:
        sample = self.sample
        assert sample.control_url is not None
        with contextlib.suppress(ConsoleError):
            answer = await self.nodes.get(sample.control_url, "events", limit=EVENTS_LIMIT, cursor=sample.events_cursor)
            items = answer.get("items") or []
            if items:
                self.on_events(sample.node_id, items)
            sample.events_cursor = answer.get("next") or sample.events_cursor
