"""Samples the control planes: one poller per node, so that a silent one delays nobody.

Invariants: a poller has one round in flight, and goes on whatever it is answered: what is no answer counts as a miss,
and the sample says why. What a node said last stays until it says something new; how old that is,
`NodeSample` knows: three missed samples make it stale. Only a leader is asked for watermarks, dispatchers and closures.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from app.console.errors import ConsoleError, NodeUnreachable
from app.console.nodes import Nodes
from app.console.sample import NodeSample
from app.console.shapes import SHAPES, misfit
from app.db.base import utc_now
from node.background import Background, reason_of

log = logging.getLogger(__name__)

EVENTS_EVERY_ROUNDS = 4
EVENTS_LIMIT = 200

Json = dict[str, Any]
EventSink = Callable[[str, list[Json]], None]


class Poller:
    """Polls one node until it is stopped."""

    def __init__(
        self, sample: NodeSample, nodes: Nodes, interval_s: float, on_events: EventSink,
        is_of_this_group: Callable[[Json], bool] = lambda _state: True,
    ) -> None:  # fmt: skip
        self.is_of_this_group = is_of_this_group
        self.sample = sample
        self.nodes = nodes
        self.interval_s = interval_s
        self.on_events = on_events
        self.background = Background()

    def start(self) -> None:
        self.background.keep(f"polling {self.sample.node_id}", self.run)

    async def stop(self) -> None:
        await self.background.stop()

    async def run(self) -> None:
        while True:
            started = time.monotonic()
            try:
                await self.round()
            except Exception as error:
                if self.sample.problem != reason_of(error):  # once, not with every sample
                    log.exception("polling %s failed", self.sample.node_id)
                self.sample.misses += 1
                self.sample.problem = reason_of(error)
            await asyncio.sleep(max(0.05, self.interval_s - (time.monotonic() - started)))

    async def round(self) -> None:
        """One sample: state first, the leader's views with it, events now and then."""
        sample = self.sample
        if sample.control_url is None:
            sample.problem = "no member has named its control plane's address"
            return
        try:
            state = await self.ask("state")
        except ConsoleError as error:
            sample.misses += 1
            sample.problem = error.detail
            return
        if state.get("self_id", sample.node_id) != sample.node_id:
            sample.misses += 1
            sample.problem = f"{sample.control_url} is {state.get('self_id')}, not {sample.node_id}"
            return
        if not self.is_of_this_group(state):
            sample.misses += 1
            sample.problem = f"{sample.control_url} belongs to another group of this name"
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
        answers = await asyncio.gather(*map(self.ask, names), return_exceptions=True)
        for name, answer in zip(names, answers, strict=True):
            setattr(self.sample, name, answer if isinstance(answer, dict) else None)
            if isinstance(answer, BaseException):
                self.sample.untold[name] = answer.detail if isinstance(answer, ConsoleError) else reason_of(answer)
            else:
                self.sample.untold.pop(name, None)

    async def poll_events(self) -> None:
        sample = self.sample
        try:
            answer = await self.ask("events", limit=EVENTS_LIMIT, cursor=sample.events_cursor)
        except ConsoleError as error:
            sample.untold["events"] = error.detail
            return
        sample.untold.pop("events", None)
        items = answer.get("items") or []
        if items:
            self.on_events(sample.node_id, items)
        sample.events_cursor = answer.get("next") or sample.events_cursor

    async def ask(self, what: str, **params: Any) -> Json:
        """A resource of this node, in the shape that the console counts with. Raises ConsoleError."""
        assert self.sample.control_url is not None
        answer = await self.nodes.get(self.sample.control_url, what, **params)
        wrong = misfit(answer, SHAPES[what])
        if wrong is not None:
            raise NodeUnreachable(f"{self.sample.control_url} answers an odd {what}: {wrong}", code="odd_answer")
        return answer
