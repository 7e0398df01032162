"""The problem classifier: the table of rules over a GroupView and what is remembered of the last minute.

A rule is a function that yields findings; its text may say `{age}`. Order of the table = weight among equals.
Invariants: one cause is named once (a silent replica is not reported as lagging too); unknown is never called fine;
`info` never raises the group's severity; each problem says what to do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from app.health.addresses import wrong_address, wrong_peers
from app.health.applying import not_applying
from app.health.audited import audited
from app.health.certificates import certificates
from app.health.clocks import clock_differs
from app.health.facts import INFO, SEVERITY_ORDER, Facts, Finding, Rule, spell
from app.health.group_view import GroupView, Problem
from app.health.kept_out import kept_out
from app.health.leading import (
    closures,
    commit_stalled,
    first_leadership,
    flush_async,
    no_leader,
    nobody_answers,
    quorum_lost,
    quorum_out_of_sight,
    term_flapping,
    two_leaders,
    writes_stopped,
)
from app.health.links import cut_off, not_connected, resends, slow_link
from app.health.members import alarms, damaged, directory_gone, disk_low, engine_down, not_members, silent, voter_state
from app.health.next_steps import next_step
from app.health.pair_steps import pair_step
from app.health.pairs import EXPLAINS as PAIR_EXPLAINS
from app.health.pairs import RULES as PAIR_RULES
from app.health.pairs import unproven as pair_unproven
from app.health.proof import unproven
from app.health.recall import Recall
from app.health.replication import dispatcher, diverged, lagging
from app.times import rfc3339

RULES: Final[tuple[Rule, ...]] = (
    two_leaders,
    diverged,
    nobody_answers,
    quorum_lost,
    quorum_out_of_sight,
    no_leader,
    writes_stopped,
    engine_down,
    silent,
    wrong_address,
    wrong_peers,
    kept_out,
    cut_off,
    directory_gone,
    alarms,
    disk_low,
    damaged,
    commit_stalled,
    not_applying,
    closures,
    audited,  # stands until an audit closes it: what is wrong now is said before it
    dispatcher,
    lagging,
    slow_link,
    not_connected,
    resends,
    voter_state,
    not_members,
    clock_differs,
    certificates,
    term_flapping,
    first_leadership,
    flush_async,
)
# What a cause explains in the same member: said once, as the cause.
LATE: Final = frozenset({"lagging", "resends"})
AWAY: Final = LATE | {"not_connected", "slow_link", "engine_late", "not_append", "not_catching_up"}
EXPLAINS: Final[dict[str, frozenset[str]]] = {
    "wrong_address": AWAY | {"cut_off", "one_way", "member_unreachable", "catching_up"},
    "wrong_peers": frozenset({"alarm_hello_refused", "alarm_unproven_member", "cut_off", "one_way"}),
    "kept_out": AWAY | {"cut_off", "one_way", "catching_up"},
    "cut_off": AWAY | {"one_way", "catching_up"},
    "one_way": AWAY,
    "replica_silent": AWAY,
    "member_unreachable": AWAY,
    "engine_down": AWAY,
    "not_catching_up": frozenset({"not_append", "lagging"}),
    "slow_link": LATE,
    "engine_late": LATE,
    "alarm_removed": AWAY | {"cut_off", "one_way", "catching_up"},
    "alarm_disk_full": LATE | {"not_catching_up"},
    "alarm_applier_down": frozenset({"not_applying"}),
    "alarm_apply_failed": frozenset({"not_applying"}),
    "alarm_applier_silent": frozenset({"not_applying"}),
    **PAIR_EXPLAINS,
}
OF_ALL: Final = frozenset({"never_reached", "all_silent", "engines_silent"})
AGE: Final = re.compile(r",? for \{age\}| \{age\} ago|, \{age\} ago")


def classify(view: GroupView, recall: Recall, now: datetime, *, first_look: bool = False) -> GroupView:
    """The view with all its problems, worst first, and what is unproven; remembers since when each stands."""
    view = view.model_copy(update={"seen_leading": recall.seen_leading(view), "commits": recall.commits(view)})
    facts = Facts(view, recall, now, first_look)
    rules, proof = (PAIR_RULES, pair_unproven) if view.is_pair else (RULES, unproven)
    recall.stood_still(view, now)
    found = once([finding for rule in rules for finding in rule(facts)], view.leader_id)
    recall.forget_all_but({problem_id(one) for one in found} | recall.openings.ids)
    if first_look and not recall.openings.looked:  # what stands already began nobody knows when
        recall.older = {problem_id(one) for one in found if one.since is None}
    problems: list[Problem] = []
    pending = False
    for one in found:
        key = problem_id(one)
        since = recall.since(key, min(one.since, now) if one.since is not None else now, now)
        if recall.noticed_s(key, now) < one.grace_s:
            pending = True
            continue
        lasts_since = None if key in recall.older else recall.lasts_since(key, one.since, now)
        problems.append(problem_of(one, since, lasts_since, now, view))
    ordered = sorted(problems, key=lambda one: SEVERITY_ORDER.index(one.severity))
    judged = view.model_copy(
        update={"problems": tuple(ordered), "unproven": tuple(proof(facts)), "pending": pending},
    )
    proven = not (judged.unproven or pending) and worst(ordered) == "ok"
    recall.forget_what_is_over(judged, EXPLAINS, now, proven=proven)
    recall.openings.observe(judged, EXPLAINS, now)
    return judged


def problem_of(one: Finding, since: datetime, lasts_since: datetime | None, now: datetime, view: GroupView) -> Problem:
    """`lasts_since` None: it was there before anybody looked, and nobody can say since when."""
    lasted_s = 0.0 if lasts_since is None else (now - lasts_since).total_seconds()
    age = spell(lasted_s)
    # What has just begun has no age yet: nobody learns anything from "for 0 s".
    text = one.text if lasted_s >= 1 else AGE.sub("", one.text)
    step = (pair_step(one, view) if view.is_pair else None) or next_step(one, view)
    return Problem(
        **dict(step),
        id=problem_id(one),
        code=one.code,
        severity=one.severity,
        node_id=one.node_id,
        member=one.node_id,
        text=text.replace("{age}", age) + ".",
        # The same without an age: for an event, whose own time says when.
        what=AGE.sub("", one.text).replace("{age}", age) + ".",
        since=rfc3339(since),
        since_unknown=lasts_since is None,
        next_step=step.sentence,
    )


def once(found: list[Finding], leader_id: str | None) -> list[Finding]:
    """Without what another finding of the same member explains, or the leader's own slow link."""
    if any(one.code in OF_ALL and one.node_id is None for one in found):
        found = [one for one in found if one.code not in ("never_reached", "replica_silent") or one.node_id is None]
    explained = {(code, one.node_id) for one in found for code in EXPLAINS.get(one.code, ())}
    if any(one.code == "slow_link" and one.node_id == leader_id for one in found):
        explained |= {(code, one.node_id) for one in found for code in EXPLAINS["slow_link"]}
    return [one for one in found if (one.code, one.node_id) not in explained]


def problem_id(finding: Finding) -> str:
    return f"{finding.code}:{finding.node_id or ''}"


def worst(problems: Sequence[Problem]) -> str:
    """The group's severity."""
    weighty = [one.severity for one in problems if one.severity != INFO]
    return next((one for one in SEVERITY_ORDER if one in weighty), "ok")
