"""One group under watch: its pollers, its memory, its newest GroupView.

Invariants: `view` is replaced whole, never edited, so that whoever renders it sees one moment; problems that open or
close become events of the console itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from app.console.aggregate import ClusterInfo, group_view, lag_entries
from app.console.errors import Invalid
from app.console.nodes import Nodes, normal_control_url
from app.console.sample import NodeSample
from app.console.sampler import Poller
from app.console.verdict import conclude
from app.db.base import utc_now
from app.health.classify import classify
from app.health.facts import seconds_since, spell, time_of
from app.health.recall import Recall

Json = dict[str, Any]
# (cluster_id, node_id or None, events as nodes give them)
EventSink = Callable[[str, str | None, list[Json]], None]
AddressSink = Callable[[str, NodeSample], None]
GroupIdSink = Callable[[str, str], None]
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
        on_events: EventSink,
        on_address: AddressSink,
        on_group_id: GroupIdSink = lambda _cluster_id, _group_id: None,
        audits: Mapping[str, Json | None] | None = None,
    ) -> None:
        self.on_group_id = on_group_id
        self.info = info
        self.interval_s = interval_s
        self.recall = Recall()
        self.on_events = on_events
        self.on_address = on_address
        for one in members:
            one.interval_s = interval_s
        self.pollers = {
            one.node_id: Poller(one, nodes, interval_s, self.node_events, self.is_of_this_group) for one in members
        }
        self.audits = {} if audits is None else audits
        self.problem_ids: dict[str, Json] | None = None
        self.view: Json = {}
        self.assemble()

    @property
    def samples(self) -> list[NodeSample]:
        return [one.sample for one in self.pollers.values()]

    def start(self) -> None:
        for poller in self.pollers.values():
            poller.start()

    async def stop(self) -> None:
        await asyncio.gather(*(one.stop() for one in self.pollers.values()))

    def rename(self, name: str) -> None:
        self.info = replace(self.info, name=name)

    def is_of_this_group(self, state: Json) -> bool:
        """Whether a state is of this group, as far as it says; the first id that is told is kept (SAFETY C9)."""
        told = state.get("group_id")
        if told is None:
            return True
        if self.info.group_id is None:
            self.info = replace(self.info, group_id=str(told))
            self.on_group_id(self.info.id, str(told))
        return bool(told == self.info.group_id)

    def follow(self, name: str, control_urls: dict[str, str | None]) -> bool:
        """Takes over a name and addresses; False when the members differ, and a new watch is needed."""
        if set(control_urls) != set(self.pollers):
            return False
        self.rename(name)
        for node_id, url in control_urls.items():
            self.pollers[node_id].sample.control_url = url
        return True

    def node_events(self, node_id: str, items: list[Json]) -> None:
        self.on_events(self.info.id, node_id, items)

    def assemble(self) -> Json:
        """A new view from the samples as they are now."""
        now, at_s = utc_now(), time.monotonic()
        self.learn_addresses()
        view = group_view(self.info, self.samples, now)
        if self.info.id in self.audits:
            view["audit"] = self.audits[self.info.id]
        lags = {one["id"]: lag_entries(view, one) for one in view["members"]}
        self.recall.observe(view, lags, at_s, now)
        since = self.recall.leader_since
        view["leader_since"] = self.leader_since_told(view) or (since.isoformat() if since else None)
        view["problems"] = classify(view, self.recall, now)
        conclude(view)
        self.note_problems(view)
        self.view = view
        return view

    def leader_since_told(self, view: Json) -> str | None:
        """The leader's own word goes back further than what this console saw."""
        leader = next((one for one in view["members"] if one["id"] == view["leader_id"]), None)
        told = ((leader or {}).get("state") or {}).get("role_since")
        return told if isinstance(told, str) else None

    def learn_addresses(self) -> None:
        """Members tell each other's control planes: a node that came back elsewhere is found again."""
        told: dict[str, list[tuple[str, str]]] = {}
        for teller in self.samples:
            for peer in (teller.state or {}).get("peers") or [] if teller.reach == "ok" else []:
                if peer.get("control_url"):
                    try:
                        url = normal_control_url(peer["control_url"])
                    except Invalid:
                        continue  # nothing that could be asked
                    told.setdefault(str(peer.get("id")), []).append((url, str(peer.get("address") or "")))
        for node_id, addresses in told.items():
            poller = self.pollers.get(node_id)
            if poller is not None and poller.sample.reach != "ok":
                self.try_another(poller.sample, addresses)

    def try_another(self, sample: NodeSample, addresses: list[tuple[str, str]]) -> None:
        """An address nobody names any more is left at once, one that is disputed after some misses."""
        others = [one for one in addresses if one[0] != sample.control_url]
        named = len(others) < len(addresses)
        if not others or (named and sample.misses % MISSES_UNTIL_NEXT_ADDRESS != MISSES_UNTIL_NEXT_ADDRESS - 1):
            return
        sample.control_url, sample.address = others[0][0], others[0][1] or sample.address
        sample.misses += 1
        self.on_address(self.info.id, sample)

    def note_problems(self, view: Json) -> None:
        """Opened and closed problems, as events; the first view only sets the mark."""
        now_open = {one["id"]: one for one in view["problems"]}
        before, self.problem_ids = self.problem_ids, now_open
        if before is None:
            return
        events = [event_of("problem_opened", one, view["as_of"]) for key, one in now_open.items() if key not in before]
        events += [event_of("problem_closed", one, view["as_of"]) for key, one in before.items() if key not in now_open]
        if events:
            self.on_events(self.info.id, None, events)


def lasted(problem: Json, until: str) -> str:
    """From when it began until it was over, whoever looked in between."""
    since, over = time_of(problem["since"]), time_of(until)
    return "an unknown time" if since is None or over is None else spell(seconds_since(since, over))


def event_of(kind: str, problem: Json, at: str) -> Json:
    weight = {"critical": "critical", "attention": "warning", "unknown": "warning"}.get(problem["severity"], "info")
    return {
        "id": None,
        "at": at,
        "kind": kind,
        "severity": weight if kind == "problem_opened" else "info",
        "text": problem["what"] if kind == "problem_opened" else f"Over after {lasted(problem, at)}: {problem['what']}",
        "detail": {key: problem[key] for key in ("code", "node_id", "since")},
    }
