"""Samples the control planes: one poller per node, so that a silent one delays nobody.

Invariants: a poller has one round in flight, and goes on whatever it is answered: what is no answer counts as a miss,
and the sample says why. What a node said last stays until it says something new; how old that is,
`NodeSample` knows: three missed samples make it stale. Only a leader is asked for watermarks, dispatchers and closures.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from app.console.errors import ConsoleError, NodeUnreachable, NothingListens
from app.console.nodes import NodeRefused, Nodes
from app.console.pair_asking import ask_either
from app.console.sample import NodeSample
from app.console.their_clock import TheirClock, clock_of
from app.health.clock_steps import boot_ns
from app.times import utc_now
from node.background import Background, reason_of
from node.views.base import AnswerView
from node.views.closures import ClosuresView
from node.views.events import EventsView, EventView
from node.views.kinds import VIEWS
from node.views.members import MembersView
from node.views.reading import Unreadable, read
from node.views.replication import DispatchersView, WatermarksView
from node.views.state import StateView

log = logging.getLogger(__name__)

EVENTS_EVERY_ROUNDS = 4
EVENTS_LIMIT = 100  # with the longest details (16 KiB) they are as long as an answer may be
CONFIGURATION_EVERY_ROUNDS = 2

V = TypeVar("V", bound=AnswerView)
EventSink = Callable[[str, Sequence[EventView]], None]
NAMES: Mapping[type[AnswerView], str] = {view: name for name, view in VIEWS.items()}


class Poller:
    """Polls one node until it is stopped."""

    def __init__(
        self, sample: NodeSample, nodes: Nodes, interval_s: float, on_events: EventSink,
        of_another_group: Callable[[StateView], str] = lambda _state: "",
    ) -> None:  # fmt: skip
        self.of_another_group = of_another_group
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
                self.sample.missed(reason_of(error))
            await asyncio.sleep(max(0.05, self.interval_s - (time.monotonic() - started)))

    async def round(self) -> None:
        """One sample: state first, the leader's views with it, events now and then."""
        sample = self.sample
        if sample.control_url is None:
            sample.missed(waits(sample) or "no member has named its control plane's address")
            return
        asked_at, asked_s = utc_now(), time.monotonic()
        try:
            known = sample.ha is not None
            state, ha = await ask_either(self.nodes, sample.control_url, is_classic=known)
        except ConsoleError as error:
            why = "; ".join(said for said in (error.detail, waits(sample)) if said)
            sample.missed(why, what_answers(error), is_gone=isinstance(error, NothingListens))
            return
        if state.self_id != sample.node_id:
            sample.missed(f"{sample.control_url} is {state.self_id}, not {sample.node_id}")
            return
        if of_another := self.of_another_group(state):
            sample.missed(f"{sample.control_url}{of_another}")
            return
        sample.certificate_ends = self.nodes.certificate_ends.get(sample.control_url)
        sample.clock = clock_of(state, asked_at, time.monotonic() - asked_s)
        sample.last_clock = sample.clock or sample.last_clock
        if sample.ha is not None and sample.ha.broker == "ok":
            sample.ha_before = sample.ha
        sample.state, sample.ha = state, ha
        sample.misses, sample.missed_at, sample.problem, sample.answers = 0, None, None, None
        sample.last_seen, sample.last_seen_ns = utc_now(), boot_ns()
        sample.drop_what_another_term_said()
        sample.rounds += 1
        if sample.ha is not None:
            return
        if sample.leads:
            await self.leader_views()
            if sample.rounds % CONFIGURATION_EVERY_ROUNDS == 1 or sample.configuration is None:
                await self.ask_configuration()
        if sample.rounds % EVENTS_EVERY_ROUNDS == 1:
            await self.poll_events()

    async def leader_views(self) -> None:
        """Each view on its own: one that fails leaves the others and its own last answer is dropped."""
        sample = self.sample
        sample.watermarks, sample.dispatchers, sample.closures = await asyncio.gather(
            self.reported(WatermarksView), self.reported(DispatchersView), self.reported(ClosuresView)
        )

    async def ask_configuration(self) -> None:
        """Older releases know no such view: who does not tell it is not called wrong for that."""
        try:
            self.sample.configuration = await self.said_now(MembersView)
        except Exception as error:
            log.debug("%s tells no configuration: %s", self.sample.node_id, reason_of(error))
            self.sample.configuration = None

    async def reported(self, view: type[V]) -> V | None:
        """None where the node did not answer; the sample says why."""
        name = NAMES[view]
        try:
            answer = await self.said_now(view)
        except ConsoleError as error:
            self.sample.unanswered[name] = error.detail
        except Exception as error:
            self.sample.unanswered[name] = reason_of(error)
        else:
            self.sample.unanswered.pop(name, None)
            return answer
        return None

    async def poll_events(self) -> None:
        sample = self.sample
        try:
            answer = await self.ask(EventsView, limit=EVENTS_LIMIT, cursor=sample.events_cursor)
        except ConsoleError as error:
            sample.unanswered["events"] = error.detail
            return
        sample.unanswered.pop("events", None)
        if answer.items:
            self.on_events(sample.node_id, TheirClock(sample.last_clock).each(answer.items, "at"))
        sample.events_cursor = answer.next or sample.events_cursor

    async def said_now(self, view: type[V]) -> V:
        """What its engine says now: in place of an answer a control plane gives what it said last, be it hours ago.
        Raises ConsoleError."""
        answer = await self.ask(view)
        if answer.engine not in (None, "ok"):
            raise NodeUnreachable(f"its engine is {answer.engine}: {answer.engine_reason}", code=answer.engine)
        return answer

    async def ask(self, view: type[V], **params: Any) -> V:
        """A resource of this node. Raises ConsoleError."""
        assert self.sample.control_url is not None
        return await ask(self.nodes, self.sample.control_url, view, **params)


def what_answers(error: ConsoleError) -> str | None:
    """What the control plane does in place of telling its state; None: nothing answers."""
    if isinstance(error, NodeRefused):
        return "refuses" if error.node_status in (401, 403) else "errs"
    return None if error.code in (None, "timeout", "unreachable") else "errs"


def waits(sample: NodeSample) -> str | None:
    if sample.waiting_url is None:
        return None
    return f"the address {sample.waiting_url}, which a member named for it, waits for an admin's approval"


async def ask(nodes: Nodes, control_url: str, view: type[V], *, token: str | None = None, **params: Any) -> V:
    """One view of one node. Raises ConsoleError, also for what cannot be read."""
    name = NAMES[view]
    try:
        return read(view, await nodes.json("GET", control_url, name, params=params, token=token))
    except Unreadable as error:
        raise NodeUnreachable(f"{control_url}: its {name} cannot be read: {error}", code="odd_answer") from None
