"""How a group stands, from what each of its members says: the body of `status --json`. Pure.

A member that answers us may still be cut off from the others, so it counts only what members say of each other: who
leads according to whom, who is connected to whom, and whom the leader has heard lately. Invariants: a quorum stands
only where a leader hears enough of the others; what nobody told is unknown, never fine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from node.protocol.codes import VoterState

Json = dict[str, Any]
CRITICAL, ATTENTION, INFO = "critical", "attention", "info"
SEVERITIES: Final = (CRITICAL, ATTENTION, INFO)
ELECTION_TIMEOUT_MAX_MS: Final = 1000  # where a member does not tell its own
NO_VOTER: Final = {
    VoterState.FORMING: "it waits for a majority of the new group",
    VoterState.REJOINING: "it lost history and does not vote before a leader has brought it back",
}
LOOK_AT_THE_NETWORK: Final = "look at the network between them, and at `links` and events of both members"


def summary_of(group: str, members: list[Json], now: datetime | None = None) -> Json:
    """`members` as they were asked: `{id, address, reach, reason, state, watermarks}`, the last of a leader only."""
    now = now or datetime.now(UTC)
    answering = [one for one in members if one["state"]]
    leaders = [one for one in answering if one["state"].get("role") == "LEADER"]
    leader = max(leaders, key=_term_of, default=None)
    needed = len(members) // 2 + 1
    unknown: list[Json] = []
    heard = _heard_by(leader, unknown)
    stands = leader is not None and (len(members) == 1 or heard is None or 1 + len(heard) >= needed)
    if leader is not None and heard is None and len(members) > 1:
        stands = sum(one["state"].get("leader_id") == leader["id"] for one in answering) >= needed
    problems = [
        *_of_the_leader(leader, stands, needed, heard, members),
        *(_unreachable(one, stands) for one in members if one["state"] is None),
        *_cut_off(leader, answering, heard, now),
        *_no_connections(leader, answering),
        *_of_members(answering),
    ]
    return {
        "as_of": _text(now),
        "group": group,
        "leader_id": leader["id"] if leader else None,
        "term": leader["state"]["term"] if leader else None,
        "quorum": {"size": len(members), "needed": needed, "standing": len(answering), "stands": stands},
        "members": members,
        "problems": sorted(problems, key=lambda one: SEVERITIES.index(one["severity"])),
        "unknown": unknown,
    }


def problem(code: str, severity: str, member: str | None, text: str, next_step: str, since: str | None = None) -> Json:
    """One entry of `problems`; `member` None: it concerns the group."""
    return {
        "code": code, "severity": severity, "member": member, "since": since, "text": text, "next_step": next_step,
    }  # fmt: skip


def _term_of(member: Mapping[str, Any]) -> int:
    return int(member["state"].get("term") or 0)


def _text(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _patience_ms(leader: Mapping[str, Any]) -> int:
    """So long a member may be silent before others take it for lost."""
    timing = leader["state"].get("timing") or {}
    return 2 * int(timing.get("election_timeout_max_ms") or ELECTION_TIMEOUT_MAX_MS)


def _heard_by(leader: Mapping[str, Any] | None, unknown: list[Json]) -> dict[str, int] | None:
    """The others that the leader has heard lately, and how long ago (ms); None where it does not tell."""
    if leader is None:
        return None
    told = (leader.get("watermarks") or {}).get("peers")
    if told is None:
        reason = f"{leader['id']} leads, and did not tell whom it hears"
        unknown.append({"field": "watermarks", "reason": reason, "since": None})
        return None
    ages = {str(one["id"]): one.get("last_ack_ms") for one in told if one["id"] != leader["id"]}
    return {peer: int(age) for peer, age in ages.items() if age is not None and age <= _patience_ms(leader)}


def _of_the_leader(
    leader: Mapping[str, Any] | None,
    stands: bool,
    needed: int,
    heard: Mapping[str, int] | None,
    members: Sequence[Json],
) -> list[Json]:
    if leader is None:
        followed = sorted({str(one["state"]["leader_id"]) for one in members if (one["state"] or {}).get("leader_id")})
        text = "no member leads" + (f" that answers; {' and '.join(followed)} is followed" if followed else "")
        return [problem("no_leader", CRITICAL, None, text, f"start members until {needed} of them hear each other")]
    if stands:
        return []
    who = f"hears {len(heard)} of the other {len(members) - 1}" if heard is not None else "is followed by too few"
    text = f"no quorum: {leader['id']} leads in term {_term_of(leader)} and {who}; {needed} are needed, itself counted"
    return [problem("quorum_lost", CRITICAL, None, text, f"start members until {needed} of them hear each other")]


def _unreachable(member: Mapping[str, Any], stands: bool) -> Json:
    text = f"{member['id']} does not answer: {member['reason']}"
    step = f"start what listens at {member['address']}; its output and DATA/engine-refused.json say why it ended"
    return problem("member_unreachable", ATTENTION if stands else CRITICAL, member["id"], text, step)


def _cut_off(
    leader: Mapping[str, Any] | None, answering: Sequence[Json], heard: Mapping[str, int] | None, now: datetime
) -> list[Json]:
    """Those that answer us and are out of touch with the leader."""
    if leader is None:
        return []
    found = []
    ages = {one["id"]: one.get("last_ack_ms") for one in (leader.get("watermarks") or {}).get("peers") or []}
    for one in answering:
        if one["id"] == leader["id"]:
            continue
        follows, since = one["state"].get("leader_id"), None
        if one["state"].get("role") == "LEADER":
            text = f"{one['id']} is cut off: it still believes that it leads term {_term_of(one)}"
        elif heard is not None and one["id"] not in heard:
            age_ms = ages.get(one["id"])
            since = None if age_ms is None else _text(now - timedelta(milliseconds=age_ms))
            lately = "has not heard it yet" if age_ms is None else f"has not heard it for {age_ms / 1000:.1f} s"
            text = f"{one['id']} is cut off: it runs, but the leader {leader['id']} {lately}"
        elif follows != leader["id"]:
            text = f"{one['id']} is cut off: it follows {follows or 'nobody'}, not the leader {leader['id']}"
        else:
            continue
        found.append(problem("cut_off", ATTENTION, one["id"], text, LOOK_AT_THE_NETWORK, since))
    return found


def _no_connections(leader: Mapping[str, Any] | None, answering: Sequence[Json]) -> list[Json]:
    """Pairs of which one says that it has no connection to the other; both run."""
    ids = {one["id"] for one in answering}
    pairs: dict[tuple[str, str], list[str]] = {}
    for one in answering:
        for peer in one["state"].get("peers") or []:
            if peer.get("connected") is False and peer.get("id") in ids and peer["id"] != one["id"]:
                low, high = sorted((one["id"], str(peer["id"])))
                pairs.setdefault((low, high), []).append(one["id"])
    found = []
    for (low, high), tellers in sorted(pairs.items()):
        member = high if leader is None or low == leader["id"] else low
        which = f"{low} and {high} have no connection to each other" if len(tellers) == 2 else (
            f"{tellers[0]} has no connection to {high if tellers[0] == low else low}"
        )  # fmt: skip
        found.append(problem("not_connected", ATTENTION, member, which, LOOK_AT_THE_NETWORK))
    return found


def _of_members(answering: Sequence[Json]) -> list[Json]:
    """What members say of themselves."""
    found = []
    for one in answering:
        voter_state = one["state"].get("voter_state") or VoterState.VOTER
        if voter_state != VoterState.VOTER:
            text = f"{one['id']} is {voter_state}: {NO_VOTER[VoterState(voter_state)]}"
            found.append(problem("voter_restricted", ATTENTION, one["id"], text, "wait until a leader is there"))
        for alarm in one["state"].get("alarms") or []:
            told = alarm if isinstance(alarm, Mapping) else {"code": str(alarm)}
            code = str(told.get("code") or told.get("kind") or "alarm")
            severity = CRITICAL if told.get("severity") == "critical" else ATTENTION
            text = f"{one['id']}: {told.get('detail') or told.get('text') or code}"
            step = f"`status --json` has the whole alarm; docs/operations.md says what to do about {code}"
            found.append(problem(f"alarm_{code}", severity, one["id"], text, step, told.get("since")))
    return found
