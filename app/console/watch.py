"""A watched group: its pollers, its memory of the last minute, its newest GroupView.

Invariants: `view` is replaced whole, never edited, so that whoever renders it sees one moment; problems that open or
close become events of the console itself; who is asked follows the configuration in the leader's log, and one that is
no member is asked for as long as it answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from app.console.addresses import Addresses, normal_control_url
from app.console.aggregate import ClusterInfo, find_leader, group_view, member_ids
from app.console.beat import Beat
from app.console.errors import Invalid
from app.console.nodes import Nodes
from app.console.sample import NodeSample
from app.console.sampler import Poller
from app.console.verdict import conclude
from app.health.classify import classify
from app.health.clock_steps import ClockStep, WallClock, boot_s
from app.health.facts import seconds_since, spell
from app.health.foreign import OTHER_GROUP, OTHER_NAME
from app.health.group_view import AuditView, GroupView, Incident, Problem
from app.health.incidents import Incidents, event_of_incident
from app.health.recall import Recall
from app.times import rfc3339, time_of, utc_now
from node.background import Background
from node.protocol.group_members import MEMBERS_MAX
from node.views.base import TEXT_MAX, JsonObject
from node.views.events import EventView
from node.views.state import StateView

# (cluster_id, node_id or None, events as nodes give them)
EventSink = Callable[[str, str | None, Sequence[EventView]], None]
AddressSink = Callable[[str, NodeSample], None]
GroupIdSink = Callable[[str, str], None]
# (cluster_id, who is asked from now on, the id of one that is not any more)
MembersSink = Callable[[str, NodeSample | None, str | None], None]
# The fields of a problem that people set: `acknowledged_by`, `muted_until`.
Note = Mapping[str, str | None]
MISSES_UNTIL_NEXT_ADDRESS = 10


class Watch:
    """Owns the pollers of one cluster."""

    def __init__(
        self,
        info: ClusterInfo,
        members: list[NodeSample],
        nodes: Nodes,
        interval_s: float,
        *,
        addresses: Addresses,
        on_events: EventSink,
        on_address: AddressSink,
        on_group_id: GroupIdSink = lambda _cluster_id, _group_id: None,
        on_members: MembersSink = lambda _cluster_id, _joined, _left: None,
        audits: Mapping[str, AuditView | None] | None = None,
        recent: Mapping[str, tuple[Incident, ...]] | None = None,
        notes: Mapping[tuple[str, str], Note] | None = None,
    ) -> None:
        self.addresses = addresses
        self.notes = {} if notes is None else notes
        self.on_group_id, self.on_members = on_group_id, on_members
        self.nodes = nodes
        self.known: frozenset[str] | None = None  # the members, as a leader said last
        self.info = info
        self.interval_s = interval_s
        self.recall = Recall()
        self.on_events = on_events
        self.on_address = on_address
        self.pollers = {one.node_id: self.poller(one) for one in members}
        self.audits = {} if audits is None else audits
        self.recent = {} if recent is None else recent
        self.incidents, self.clock = Incidents(), WallClock()
        self.beat, self.background, self.started = Beat(), Background(), False
        self.view = self.assemble()

    def poller(self, sample: NodeSample) -> Poller:
        sample.interval_s = self.interval_s
        return Poller(sample, self.nodes, self.interval_s, self.node_events, self.of_another_group)

    @property
    def samples(self) -> list[NodeSample]:
        return [one.sample for one in self.pollers.values()]

    def start(self) -> None:
        self.started = True
        self.background.keep("the beat", self.beat.run)
        for poller in self.pollers.values():
            poller.start()

    async def stop(self) -> None:
        await asyncio.gather(self.background.stop(), *(one.stop() for one in self.pollers.values()))

    def rename(self, name: str) -> None:
        self.info = replace(self.info, name=name)

    def of_another_group(self, state: StateView) -> str:
        """Of which other group a state is, in words; "": of this one, as far as it says. The first id that a member
        reports is kept (SAFETY C9)."""
        if state.engine == "ok" and state.group not in (None, self.info.group):
            return f"{OTHER_NAME}{state.group!r}"
        reported = state.group_id
        if reported is None:
            return ""
        if self.info.group_id is None:
            self.info = replace(self.info, group_id=reported)
            self.on_group_id(self.info.id, reported)
        return "" if reported == self.info.group_id else OTHER_GROUP

    def follow(self, name: str, control_urls: dict[str, str | None]) -> bool:
        """Takes over a name and addresses; False when the members differ, and a new watch is needed."""
        if set(control_urls) != set(self.pollers):
            return False
        self.rename(name)
        for node_id, url in control_urls.items():
            self.pollers[node_id].sample.control_url = url
        return True

    def node_events(self, node_id: str, items: Sequence[EventView]) -> None:
        self.on_events(self.info.id, node_id, items)

    def assemble(self) -> GroupView:
        """A new view from the samples as they are now."""
        now, at_s = utc_now(), time.monotonic()
        step = self.clock.look(now, boot_s())
        if step is not None:
            self.clock_set(step)
        self.learn_members(now)
        self.learn_addresses()
        for one in self.samples:
            one.stood_still_s = self.beat.stood_still_s(one.last_seen_ns)
        info = replace(self.info, shows_token=self.addresses.has_token(self.info.id))
        view = group_view(info, self.samples, now, self.known)
        if self.info.id in self.audits:
            view = view.model_copy(update={"audit": self.audits[self.info.id]})
        self.recall.observe(view, at_s, now)
        recent = self.recent.get(self.info.id, ())
        view = view.model_copy(update={"leader_since": self.leader_since(view), "recent": recent})
        self.view = view = self.with_notes(conclude(classify(view, self.recall, now)))
        self.note_problems(view.as_of)
        over = self.incidents.observe(view, now, self.recall.began)
        if over is not None:
            self.on_events(self.info.id, None, [event_of_incident(over)])
        return view

    def clock_set(self, step: ClockStep) -> None:
        """All that is remembered by wall time."""
        for sample in self.samples:
            sample.move(step)
        self.recall.move(step)
        self.incidents.move(step)

    def with_notes(self, view: GroupView) -> GroupView:
        """With what people said of the problems: who has taken one on, until when one is muted."""
        noted = {one.id: self.notes.get((self.info.id, one.id)) for one in view.problems}
        if not any(noted.values()):
            return view
        problems = tuple(one.model_copy(update=dict(noted[one.id] or {})) for one in view.problems)
        return view.model_copy(update={"problems": problems})

    def leader_since(self, view: GroupView) -> str | None:
        """The leader's own word goes back further than what this console saw."""
        reported = view.leader.state.role_since if view.leader is not None and view.leader.state is not None else None
        seen = self.recall.leader_since
        return reported or (seen.isoformat() if seen else None)

    def learn_members(self, now: datetime) -> None:
        """Who the leader's log names is asked from now on; who it does not name, and does not answer, is forgotten."""
        leader = find_leader(self.samples, now)
        named = member_ids(leader)
        if leader is None or leader.state is None or named is None or len(named) > MEMBERS_MAX:
            return
        self.known = named
        for peer in leader.state.peers or ():
            if peer.id not in self.pollers:
                sample = NodeSample(peer.id, peer.address or "", None, added_at=now)
                self.pollers[peer.id] = self.poller(sample)
                self.on_members(self.info.id, sample, None)
                if self.started:
                    self.pollers[peer.id].start()
        for one in self.samples:
            if one.node_id not in named and one.reach != "ok":
                gone = self.pollers.pop(one.node_id)
                self.background.run(f"ending the questions to {one.node_id}", gone.stop())
                self.on_members(self.info.id, None, one.node_id)

    def learn_addresses(self) -> None:
        """Members tell each other's control planes: a node that came back elsewhere is found again, there where it may
        be asked."""
        reported: dict[str, list[tuple[str, str, str]]] = {}
        for teller in self.samples:
            if teller.reach != "ok" or teller.state is None:
                continue
            for peer in teller.state.peers or ():
                if peer.control_url:
                    try:
                        url = normal_control_url(peer.control_url)
                    except Invalid:
                        continue  # nothing that could be asked
                    reported.setdefault(peer.id, []).append((url, peer.address or "", teller.node_id))
        for node_id, addresses in reported.items():
            poller = self.pollers.get(node_id)
            if poller is not None and poller.sample.reach != "ok":
                self.try_another(poller.sample, addresses)

    def try_another(self, sample: NodeSample, addresses: list[tuple[str, str, str]]) -> None:
        """An address nobody names any more is left at once, one that is disputed after some misses; a new one waits."""
        others = [one for one in addresses if one[0] != sample.control_url]
        named = len(others) < len(addresses)
        allowed = [
            one
            for one in others
            if self.addresses.named(self.info.id, sample.node_id, one[0], by=one[2], first=sample.control_url is None)
        ]
        sample.waiting_url = self.addresses.waits_for(self.info.id, sample.node_id)
        if not allowed or (named and sample.misses % MISSES_UNTIL_NEXT_ADDRESS != MISSES_UNTIL_NEXT_ADDRESS - 1):
            return
        self.move(sample, *allowed[0][:2])

    def approved(self, control_url: str, node_id: str | None) -> None:
        """An admin approved an address: the node that it was named for is asked there, unless it answers elsewhere."""
        for sample in self.samples:
            sample.waiting_url = self.addresses.waits_for(self.info.id, sample.node_id)
            if sample.node_id == node_id and sample.reach != "ok" and sample.control_url != control_url:
                self.move(sample, control_url)

    def withdrawn(self, control_url: str) -> None:
        for sample in self.samples:
            if sample.control_url == control_url:
                self.move(sample, None)
            sample.waiting_url = self.addresses.waits_for(self.info.id, sample.node_id)

    def token_changed(self) -> None:
        """An address that may not be asked any more waits."""
        for sample in self.samples:
            url = sample.control_url
            if url is not None and not self.addresses.named(
                self.info.id, sample.node_id, url, by="an earlier first use", first=False
            ):
                self.move(sample, None)

    def move(self, sample: NodeSample, control_url: str | None, address: str = "") -> None:
        """From now on the node is asked there."""
        sample.control_url, sample.address = control_url, address or sample.address
        sample.waiting_url = self.addresses.waits_for(self.info.id, sample.node_id)
        sample.misses += 1
        self.on_address(self.info.id, sample)

    def note_problems(self, as_of: str) -> None:
        """Problems that opened, and those that are known to be over, as events."""
        openings = self.recall.openings
        events = [opened(one, as_of) for one in openings.opened]
        events += [closed(one, rfc3339(at)) for one, at in openings.closed]
        if events:
            self.on_events(self.info.id, None, events)


def opened(problem: Problem, at: str) -> EventView:
    weight = {"critical": "critical", "attention": "warning", "unknown": "warning"}.get(problem.severity, "info")
    return event_of("problem_opened", weight, problem.what, problem, at)


def closed(problem: Problem, at: str) -> EventView:
    return event_of("problem_closed", "info", f"Over after {lasted(problem, at)}: {problem.what}", problem, at)


def lasted(problem: Problem, until: str) -> str:
    """From when it began until it was over, whoever looked in between."""
    since, over = time_of(problem.since), time_of(until)
    if since is None or over is None:
        return "an unknown time"
    seconds = seconds_since(since, over)
    return spell(seconds) if seconds >= 1 else "less than a second"


def event_of(kind: str, severity: str, text: str, problem: Problem, at: str) -> EventView:
    detail: JsonObject = {"code": problem.code, "node_id": problem.node_id, "since": problem.since}
    return EventView(id=None, at=at, kind=kind, severity=severity, text=text[:TEXT_MAX], detail=detail)
