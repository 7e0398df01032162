"""For one problem of one group: what it means, what is at stake, and what to do. Pure.

Invariants: a command is printed whole, as it runs; where something that it needs is not known, another one that runs is
printed, and the sentence says what is missing. What is at stake is said of the group as it is now: how many more
failures stop writes, and which entries would be cut.
"""

from __future__ import annotations

import shlex
from typing import Final
from urllib.parse import urlsplit

from app.health.addresses import own_address
from app.health.advice import ADVICE, ALARM, SCRUB
from app.health.advice_row import Advice
from app.health.confirming import survives, writes_stopped
from app.health.facts import Finding, spelled_range
from app.health.foreign import OF_ANOTHER, OF_ANOTHER_NAME, OTHER_GROUP, OTHER_NAME
from app.health.group_view import ClusterView, GroupView, MemberView, NextStep
from app.health.links import heard_ms
from app.health.members import COUNTED_MS, engine_silent, heard_meanwhile
from app.health.silences import (
    ANOTHER,
    ERRS,
    HANGS_UP,
    NAMESAKE,
    NO_WORD,
    NOT_ASKED,
    REFUSED,
    REFUSES,
    RUNS,
    RUNS_ELSEWHERE,
    STARTS_AGAIN,
    STRANGER,
)

HUNG_UP: Final = "the connection closed"  # as the client words it
DOCS: Final = "docs/problems.md"
TOKEN_HEADER: Final = ' -H "Authorization: Bearer $QUORUMSCOPE_TOKEN"'
AWAY: Final = frozenset({"cut_off", "one_way", "replica_silent", "member_unreachable", "engine_down"})
THE_MEMBER: Final = "the member"
# A demo on a machine that is busy loses its leader without anybody's doing.
DEMO_HEALS: Final = "this ends at once what was broken in this demo on purpose; else look at the load of this machine"
DEMO_HEAL: Final = "quorumscope demo heal {node}", DEMO_HEALS
DEMO_HEAL_ALL: Final = "quorumscope demo heal", DEMO_HEALS
# How a node words the end of an engine that is started again (node.__main__), and one that has not begun to listen.
CRASHED: Final = ("the engine was killed by signal ", "the engine ended with exit code ", "nothing answers at its port")
STARTED_ELSEWHERE: Final = (
    "{status}",
    "start {node} on {where} as it was started before, by its service or the same command: nothing that answers here"
    " knows which; it is well when this ends with 0",
)
FIRST_START: Final = (
    "{status}",
    "start {node} on {where}: {leader} has heard nothing of it so far. The first start of a member that was added needs"
    " --join and an empty directory (`quorumscope node --join --id {node} --group {group} --peers {peers}{of_kind}"
    " --data DIR`),"
    " later ones do not; it is well when this ends with 0",
)
AWAY_TO_SCRUB: Final = (
    "{status}",
    "bring {node} back first; once this shows it again, have it read all of its log and mend it (`quorumscope scrub`)",
)
AWAY_FIRST: Final = (
    "{status}",
    "bring {node} back first; once this shows it again, it says itself what its broker is",
)
WHICH_MEMBER: Final = (
    "read on the audit's page which entries on which replica, have those members mend them, and audit again on"
    " this console's page Audits; this audits from a command line, and closes nothing here"
)
ASKS_ITSELF: Final = {"scrub": "own_url", "restart_machine": "own_url", "restart": "there"}  # of the member itself
WITHOUT_STATE: Final = frozenset(  # the member's state machine answers nothing
    {"alarm_apply_failed", "alarm_applier_down", "alarm_applier_behind", "alarm_applier_diverged"}
)
FLUSH_STAKE: Final = "a power cut of {needed} members at once loses writes that were acknowledged"


def next_step(finding: Finding, view: GroupView) -> NextStep:
    advice = advice_of(finding, view)
    fields = fields_of(finding, view)
    command, step = what_runs(advice, fields, view)
    lacks = any(f"{{{name}}}" in advice.curl and not value for name, value in fields.items())
    return NextStep(
        means=advice.means.format(**fields),
        at_stake=at_stake(finding, view),
        step=step.format(**fields),
        command=command.format(**fields),
        curl=None if lacks else with_token(advice.curl.format(**fields), view.cluster),
        docs=f"{DOCS}#{advice.section}",
        actions=tuple(one for one in advice.actions if helps(one, finding, fields, view)),
        from_index=finding.from_index,
        to_index=finding.to_index,
    )


def helps(action: str, finding: Finding, fields: dict[str, str], view: GroupView) -> bool:
    """Leadership is moved away from a member that has it; what a member is asked itself needs one that answers."""
    if action == "transfer":
        return finding.node_id == view.leader_id
    return action not in ASKS_ITSELF or bool(fields[ASKS_ITSELF[action]])


def what_runs(advice: Advice, fields: dict[str, str], view: GroupView) -> tuple[str, str]:
    """The command and its sentence; another one where the advice's own lacks something that nobody knows."""
    if advice.heals and view.cluster.demo:
        return DEMO_HEAL if fields["node"] != THE_MEMBER else DEMO_HEAL_ALL
    if "{start}" in advice.command and not fields["start"]:
        return FIRST_START if never_started(fields["node"], view) else STARTED_ELSEWHERE
    if "{there}" in advice.command and not fields["there"]:
        return STARTED_ELSEWHERE
    if "{own_url}" in advice.command and not fields["own_url"]:
        if advice.command != SCRUB:
            return AWAY_FIRST
        return AWAY_TO_SCRUB if fields["node"] != THE_MEMBER else ("{audit}", WHICH_MEMBER)
    return advice.command, advice.step


def with_token(curl: str, cluster: ClusterView) -> str:
    """A control plane beyond loopback asks for the token, and one that this console shows one to."""
    local = any(host in curl for host in ("//127.0.0.1", "//localhost", "//[::1]")) and not cluster.shows_token
    return curl if local or TOKEN_HEADER in curl else curl.replace("curl", "curl" + TOKEN_HEADER, 1)


def advice_of(finding: Finding, view: GroupView) -> Advice:
    one = view.asked(finding.node_id)
    if finding.code == "never_reached" and one is None:
        return ADVICE["all_silent"]
    if finding.code in ("replica_silent", "never_reached") and one is not None:
        if engine_silent(one):
            return ADVICE["engine_silent"]
        if OTHER_NAME in (one.problem or ""):
            return NAMESAKE
        if is_another(one):
            return ANOTHER
        if one.answers is not None:
            return REFUSES if one.answers == "refuses" else ERRS
        if one.control_url is None:
            return NOT_ASKED
        if heard_meanwhile(one, view):
            return RUNS
        if not one.problem or timed_out(one):  # a start only where nothing listens, which is known then
            return NO_WORD
    # Where `status` asks, the control plane may be all that answers, and say what its engine does.
    state = one.state if one is not None else None
    if finding.code in ("member_unreachable", "engine_down") and state is not None and one is not None:
        if state.engine == "stale":
            return ADVICE["engine_silent"]
        if state.engine == "ok":
            return RUNS_ELSEWHERE
        if state.engine_reason is not None:
            return STARTS_AGAIN if state.engine_reason.startswith(CRASHED) else REFUSED
    if finding.code == "member_unreachable" and one is not None and (one.problem or "").startswith(OF_ANOTHER):
        return STRANGER
    if finding.code == "member_unreachable" and one is not None and one.problem == OF_ANOTHER_NAME:
        return NAMESAKE
    if finding.code == "member_unreachable" and one is not None and timed_out(one):
        return NO_WORD
    if finding.code == "member_unreachable" and one is not None and (one.problem or "").endswith(HUNG_UP):
        return HANGS_UP
    return ADVICE.get(finding.code, ALARM)


def is_another(one: MemberView) -> bool:
    """Whether somebody else answers where its control plane should (app.console.sampler words it)."""
    problem = one.problem or ""
    return problem.endswith((f", not {one.id}", OTHER_GROUP))


def timed_out(one: MemberView) -> bool:
    """Whether it, or its machine, took the question and said nothing: nobody knows that it is gone."""
    problem = one.problem or ""
    return problem.startswith("no answer within") or problem.endswith((" did not answer in time", ": timed out"))


def fields_of(finding: Finding, view: GroupView) -> dict[str, str]:
    """What stands for the names in an advice; "" is not known."""
    urls = {one.id: one.control_url or "" for one in view.members}
    leader, one = view.leader_id, view.asked(finding.node_id)
    known = next(filter(None, urls.values()), "")
    asked = next((urls[other.id] for other in view.members if other.reach == "ok" and urls[other.id]), known)
    leader_url = urls.get(leader or "") or asked
    answers = one is not None and one.reach in ("ok", "down")
    # Of a member that does not answer, another one is asked.
    own_url = (one.control_url or "") if one is not None and answers else ""
    url = own_url or leader_url
    nodes = [f"--node {each}" for each in urls.values() if each]
    return {
        "node": finding.node_id or THE_MEMBER,
        "url": url,
        "own_url": own_url,
        "there": (one.control_url or "") if one is not None else "",
        "host": urlsplit(urls.get(finding.node_id or "", "")).netloc,
        "address": one.address if one is not None else "",
        "where": f"its machine ({one.address})" if one is not None and one.address else "its machine",
        "leader": other_end(finding, leader),
        "leader_url": leader_url,
        "group": shlex.quote(view.cluster.group),
        "peers": shlex.quote(peers_of(view)),
        "of_kind": flag_of_kind(view),
        "status": status_command(url, view),
        "leader_status": status_command(leader_url, view),
        "members": status_command(leader_url, view, "members list"),
        "members_address": status_command(leader_url, view, f"members address {finding.node_id} {own_address(one)}"),
        "needed": str(view.quorum.needed),
        "audit": " ".join(["quorumscope audit", *nodes]) if nodes else status_command("", view),
        "kind": finding.code.removeprefix("alarm_").replace("_", " "),
        "start": start_command(one),
    }


def other_end(finding: Finding, leader_id: str | None) -> str:
    """Of the link that is in question: the leader, but where the problem's text names two members by itself."""
    if finding.code == "not_connected":
        return "the other member"
    return leader_id if leader_id not in (None, finding.node_id) else "the others"


def status_command(url: str, view: GroupView, what: str = "status") -> str:
    """By a control plane, or where none is known by the members' own addresses."""
    if url:
        return f"quorumscope {what} --node {url}"
    return f"quorumscope {what} " + shlex.join(["--peers", peers_of(view), "--group", view.cluster.group])


def flag_of_kind(view: GroupView) -> str:
    """What whoever joins a group of brokers, or of a state machine, is started with besides."""
    if view.has_brokers:
        return " --broker HOST:PORT"
    return " --state-machine NAME" if any(one.state and one.state.applier for one in view.members) else ""


def peers_of(view: GroupView) -> str:
    """All members as `--peers` takes them."""
    return ";".join(f"{one.id}-{one.address}" for one in view.members)


def never_started(node_id: str, view: GroupView) -> bool:
    """Whether that is a member which was added, and of which its leader has heard nothing: it may wait for its first
    start."""
    one, leader = view.member(node_id), view.leader
    known = None if leader is None or leader.state is None else leader.state.peer(node_id)
    return one is not None and one.is_learner and known is not None and known.store_id is None


def start_command(one: MemberView | None) -> str:
    """As the member itself said that it was started, now or before it fell silent; "" where nobody knows."""
    says = None if one is None else one.start if one.state is None else one.state
    return "" if says is None else says.started_with or ""


def at_stake(finding: Finding, view: GroupView) -> str:
    """What is lost if nothing is done, or if something else fails meanwhile."""
    match finding.code:
        case "flush_async":
            return FLUSH_STAKE.format(needed=view.quorum.needed)
        case "member_removed" | "not_a_member":
            return f"nothing of the group's; {spare(view)}"
        case "two_leaders" | "diverged":
            return "entries that were acknowledged may be lost whichever history is kept"
        case "client_certificate_ends":
            return f"what works with it stops at its next connection; {spare(view)}"
        case "member_certificate_ends" | "member_authority_ends":
            return f"once it has ended, {finding.node_id} is cut off at its next connection; {spare(view)}"
        case "node_certificate_ends":
            return f"the member goes dark here and for whatever asks it, though it runs; {spare(view)}"
        case "alarm_disk_full" if finding.node_id == view.leader_id:
            return f"new writes are refused until {finding.node_id} has room or another member leads; nothing is lost"
        case "alarm_disk_full" if not writes_stopped(view):
            return f"{finding.node_id} confirms no new writes; {spare(view)}"
        case "alarm_broker_down" if finding.node_id == view.leader_id:
            return f"no broker of the group takes messages while {finding.node_id} leads; its log takes writes"
        case "alarm_broker_consumers_gone" | "alarm_broker_consumers_stuck":
            return "those messages are processed late, or not at all once they have expired; the log takes writes"
        case code if code in WITHOUT_STATE and finding.node_id == view.leader_id:
            rest = "what no other member has of it is lost" if code == "alarm_applier_behind" else "nothing is lost"
            return f"no command is taken while {finding.node_id} leads, and it answers no question; {rest}"
        case code if code in WITHOUT_STATE:
            return f"questions at {finding.node_id} get no answer; {spare(view)}"
        case "not_applying" | "alarm_applier_silent":
            return f"commands and questions at {finding.node_id} get no result in time; {spare(view)}"
        case "directory_gone":
            return f"one lasting copy of the log fewer than there are members; {spare(view)}"
        case "audit_divergent" | "log_damaged":
            copy = "one good copy fewer of those entries than there are members"
            return f"{copy}; {spare(view)}"
    cut, left = may_be_cut(finding, view), spare(view, counted_though_away(finding, view))
    return f"{left}; {cut}" if cut else left


def counted_though_away(finding: Finding, view: GroupView) -> tuple[str, ...]:
    """The member, where it is away and the leader heard it a moment ago, so that the quorum still counts it."""
    one, leader = view.asked(finding.node_id), view.leader
    if finding.code not in AWAY or one is None or leader is None or one.id == leader.id or heard_meanwhile(one, view):
        return ()
    age_ms = heard_ms(leader, one)
    return (one.id,) if age_ms is not None and age_ms <= COUNTED_MS else ()


def spare(view: GroupView, away: tuple[str, ...] = ()) -> str:
    """How many more members may fail before writes stop."""
    quorum = view.quorum
    if quorum.stands is None:
        return "whether writes get through is not known"
    if not quorum.stands:
        missing = max(1, quorum.needed - max(quorum.standing or 0, 0))
        return f"no write gets through until {quorum.needed} members hear each other ({missing} more needed)"
    if stopped := writes_stopped(view):
        return f"no new write gets through: {stopped}"
    left = survives(view, away)
    if left is None:
        return "writes get through; how many more failures they survive is not known"
    if left <= 0:
        return "writes get through, and one more failure stops them"
    return f"writes get through, and survive {left} more failure{'s' if left > 1 else ''}"


def may_be_cut(finding: Finding, view: GroupView) -> str:
    """What a member holds beyond what is committed, written under a leader that is none any more."""
    one, leader = view.asked(finding.node_id), view.leader
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
