"""The writes that wait, and for whom: GroupView -> what the closures panel shows. Pure.

Invariants: a set that is waited for is named with the reason of each peer in it, taken from what the leader says of
that peer; a reason that nobody knows is called unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.console import format as fmt
from app.health.group_view import GroupView
from node.views.closures import ClosureGroupView, ClosuresView, ClosureView

WARN_AT_PERCENT: Final = 80
ITEMS_SHOWN: Final = 50
SLOW_ACK_MS: Final = 1000
FAR_BEHIND_ENTRIES: Final = 1000


@dataclass(frozen=True, slots=True)
class WaitRow:
    """One set of peers that some writes wait for."""

    key: str
    peers: str
    need: str
    why: str
    count: str
    range: str
    oldest: str
    times_out: str
    size: str


@dataclass(frozen=True, slots=True)
class WaitItem:
    range: str
    term: str
    waits_for: str
    age: str
    times_out: str


@dataclass(frozen=True, slots=True)
class ClosuresPanel:
    """`known` False: no leader reported any; `percent` is of the limit."""

    known: bool
    sentence: str
    tone: str
    percent: float
    limit: str
    pending: str
    rows: tuple[WaitRow, ...]
    items: tuple[WaitItem, ...]
    more: int


def closures_view(view: GroupView) -> ClosuresPanel:
    reported = view.closures
    if reported is None:
        reason = (
            "no leader is known that could report them" if view.leader_id is None else "the leader has not reported yet"
        )
        if view.at is not None:
            reason = "the history does not keep closures"
        return ClosuresPanel(False, f"Which writes wait is unknown: {reason}.", "unknown", 0.0, "", "", (), (), 0)
    pending, limit = reported.pending, reported.limit
    items = reported.items or ()
    percent = min(100.0, 100 * pending / limit) if pending is not None and limit else 0.0
    return ClosuresPanel(
        known=True,
        sentence=sentence(view, reported),
        tone="critical" if percent >= 100 else "attention" if percent >= WARN_AT_PERCENT else "",
        percent=round(percent, 2),
        limit=fmt.count(limit),
        pending=fmt.count(pending),
        rows=tuple(wait_row(view, group, items) for group in reported.groups or ()),
        items=tuple(wait_item(one) for one in items[:ITEMS_SHOWN]),
        more=max(0, (pending or 0) - min(len(items), ITEMS_SHOWN)),
    )


def sentence(view: GroupView, reported: ClosuresView) -> str:
    pending = reported.pending
    if pending is None:
        return "How many writes wait is unknown."
    if not pending:
        last = view.last_completed
        if last is not None and last.at:
            took = f" in {precise_ms(last.took_ms)}" if last.took_ms is not None else ""
            return f"No write is waiting; the last completed {fmt.clock(last.at)}{took}."
        return "No write is waiting."
    wait = "1 write waits" if pending == 1 else f"{pending:,} writes wait"
    oldest = reported.oldest_age_ms
    text = wait + (f", oldest {fmt.duration_ms(oldest)}" if oldest is not None else "")
    if reported.groups:
        # A set comes once a run of requests; the sentence names each once.
        named = dict.fromkeys(f"{one.needed} of {', '.join(one.waits_for)}" for one in reported.groups)
        text += f"; need {' or '.join(named)}"
    return text + "."


def precise_ms(value: float | None) -> str:
    return fmt.UNKNOWN if value is None else f"{value:.1f} ms" if value < 10 else fmt.duration_ms(value)


def wait_row(view: GroupView, group: ClosureGroupView, items: Sequence[ClosureView]) -> WaitRow:
    first, last = group.first_index, group.last_index
    due = group.times_out_in_ms
    if due is None and first is not None and last is not None:
        inside = (one.times_out_in_ms for one in items if first <= one.first_index <= last)
        due = min((one for one in inside if one is not None), default=None)
    peers = group.waits_for
    return WaitRow(
        key="+".join(peers) + f"-{first}",
        peers=", ".join(peers),
        need=f"{group.needed} of {len(peers)}",
        why="; ".join(why(view, peer, group.oldest_age_ms) for peer in peers),
        count=fmt.count(group.count),
        range=fmt.span(first, last),
        oldest=fmt.duration_ms(group.oldest_age_ms),
        times_out=fmt.UNKNOWN if due is None else fmt.duration_ms(max(0, due)),
        size=fmt.size(group.bytes),
    )


def why(view: GroupView, peer_id: str, oldest_age_ms: float | None) -> str:
    """What keeps this peer from answering, worst first."""
    member = view.member(peer_id)
    if member is None:
        return f"{peer_id} is no member any more"
    mark, dispatcher = member.mark, member.dispatcher
    if peer_id == view.leader_id:
        return f"{peer_id} fsync {fmt.duration_ms(oldest_age_ms)}"
    if dispatcher is not None and dispatcher.state != "APPEND":
        return f"{peer_id} in {dispatcher.state} {fmt.age(dispatcher.since, view.as_of)}"
    ack_ms = mark.last_ack_ms
    if ack_ms is not None and ack_ms > SLOW_ACK_MS:
        return f"{peer_id} silent {fmt.duration_ms(ack_ms)}"
    if member.reach == "down":
        return f"{peer_id} engine down"
    behind = mark.lag_entries
    if behind is not None and behind > FAR_BEHIND_ENTRIES:
        return f"{peer_id} {behind:,} entries behind"
    log = member.log
    if log.durable_index is not None and log.end_index is not None:
        if log.durable_index < log.end_index:
            return f"{peer_id} fsync {fmt.duration_ms(oldest_age_ms)}"
        return f"{peer_id} on its way"
    return f"{peer_id} for a reason that is unknown"


def wait_item(one: ClosureView) -> WaitItem:
    due = one.times_out_in_ms
    return WaitItem(
        range=fmt.span(one.first_index, one.last_index),
        term=fmt.count(one.term),
        waits_for=", ".join(one.waits_for or ()) or fmt.UNKNOWN,
        age=fmt.duration_ms(one.age_ms),
        times_out=fmt.UNKNOWN if due is None else fmt.duration_ms(max(0, due)),
    )
