"""The notifier: looks at all open problems every second, stores which messages are due, and has them delivered.

It holds everything in memory and stores what changed, in one transaction, before anything is sent: after a restart it
goes on where it was, and a message may go out twice, under one id, never not at all. Invariants: a database that
cannot be written costs no message (it is sent all the same, and stored later), and is itself a problem worth one; what
fails here costs no page.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from app.console.console import Console
from app.console.their_clock import ours_is_behind
from app.db.alerts import Alerts
from app.db.engine import between_writes
from app.db.models import AlertMute, AlertRoute, AlertWindow
from app.health.clock_steps import ClockStep, WallClock, boot_s
from app.health.group_view import Problem
from app.notify import delivery, rules
from app.notify.message import payload_of
from app.notify.outbox import Health, Message, Outbox, message_of
from app.notify.routes import rule_of
from app.notify.rules import Alert, Key, OpenProblem, Silence, Window
from app.notify.storing import alert_of, health_columns, mark, row_of
from app.notify.webhook import NotDelivered
from app.security.sealed import Seal
from app.times import CLOCKS_DIFFER, rfc3339, utc_now, written_ahead
from node.background import Background

log = logging.getLogger(__name__)
Json = dict[str, Any]
TICK_S: Final = 1.0
TRIM_EVERY_S: Final = 600.0
# A console that has just started has not seen everything: what it does not see yet is not over, what it sees first may
# be gone with the first answers.
OPENS_AFTER_S: Final = 5.0
OVER_AFTER_START_S: Final = 60.0


@dataclass(slots=True)
class Notifier:
    """See the module's docstring."""

    console: Console
    kept: Alerts
    console_url: str
    memory: dict[Key, Alert] = field(default_factory=dict)
    stored: dict[Key, Alert] = field(default_factory=dict)
    routes: dict[int, AlertRoute] = field(default_factory=dict)
    mutes: dict[Key, AlertMute] = field(default_factory=dict)
    windows: list[AlertWindow] = field(default_factory=list)
    outbox: Outbox = field(init=False)
    background: Background = field(default_factory=Background)
    started_at: datetime = field(default_factory=utc_now)
    clock: WallClock = field(default_factory=WallClock)
    rests: int = 0  # so many ticks: the clock was set, and the groups' views were made before
    loaded: bool = False
    unsaved_since: datetime | None = None
    trimmed_at: datetime | None = None
    # Of what stood when the console was ended: group -> problem -> when it began; until its watch has it.
    beginnings: dict[str, dict[str, datetime]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.outbox = Outbox(self.send, utc_now)

    # --- life ---

    async def start(self) -> None:
        self.background.keep("messages about problems", self.run)

    async def stop(self) -> None:
        async with between_writes(self.kept.sessions):
            await self.background.stop()
            await self.outbox.background.stop()
        if self.loaded:
            await self.save(whole=True)  # also when each last stood: it may be over before the next start

    async def run(self) -> None:
        while not self.loaded:
            try:
                await self.load()
            except Exception:
                log.exception("the routes could not be read; they are read again")
                await asyncio.sleep(TICK_S)
        while True:
            try:
                await self.tick()
            except Exception:
                log.exception("what is to be sent could not be found out")
            await asyncio.sleep(TICK_S)

    async def load(self) -> None:
        routes, standing = await self.kept.routes(), await self.kept.standing()
        mutes, windows, pending = await self.kept.mutes(), await self.kept.windows(), await self.kept.pending()
        self.routes = {row.id: row for row in routes}
        for row in routes:
            failures = delivery.FAILURES if row.failing_since is not None else 0
            self.outbox.health[row.id] = Health(row.delivered_at, row.failing_since, failures, row.error)
        self.memory = {key: alert for row in standing if (alert := alert_of(row)) and (key := alert.open.key)}
        self.stored = dict(self.memory)
        self.beginnings = rules.beginnings(self.memory.values())
        self.mutes = {Key(row.scope, row.problem_id): row for row in mutes}
        self.windows = windows
        for message in map(message_of, pending):
            self.outbox.add(message)
        self.started_at, self.loaded = utc_now(), True

    # --- each second ---

    async def tick(self) -> None:
        now = utc_now()
        step, began = self.clock.look(now, boot_s()), self.started_at
        if step is not None:
            self.clock_set(step)
            await self.move_mutes(step, began)
        self.tell_beginnings(now)
        if self.rests:
            self.rests -= 1
        elif now - self.started_at >= timedelta(seconds=OPENS_AFTER_S):
            self.look(now)
        await self.save()
        self.outbox.deliver([row.id for row in self.routes.values() if row.enabled])
        behind = ours_is_behind(self.console.samples)
        if behind is False or (behind is None and now - self.started_at >= timedelta(seconds=OVER_AFTER_START_S)):
            await self.shorten_mutes(now)
        await self.trim(now)

    def clock_set(self, step: ClockStep) -> None:
        """This machine's wall clock was set: what waits is due as soon as it would have been."""
        self.started_at, self.trimmed_at = step.moved(self.started_at), None
        self.rests = 1 + math.ceil(2 * self.console.settings.sample_interval_ms / 1000 / TICK_S)
        self.memory = {key: alert.moved(step) for key, alert in self.memory.items()}
        self.outbox.move(step)

    def tell_beginnings(self, now: datetime) -> None:
        """A problem that stood when the console was ended, and is seen again, began when it began."""
        for cluster_id, watch in self.console.watches.items():
            watch.recall.began |= self.beginnings.pop(cluster_id, {})
            if now >= self.started_at + timedelta(seconds=OVER_AFTER_START_S):
                watch.recall.forget_beginnings()

    def look(self, now: datetime) -> None:
        routes = [rule_of(row) for row in self.routes.values() if row.enabled]
        over_from = self.started_at + timedelta(seconds=OVER_AFTER_START_S)
        self.memory, due = rules.step(self.open_problems(), self.memory, routes, self.silence(now), now, over_from)
        for one in due:
            name = self.routes[one.route_id].name
            self.outbox.add(Message(one.route_id, name, payload_of(one, name, self.console_url), now))
        self.note_on_problems(now)

    def open_problems(self) -> list[OpenProblem]:
        found = [
            OpenProblem(rules.key_of(view.cluster.id, one.id), view.cluster.name, one)
            for view in self.console.clusters()
            for one in view.problems
        ]
        self.console.own["routes"] = delivery.problems_of(self.routes.values(), self.outbox)
        own = [(one, self.route_named(one)) for one in self.console.own_problems()]
        return found + [OpenProblem(Key(rules.CONSOLE, one.id), "console", one, about) for one, about in own]

    def route_named(self, problem: Problem) -> int | None:
        """The route that the problem is about."""
        if problem.code != delivery.CODE:
            return None
        return next((row.id for row in self.routes.values() if delivery.problem_id(row.name) == problem.id), None)

    def silence(self, now: datetime) -> Silence:
        mutes = {key: row.until for key, row in self.mutes.items() if row.until > now}
        return Silence(mutes, [Window(row.begin, row.until, row.scope) for row in self.windows])

    def note_on_problems(self, now: datetime) -> None:
        """Puts at each problem who has taken it on, for everybody who reads the group's view."""
        notes = self.console.notes
        notes.clear()
        for key, alert in self.memory.items():
            mute = self.mutes.get(key)
            muted = rfc3339(mute.until) if mute is not None and mute.until > now else None
            if alert.acknowledged_by is not None or muted is not None:
                at = rfc3339(alert.acknowledged_at) if alert.acknowledged_at else None
                by = alert.acknowledged_by
                notes[key.scope, alert.open.problem.id] = {
                    "acknowledged_by": by, "acknowledged_at": at, "muted_until": muted,
                }  # fmt: skip

    async def save(self, whole: bool = False) -> None:
        try:
            await self.store(whole)
        except Exception:
            if self.unsaved_since is None:  # once, not every second
                log.exception("what was sent could not be stored; messages go out all the same")
                self.unsaved_since = utc_now()
        else:
            self.unsaved_since = None

    async def store(self, whole: bool = False) -> None:
        """What changed (`whole`: everything), in one transaction. Raises what the database raises."""
        changed = {key: one for key, one in self.memory.items() if whole or mark(one) != mark(self.stored.get(key))}
        gone = [key for key in self.stored if key not in self.memory]
        messages = [one for one in self.outbox.messages.values() if one.dirty]
        healths = {key: one for key, one in self.outbox.health.items() if one.dirty and key in self.routes}
        if not (changed or gone or messages or healths):
            return
        written: list[Message | Health] = [*messages, *healths.values()]
        for one in written:
            one.dirty = False  # what changes from here on is stored next time
        columns = {route_id: health_columns(health) for route_id, health in healths.items()}
        try:
            await self.kept.save(
                [row_of(alert) for alert in changed.values()],
                [(key.scope, key.problem_id) for key in gone],
                [message.row() for message in messages],
                columns.items(),
            )
        except BaseException:
            for one in written:
                one.dirty = True
            raise
        self.stored.update(changed)
        for key in gone:
            self.stored.pop(key, None)
        for route_id, values in columns.items():
            row = self.routes.get(route_id)  # it may have been removed meanwhile
            for name, value in values.items() if row is not None else ():
                setattr(row, name, value)
        self.outbox.forget(messages)

    async def trim(self, now: datetime) -> None:
        if self.trimmed_at is None or now - self.trimmed_at >= timedelta(seconds=TRIM_EVERY_S):
            self.trimmed_at = now
            self.mutes = {key: row for key, row in self.mutes.items() if row.until > now}
            await self.kept.trim(now)
            self.windows = await self.kept.windows()

    async def move_mutes(self, step: ClockStep, began: datetime) -> None:
        """The clock was set far: what this console itself has muted since then is silent for as long as somebody
        said."""
        moved = [
            AlertMute(
                scope=row.scope, problem_id=row.problem_id, until=row.until + step.by, by=row.by, at=row.at + step.by
            )
            for row in self.mutes.values()
            if abs(step.by) > CLOCKS_DIFFER and began <= row.at <= step.now - step.by
        ]  # fmt: skip
        self.mutes |= {Key(row.scope, row.problem_id): row for row in moved}
        for row in moved:
            await self.kept.mute(row)

    async def shorten_mutes(self, now: datetime) -> None:
        """One that was set while the clock was ahead is silent for as long as somebody said, from now on, and not for
        as long as the clock was ahead as well."""
        for key, row in [(key, row) for key, row in self.mutes.items() if written_ahead(row.at, now)]:
            until = now + (row.until - row.at)
            row = AlertMute(scope=row.scope, problem_id=row.problem_id, until=until, by=row.by, at=now)
            await self.kept.mute(row)
            self.mutes[key] = row

    async def send(self, route_id: int, payload: Json) -> str:
        row = self.routes.get(route_id)
        if row is None:
            raise NotDelivered("the route was removed")
        return await delivery.send(row, self.seal, payload)

    @property
    def seal(self) -> Seal:
        return self.console.addresses.seal

    # --- what people do ---

    async def add_route(self, row: AlertRoute) -> bool:
        """It may get the number of one that was removed, and has not heard of what that one had heard of. False: there
        is one of that name already."""
        if not await self.kept.add_route(row):
            return False
        self.memory = {key: alert.unsent_on(row.id) for key, alert in self.memory.items()}
        self.routes[row.id] = row
        return True

    async def acknowledge(self, key: Key, by: str | None) -> Alert | None:
        """Takes it on, or (`by` None) leaves it again; None where no such problem stands."""
        alert = self.memory.get(key)
        if alert is None:
            return None
        self.memory[key] = replace(alert, acknowledged_by=by, acknowledged_at=utc_now() if by is not None else None)
        try:
            await self.store()
        except BaseException:
            if key in self.memory:
                before = alert.acknowledged_by, alert.acknowledged_at
                self.memory[key] = replace(self.memory[key], acknowledged_by=before[0], acknowledged_at=before[1])
            raise
        self.note_on_problems(utc_now())
        return self.memory.get(key, alert)

    async def mute(self, key: Key, until: datetime, by: str) -> None:
        row = AlertMute(scope=key.scope, problem_id=key.problem_id, until=until, by=by, at=utc_now())
        await self.kept.mute(row)
        self.mutes[key] = row
        self.note_on_problems(utc_now())

    async def unmute(self, key: Key) -> None:
        await self.kept.unmute(key.scope, key.problem_id)
        self.mutes.pop(key, None)
        self.note_on_problems(utc_now())
