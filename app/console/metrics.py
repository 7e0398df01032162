"""`/metrics` and `/readyz` of the console, as the nodes have them. What is unknown is absent, never 0.

Everything comes from pictures that are in memory: a scrape asks no node and no database. `/metrics` wants the right to
view (an API token as bearer); `/readyz` is open and says no more than yes or why not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from fastapi import APIRouter, Request
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from starlette.responses import JSONResponse, PlainTextResponse, Response

from app.api.common import ConsoleDep
from app.console.console import OWN, Console
from app.console.live import SUBSCRIBERS_MAX, Hub
from app.console.own_facts import OwnFacts
from app.console.pair_metrics import gauges
from app.health.confirming import takes_no_writes
from app.health.facts import SEVERITY_ORDER
from app.health.group_view import GroupView, Problem
from app.notify.outbox import Outbox
from app.times import time_of, utc_now

router = APIRouter()
PREFIX: Final = "quorumscope_console"
REACHES: Final = ("ok", "stale", "down", "never")
# Of the newest view of a group; they are made anew several times a second.
VIEW_OLD_S: Final = 30.0
Values = dict[tuple[str, ...], float]
Families = Iterator[GaugeMetricFamily]


class Picture:
    """A collector over what the console holds at this moment."""

    def __init__(self, console: Console, hub: Hub, outbox: Outbox | None, facts: OwnFacts, version: str) -> None:
        self.console, self.hub, self.outbox, self.facts, self.version = console, hub, outbox, facts, version
        self.now = utc_now()

    def collect(self) -> Families:
        views = [watch.view for watch in self.console.watches.values()]
        yield family("info", "Which release this is", ("version",), {(self.version,): 1})
        yield family("clusters", "Groups that are watched", (), {(): len(views)})
        problems = {(view.cluster.id,): view.problems for view in views} | {(OWN,): self.console.own_problems()}
        yield family(
            "problems", f"Open problems; {OWN}: of the console itself", ("cluster", "severity"),
            {(*key, severity): count for key, found in problems.items() for severity, count in by_severity(found)},
        )  # fmt: skip
        yield from self.groups(views)
        yield from self.members(views)
        for name, text, labels, values in gauges(views):
            yield family(name, text, labels, values)
        yield family("live_readers", "Open pages that are kept up to date", (), {(): self.hub.count})
        yield family("live_readers_limit", "How many there may be", (), {(): SUBSCRIBERS_MAX})
        yield from self.messages()
        yield from self.own()

    def groups(self, views: list[GroupView]) -> Families:
        yield family(
            "group_has_leader", "Whether a member leads", ("cluster",),
            {(view.cluster.id,): int(view.leader_id is not None) for view in views},
        )  # fmt: skip
        yield family(
            "group_quorum_stands", "Whether enough members hear each other", ("cluster",),
            {
                (view.cluster.id,): int(view.quorum.stands) for view in views
                if view.quorum.stands is not None and not view.is_pair
            },
        )  # fmt: skip
        yield family(
            "group_writes_stopped", "Whether no new write gets through, also where the quorum stands", ("cluster",),
            {
                (view.cluster.id,): int(stopped) for view in views
                if not view.is_pair and (stopped := takes_no_writes(view)) is not None
            },
        )  # fmt: skip
        yield family(
            "view_age_seconds", "How old the newest picture of a group is", ("cluster",),
            {(view.cluster.id,): age for view in views if (age := self.age_of(view.as_of)) is not None},
        )  # fmt: skip

    def members(self, views: list[GroupView]) -> Families:
        every = [(view.cluster.id, one) for view in views for one in view.members]
        yield family(
            "member_reach", "Whether a member answers", ("cluster", "member", "reach"),
            {(group, one.id, reach): int(one.reach == reach) for group, one in every for reach in REACHES},
        )  # fmt: skip
        yield family(
            "sample_age_seconds", "How long ago a member answered last", ("cluster", "member"),
            {(group, one.id): age for group, one in every if (age := self.age_of(one.last_seen)) is not None},
        )  # fmt: skip

    def messages(self) -> Families:
        if self.outbox is None:
            return
        waiting = Counter(one.route_name for one in self.outbox.messages.values() if one.ended_at is None)
        yield family("messages_waiting", "Messages that wait to be delivered", (), {(): waiting.total()})
        failing = sum(one.failing_since is not None for one in self.outbox.health.values())
        yield family("routes_failing", "Ways for messages on which every attempt fails", (), {(): failing})

    def own(self) -> Families:
        database, disk = self.facts.database, self.facts.disk
        known = database.write_ms is not None or database.error is not None
        yield family(
            "database_writable",
            "Whether the database can be written",
            (),
            {(): int(database.error is None)} if known else {},
        )
        if database.write_ms is not None:
            yield family("database_write_seconds", "The last try to write", (), {(): database.write_ms / 1000})
        if database.size_bytes is not None:
            yield family("database_bytes", "The database's size", (), {(): database.size_bytes})
        if disk is not None:
            yield family("disk_free_bytes", "Free on the database's disk", (), {(): disk.free_bytes})
            yield family("disk_total_bytes", "The size of the database's disk", (), {(): disk.total_bytes})
        ends: Values = {
            (one.what,): one.ends_at.timestamp() for one in self.facts.certificates if one.ends_at is not None
        }
        yield family("certificate_ends_timestamp_seconds", "When a certificate ends", ("what",), ends)

    def age_of(self, text: str | None) -> float | None:
        at: datetime | None = time_of(text)
        return None if at is None else max(0.0, (self.now - at).total_seconds())


def by_severity(problems: tuple[Problem, ...] | list[Problem]) -> list[tuple[str, int]]:
    found = Counter(one.severity for one in problems)
    return [(severity, found[severity]) for severity in SEVERITY_ORDER]


def family(name: str, text: str, labels: tuple[str, ...], values: Values) -> GaugeMetricFamily:
    found = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=labels)
    for key, value in values.items():
        found.add_metric(key, value)
    return found


@router.get("/metrics")
async def metrics(request: Request, console: ConsoleDep) -> Response:
    state = request.app.state
    outbox = state.notifier.outbox if state.notifier.loaded else None
    registry = CollectorRegistry()
    registry.register(Picture(console, state.hub, outbox, state.own_watch.facts, request.app.version))
    return PlainTextResponse(generate_latest(registry).decode(), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/readyz")
async def readyz(request: Request, console: ConsoleDep) -> Response:
    """200 while the database can be written and pictures of the groups are made."""
    now, why = utc_now(), []
    if request.app.state.own_watch.facts.database.error is not None:
        why.append("the database cannot be written")
    ages = [(now - at).total_seconds() for one in console.watches.values() if (at := time_of(one.view.as_of))]
    if ages and min(ages) > VIEW_OLD_S:
        why.append(f"no picture of a group was made for {min(ages):.0f} s")
    return JSONResponse({"ok": not why, "reasons": why}, status_code=503 if why else 200)
