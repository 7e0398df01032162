"""How a group stands, from what each of its members says: the body of `status --json`. Pure.

The rules are the console's (`app.health`): a member that answers us may still be cut off from the others, so that what
members say of each other counts. Invariants: a quorum stands only where a leader hears enough of the others; what
nobody told is unknown, never fine.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from app.console.aggregate import ClusterInfo, group_view, lag_entries
from app.console.sample import NodeSample
from app.health.classify import classify
from app.health.facts import ATTENTION, CRITICAL, UNKNOWN, rfc3339
from app.health.recall import Recall

Json = dict[str, Any]
PRESSING: Final = (CRITICAL, ATTENTION)
SHOWN: Final = ("code", "severity", "member", "since", "text", "next_step")
QUORUM_FIELDS: Final = {
    "quorum.stands": "whether the quorum stands is unknown",
    "quorum.standing": "how many members the leader hears is unknown",
}
NOT_SHOWN: Final = ("control_url", "dispatchers", "closures")
LEADERS_VIEWS: Final = ("watermarks", "dispatchers", "closures")


def summary_of(group: str, members: list[Json], now: datetime | None = None, recall: Recall | None = None) -> Json:
    """`members` as they were asked: `{id, address, reach, reason, state}`, a leader's with LEADERS_VIEWS.

    With the `recall` of earlier looks, what has to last to be worth a word may be told; `pending`: there is some.
    """
    now, recall = now or datetime.now(UTC), recall or Recall()
    view = group_view(ClusterInfo(group, group, group), [sample_of(one, now) for one in members], now)
    view["first_look"] = True
    lags = {one["id"]: lag_entries(view, one) for one in view["members"]}
    recall.observe(view, lags, now.timestamp(), now)
    found = classify(view, recall, now)
    return {
        "as_of": rfc3339(now),
        "group": group,
        "leader_id": view["leader_id"],
        "term": view["term"] if view["leader_id"] is not None else None,
        "quorum": view["quorum"],
        "members": [{key: one[key] for key in one if key not in NOT_SHOWN} for one in members],
        "problems": [{name: one[name] for name in SHOWN} for one in found if one["severity"] != UNKNOWN],
        "unknown": unknown_of(view, found),
        "pending": view["pending"],
    }


def problem(code: str, severity: str, member: str | None, text: str, next_step: str, since: str | None = None) -> Json:
    """One entry of `problems`; `member` None: it concerns the group."""
    told = (code, severity, member, since, text, next_step)
    return dict(zip(SHOWN, told, strict=True))


def sample_of(member: Json, now: datetime) -> NodeSample:
    """What the console would have of a member that it asked just now."""
    sample = NodeSample(member["id"], member["address"], member.get("control_url"), added_at=now)
    if member["state"] is None:
        sample.problem = member["reason"]
        return sample
    sample.state = {"engine": "ok", **member["state"]}
    sample.last_seen = now
    for name in LEADERS_VIEWS:
        setattr(sample, name, member.get(name))
    return sample


def unknown_of(view: Json, found: list[Json]) -> list[Json]:
    """What would have to be known before all is called well, and no problem has told already."""
    told = {one["member"] for one in found if one["severity"] in PRESSING}
    missing = [
        {"field": "in_step", "member": one["member"], "reason": one["text"], "since": None}
        for one in view["unproven"]
        if not told or (one["member"] is not None and one["member"] not in told)
    ]
    for field, reason in QUORUM_FIELDS.items():
        if view["quorum"][field.removeprefix("quorum.")] is None:
            missing.append({"field": field, "member": None, "reason": reason, "since": None})
    return missing
