"""The body of `status --json`: the state of a group, computed from each member's answer. Pure.

The rules are the console's (`app.health`): a member that answers us may still be cut off from the others, so that what
members say of each other counts. Invariants: a quorum stands only where a leader hears enough of the others; what
no member reported is unknown, never fine.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from pydantic import Field

from app.commands.access_flags import AccessFlags
from app.commands.endings import Silence
from app.console.aggregate import ClusterInfo, group_view
from app.console.sample import NodeSample
from app.console.their_clock import clock_of
from app.health.classify import classify
from app.health.confirming import writes_stopped
from app.health.facts import ATTENTION, CRITICAL, SEVERITY_ORDER, UNKNOWN
from app.health.group_view import GroupView, Problem, QuorumView
from app.health.recall import Recall
from app.times import rfc3339
from node.views.base import Flag, Text, View, Whole
from node.views.closures import ClosuresView
from node.views.replication import DispatchersView, WatermarksView
from node.views.state import StateView

PRESSING: Final = (CRITICAL, ATTENTION)
ASKED_WITHIN_S: Final = 2.0  # an answer is as old as this, at most
QUORUM_FIELDS: Final = {
    "quorum.stands": "whether the quorum stands is unknown",
    "quorum.standing": "how many members the leader hears is unknown",
}


class MetadataView(View):
    """All that a plain DLedger tells."""

    leader_id: Text | None = None


class AskedMember(View):
    """One member as it was asked; `state` None: it did not answer, `reason` and `silence` say why. A leader has all
    views.

    `start`: how it was started, as its control plane knows it where the engine is down. `was_looked_up`: that one was
    asked, whatever came of it. `broker_unknown`: why nobody knows how its broker is.
    """

    id: Text
    address: Text
    watermarks: WatermarksView | None = None
    dispatchers: DispatchersView | None = Field(default=None, exclude=True)
    closures: ClosuresView | None = Field(default=None, exclude=True)
    reach: Text
    reason: str | None = None
    silence: Silence | None = None
    state: StateView | None = None
    metadata: MetadataView | None = None
    control_url: str | None = Field(default=None, exclude=True)
    start: StateView | None = Field(default=None, exclude=True)
    was_looked_up: bool = Field(default=False, exclude=True)
    broker_unknown: str | None = Field(default=None, exclude=True)


class StatusProblem(View):
    """One entry of `problems`; `member` None: it concerns the group; `since` None: since before anybody looked."""

    code: Text
    severity: Text
    member: Text | None = None
    since: Text | None = None
    text: str
    next_step: str
    means: str = ""
    step: str = ""
    at_stake: str = ""
    command: str | None = None
    curl: str | None = None
    docs: Text | None = None


class Missing(View):
    """What would have to be known before all is called well."""

    field: Text
    member: Text | None = None
    reason: str
    since: Text | None = None


class StatusView(View):
    """The whole of `status --json`; `pending`: something is wrong that has not lasted long enough to be a problem.

    `writes_stopped`: why no new write gets through though the quorum stands; empty: they do, or it is not known.
    `others`: who was asked and does not belong to the group by its leader's log (any more).
    """

    as_of: Text
    group: Text
    leader_id: Text | None = None
    term: Whole | None = None
    quorum: QuorumView
    members: tuple[AskedMember, ...]
    others: tuple[AskedMember, ...] = ()
    problems: tuple[StatusProblem, ...]
    unknown: tuple[Missing, ...]
    pending: Flag = False
    writes_stopped: Text = ""


def summary_of(
    group: str,
    members: Sequence[AskedMember],
    now: datetime | None = None,
    recall: Recall | None = None,
    *,
    demo: bool = False,
    asked: str | None = None,
) -> StatusView:
    """With the `recall` of earlier looks, conditions that count only once they last may be reported; `pending`: there
    are some. Whoever `asked` a member that was removed meant that one: there it is no remark at the margin."""
    now, recall = now or datetime.now(UTC), recall or Recall()
    view = group_view(ClusterInfo(group, group, group, demo=demo), [sample_of(one, now) for one in members], now)
    recall.observe(view, now.timestamp(), now)
    view = classify(view, recall, now, first_look=True)
    inside = {one.id for one in view.members}
    return StatusView(
        as_of=rfc3339(now),
        group=group,
        leader_id=view.leader_id,
        term=view.term if view.leader_id is not None else None,
        quorum=view.quorum,
        members=tuple(one for one in members if one.id in inside),
        others=tuple(one for one in members if one.id not in inside),
        problems=tuple(reported(one) for one in pressed(view.problems, asked) if one.severity != UNKNOWN),
        unknown=(*unknown_of(view), *brokers_unknown(members)),
        pending=view.pending,
        writes_stopped=writes_stopped(view),
    )


def reported(one: Problem) -> StatusProblem:
    said = {name: getattr(one, name) for name in StatusProblem.model_fields}
    return StatusProblem.model_validate(said | ({"since": None} if one.since_unknown else {}))


def pressed(problems: Sequence[Problem], asked: str | None) -> list[Problem]:
    """What the rules found, the gravest first, with the removal of the member that was asked among what presses."""
    said = [
        one.model_copy(update={"severity": ATTENTION}) if (one.code, one.node_id) == ("member_removed", asked) else one
        for one in problems
    ]
    return sorted(said, key=lambda one: SEVERITY_ORDER.index(one.severity))


def pasteable(summary: StatusView, access: AccessFlags) -> StatusView:
    """The same, with the options in its commands by which this group lets one in."""

    urls = {one.id: one.control_url for one in (*summary.members, *summary.others)}

    def one(problem: StatusProblem) -> StatusProblem:
        if problem.command is None:
            return problem
        command = access.in_its_shape(problem.command, urls.get(problem.member or ""))
        curl = problem.curl and access.over_curl(problem.curl)
        said = problem.next_step.replace(f"`{problem.command}`", f"`{command}`")
        return problem.model_copy(update={"command": command, "curl": curl, "next_step": said})

    return summary.model_copy(update={"problems": tuple(one(each) for each in summary.problems)})


def problem(
    code: str, severity: str, member: str | None, text: str, next_step: str, since: str | None = None
) -> StatusProblem:
    return StatusProblem(
        code=code, severity=severity, member=member, since=since, text=text, next_step=next_step
    )  # fmt: skip


def sample_of(member: AskedMember, now: datetime) -> NodeSample:
    """What the console would have of a member that it asked just now."""
    sample = NodeSample(member.id, member.address, member.control_url, added_at=now)
    if member.state is None:
        sample.problem, sample.state = member.reason, member.start
        return sample
    sample.state, sample.last_seen = member.state, now
    sample.last_clock = clock_of(member.state, now - timedelta(seconds=ASKED_WITHIN_S), ASKED_WITHIN_S)
    sample.watermarks, sample.dispatchers, sample.closures = member.watermarks, member.dispatchers, member.closures
    return sample


def brokers_unknown(members: Sequence[AskedMember]) -> list[Missing]:
    return [Missing(field="broker", member=one.id, reason=why) for one in members if (why := one.broker_unknown)]


def unknown_of(view: GroupView) -> list[Missing]:
    """What is still unknown, keeps the group from being called healthy, and is in no problem listed so far."""
    accused = {one.member for one in view.problems if one.severity in PRESSING}
    learners = {one.id for one in view.members if one.is_learner}  # nothing waits for them
    missing = [
        Missing(field="in_step", member=one.member, reason=one.text, since=None)
        for one in view.unproven
        if one.member not in learners and (not accused or (one.member is not None and one.member not in accused))
    ]
    known = {"quorum.stands": view.quorum.stands, "quorum.standing": view.quorum.standing}
    missing += [
        Missing(field=field, member=None, reason=reason, since=None)
        for field, reason in QUORUM_FIELDS.items()
        if known[field] is None
    ]
    return missing
