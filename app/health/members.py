"""Rules about what members say of themselves: whether they answer, their alarms, their damage, whether they vote."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from app.health.facts import (
    ATTENTION,
    CRITICAL,
    INFO,
    Facts,
    Finding,
    Json,
    plain,
    spelled_range,
    time_of,
)
from app.health.links import heard_ms

# One sentence tells these: see `damaged`.
DAMAGE_ALARMS: Final = ("log_damaged", "log_unrecoverable")
# What a member that is no full voter may not do; VOTER is the normal state.
VOTER_STATES: Final = {
    "FORMING": "has not seen its group complete yet and does not campaign",
    "REJOINING": "came back without its log and does not vote until it has caught up",
}
SEVERITIES: Final = {"critical": CRITICAL, "info": INFO}


def engine_down(facts: Facts) -> Iterator[Finding]:
    for one in facts.members:
        if one["reach"] == "down":
            state = one["state"] or {}
            told = state.get("engine_reason") or state.get("reason") or state.get("engine_problem")
            reason = f": {told}" if isinstance(told, str) and told else ""
            severity = CRITICAL if facts.stands is False else ATTENTION
            text = f"The engine of {one['id']} is down{reason}, for {{age}}"
            yield Finding("engine_down", severity, text, one["id"])


def silent(facts: Facts) -> Iterator[Finding]:
    for one in facts.members:
        severity = CRITICAL if facts.stands is False else ATTENTION
        why = f" ({one['problem']})" if one["problem"] else ""
        if one["reach"] == "never":
            if facts.view.get("first_look"):
                text = f"{one['id']} does not answer" + (f": {one['problem']}" if one["problem"] else "")
                yield Finding("member_unreachable", severity, text, one["id"])
                continue
            since = time_of(one["never_reached_since"])
            yield Finding("never_reached", severity, f"{one['id']} has never been reached{why}", one["id"], since, 2.0)
        elif one["reach"] == "stale" and (one["state"] or {}).get("engine") == "stale":
            text = f"The engine of {one['id']} does not answer its control plane, for {{age}}"
            since = unheard_since(one)
            yield Finding("replica_silent", severity, text + still_heard(facts, one), one["id"], since)
        elif one["reach"] == "stale":
            text = f"{one['id']} is silent{why}, for {{age}}"
            yield Finding(
                "replica_silent", severity, text + still_heard(facts, one), one["id"], time_of(one["last_seen"])
            )


def unheard_since(one: Json) -> datetime | None:
    """Since when a control plane does not hear its engine, by its own word."""
    told = [item for item in (one["state"] or {}).get("unknown") or [] if item.get("field") == "state"]
    return time_of(told[-1].get("since")) if told else None


def still_heard(facts: Facts, one: Json) -> str:
    """Whether the leader hears a member that does not answer us."""
    age_ms = None if facts.leader is None else heard_ms(facts.leader, one)
    return "; the leader still hears it" if age_ms is not None and age_ms <= facts.patience_ms else ""


def alarms(facts: Facts) -> Iterator[Finding]:
    for one in facts.members:
        if one["reach"] != "ok":
            continue
        for alarm in (one["state"] or {}).get("alarms") or []:
            told = alarm if isinstance(alarm, dict) else {"kind": str(alarm)}
            kind = str(told.get("code") or told.get("kind") or told.get("name") or "alarm")
            if kind in DAMAGE_ALARMS and one["state"].get("faults"):
                continue  # `damaged` says it in one sentence
            detail = told.get("detail") or told.get("text") or told.get("message") or ""
            severity = SEVERITIES.get(str(told.get("severity")), CRITICAL if kind.endswith("full") else ATTENTION)
            text = f"{one['id']} raises {kind.replace('_', ' ')}" + (f": {plain(detail)}" if detail else "")
            yield Finding(f"alarm_{kind}", severity, text, one["id"], time_of(told.get("since") or told.get("at")))


def damaged(facts: Facts) -> Iterator[Finding]:
    """A member that cannot read part of its own log: which, what it may not do, and whether that heals."""
    for one in facts.members:
        state = one["state"] or {}
        faults, repair = state.get("faults") or [], state.get("repair") or {}
        if one["reach"] != "ok" or not faults:
            continue
        spans = [spelled_range(fault["first_index"], fault["last_index"]) for fault in faults]
        which = ", ".join(spans[:3]) + (f" and {len(spans) - 3} more ranges" if len(spans) > 3 else "")
        may_not = f"it votes, but cannot lead, does not count from entry {faults[0]['first_index']:,} on"
        whose = "it" if len(faults) == 1 and faults[0]["first_index"] == faults[0]["last_index"] else "them"
        hopeless = repair.get("hopeless") or 0
        alarms = {alarm.get("code"): alarm for alarm in state.get("alarms") or [] if isinstance(alarm, dict)}
        if hopeless:
            tail = "no member of the group can give what was written: `quorumscope store verify` shows what is gone"
        elif repair.get("peer_id"):
            tail = f"it is being repaired from {repair['peer_id']}, for {{age}}"
        else:
            tail = "it is repaired as soon as a peer that holds it answers, for {age}"
        text = f"{one['id']} cannot read {which} of its log: {may_not} and does not serve {whose}; {tail}"
        since = time_of((alarms.get("log_damaged") or {}).get("since"))
        severity = CRITICAL if hopeless else ATTENTION
        yield Finding("log_damaged", severity, text, one["id"], since)


def voter_state(facts: Facts) -> Iterator[Finding]:
    for one in facts.members:
        told = VOTER_STATES.get(str((one["state"] or {}).get("voter_state")))
        if one["reach"] == "ok" and told is not None:
            yield Finding("voter_restricted", ATTENTION, f"{one['id']} {told}, for {{age}}", one["id"], grace_s=2.0)
