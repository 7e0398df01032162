"""A sample: one node's last answers and their times. A poller fills it, the GroupView is built from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Final

from app.health.clock_steps import ClockStep
from app.health.group_view import StartView
from node.views.closures import ClosuresView
from node.views.ha import HaView
from node.views.members import MembersView
from node.views.replication import DispatchersView, WatermarksView
from node.views.state import StateView

MISSES_UNTIL_STALE: Final = 3


@dataclass(frozen=True, slots=True)
class Clock:
    """A node's clock less ours; the truth lies within `margin_ms` of it."""

    offset_ms: float
    margin_ms: float


@dataclass(slots=True)
class NodeSample:
    """What one node said last, and when."""

    node_id: str
    address: str
    control_url: str | None  # one that may be asked (app.console.addresses)
    waiting_url: str | None = None  # named by a member, and asked only once an admin approves it
    added_at: datetime = field(default_factory=partial(datetime.now, UTC))
    last_seen: datetime | None = None
    last_seen_ns: int | None = None  # of CLOCK_BOOTTIME
    clock: Clock | None = None  # None: it did not say what time it is
    last_clock: Clock | None = None  # as it said last: an engine that is silent now does not change its clock
    misses: int = 0
    missed_at: datetime | None = None  # when the first of these was noticed
    is_gone: bool = False  # its machine refused the last connection: no further question is needed to know
    problem: str | None = None
    answers: str | None = None  # what its control plane does in place of a state: see MemberView
    state: StateView | None = None
    start: StartView | None = None  # how it was started, also from before this console was (app.console.starts)
    certificate_ends: datetime | None = None  # of the certificate that its control plane showed last
    watermarks: WatermarksView | None = None
    dispatchers: DispatchersView | None = None
    closures: ClosuresView | None = None
    ha: HaView | None = None  # of a broker in classic master/slave mode
    ha_before: HaView | None = None  # what such a broker said last, where its control plane alone answers now
    configuration: MembersView | None = None  # who belongs to the group, as it said when it led last
    unanswered: dict[str, str] = field(default_factory=dict)  # what it did not answer last time, and why
    events_cursor: str | None = None
    rounds: int = 0
    interval_s: float = 0.5  # how often it is asked
    stood_still_s: float = 0.0  # for so long since its last answer this console itself did nothing

    def move(self, step: ClockStep) -> None:
        """This console's wall clock was set; so the difference of a clock that was not asked since is another one."""
        if self.last_seen is None or not step.is_fresh(self.last_seen):
            by_ms = step.by.total_seconds() * 1000
            known = (self.clock, self.last_clock)
            self.clock, self.last_clock = (one and Clock(one.offset_ms - by_ms, one.margin_ms) for one in known)
        self.added_at, self.last_seen = step.moved(self.added_at), step.moved(self.last_seen)
        self.missed_at = step.moved(self.missed_at)

    def missed(self, why: str | None, answers: str | None = None, *, is_gone: bool = False) -> None:
        """It was asked and said nothing that is an answer."""
        self.misses, self.is_gone = self.misses + 1, is_gone
        self.missed_at = self.missed_at or datetime.now(UTC)
        self.problem, self.answers = why, answers

    def drop_what_another_term_said(self) -> None:
        """What it said as a leader says nothing once it leads no longer, or again in another term: until it has
        answered anew, nothing of it is known."""
        said = self.watermarks.term if self.watermarks is not None else None
        if not self.leads or said not in (None, self.term):
            self.watermarks = self.dispatchers = self.closures = None

    @property
    def reach(self) -> str:
        """ok | stale | never | down (the control plane answers, its engine does not run)."""
        if self.last_seen is None:
            return "never"
        if self.misses >= MISSES_UNTIL_STALE or (self.misses and self.is_gone):
            return "stale"
        engine = "ok" if self.state is None else self.state.engine
        return {"ok": "ok", "stale": "stale"}.get(engine, "down")

    @property
    def leads(self) -> bool:
        return self.reach == "ok" and self.state is not None and self.state.role == "LEADER"

    @property
    def term(self) -> int | None:
        return None if self.state is None else self.state.term
