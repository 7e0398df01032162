"""Pending closures: a sentence, a bar against the limit, and one row per set of members waited for, with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from app.console import format as fmt

Json = dict[str, Any]
ITEMS_SHOWN: Final = 50
TICK_SHARE: Final = 0.8
SLOW_ACK_MS: Final = 200


@dataclass(slots=True, frozen=True)
class Row:
    waits_for: str
    why: str
    count: str
    needed: int
    first: str
    last: str
    oldest: str
    times_out_in: str


@dataclass(slots=True, frozen=True)
class ClosuresView:
    sentence: str
    tone: str
    share: float | None
    text: str
    rows: list[Row]
    items: list[Json]
    leader_link: str | None


def closures_view(view: Json, timeout_ms: int = 2000) -> ClosuresView:
    """GroupView -> what is drawn."""
    closures = view["closures"]
    if closures is None:
        return ClosuresView("What waits is unknown: no leader answers.", "unknown", None, "", [], [], None)
    pending, limit = closures.get("pending") or 0, closures.get("limit") or 0
    share = pending / limit if limit else None
    if pending == 0:
        return ClosuresView(idle(view), "", share, f"0 of {limit:,}", [], [], None)
    groups = closures.get("groups") or []
    worst = max(groups, key=lambda one: one.get("oldest_age_ms") or 0, default=None)
    need = f"; need {worst['needed']} of {', '.join(worst['waits_for'])}" if worst and worst["waits_for"] else ""
    plural = "write waits" if pending == 1 else "writes wait"
    sentence = f"{pending:,} {plural}, oldest {fmt.duration_ms(closures.get('oldest_age_ms'))}{need}."
    tone = "critical" if share and share >= 1 else "attention" if share and share >= TICK_SHARE else ""
    rows = [row(view, one, timeout_ms) for one in groups]
    items = (closures.get("items") or [])[:ITEMS_SHOWN]
    return ClosuresView(sentence, tone, share, f"{pending:,} of {limit:,}", rows, items, None)


def idle(view: Json) -> str:
    """Empty is said, with the last one that completed where it is known."""
    last = view["last_completed"]
    if not last:
        return "No write is waiting."
    took = fmt.duration_ms(last.get("took_ms"))
    return f"No write is waiting; the last completed {fmt.clock(last.get('at'))} in {took}."


def row(view: Json, group: Json, timeout_ms: int) -> Row:
    oldest = group.get("oldest_age_ms")
    return Row(
        waits_for=", ".join(group["waits_for"]) or "the leader's own disk",
        why="; ".join(why(view, member_id) for member_id in group["waits_for"]),
        count=fmt.count(group.get("count")),
        needed=group.get("needed") or 0,
        first=fmt.count(group.get("first_index")),
        last=fmt.count(group.get("last_index")),
        oldest=fmt.duration_ms(oldest),
        times_out_in=fmt.UNKNOWN if oldest is None else fmt.duration_ms(max(0, timeout_ms - oldest)),
    )


def why(view: Json, member_id: str) -> str:
    """Why a member has not acknowledged yet, in the order of likelihood."""
    member = next((one for one in view["members"] if one["id"] == member_id), None)
    if member is None:
        return f"{member_id} is no member"
    if member_id == view["leader_id"]:
        return f"{member_id} has not synced it"
    if member["reach"] in ("stale", "never"):
        return f"{member_id} silent"
    dispatcher, mark = member["dispatcher"], member["watermark"] or {}
    if dispatcher and dispatcher["state"] != "APPEND":
        return f"{member_id} in {dispatcher['state']} {fmt.age(dispatcher.get('since'), view['as_of'])}"
    match, durable = mark.get("match_index"), mark.get("durable_index")
    if match is not None and durable is not None and match > durable:
        return f"{member_id} holds it, its disk has not synced"
    if (mark.get("last_ack_ms") or 0) > SLOW_ACK_MS:
        return f"{member_id} answered {fmt.duration_ms(mark['last_ack_ms'])} ago"
    return f"{member_id} on its way"
