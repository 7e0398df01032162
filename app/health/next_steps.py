"""For one problem of one group: what it means, what is at stake, and what to do. Pure.

Invariant: a command is printed whole, as it runs; where something about it is not known, that is in capitals. What is
at stake is said of the group as it is now: how many more failures stop writes, and which entries would be cut.
"""

from __future__ import annotations

import shlex
from typing import Final
from urllib.parse import urlsplit

from app.health.advice import ADVICE, ALARM, Advice
from app.health.facts import Finding, spelled_range
from app.health.group_view import GroupView, MemberView, NextStep
from app.health.links import heard_ms
from app.health.members import engine_silent

UNKNOWN_URL: Final = "CONTROL_URL"
DOCS: Final = "docs/problems.md"
TOKEN_HEADER: Final = ' -H "Authorization: Bearer $QUORUMSCOPE_TOKEN"'
AWAY: Final = frozenset({"cut_off", "one_way", "replica_silent", "member_unreachable", "engine_down"})
COUNTED_MS: Final = 2000  # an acknowledgement as old as this still counts (app.console.aggregate)
DEMO_HEAL: Final = "quorumscope demo heal {node}", "in this demo somebody broke it on purpose; this ends it at once"
FLUSH_STAKE: Final = "a power cut of {needed} members at once loses writes that were acknowledged"


def next_step(finding: Finding, view: GroupView) -> NextStep:
    advice = advice_of(finding, view)
    fields = fields_of(finding, view)
    command, step = advice.command, advice.step
    if advice.heals and view.cluster.demo:
        command, step = DEMO_HEAL
    return NextStep(
        means=advice.means.format(**fields),
        at_stake=at_stake(finding, view),
        step=step.format(**fields),
        command=command.format(**fields),
        curl=with_token(advice.curl.format(**fields)),
        docs=f"{DOCS}#{advice.section}",
        actions=advice.actions if finding.node_id is not None else tuple(a for a in advice.actions if a != "scrub"),
        from_index=finding.from_index,
        to_index=finding.to_index,
    )


def with_token(curl: str) -> str:
    """A control plane beyond loopback asks for the token."""
    local = any(host in curl for host in ("//127.0.0.1", "//localhost", "//[::1]"))
    return curl if local else curl.replace("curl", "curl" + TOKEN_HEADER, 1)


def advice_of(finding: Finding, view: GroupView) -> Advice:
    one = view.member(finding.node_id)
    if finding.code == "replica_silent" and one is not None and engine_silent(one):
        return ADVICE["engine_silent"]
    # Where `status` asks, the control plane may be all that answers, and say that its engine does not.
    state = one.state if one is not None else None
    if finding.code == "member_unreachable" and state is not None and state.engine == "stale":
        return ADVICE["engine_silent"]
    return ADVICE.get(finding.code, ALARM)


def fields_of(finding: Finding, view: GroupView) -> dict[str, str]:
    urls = {one.id: one.control_url or UNKNOWN_URL for one in view.members}
    leader = view.leader_id
    leader_url = urls.get(leader or "", next(iter(urls.values()), UNKNOWN_URL))
    one = view.member(finding.node_id)
    silent = one is None or one.reach not in ("ok", "down")
    asked = next((urls[other.id] for other in view.members if other.reach == "ok"), leader_url)
    return {
        "node": finding.node_id or "the member",
        # Of a member that does not answer, another one is asked.
        "url": (asked if leader is None else leader_url) if silent else urls[finding.node_id or ""],
        # Of itself, whoever else may be asked.
        "host": urlsplit(urls.get(finding.node_id or "", "")).netloc or "HOST:PORT",
        "leader": leader if leader is not None and leader != finding.node_id else "the others",
        "leader_url": leader_url if leader is not None else asked,
        "needed": str(view.quorum.needed),
        "audit": " ".join(["quorumscope audit", *(f"--node {url}" for url in urls.values())]),
        "kind": finding.code.removeprefix("alarm_").replace("_", " "),
        "start": start_command(one, view),
    }


def start_command(one: MemberView | None, view: GroupView) -> str:
    """As the member itself said that it was started, now or before it fell silent; else with what others know of it."""
    says = None if one is None else one.start if one.state is None else one.state
    if says is not None and says.started_with:
        return says.started_with
    peers = ";".join(f"{other.id}-{other.address or 'HOST:PORT'}" for other in view.members)
    node = one.id if one is not None else "ID"
    data = says.data_dir.removesuffix(f"/dledger-{node}") if says is not None and says.data_dir else "DIR"
    return "quorumscope node " + shlex.join(
        ["--id", node, "--group", view.cluster.group, "--peers", peers, "--data", data]
    )


def at_stake(finding: Finding, view: GroupView) -> str:
    """What is lost if nothing is done, or if something else fails meanwhile."""
    match finding.code:
        case "flush_async":
            return FLUSH_STAKE.format(needed=view.quorum.needed)
        case "two_leaders" | "diverged":
            return "entries that were acknowledged may be lost whichever history is kept"
        case "node_certificate_ends":
            return f"the member goes dark here and for whatever asks it, though it runs; {spare(view)}"
        case "audit_divergent" | "log_damaged":
            copy = "one good copy fewer of those entries than there are members"
            return f"{copy}; {spare(view)}"
    cut, left = may_be_cut(finding, view), spare(view, counted_though_away(finding, view))
    return f"{left}; {cut}" if cut else left


def counted_though_away(finding: Finding, view: GroupView) -> int:
    """1 where the leader heard a member that is away a moment ago, so that the quorum still counts it."""
    one, leader = view.member(finding.node_id), view.leader
    if finding.code not in AWAY or one is None or leader is None or one.id == leader.id:
        return 0
    age_ms = heard_ms(leader, one)
    return 1 if age_ms is not None and age_ms <= COUNTED_MS else 0


def spare(view: GroupView, away: int = 0) -> str:
    """How many more members may fail before writes stop."""
    quorum = view.quorum
    if quorum.stands is None:
        return "whether writes get through is not known"
    if not quorum.stands:
        missing = max(1, quorum.needed - max(quorum.standing or 0, 0))
        return f"no write gets through until {quorum.needed} members hear each other ({missing} more needed)"
    if quorum.standing is None:
        return "writes get through; how many more failures they survive is not known"
    left = quorum.standing - away - quorum.needed
    if left <= 0:
        return "writes get through, and one more failure stops them"
    return f"writes get through, and survive {left} more failure{'s' if left > 1 else ''}"


def may_be_cut(finding: Finding, view: GroupView) -> str:
    """What a member holds beyond what is committed, written under a leader that is none any more."""
    one, leader = view.member(finding.node_id), view.leader
    if one is None or leader is None or one.id == leader.id or one.state is None:
        return ""
    end, committed, term = one.log.end_index, one.log.committed_index, one.log.end_term
    known = view.leader_marks.committed_index
    if end is None or committed is None or term is None or leader.term is None or term >= leader.term:
        return ""
    first = committed + 1
    if end < first or (known is not None and known >= end and one.role != "LEADER" and one.reach == "ok"):
        return ""
    return (
        f"of {spelled_range(first, end)} on {one.id}, which it does not know to be committed, those that {leader.id}"
        " does not hold will be cut, none of them committed"
    )
