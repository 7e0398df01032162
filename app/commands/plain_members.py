"""Members of the Java original in `status`: of a plain DLedger only METADATA is known, who its leader is.

Invariant: what such a member does not tell is unknown, neither down nor fine: its log, its term, whom it hears, and so
whether a quorum stands where one of them leads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from app.commands.standing import QUORUM_FIELDS, AskedMember, MetadataView, Missing, StatusProblem, StatusView, problem
from app.health.facts import ATTENTION, CRITICAL, join
from app.health.group_view import QuorumView
from node.client import Denied, LedgerClient, LedgerError, Unreachable

PLAIN: Final = "plain"
ONLY_METADATA: Final = "plain DLedger: only METADATA is known"


async def ask_metadata(client: LedgerClient, known: AskedMember) -> AskedMember:
    """A member that does not know our requests, as METADATA tells of it. Raises Denied; Unreachable: no word."""
    try:
        reported = await client.metadata(known.id)
    except (Denied, Unreachable):
        raise
    except LedgerError as error:
        reason = f"no member: it knows neither our requests nor METADATA ({error})"
        return known.model_copy(update={"reason": reason})
    leader_id = reported.get("leaderId")
    metadata = MetadataView(leader_id=leader_id if isinstance(leader_id, str) else None)
    return known.model_copy(update={"reach": PLAIN, "reason": ONLY_METADATA, "metadata": metadata})


def with_plain(summary: StatusView) -> StatusView:
    """`standing.summary_of`, corrected for members of the original: they answer, and tell little."""
    plain = {one.id: one.metadata.leader_id for one in summary.members if one.metadata is not None}
    if not plain:
        return summary
    unknown = [
        *(one for one in summary.unknown if one.field not in ("in_step", *QUORUM_FIELDS)),
        *(Missing(field=f"{one}.state", reason=f"{one}: {ONLY_METADATA}", since=None) for one in plain),
    ]
    problems = [_never_0(one) for one in summary.problems if one.member not in plain]
    quorum = summary.quorum.model_copy(update={"answering": summary.quorum.answering + len(plain)})
    found = summary.model_copy(update={"problems": tuple(problems), "unknown": tuple(unknown), "quorum": quorum})
    if summary.leader_id is not None:
        return found  # one of ours, and it says whom it hears
    return _led_by(found, plain, problems, quorum)


def _led_by(
    found: StatusView, plain: Mapping[str, str | None], problems: Sequence[StatusProblem], quorum: QuorumView
) -> StatusView:
    """Who leads is who says so itself, as everywhere."""
    leaders = sorted(one for one, said in plain.items() if one == said)
    answering = {one.id for one in found.members if one.state is not None or one.metadata is not None}
    unseen = sorted({said for said in plain.values() if said} - answering)
    if not leaders and unseen:
        return _led_unseen(found, plain, problems, unseen)
    if len(leaders) != 1:
        others = sorted({said for said in plain.values() if said} - set(leaders))
        text = "no member leads" + (f", though {join(others)} is followed" if others else "")
        if leaders:
            text = f"{join(leaders)} each say that they lead, and a plain DLedger tells no term"
        step = (
            "an election may be under way: look again in some seconds. If it stays so, start those that do not answer,"
        )
        step += " and look at the network between those that do"
        reported = (
            problem("no_leader", CRITICAL, None, text, step),
            *(one for one in problems if one.code != "no_leader"),
        )
        stands = {"standing": None, "stands": None} if leaders else {"standing": 0, "stands": False}
        return found.model_copy(update={"problems": reported, "quorum": quorum.model_copy(update=stands)})
    reason = f"{leaders[0]} leads: a plain DLedger tells neither its term nor whom it hears"
    fields = (Missing(field=name, reason=reason, since=None) for name in ("term", *QUORUM_FIELDS))
    return found.model_copy(
        update={
            "leader_id": leaders[0],
            "term": None,
            "problems": tuple(_weighed(one) for one in problems if one.code != "no_leader"),
            "unknown": (*found.unknown, *fields),
            "quorum": quorum.model_copy(update={"standing": None, "stands": None}),
        }
    )


OF_THE_QUORUM: Final = ("no_leader", "leader_out_of_sight", "quorum_lost", "quorum_out_of_sight")


def _led_unseen(
    found: StatusView, plain: Mapping[str, str | None], problems: Sequence[StatusProblem], unseen: Sequence[str]
) -> StatusView:
    """Who does not answer us may lead a quorum all the same: those that answer follow it."""
    following = sorted(one for one, said in plain.items() if said in unseen)
    follow = "follow" if len(following) > 1 else "follows"
    text = f"The leader {join(list(unseen))} does not answer, though {join(following)} {follow} it"
    step = (
        f"look whether {join(list(unseen))} runs, and is reached from here: if it runs, writes may go on, unseen from"
    )
    step += " this machine; if it does not, the others elect another leader within seconds"
    reported = (
        problem("leader_out_of_sight", ATTENTION, None, text, step),
        *(_weighed(one) for one in problems if one.code not in OF_THE_QUORUM),
    )
    fields = (Missing(field=name, reason=reason, since=None) for name, reason in QUORUM_FIELDS.items())
    quorum = found.quorum.model_copy(update={"standing": None, "stands": None})
    return found.model_copy(update={"problems": reported, "unknown": (*found.unknown, *fields), "quorum": quorum})


def _never_0(one: StatusProblem) -> StatusProblem:
    """Of a group with plain members too little is known for `status` to end with 0."""
    said, meant = "it is well when this ends with 0", "this shows it again once it answers"
    return one.model_copy(update={name: getattr(one, name).replace(said, meant) for name in ("step", "next_step")})


def _weighed(one: StatusProblem) -> StatusProblem:
    """Without a quorum that is known to be lost, a silent member is no disaster."""
    if one.code != "member_unreachable" or one.severity != CRITICAL:
        return one
    return one.model_copy(update={"severity": ATTENTION})
