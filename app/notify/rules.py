"""Which messages are due: from open problems, what was sent of them, routes, mutes and maintenance windows. Pure.

An alert is a problem from when it was first seen until it has been away for `OVER_AFTER_S`; what comes back within that
time is the same one. Invariants: a route gets nothing of a problem before it has stood for the route's hold time, and
nothing below the route's severity; a silenced one (acknowledged, muted, in a maintenance window) gives no message but
the one that it is over; that goes once, to exactly those routes that heard of the problem; a second one of the same
problem goes out when it gets worse, or after the route's reminder interval. What is done with the messages changes
nothing here: `step` of the same input is the same output, so that it can be repeated when it could not be stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Literal

from app.health.clock_steps import ClockStep
from app.health.facts import SEVERITY_ORDER
from app.health.group_view import Problem
from app.times import time_of

# How long a problem must be away to be over: one that comes and goes is one alert.
OVER_AFTER_S: Final = 10.0
# The scope of the console's own problems (app.console.console).
CONSOLE: Final = "_console"

Kind = Literal["opened", "worse", "reminder", "over", "test"]


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """A problem of a group, or of the console (`scope` is the group's id, or CONSOLE)."""

    scope: str
    problem_id: str


# The same fact has another code for a console that has just started: it did not see when the member fell silent.
SAME_AS: Final = {"never_reached": "replica_silent", "never_reached:": "all_silent:", "engines_silent:": "all_silent:"}


def beginnings(alerts: Iterable[Alert]) -> dict[str, dict[str, datetime]]:
    """Group -> problem -> when it began, under each name that a console which has just started may give it."""
    began: dict[str, dict[str, datetime]] = {}
    for one in alerts:
        key, at = one.open.key, time_of(one.open.problem.since)
        node_id = key.problem_id.partition(":")[2]
        others = (name if name.endswith(":") else f"{name}:{node_id}" for name in SAME_AS)
        names = {key.problem_id, one.open.problem.id, *(name for name in others if key_of(key.scope, name) == key)}
        if at is not None:
            began.setdefault(key.scope, {}).update(dict.fromkeys(names, at))
    return began


def key_of(scope: str, problem_id: str) -> Key:
    """The alert of a problem: what goes on over a restart of the console keeps it."""
    code, colon, node_id = problem_id.partition(":")
    return Key(scope, SAME_AS.get(problem_id) or SAME_AS.get(code, code) + colon + node_id)


@dataclass(frozen=True, slots=True)
class OpenProblem:
    """One that stands now; `not_to`: the route that it is about, which is not sent it."""

    key: Key
    scope_name: str
    problem: Problem
    not_to: int | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """What the rules know of a route."""

    id: int
    severity: str = "attention"
    hold_s: float = 60.0
    reminder_s: float | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """A maintenance window of one group, or of everything (`scope` None)."""

    begin: datetime
    until: datetime
    scope: str | None = None

    def covers(self, key: Key, now: datetime) -> bool:
        return self.begin <= now < self.until and self.scope in (None, key.scope)


@dataclass(frozen=True, slots=True)
class Sent:
    """The last message of a problem on one route."""

    severity: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Alert:
    """A problem and what was done about it. `seen_at`: when it last stood."""

    open: OpenProblem
    noticed_at: datetime
    seen_at: datetime
    acknowledged_by: str | None = None
    acknowledged_at: datetime | None = None
    sent: Mapping[int, Sent] = field(default_factory=dict)

    def moved(self, step: ClockStep) -> Alert:
        """After the wall clock was set. What was sent is a thread that `noticed_at` names: that stays."""
        sent = {route_id: replace(one, at=step.moved_past(one.at)) for route_id, one in self.sent.items()}
        noticed_at = self.noticed_at if sent else step.moved_past(self.noticed_at)
        problem = self.open.problem.model_copy(update={"since": step.moved_text(self.open.problem.since)})
        one = replace(self.open, problem=problem)
        return replace(self, open=one, noticed_at=noticed_at, seen_at=step.moved_past(self.seen_at), sent=sent)

    def unsent_on(self, route_id: int) -> Alert:
        """As if that route had heard nothing of it."""
        return replace(self, sent={known: last for known, last in self.sent.items() if known != route_id})

    @property
    def began(self) -> datetime:
        since = time_of(self.open.problem.since)
        return self.noticed_at if since is None else min(since, self.noticed_at)


@dataclass(frozen=True, slots=True)
class Due:
    """A message to be sent; `until` with `over`: when the problem last stood."""

    route_id: int
    kind: Kind
    alert: Alert
    at: datetime
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Silence:
    """What keeps problems quiet: mutes (until when) and maintenance windows."""

    mutes: Mapping[Key, datetime] = field(default_factory=dict)
    windows: Sequence[Window] = ()

    def why(self, alert: Alert, now: datetime) -> str | None:
        """acknowledged | muted | maintenance, or None where the problem may be reported."""
        key = alert.open.key
        if alert.acknowledged_by is not None:
            return "acknowledged"
        muted_until = self.mutes.get(key)
        if muted_until is not None and now < muted_until:
            return "muted"
        return "maintenance" if any(one.covers(key, now) for one in self.windows) else None


Memory = Mapping[Key, Alert]


def step(
    stands: Iterable[OpenProblem],
    memory: Memory,
    routes: Sequence[Route],
    silence: Silence,
    now: datetime,
    over_from: datetime | None = None,
) -> tuple[dict[Key, Alert], list[Due]]:
    """What is remembered from now on, and what is to be sent; before `over_from` nothing is taken to be over."""
    after, due = dict(memory), list[Due]()
    standing = {one.key: one for one in stands}
    for key, one in standing.items():
        known = memory.get(key)
        alert = Alert(one, now, now) if known is None else replace(known, open=one, seen_at=now)
        if silence.why(alert, now) is None:
            fresh = [found for route in routes if (found := message_for(route, alert, now)) is not None]
            severity = one.problem.severity
            alert = replace(alert, sent={**alert.sent, **{each.route_id: Sent(severity, now) for each in fresh}})
            due += fresh
        after[key] = alert
    for key, alert in memory.items() if over_from is None or now >= over_from else ():
        if key not in standing and now - alert.seen_at >= timedelta(seconds=OVER_AFTER_S):
            del after[key]
            due += [Due(one.id, "over", alert, now, alert.seen_at) for one in routes if one.id in alert.sent]
    return after, due


def message_for(route: Route, alert: Alert, now: datetime) -> Due | None:
    """The message of a problem that stands and is not silenced; None while there is nothing new for that route."""
    severity = alert.open.problem.severity
    if alert.open.not_to == route.id or weaker(severity, route.severity):
        return None
    if now - alert.began < timedelta(seconds=route.hold_s):
        return None
    last = alert.sent.get(route.id)
    if last is None:
        return Due(route.id, "opened", alert, now)
    if weaker(last.severity, severity):
        return Due(route.id, "worse", alert, now)
    if route.reminder_s is not None and now - last.at >= timedelta(seconds=route.reminder_s):
        return Due(route.id, "reminder", alert, now)
    return None


def weaker(one: str, other: str) -> bool:
    """Whether the first severity weighs less; what this version does not know weighs least."""
    return weight(one) < weight(other)


def weight(severity: str) -> int:
    return len(SEVERITY_ORDER) - SEVERITY_ORDER.index(severity) if severity in SEVERITY_ORDER else 0
