"""Rules about what members say of themselves: whether they answer, their alarms, their damage, whether they vote."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from datetime import datetime
from typing import Final

from app.health.facts import (
    ATTENTION,
    CRITICAL,
    ENGINE_GRACE_S,
    INFO,
    SEVERITY_ORDER,
    Facts,
    Finding,
    seconds_since,
    spelled_range,
)
from app.health.foreign import is_foreign
from app.health.group_view import GroupView, MemberView
from app.health.kept_out import outsiders, says_kept_out
from app.health.links import heard_ms
from app.times import time_of
from node.views.state import AlarmView, FaultView, RepairView

# Of a member's disk: a share, and no more than so much.
LOW_SHARE: Final = 0.05
LOW_BYTES: Final = 5_000_000_000
# One sentence tells these: see `damaged`.
DAMAGE_ALARMS: Final = ("log_damaged", "log_unrecoverable")
# What a member that is no full voter may not do; VOTER is the normal state.
VOTER_STATES: Final = {
    "FORMING": "has not seen its group complete yet and does not campaign",
    "REJOINING": "came back without its log and does not vote until it has caught up",
}
ALARM_TEXT: Final = {
    "disk_full": "{node}'s disk is full", "disk_low": "{node}'s disk is nearly full",
    "data_unwritable": "{node} cannot write to its data directory",
    "applier_down": "{node}'s state machine is down", "apply_failed": "{node}'s state machine goes no further",
    "applier_silent": "{node}'s state machine does not answer",
    "applier_behind": "{node}'s state machine lost its state",
    "applier_diverged": "{node}'s state machine holds a state of another log",
    "snapshot_damaged": "a snapshot of {node}'s is damaged",
    "snapshot_failed": "{node}'s state machine cannot save its state",
    "broker_down": "{node}'s broker is down", "broker_dispatch_stopped": "{node}'s broker dispatches nothing",
    "broker_dispatch_behind": "{node}'s broker is behind with its dispatch",
    "broker_not_master": "{node} leads, and its broker is not master",
    "broker_not_registered": "{node}'s broker is not registered",
    "broker_message_damaged": "{node}'s broker has messages that are not what was written",
    "broker_schedule_behind": "{node}'s broker is behind with scheduled messages",
    "broker_consumers_gone": "Messages wait, and no consumer of their group is connected",
    "broker_consumers_stuck": "Messages wait, and consumers that are connected take none",
    "broker_transactions_unanswered": "{node}'s broker gets no answer about transactions",
}  # fmt: skip
NO_MESSAGES: Final = frozenset(
    {"broker_down", "broker_not_master", "broker_dispatch_stopped"}
)  # where its member leads
SEVERITIES: Final = {"critical": CRITICAL, "info": INFO}
CODE_CHARS_MAX: Final = 64  # a problem's id is kept
HEARD_AFTER_S: Final = 1.5  # a member that ends is heard for a moment longer than it was asked
COUNTED_MS: Final = 2000  # an acknowledgement as old as this still counts (app.console.aggregate)


def engine_down(facts: Facts) -> Iterator[Finding]:
    for one in facts.members:
        if one.reach == "down":
            reported = one.state.engine_reason if one.state is not None else None
            reason = f": {reported}" if reported else ""
            severity = CRITICAL if facts.stands is False else ATTENTION
            text = f"The engine of {one.id} is down{reason}, for {{age}}"
            yield Finding("engine_down", severity, text, one.id)


def silent(facts: Facts) -> Iterator[Finding]:
    not_let_in = outsiders(facts)
    for one in facts.members:
        if one.id in not_let_in and is_foreign(one):
            continue  # `kept_out` says it, and who else finds it so
        severity = CRITICAL if facts.stands is False else ATTENTION
        why = f" ({one.problem})" if one.problem else ""
        if one.reach == "never":
            if facts.first_look:
                yield Finding("member_unreachable", severity, unanswered(one), one.id)
                continue
            yield never_reached(facts, one, severity, why)
        elif engine_silent(one):
            text = f"The engine of {one.id} does not answer its control plane, for {{age}}"
            since = unheard_since(one)
            yield Finding("replica_silent", severity, text + still_heard(facts, one), one.id, since, ENGINE_GRACE_S)
        elif one.reach == "stale":
            text = f"{one.id} {silence_of(one)}{why}, for {{age}}"
            yield Finding("replica_silent", severity, text + still_heard(facts, one), one.id, time_of(one.last_seen))


def silence_of(one: MemberView) -> str:
    """How a control plane that tells no state does so."""
    return {"refuses": "refuses to say how it is", "errs": "says nothing that can be read"}.get(
        one.answers or "", "is silent"
    )


def was_reached(facts: Facts, one: MemberView) -> bool:
    """Whether an earlier console heard it: that one kept how it is started, or since when it is silent."""
    return one.start is not None or facts.recall.began_before(f"replica_silent:{one.id}") is not None


def never_reached(facts: Facts, one: MemberView, severity: str, why: str) -> Finding:
    since = time_of(one.never_reached_since)
    if not was_reached(facts, one):
        return Finding("never_reached", severity, f"{one.id} has never been reached{why}", one.id, since, 2.0)
    if facts.recall.began_before(f"replica_silent:{one.id}") is not None:
        return Finding("replica_silent", severity, f"{one.id} {silence_of(one)}{why}, for {{age}}", one.id, since, 2.0)
    text = f"{one.id} has not answered since this console started{why}, for {{age}}"
    return Finding("replica_silent", severity, text, one.id, since, 2.0)


def unanswered(one: MemberView) -> str:
    """Of a member whose port gave no answer: its control plane may say what its engine does."""
    engine, reason = (one.state.engine, one.state.engine_reason) if one.state is not None else (None, None)
    if engine == "stale":
        return f"The engine of {one.id} does not answer its control plane" + (f": {reason}" if reason else "")
    if engine == "down" and reason:
        return f"The engine of {one.id} is down: {reason}"
    return f"{one.id} does not answer" + (f": {one.problem}" if one.problem else "")


def engine_silent(one: MemberView) -> bool:
    """Its control plane answers now, and says that it does not hear its engine."""
    return one.reach == "stale" and one.problem is None and one.state is not None and one.state.engine == "stale"


def unheard_since(one: MemberView) -> datetime | None:
    """Since when a control plane does not hear its engine, by its own word."""
    return time_of(one.unheard_since)


def heard_meanwhile(one: MemberView, view: GroupView) -> bool:
    """Whether its leader has heard it long after it was noticed that it does not answer here: it is its control plane
    that is away. What ended between two questions was heard long after the first of them, too."""
    leader, now = view.leader, time_of(view.as_of)
    away = time_of(one.unheard_since or one.missed_since or one.last_seen or one.never_reached_since)
    age_ms = None if leader is None else heard_ms(leader, one)
    if leader is None or now is None or away is None or age_ms is None:
        return False
    heard_s = seconds_since(time_of(leader.last_seen) or now, now) + age_ms / 1000
    return seconds_since(away, now) - heard_s > HEARD_AFTER_S and heard_s * 1000 <= COUNTED_MS


def still_heard(facts: Facts, one: MemberView) -> str:
    """For the text: that the leader hears a member which does not answer us; empty where it does not."""
    return "; the leader still hears it" if heard_meanwhile(one, facts.view) else ""


def said_before(one: MemberView, text: str) -> str:
    """What a member says of itself; what it said before it fell silent is reported as that, for it may be over."""
    return f"{one.id} {text}" if one.reach == "ok" else f"{before(one)} that it {text}"


def before(one: MemberView) -> str:
    since = "its engine went down" if one.reach == "down" else "it fell silent"
    return f"Before {since}, {one.id} said"


def alarms(facts: Facts) -> Iterator[Finding]:
    """What members warn of, one finding for each code: a leader may warn of several peers by one."""
    full = {one.id for one in facts.members if "disk_full" in codes_of(one)}
    ids = {one.id for one in facts.members}
    for one in facts.members:
        said_already = says_kept_out(facts, one)
        for code, same in by_code(one, ids, said_already).items():
            if code in DAMAGE_ALARMS and one.state is not None and one.state.faults:
                continue  # `damaged` says it in one sentence
            known = ALARM_TEXT.get(code)  # of any other code the words are that member's
            text = f"{one.id} reports {code.replace('_', ' ')}" if known is None else known.format(node=one.id)
            said = [alarm.text for alarm in same if alarm.text and alarm.text != f"the disk of {one.id} is full"]
            yield _of_member(one, code, one.id, text, same, f": {'; '.join(said)}" if said else "",
                             leads=one.id == facts.view.leader_id)  # fmt: skip
        for alarm in peers_full(one, ids):
            assert alarm.peer_id is not None
            if alarm.peer_id not in full and facts.view.leader_id in (None, one.id):
                full.add(alarm.peer_id)  # not by its own word, or another's than its present leader's
                text = f"{alarm.peer_id}'s disk is full, as it answered its leader {one.id}"
                yield _of_member(one, "disk_full", alarm.peer_id, text, [alarm])


def disk_low(facts: Facts) -> Iterator[Finding]:
    """Before it is full: nobody is warned by a member that only says how full its disk is."""
    for one in facts.members:
        disk = one.state.disk if one.state is not None and one.reach == "ok" else None
        if disk is None or disk.free_bytes is None or not disk.total_bytes or "disk_full" in codes_of(one):
            continue
        if disk.free_bytes < min(disk.total_bytes * LOW_SHARE, LOW_BYTES):
            left = f"{disk.free_bytes / disk.total_bytes:.1%} of it is free"
            yield Finding("disk_low", ATTENTION, f"{one.id}'s disk is nearly full, for {{age}}: {left}", one.id)


def directory_gone(facts: Facts) -> Iterator[Finding]:
    """Its engine ends within a second; one of an older release goes on with the files that it has open, and confirms
    entries that end with its process. It says no more than that it cannot look at its disk any more."""
    gone = {one.id: reason for one in facts.members if (reason := unseen_disk(one))}
    lasting = [one for one in facts.members if not one.is_learner and one.id not in gone]
    severity = ATTENTION if len(lasting) >= facts.view.quorum.needed else CRITICAL
    for node_id, reason in gone.items():
        text = f"{node_id} runs without its data directory, for {{age}}: {reason}"
        yield Finding("directory_gone", severity, text, node_id)


def unseen_disk(one: MemberView) -> str:
    """Why an engine that runs cannot look at its disk; "": it can."""
    if one.state is None or one.reach != "ok" or one.state.engine != "ok" or one.is_java:
        return ""
    return next((each.reason or "" for each in one.state.unknown or () if each.field == "disk"), "")


def _of_member(
    one: MemberView, code: str, node_id: str, what: str, same: Sequence[AlarmView], more: str = "", leads: bool = False
) -> Finding:
    """What alarms of one code that `one` raised say of `node_id`: as weighty as the worst, since the first."""
    weight = [SEVERITIES.get(alarm.severity or "", CRITICAL if code.endswith("full") else ATTENTION) for alarm in same]
    if code in NO_MESSAGES and leads:
        weight = [CRITICAL]
    severity, since = min(weight, key=SEVERITY_ORDER.index), [time_of(alarm.since) for alarm in same]
    text = f"{what}, for {{age}}{more}"
    if one.reach != "ok":  # for how long it lasted nobody knows
        severity, text = weaker(severity), f"{before(one)}: {what}{more}"
    return Finding(f"alarm_{code}", severity, text, node_id, min((at for at in since if at), default=None))


def peers_full(one: MemberView, ids: Container[str]) -> list[AlarmView]:
    """A leader's word for what a member says itself."""
    return [alarm for alarm in alarms_of(one) if alarm.code == "peer_disk_full" and alarm.peer_id in ids]


def by_code(one: MemberView, ids: Container[str], said: Container[AlarmView]) -> dict[str, list[AlarmView]]:
    """A member's alarms by code, without those that were `said`, and those about a full disk of one of `ids`."""
    found: dict[str, list[AlarmView]] = {}
    for alarm in alarms_of(one):
        if alarm not in said and (alarm.code != "peer_disk_full" or alarm.peer_id not in ids):
            found.setdefault((alarm.code or "alarm")[:CODE_CHARS_MAX], []).append(alarm)
    return found


def alarms_of(one: MemberView) -> Sequence[AlarmView]:
    return (one.state and one.state.alarms) or ()


def codes_of(one: MemberView) -> set[str | None]:
    return {alarm.code for alarm in alarms_of(one)}


def weaker(severity: str) -> str:
    """Of what may be over: that its member is silent weighs more."""
    return ATTENTION if severity == CRITICAL else severity


def damaged(facts: Facts) -> Iterator[Finding]:
    """A member that cannot read part of its own log: which, what it may not do, and whether that heals."""
    for one in facts.members:
        state = one.state
        if state is None or not state.faults:
            continue
        faults, repair = state.faults, state.repair or RepairView()
        spans = [spelled_range(fault.first_index, fault.last_index) for fault in faults]
        which = ", ".join(spans[:3]) + (f" and {len(spans) - 3} more ranges" if len(spans) > 3 else "")
        since = next((alarm.since for alarm in state.alarms or () if alarm.code == "log_damaged"), None)
        text, severity = said_before(one, f"cannot read {which} of its log"), ATTENTION
        if one.reach == "ok":
            text += f", for {{age}}: {meanwhile(one.id, faults, repair)}"
            severity = CRITICAL if repair.hopeless else ATTENTION
        low, high = min(fault.first_index for fault in faults), max(fault.last_index for fault in faults)
        yield Finding(
            "log_damaged", severity, text, one.id, time_of(since), from_index=low, to_index=high
        )  # fmt: skip


def meanwhile(node_id: str, faults: Sequence[FaultView], repair: RepairView) -> str:
    """What a damaged member may not do, and whether it heals."""
    may_not = f"it votes, but cannot lead, does not count from entry {faults[0].first_index:,} on"
    whose = "it" if len(faults) == 1 and faults[0].entries == 1 else "them"
    if repair.hopeless:
        tail = "no member of the group can give what was written: `quorumscope store verify` shows what is gone"
    elif repair.peer_id == node_id:
        tail = "it is mended from what the member itself has, if that goes"
    elif repair.peer_id:
        tail = f"it is being repaired from {repair.peer_id}"
    else:
        tail = "it is repaired as soon as a peer that holds it answers"
    return f"{may_not} and does not serve {whose}; {tail}"


def not_members(facts: Facts) -> Iterator[Finding]:
    """Who still runs and does not belong to the group by its leader's log. Who was stopped is as it should be."""
    for one in facts.view.others:
        if one.reach != "ok":
            continue
        if any(alarm.code == "removed" for alarm in (one.state and one.state.alarms) or ()):
            yield Finding("member_removed", INFO, f"{one.id} was removed from the group and still runs", one.id)
        else:
            text = f"{one.id} runs and is no member of the group, by the log of its leader"
            yield Finding("not_a_member", INFO, text, one.id, grace_s=1.0)


def without_votes(facts: Facts) -> list[str]:
    """Who does not know what it had acknowledged, where they are so many that no leader can be elected any more."""
    voters = [one for one in facts.members if not one.is_learner]
    lost = [one.id for one in voters if one.reach == "ok" and one.state and one.state.voter_state == "REJOINING"]
    return lost if facts.leader is None and len(voters) - len(lost) < facts.view.quorum.needed else []


def voter_state(facts: Facts) -> Iterator[Finding]:
    lost = without_votes(facts)  # `no_leader` says it of all at once
    for one in facts.members:
        if one.id in lost:
            continue
        reported = VOTER_STATES.get((one.state and one.state.voter_state) or "")
        if reported is not None:
            text = said_before(one, reported) + ", for {age}"
            severity = INFO if one.is_learner else ATTENTION  # it learns: it had no vote to lose
            yield Finding("voter_restricted", severity, text, one.id, grace_s=2.0)
