"""Rules about replication: what the leader's dispatchers do for each follower, and how far behind it is."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from app.health.facts import ATTENTION, CRITICAL, INFO, Facts, Finding, seconds_since, spell
from app.health.group_view import MemberView
from app.health.links import heard_ms
from app.times import time_of
from node.views.replication import DispatcherView

LAG_ENTRIES: Final = 1000
LAG_MS: Final = 1000
LAG_HELD_S: Final = 2.0
LAG_GRACE_S: Final = 0.75  # until then a slow link, which would explain it, is known as one
NOT_APPEND_S: Final = 1.5
ROUND_TRIPS_PER_MINUTE: Final = 3


def diverged(facts: Facts) -> Iterator[Finding]:
    for one in facts.followers:
        dispatcher = one.dispatcher
        if dispatcher is not None and dispatcher.state == "DIVERGED":
            why = f" ({dispatcher.last_error})" if dispatcher.last_error else ""
            text = f"{one.id} has DIVERGED below what is committed{why}; replication to it stopped {{age}} ago"
            yield Finding("diverged", CRITICAL, text, one.id, time_of(dispatcher.since))


def lagging(facts: Facts) -> Iterator[Finding]:
    for one in facts.followers:
        severity = INFO if one.is_learner else ATTENTION  # nothing waits for a learner
        lag = facts.view.lag_entries(one)
        series = facts.recall.lags.get(one.id)
        lag_ms = one.mark.lag_ms
        if lag and lag <= LAG_ENTRIES and lag_ms is not None and lag_ms > LAG_MS and heard(facts, one):
            entries = "an entry" if lag == 1 else f"{lag:,} entries"
            text = f"{one.id} lacks {entries}, for {{age}}"
            yield Finding("lagging", severity, text, one.id, facts.when(facts.leader or one, lag_ms), LAG_GRACE_S)
        if lag is None or lag <= LAG_ENTRIES or series is None or (lag_ms is not None and lag_ms <= LAG_MS):
            continue
        if series.held_s(lambda value: value > LAG_ENTRIES) < LAG_HELD_S:
            continue
        state, held = one.dispatcher_state, time_of(one.dispatcher.since) if one.dispatcher else None
        where = f": {state} for {spell(seconds_since(held, facts.now))}" if state and state != "APPEND" and held else ""
        where += snapshot_progress(one.dispatcher)
        rate = series.rate_per_s()
        if rate is None:
            yield Finding("lagging", severity, f"{one.id} is {lag:,} entries behind{where}", one.id)
        elif rate < -lag * 0.001:
            rest_s = lag / -rate
            text = f"{one.id} is {lag:,} entries behind and catching up, level in about {spell(rest_s)}"
            yield Finding("catching_up", severity, text, one.id)
        else:
            text = f"{one.id} is {lag:,} entries behind and not catching up{where or ', for {age}'}"
            yield Finding("not_catching_up", severity, text, one.id)


def dispatcher(facts: Facts) -> Iterator[Finding]:
    for one in facts.followers:
        item = one.dispatcher
        if item is None:
            continue
        trips = round_trips(item, facts.now)
        if trips > ROUND_TRIPS_PER_MINUTE:
            text = f"{one.id} goes round between COMPARE and INSTALL_SNAPSHOT, {trips} times in the last minute"
            yield Finding("dispatcher_loop", CRITICAL, text, one.id)
        state, since = item.state, time_of(item.since)
        if state in ("APPEND", "DIVERGED") or since is None or not heard(facts, one):
            continue
        if seconds_since(since, facts.now) > NOT_APPEND_S:
            why = snapshot_progress(item) or (f" ({item.last_error})" if item.last_error else reason_of(item))
            text = f"The dispatcher of {one.id} has been in {state} for {{age}}{why}"
            yield Finding("not_append", ATTENTION, text, one.id, since)


def snapshot_progress(item: DispatcherView | None) -> str:
    """How much of a snapshot that member has; nothing where it is sent none."""
    sent = None if item is None else item.snapshot
    if sent is None or sent.index is None or sent.held_bytes is None or sent.total_bytes is None:
        return ""
    return f" (snapshot up to entry {sent.index:,}: {sent.held_bytes:,} of {sent.total_bytes:,} bytes)"


def heard(facts: Facts, one: MemberView) -> bool:
    """Whether the leader has heard this follower lately; a peer that is cut off is another rule's finding."""
    age_ms = None if facts.leader is None else heard_ms(facts.leader, one)
    return age_ms is not None and age_ms <= facts.patience_ms


def round_trips(item: DispatcherView, now: datetime) -> int:
    """COMPARE -> INSTALL_SNAPSHOT transitions of the last minute."""
    recent = [one for one in item.transitions or () if one.to_state == "INSTALL_SNAPSHOT"]
    times = [time_of(one.at) for one in recent]
    return sum(1 for at in times if at is not None and seconds_since(at, now) <= 60)


def reason_of(item: DispatcherView) -> str:
    reason = item.transitions[-1].reason if item.transitions else None
    return f" ({reason})" if reason else ""
