"""Incidents: from when something pressing began, or the leader changed, until nothing is pressing any more. Pure.

What an incident cost is measured from the samples: writes pause from the last look at which they got through until
they get through again, or until the member that leads now became leader, by its own word. Invariants: one incident at
a time; problems that follow each other within `QUIET_S` are one; an open finding of an audit is no incident, for it
cost nothing that passes.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from app.health.clock_steps import ClockStep
from app.health.facts import INFO, spell, spelled_range
from app.health.group_view import GroupView, Incident, Problem
from app.health.openings import QUIET_S
from app.times import rfc3339, time_of
from node.views.base import TEXT_MAX
from node.views.events import EventView

KEPT_S: Final = 3600.0
# A member learns what it has to cut after it is back.
CUTS_WITHIN_S: Final = 60.0
PROBLEMS_MAX: Final = 8
KIND: Final = "incident"
NONE_OF_OURS: Final = ("audit_divergent", "audit_incomplete")


@dataclass(slots=True)
class Open:
    """The incident that is going on."""

    since: datetime
    quiet_since: datetime | None = None
    worst: Problem | None = None
    texts: list[str] = field(default_factory=list)
    leaders: list[str] = field(default_factory=list)
    pause_ms: int | None = 0
    writes_unknown: int | None = 0


@dataclass(slots=True)
class Incidents:
    """One group's; `observe` is given each view, and returns the incident that is over with it."""

    open: Open | None = None
    leader: tuple[str, int | None] | None = None
    committed: int | None = None
    well_at: datetime | None = None
    waiting_then: int | None = 0

    def move(self, step: ClockStep) -> None:
        """The wall clock was set: moves the times that are remembered by it."""
        self.well_at = step.moved(self.well_at)
        if self.open is not None:
            self.open.since, self.open.quiet_since = step.moved(self.open.since), step.moved(self.open.quiet_since)

    def observe(self, view: GroupView, now: datetime, earlier: Container[str] = ()) -> Incident | None:
        """`earlier`: the problems that an earlier console reported, whose beginning nobody here saw."""
        pressing = [one for one in view.problems if one.severity != INFO and one.code not in NONE_OF_OURS]
        leader = (view.leader_id, view.term) if view.leader_id is not None else None
        changed = leader is not None and self.leader is not None and leader != self.leader
        # What never was well cannot be lost.
        was_well = self.well_at is not None or any(one.id in earlier for one in pressing)
        if (pressing or changed) and was_well:
            self.note(pressing, view, now)
        if self.open is not None:
            self.measure(view, now, changed)
        self.remember(view, leader, now)
        return self.closed(bool(pressing), now)

    def note(self, pressing: Sequence[Problem], view: GroupView, now: datetime) -> None:
        since = min((at for one in pressing if (at := time_of(one.since)) is not None), default=now)
        if self.open is None:
            self.open = Open(since, leaders=[self.leader[0]] if self.leader is not None else [])
            if self.well_at is None:  # nobody here saw when writes got through last
                self.open.pause_ms = self.open.writes_unknown = None
        one = self.open
        one.quiet_since = None
        one.since = min(one.since, since)
        if one.worst is None or (pressing and pressing[0].severity == "critical" != one.worst.severity):
            one.worst = pressing[0] if pressing else None
        for problem in pressing:
            if problem.what not in one.texts and len(one.texts) < PROBLEMS_MAX:
                one.texts.append(problem.what)
        if view.leader_id is not None and view.leader_id not in one.leaders[-1:]:
            one.leaders.append(view.leader_id)

    def measure(self, view: GroupView, now: datetime, changed: bool) -> None:
        """How long writes have been away by now."""
        assert self.open is not None
        if changed:
            self.lost_leader()
        if self.well_at is None or self.open.pause_ms is None or (gets_through(view, self.committed) and not changed):
            return
        until = now
        if changed:
            led = time_of(view.leader.state.role_since) if view.leader is not None and view.leader.state else None
            until = led if led is not None and self.well_at < led < now else now
        self.open.pause_ms = max(self.open.pause_ms, round((until - self.well_at).total_seconds() * 1000))

    def lost_leader(self) -> None:
        """What waited on the leader that is none any more: its callers cannot learn how that ended."""
        assert self.open is not None
        known = self.open.writes_unknown
        self.open.writes_unknown = None if known is None or self.waiting_then is None else known + self.waiting_then

    def remember(self, view: GroupView, leader: tuple[str, int | None] | None, now: datetime) -> None:
        if gets_through(view, self.committed):
            # What was sampled some time ago held then, not now.
            seen = time_of(view.leader.last_seen) if view.leader is not None else None
            at = min(now, seen) if seen is not None else now
            self.well_at = max(at, self.well_at) if self.well_at is not None else at
        if leader is not None:
            self.leader = leader
            self.waiting_then = view.closures.pending if view.closures is not None else None
        committed = view.leader_marks.committed_index
        self.committed = committed if committed is not None else self.committed

    def closed(self, pressing: bool, now: datetime) -> Incident | None:
        one = self.open
        if one is None or pressing:
            return None
        one.quiet_since = one.quiet_since or now
        if now - one.quiet_since < timedelta(seconds=QUIET_S):
            return None
        self.open = None
        led = " and then ".join(one.leaders)
        text = one.worst.what if one.worst is not None else f"Leadership moved: {led}."
        return Incident(
            code=one.worst.code if one.worst is not None else "leader_changed",
            node_id=one.worst.node_id if one.worst is not None else None,
            text=text,
            since=rfc3339(one.since),
            until=rfc3339(one.quiet_since),
            problems=tuple(other for other in one.texts if other != text),
            leaders=tuple(one.leaders),
            pause_ms=one.pause_ms,
            writes_unknown=one.writes_unknown,
        )


def gets_through(view: GroupView, committed_before: int | None) -> bool:
    """Whether writes are confirmed now: the commit index moves, or nothing waits."""
    committed, end = view.leader_marks.committed_index, view.leader_marks.end_index
    if view.leader_id is None or view.quorum.stands is False or committed is None or end is None:
        return False
    return committed >= end or (committed_before is not None and committed > committed_before)


def event_of_incident(incident: Incident) -> EventView:
    since, until = time_of(incident.since), time_of(incident.until)
    took = "" if since is None or until is None else f" after {spell((until - since).total_seconds())}"
    paused = f", writes paused for {incident.pause_ms:,} ms" if incident.pause_ms else ""
    return EventView(
        id=None,
        at=incident.until,
        kind=KIND,
        severity="info",
        text=f"Over{took}{paused}: {incident.text}"[:TEXT_MAX],
        detail=incident.to_json(),
    )


def with_cuts(incident: Incident, cuts: Sequence[tuple[str, str, int, int]]) -> Incident:
    """With what members cut while it lasted or right after: (at, member, from, to) each."""
    since, until = time_of(incident.since), time_of(incident.until)
    if since is None or until is None:
        return incident
    until += timedelta(seconds=CUTS_WITHIN_S)
    mine = [one for one in cuts if (at := time_of(one[0])) is not None and since <= at <= until]
    count = sum(high - low + 1 for _, _, low, high in mine)
    unknown = incident.writes_unknown
    return incident.model_copy(
        update={
            "entries_cut": count,
            "cuts": tuple(f"{spelled_range(low, high)} on {node}" for _, node, low, high in mine),
            "writes_unknown": None if unknown is None and not count else max(unknown or 0, count),
        }
    )
