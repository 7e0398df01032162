"""The classifier's memory of the last minute: lags, terms, progress, and since when each problem stands.

Invariants: bounded (a deque each, one minute of samples); a sample counts once, however often it is looked at, so that
an old one makes nothing last longer; `since` of a problem is when it was first seen without a break, or what the rule
knew then, and never moves later while it stands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

from app.health.clock_steps import ClockStep
from app.health.group_view import GroupView, MemberView
from app.health.openings import OUR_EYES, Openings, code_and_member, is_over

WINDOW_S = 60.0
SAMPLES_MAX = 240
# A trend needs this much time behind it before it is worth a word.
TREND_S = 3.0
TREND_WINDOW_S = 10.0
ELECTION_S = 4.0
SETTLED_S = 10.0
STOOD_STILL_S = 5.0  # looks follow each other faster
SHOWN_BY_THEN_S = 10.0  # after a console's first look: a problem that still stands is shown by then
# Of the group, and over where a leader is known and the quorum stands.
WITHOUT_QUORUM = frozenset(
    {
        "quorum_lost:", "quorum_out_of_sight:", "no_leader:", "leader_out_of_sight:", "all_silent:", "engines_silent:",
        "never_reached:",
    }
)  # fmt: skip
UNHEARD_MS = 1000  # pushes to whom the leader has not heard for so long are sent again, of course


@dataclass(slots=True)
class Series:
    """Values of the last minute with their times (seconds, monotonic)."""

    points: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))

    def add(self, at_s: float, value: int | None) -> None:
        if value is not None:
            self.points.append((at_s, value))
        while self.points and self.points[0][0] < at_s - WINDOW_S:
            self.points.popleft()

    def over(self, window_s: float) -> list[tuple[float, int]]:
        """The points of the last `window_s` seconds, counted from the newest."""
        if not self.points:
            return []
        newest = self.points[-1][0]
        return [point for point in self.points if point[0] >= newest - window_s]

    def rate_per_s(self) -> float | None:
        """Change a second over the last ten; None while too little is known."""
        window = self.over(TREND_WINDOW_S)
        if len(window) < 2 or window[-1][0] - window[0][0] < TREND_S:
            return None
        return (window[-1][1] - window[0][1]) / (window[-1][0] - window[0][0])

    def held_s(self, wanted: Callable[[int], bool]) -> float:
        """For how long `wanted(value)` has been true without a break."""
        since: float | None = None
        for at_s, value in reversed(self.points):
            if not wanted(value):
                break
            since = at_s
        return self.points[-1][0] - since if since is not None else 0.0


@dataclass(slots=True)
class Applying:
    """What a member had committed, look by look, and what it has applied of that."""

    committed: Series = field(default_factory=Series)
    applied: Series = field(default_factory=Series)
    seen: str | None = None

    def observe(self, one: MemberView, at_s: float) -> None:
        log = one.log
        unknown = one.reach != "ok" or log.committed_index is None or log.applied_index is None
        if unknown or (self.applied.points and (log.applied_index or 0) < self.applied.points[-1][1]):
            self.committed.points.clear()  # what went back to a snapshot begins anew
            self.applied.points.clear()
        if not unknown and one.last_seen != self.seen:  # else it was counted already
            self.seen = one.last_seen
            self.committed.add(at_s, log.committed_index)
            self.applied.add(at_s, log.applied_index)

    def waits_since_s(self) -> float | None:
        """When what is not applied yet was first seen to be committed."""
        applied = self.applied.points[-1][1] if self.applied.points else None
        waiting = (at_s for at_s, index in self.committed.points if applied is not None and index > applied)
        return next(waiting, None)

    def watched_s(self) -> float:
        points = self.committed.points
        return points[-1][0] - points[0][0] if points else 0.0

    @property
    def moves(self) -> bool:
        """Whether it has applied anything since that look."""
        since_s = self.waits_since_s()
        known = [index for at_s, index in self.applied.points if since_s is not None and at_s >= since_s]
        return len(known) > 1 and known[0] != known[-1]


@dataclass(slots=True)
class Recall:
    """One group's memory."""

    lags: dict[str, Series] = field(default_factory=dict)
    committed: Series = field(default_factory=Series)
    # Entries of the leader that are not committed yet.
    waiting: Series = field(default_factory=Series)
    terms: Series = field(default_factory=Series)
    resends: dict[str, Series] = field(default_factory=dict)
    applying: dict[str, Applying] = field(default_factory=dict)
    leader: tuple[str, int | None] | None = None
    leader_seen: str | None = None
    led: dict[str, str | None] = field(default_factory=dict)  # who was seen to lead, and in which life of its process
    leader_since: datetime | None = None
    first_seen: dict[str, datetime] = field(default_factory=dict)
    noticed: dict[str, datetime] = field(default_factory=dict)
    openings: Openings = field(default_factory=Openings)
    began: dict[str, datetime] = field(default_factory=dict)  # of what stood when the console was ended, and may still
    again: dict[str, datetime] = field(default_factory=dict)  # since when what was over for a moment is there again
    looks_since: datetime | None = None
    looked_at: datetime | None = None
    anew: set[str] = field(default_factory=set)  # noticed anew, once: looks may be as far apart each time
    older: set[str] = field(default_factory=set)  # what stood at a first look, of which nobody knows since when

    def began_before(self, problem_id: str) -> datetime | None:
        """When a problem began that an earlier console reported."""
        return self.began.get(problem_id)

    def forget_beginnings(self) -> None:
        """Of what was not seen again."""
        self.began = {key: at for key, at in self.began.items() if key in self.first_seen}

    def forget_what_is_over(
        self, view: GroupView, explains: Mapping[str, frozenset[str]], now: datetime, *, proven: bool
    ) -> None:
        """Beginnings of what is known to be over, so that the next time it begins anew; `proven`: all is well."""
        if proven:
            self.forget_beginnings()
            return
        over = {f"{code}:{one.id}" for one in view.members if one.reach == "ok" for code in OUR_EYES}
        if view.leader_id is not None and view.quorum.stands:
            over |= WITHOUT_QUORUM
        self.looks_since = self.looks_since or now
        if (now - self.looks_since).total_seconds() >= SHOWN_BY_THEN_S:
            over |= {key for key in self.began if is_over(*code_and_member(key), view, explains)}
        self.began = {key: at for key, at in self.began.items() if key not in over or key in self.first_seen}

    def stood_still(self, view: GroupView, now: datetime) -> None:
        """After a while in which nobody looked (a suspend, a process that was stopped), what had just been noticed has
        not lasted meanwhile, as far as anybody knows."""
        last, self.looked_at = self.looked_at, now
        every_s = max((one.interval_ms or 0.0 for one in view.members), default=0.0) / 1000
        if last is not None and (now - last).total_seconds() > max(STOOD_STILL_S, 3 * every_s):
            for key in self.noticed.keys() - self.openings.ids - self.anew:
                self.anew.add(key)
                del self.noticed[key]
                self.first_seen.pop(key, None)

    def move(self, step: ClockStep) -> None:
        """The wall clock was set."""
        self.first_seen, self.noticed = step.each(self.first_seen), step.each(self.noticed)
        self.again, self.looks_since = step.each(self.again), step.moved(self.looks_since)
        self.looked_at = step.moved(self.looked_at)
        self.began = {key: step.moved_past(at) for key, at in self.began.items()}
        self.leader_since = step.moved(self.leader_since)
        self.openings.move(step)

    def observe(self, view: GroupView, at_s: float, now: datetime) -> None:
        leader = view.leader
        self.forget_who_left(view)
        self.observe_leader(view, leader, now)
        for one in view.members:
            self.applying.setdefault(one.id, Applying()).observe(one, at_s)
        if leader is None or leader.last_seen == self.leader_seen:
            return  # nothing that was not counted already
        self.leader_seen = leader.last_seen
        lags = view.lags()
        for one in view.members:  # who is back after a silence is judged by what it does from then on
            lag, again = self.lags.setdefault(one.id, Series()), self.resends.setdefault(one.id, Series())
            if heard_lately(leader, one):
                lag.add(at_s, lags.get(one.id))
                again.add(at_s, one.dispatcher.resends if one.dispatcher else None)
            else:
                lag.points.clear()
                again.points.clear()
        log = leader.log
        self.committed.add(at_s, log.committed_index)
        if log.end_index is not None and log.committed_index is not None:
            self.waiting.add(at_s, log.end_index - log.committed_index)
        # A term that was the newest when it was heard: one that is forgotten and heard again is no election.
        if view.term is not None and (not self.terms.points or view.term > self.terms.points[-1][1]):
            self.terms.add(at_s, view.term)
        elif self.terms.points:
            self.terms.add(at_s, self.terms.points[-1][1])

    def forget_who_left(self, view: GroupView) -> None:
        """Who is no member has no trend, and whoever names ever new ones fills no memory."""
        here = {one.id for one in view.members}
        for kept in (self.lags, self.resends, self.applying, self.led):
            for gone in kept.keys() - here:
                del kept[gone]

    def observe_leader(self, view: GroupView, leader: MemberView | None, now: datetime) -> None:
        """Since when this one leads, as far as was seen."""
        if leader is None:
            self.leader = self.leader_since = None
        elif self.leader != (leader.id, view.term):
            self.leader, self.leader_since = (leader.id, view.term), now
            self.resends.clear()  # each leader counts its own
        if leader is not None and leader.state is not None:
            self.led[leader.id] = leader.state.boot_id

    def seen_leading(self, view: GroupView) -> tuple[str, ...]:
        """Who was seen to lead since its process started."""
        lives = {one.id: one.state.boot_id for one in view.members if one.state is not None}
        return tuple(node for node, boot_id in self.led.items() if boot_id is not None and lives.get(node) == boot_id)

    def commits(self, view: GroupView) -> bool:
        """Whether the commit index of the leader moved between the last two of its answers."""
        points = self.committed.points
        return view.leader_id is not None and len(points) > 1 and points[-1][1] > points[-2][1]

    def elections(self) -> int:
        """How often the term grew in the last minute; what follows within ELECTION_S belongs to the same failover.

        0 once the last one has stood for SETTLED_S.
        """
        count, settled_at = 0, float("-inf")
        for (_, before), (at_s, after) in pairwise(self.terms.points):
            if after > before and at_s - settled_at >= ELECTION_S:
                count, settled_at = count + 1, at_s
        return count if count and self.terms.points[-1][0] - settled_at < SETTLED_S else 0

    def since(self, problem_id: str, since: datetime, now: datetime) -> datetime:
        """When this problem began; a rule that learns of an earlier moment is believed, a later one is not."""
        known = min(self.first_seen.get(problem_id, now), self.began.get(problem_id, now), since)
        self.first_seen[problem_id] = known
        self.noticed.setdefault(problem_id, now)
        return known

    def lasts_since(self, problem_id: str, since: datetime | None, now: datetime) -> datetime:
        """Since when without a break: what comes and goes is one problem, and what is said of it is of the last time.

        `since`: as its rule knows it.
        """
        if problem_id in self.openings.gone_at:
            self.again[problem_id] = now if since is None else since
        return max(self.first_seen[problem_id], self.again.get(problem_id, self.first_seen[problem_id]))

    def noticed_s(self, problem_id: str, now: datetime) -> float:
        """For how long it has been seen without a break."""
        return (now - self.noticed.get(problem_id, now)).total_seconds()

    def forget_all_but(self, problem_ids: set[str]) -> None:
        """What is not seen, and not open from before; what an earlier console reported of it is over as well."""
        self.older &= problem_ids
        self.anew &= problem_ids
        for gone in self.noticed.keys() - problem_ids:
            del self.first_seen[gone], self.noticed[gone]
            self.again.pop(gone, None)
            self.began.pop(gone, None)


def heard_lately(leader: MemberView, one: MemberView) -> bool:
    """Both ways: what does not get there, or is not answered, is sent again."""
    link, back = leader.link_to(one.id), one.link_to(leader.id)
    ages = [one.mark.last_ack_ms, None if link is None else link.last_heard_ms]
    deaf = back is not None and back.last_heard_ms is not None and back.last_heard_ms > UNHEARD_MS
    return not deaf and any(age is not None and age <= UNHEARD_MS for age in ages)
