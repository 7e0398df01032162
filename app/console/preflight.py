"""The preview of a leadership transfer, shown before it is confirmed, and who may overrule it. Pure.

Invariant: of what refuses a transfer only a first leadership can be overruled, by an admin who names the member.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from app.console.aggregate import ack_is_fresh
from app.console.errors import Conflict, ConsoleError, Invalid
from app.health.facts import entries_of
from app.health.group_view import GroupView, MemberView, QuorumView
from app.security.roles import Right, Viewer
from node.protocol.codes import VoterState
from node.views.base import View

# A transfer waits for the target to be level; more than this takes longer than a write may wait (the core refuses too).
LAG_MAX = 1000
# Measured shape of a hand-over: the target catches up, then one quick election round.
PAUSE_BASE_MS = 50
PAUSE_PER_ENTRY_MS = 0.05
FIRST_LEADERSHIP: Final = "first leadership"
ACCEPT: Final = "An admin may accept that: on the page Leadership, or with `accept_data_loss` and the member in `to`."


class Check(View):
    """One thing to know before: `state` is ok | attention | unknown | refused."""

    name: str
    state: str
    text: str


class Commands(View):
    """The same by hand; the token is never printed."""

    cli: str
    curl: str


class Preflight(View):
    """What a transfer would mean. `allowed` is False when the core would refuse.

    `needs_acceptance`: nothing but a first leadership refuses it, which an admin may accept by name.
    """

    allowed: bool
    needs_acceptance: bool = False
    to: str | None
    if_term: int | None
    checks: tuple[Check, ...]
    expected_pause_ms: int | None
    quorum_after: QuorumView
    commands: Commands


def preflight(view: GroupView, to: str | None) -> Preflight:
    """Attention and unknown are for people to weigh."""
    candidates = [one for one in view.members if one.id != view.leader_id and one.reach == "ok"]
    target = view.member(to) if to is not None else best(view, candidates)
    checks = [leader_check(view), target_check(view, to, target)]
    if target is not None and target.id != view.leader_id:
        checks += [reach_check(view, target), lag_check(view, target), log_check(view, target), disk_check(target)]
        checks += first_leadership_check(view, target)
    checks.append(quorum_check(view))
    refused = {one.name for one in checks if one.state == "refused"}
    lag = view.lag_entries(target) if target is not None else None
    quorum = view.quorum
    shown = target.id if target is not None else (to or "TARGET")
    return Preflight(
        allowed=not refused,
        needs_acceptance=refused == {FIRST_LEADERSHIP},
        to=target.id if target is not None else to,
        if_term=view.term,
        checks=tuple(checks),
        expected_pause_ms=None if lag is None else round(PAUSE_BASE_MS + PAUSE_PER_ENTRY_MS * lag),
        quorum_after=QuorumView(
            size=quorum.size, needed=quorum.needed, answering=quorum.answering, standing=quorum.standing
        ),
        commands=commands(view, shown),
    )


def refused_transfer(checked: Preflight) -> Conflict:
    why = "; ".join(one.text for one in checked.checks if one.state == "refused")
    return Conflict(why, title="Transfer refused", action=ACCEPT if checked.needs_acceptance else None)


def may_accept(checked: Preflight, to: str | None, caller: Viewer) -> None:
    """Returns where this caller may have leadership moved though followers are cut. Raises ConsoleError."""
    if not caller.can(Right.ADMIN):
        raise ConsoleError(
            f"To accept a loss of data needs the right `{Right.ADMIN}`; {caller.role}s do not have it.",
            status=403,
            title="Not allowed",
        )
    if to is None:
        raise Invalid("A loss of data is accepted of one member: name it in `to`.")
    if not (checked.allowed or checked.needs_acceptance):
        raise refused_transfer(checked)


def best(view: GroupView, candidates: Sequence[MemberView]) -> MemberView | None:
    """The most level voter with a whole log: what the core picks when no target is named."""
    whole = [one for one in candidates if not damaged(one) and without_vote(one) is None]
    known = [(lag, one.id, one) for one in whole if (lag := view.lag_entries(one)) is not None]
    return min(known, key=lambda item: item[:2])[2] if known else None


def check(name: str, state: str, text: str) -> Check:
    return Check(name=name, state=state, text=text)


def leader_check(view: GroupView) -> Check:
    if view.leader_id is None:
        return check("leader", "refused", "There is no reachable leader that could hand over")
    return check("leader", "ok", f"{view.leader_id} leads term {view.term}")


def target_check(view: GroupView, to: str | None, target: MemberView | None) -> Check:
    if target is None:
        text = f"{to} is no member of this group" if to is not None else "No follower is known to be level"
        return check("target", "refused", text)
    if target.id == view.leader_id:
        return check("target", "refused", f"{target.id} leads already")
    if why := without_vote(target):
        return check("target", "refused", f"{target.id} has no vote: {why}")
    return check("target", "ok", f"{target.id} would lead")


def without_vote(target: MemberView) -> str | None:
    """Why the core would not let it lead; None: it has a vote, as far as is known."""
    if target.is_learner:
        return "it is a learner"
    said = None if target.state is None else target.state.voter_state
    return None if said in (None, VoterState.VOTER) else f"it is {said}"


def reach_check(view: GroupView, target: MemberView) -> Check:
    if target.reach == "down":
        return check("reach", "refused", f"The engine of {target.id} is down")
    age_ms = target.mark.last_ack_ms
    if age_ms is None:
        return check("reach", "unknown", f"When {view.leader_id} last heard {target.id} is unknown")
    if not ack_is_fresh(target.mark):
        return check("reach", "refused", f"{view.leader_id} has not heard {target.id} for {age_ms / 1000:.0f} s")
    return check("reach", "ok", f"{view.leader_id} heard {target.id} {age_ms} ms ago")


def lag_check(view: GroupView, target: MemberView) -> Check:
    lag = view.lag_entries(target)
    if lag is None:
        return check("lag", "unknown", f"How far {target.id} is behind is unknown")
    if lag > LAG_MAX:
        return check("lag", "refused", f"{target.id} is {lag:,} entries behind; at most {LAG_MAX:,} are accepted")
    return check("lag", "ok", f"{target.id} is {entries_of(lag)} behind")


def is_index(value: int | None) -> bool:
    return value is not None and value >= 0


def damaged(target: MemberView) -> bool:
    """By its own word, or by its leader's."""
    return bool(target.state and target.state.faults) or is_index(target.mark.faulty_from_index)


def log_check(view: GroupView, target: MemberView) -> Check:
    if damaged(target):
        return check(
            "log", "refused", f"{target.id} cannot read part of its log: it may not lead before that is mended"
        )
    audit = view.audit
    if audit is not None and audit.verdict == "divergent" and audit.node_id in (None, target.id):
        whose = f"{target.id}'s log" if audit.node_id else "the logs"
        return check(
            "log", "attention", f"An audit found a difference in {whose}, and none has shown since that it is gone"
        )
    return check("log", "ok", f"{target.id} reports no damage to its log")


def disk_check(target: MemberView) -> Check:
    alarms = target.state.alarms if target.state is not None else None
    if alarms is None:
        return check("disk", "unknown", f"The state of {target.id}'s disk is unknown")
    if alarms:
        return check("disk", "attention", f"{target.id} raises {len(alarms)} alarm{'s' if len(alarms) > 1 else ''}")
    return check("disk", "ok", f"{target.id} raises no alarm")


def first_leadership_check(view: GroupView, target: MemberView) -> list[Check]:
    """A plain DLedger that leads for the first time since its process started wipes its followers: it is refused unless
    this console saw it lead."""
    if not any(one.is_java for one in view.members) or target.id in view.seen_leading:
        return []
    end = target.log.end_index
    cut = "to an index that is not known" if end is None else f"to an index between -1 and {end:,}"
    text = (
        f"{target.id} has not been seen to lead since its process started: a plain DLedger that leads for the first"
        f" time cuts its followers to where its own log ended at that start, {cut}; what they hold beyond is lost,"
        " committed entries too"
    )
    return [check(FIRST_LEADERSHIP, "refused", text)]


def quorum_check(view: GroupView) -> Check:
    quorum = view.quorum
    counted = f"{quorum.answering} of {quorum.size} answer, {quorum.needed} are needed"
    if quorum.stands is None or quorum.standing is None:
        return check("quorum", "unknown", counted)
    counted = f"{quorum.standing} of {quorum.size} stand together, {quorum.needed} are needed"
    spare = quorum.standing - quorum.needed
    return check("quorum", "ok" if spare > 0 else "attention", counted + ("" if spare > 0 else ": none to spare"))


def commands(view: GroupView, to: str) -> Commands:
    url = (view.leader and view.leader.control_url) or "http://LEADER"
    body = json.dumps({"to": to, "if_term": view.term, "deadline_ms": 5000})
    return Commands(
        cli=f"quorumscope transfer {to} --node {url} --if-term {view.term}",
        curl=f'curl -X POST {url}/api/v1/leadership-transfer -H "Authorization: Bearer $QUORUMSCOPE_TOKEN"'
        f" -H 'Content-Type: application/json' -d '{body}'",
    )
