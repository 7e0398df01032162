"""Rules about who hears whom: a member that answers us may still be cut off from the others, one way or both, or slow.

The leader sends heartbeats to everybody and is answered; followers have nothing to say to each other, so that silence
between them means nothing, and only a connection that is missing does. Invariant: who does not answer us is not also
called cut off.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Final

from app.health.addresses import mixed_pairs, sought_at
from app.health.facts import ATTENTION, CONNECTING_GRACE_S, SLOW_MS, SLOW_TIMES, Facts, Finding, join, moment, natural
from app.health.group_view import MemberView
from app.health.kept_out import refusing
from app.times import span_ms, time_of
from node.views.state import LinkView

SLOW_GRACE_S: Final = 0.5
LATE_GRACE_S: Final = 10.0  # a machine that is busy for a moment is no problem
OLD_ACKS_GRACE_S: Final = 1.5
RESENDS_WINDOW_S: Final = 10.0
RESENDS_MIN: Final = 5
UNSURE_GRACE_S: Final = 0.75
UNHEARD_TIMES: Final = 2
ASK_NOBODY: Final = frozenset({"FORMING", "REJOINING"})  # voter states without a vote
NAMED_MAX: Final = 4  # of whom a member does not hear, where it hears nobody


def cut_off(facts: Facts) -> Iterator[Finding]:
    """Answers us, but is out of touch with its leader: both ways, or one."""
    leader = facts.leader
    for one in facts.followers if leader is not None else []:
        assert leader is not None
        ours, theirs = heard_ms(leader, one), one.link_to(leader.id)
        hears_ms = None if theirs is None else theirs.last_heard_ms
        deaf = ours is not None and ours > facts.patience_ms
        mute = hears_ms is not None and hears_ms > facts.patience_ms
        way = one_way(facts, leader, one)
        if one.role == "LEADER" and one.term == leader.term:
            continue  # `two_leaders` says it
        if one.role == "LEADER" and said_before_its_end(facts, leader, one):
            continue  # it led then
        if one.role == "LEADER":
            text = f"{one.id} is cut off: it still believes that it leads term {one.term}, for {{age}}"
            yield Finding("cut_off", ATTENTION, text, one.id, since_of(facts, leader, one, ours, hears_ms))
        elif (deaf and mute) or (deaf and theirs is None):
            lost = unheard_by(facts, one) if one.role == "CANDIDATE" else []
            lost = lost or [leader.id]
            from_all = len(lost) == len(facts.members) - 1 > NAMED_MAX
            who = f"all {len(lost)} others" if from_all else join(lost)
            text = f"{one.id} is cut off from {who}, for {{age}}; it still answers here"
            grace_s = OLD_ACKS_GRACE_S if leader.link_to(one.id) is None else 0.0
            since = since_of(facts, leader, one, ours, hears_ms)
            yield Finding("cut_off", ATTENTION, text, one.id, since, grace_s)
        elif way is not None:
            hears_not = f"{one.id} does not hear the leader {leader.id}"
            text = hears_not if way.deaf == one.id else f"The leader {leader.id} does not hear {one.id}"
            text += ", which hears it"
            yield Finding("one_way", ATTENTION, f"{text}: a one-way link, for {{age}}", one.id, way.since, way.grace_s)
        elif (follows := one.leader_id) != leader.id and follows is not None:
            text = f"{one.id} is cut off: it follows {follows}, not the leader {leader.id}, for {{age}}"
            yield Finding("cut_off", ATTENTION, text, one.id, grace_s=OLD_ACKS_GRACE_S)
        elif follows is None and (ours is None or hears_ms is None):
            text = f"{one.id} follows nobody, though {leader.id} leads, for {{age}}"
            yield Finding("cut_off", ATTENTION, text, one.id, grace_s=OLD_ACKS_GRACE_S)


def said_before_its_end(facts: Facts, leader: MemberView, one: MemberView) -> bool:
    """Whether an earlier leader was asked before the present one led, or before it could have heard of that."""
    led, asked = time_of(leader.state.role_since if leader.state else None), time_of(one.last_seen)
    return led is not None and asked is not None and asked - led < span_ms(facts.patience_ms)


def silence_ms(facts: Facts, leader: MemberView, one: MemberView) -> float | None:
    """For how long a follower has heard nothing of its leader; what leads only now had nothing to say before."""
    link = one.link_to(leader.id)
    heard = None if link is None else link.last_heard_ms
    led, asked = time_of(leader.state.role_since if leader.state else None), time_of(one.last_seen)
    if heard is None or led is None or asked is None:
        return heard
    return min(heard, max(0.0, (asked - led).total_seconds() * 1000))


@dataclass(frozen=True, slots=True)
class Way:
    """A link of which one end hears nothing: which end, since when, and how sure that is."""

    deaf: str
    since: datetime
    grace_s: float


def one_way(facts: Facts, leader: MemberView, one: MemberView) -> Way | None:
    """Where one of the two hears nothing while the other goes on hearing it; None where that is not so, or not known.

    The two were asked at different instants: what counts is when each of them heard the other last, and that one of
    them did so a moment ago. Where it did only after the deaf one was asked, the link may just have been mended: it has
    to last. Who came late to its own loop read late, too, what had come long before, and sent nothing meanwhile: that
    much is no silence of the other.
    """
    link = one.link_to(leader.id)
    ours, theirs = heard_ms(leader, one), None if link is None else link.last_heard_ms
    if ours is None or theirs is None:
        return None
    heard_at, hears_at = facts.when(leader, ours), facts.when(one, theirs)
    apart = patience = span_ms(facts.patience_ms)
    if facts.now - max(heard_at, hears_at) > patience:
        return None
    silent = silence_ms(facts, leader, one) or 0.0
    late, theirs_late = span_ms(late_ms(leader)), span_ms(late_ms(one))
    if silent > facts.patience_ms and heard_at - facts.when(one, silent) > apart + late:
        return Way(one.id, facts.when(one, silent), 0.0 if heard_at <= facts.when(one, 0) else UNSURE_GRACE_S)
    if ours > facts.patience_ms and hears_at - heard_at > apart + theirs_late:
        return Way(leader.id, heard_at, 0.0 if hears_at <= facts.when(leader, 0) else UNSURE_GRACE_S)
    return None


def heard_ms(leader: MemberView, one: MemberView) -> float | None:
    """How long before it was asked the leader had heard a member: an acknowledgement, or any frame."""
    link = leader.link_to(one.id)
    ages = [one.mark.last_ack_ms, None if link is None else link.last_heard_ms]
    return min((float(age) for age in ages if age is not None), default=None)


def unheard_by(facts: Facts, one: MemberView) -> list[str]:
    """Whom a member that asks everybody for votes hears nothing of."""
    links = (one.state and one.state.links) or ()
    return sorted((link.peer_id for link in links if gone(link, facts.patience_ms)), key=natural)


def unheard_among(facts: Facts, ids: Sequence[str]) -> str:
    """Which of these do not hear each other, in words, where nobody leads; empty: all do, or it is not known.

    Who looks for a leader asks everybody again and again, so that twice the longest wait without a word is silence. Who
    may not vote asks nobody: of it only a connection that is missing tells anything.
    """
    deaf: dict[str, list[str]] = {}
    mute = {one.id for one in facts.members if one.state is not None and one.state.voter_state in ASK_NOBODY}
    for one in facts.members:
        if one.id in ids and one.role == "CANDIDATE":
            links = [link for link in (one.state and one.state.links) or () if link.peer_id in ids]
            long_ms = UNHEARD_TIMES * facts.patience_ms
            lost = sorted(link.peer_id for link in links if (apart if link.peer_id in mute else gone)(link, long_ms))
            deaf |= {one.id: lost} if lost else {}
    if len(ids) > 1 and all(len(deaf.get(one, ())) == len(ids) - 1 for one in ids):
        return f"{join(list(ids))} do not hear each other"
    return " and ".join(f"{one} does not hear {join(lost)}" for one, lost in deaf.items())


def gone(link: LinkView, patience_ms: int) -> bool:
    heard_ms = link.last_heard_ms
    return heard_ms is None or heard_ms > patience_ms or apart(link)


def apart(link: LinkView, _patience_ms: int = 0) -> bool:
    """Neither of the two has a connection to the other."""
    return link.in_since is None and link.out_since is None


def since_of(
    facts: Facts, leader: MemberView, one: MemberView, ours: float | None, theirs: float | None
) -> datetime | None:
    """When either of them heard the other last; None where neither tells."""
    ages = [facts.when(leader, ours)] if ours is not None else []
    ages += [facts.when(one, theirs)] if theirs is not None else []
    return max(ages, default=None)


def not_connected(facts: Facts) -> Iterator[Finding]:
    """Pairs of which one has no connection to the other; both answer us, and both are in touch with the leader."""
    answering = {one.id: one for one in facts.members if one.reach == "ok"}
    pairs: dict[tuple[str, str], list[str]] = {}
    for one in answering.values():
        for peer in (one.state and one.state.peers) or ():
            if peer.connected is False and peer.id in answering and peer.id != one.id:
                low, high = sorted((one.id, peer.id))
                pairs.setdefault((low, high), []).append(one.id)
    for (low, high), tellers in sorted(pairs.items()):
        if any(sought_at(facts, answering[one]) for one in (low, high)):
            continue  # `wrong_address` says it
        if frozenset((low, high)) in refusing(facts) | mixed_pairs(facts):
            continue  # an alarm, or `wrong_peers`, says it, and why
        member = high if low == facts.view.leader_id else low
        both = len(tellers) == 2
        which = f"{low} and {high} have no connection to each other" if both else (
            f"{tellers[0]} has no connection to {high if tellers[0] == low else low}"
        )  # fmt: skip
        yield Finding("not_connected", ATTENTION, f"{which}, for {{age}}", member, grace_s=CONNECTING_GRACE_S)
    yield from half_open(facts, answering, set(pairs))


def half_open(facts: Facts, answering: Mapping[str, MemberView], said: Container[tuple[str, str]]) -> Iterator[Finding]:
    """Pairs of followers, which have nothing to say to each other, where one believes in a connection that the other
    does not have: what one sends does not arrive."""
    for one in answering.values():
        for link in (one.state and one.state.links) or ():
            other, pair = answering.get(link.peer_id), tuple(sorted((one.id, link.peer_id)))
            theirs = None if other is None else other.link_to(one.id)
            if pair in said or facts.view.leader_id in pair or theirs is None:
                continue
            if link.in_since is None and theirs.out_since is not None:
                text = f"What {link.peer_id} sends does not reach {one.id}: a one-way link, for {{age}}"
                yield Finding("not_connected", ATTENTION, text, one.id, grace_s=CONNECTING_GRACE_S)


def slow_link(facts: Facts) -> Iterator[Finding]:
    """Who answers heartbeats much later than the others, and whether that is the link, or its own machine."""
    leader, known = facts.leader, round_trips(facts)
    late = {one.id: late_ms(one) for one in facts.members}
    for node_id, rtt_ms in known.items():
        usual, ours_ms = usual_ms(known, node_id), late[node_id]
        if not is_slow(rtt_ms, usual):
            continue
        others = f"other follower{'s' if len(known) > 2 else ''}"
        rest = f", the {others} {spell_ms(usual)}" if usual is not None else ""
        text = f"{node_id} answers the leader slowly, for {{age}}: it takes {spell_ms(rtt_ms)}{rest}"
        if is_slow(rtt_ms - ours_ms, usual):
            yield Finding("slow_link", ATTENTION, text, node_id, grace_s=SLOW_GRACE_S)
        else:
            text += f", and its own timers came up to {spell_ms(ours_ms)} late"
            yield Finding("engine_late", ATTENTION, text, node_id, grace_s=LATE_GRACE_S)
    if leader is not None and len(known) > 1 and all(rtt - late[one] >= SLOW_MS for one, rtt in known.items()):
        usual = median(known.values())
        text = f"All followers answer the leader {leader.id} slowly, for {{age}}: they take {spell_ms(usual)}"
        yield Finding("slow_link", ATTENTION, text, leader.id, grace_s=SLOW_GRACE_S)


def round_trips(facts: Facts) -> dict[str, float]:
    """How long each follower takes to answer a heartbeat, where that is known."""
    leader = facts.leader
    links = (leader.link_to(one.id) for one in facts.followers) if leader is not None else ()
    return {link.peer_id: link.rtt_ms for link in links if link is not None and link.rtt_ms is not None}


def late_ms(one: MemberView) -> float:
    """For how long a member's own loop came too late lately, at most; an answer waits for it as for the link."""
    return 0.0 if one.state is None else float(one.state.loop_late_ms or 0.0)


def usual_ms(known: dict[str, float], node_id: str) -> float | None:
    """The median round trip of the other members; None where there is no other."""
    others = [rtt for other, rtt in known.items() if other != node_id]
    return median(others) if others else None


def is_slow(rtt_ms: float, usual: float | None) -> bool:
    return rtt_ms >= SLOW_MS and (usual is None or rtt_ms >= SLOW_TIMES * usual)


def spell_ms(value: float) -> str:
    return f"{value:,.0f} ms" if value >= 1 else f"{value:.1f} ms"


def resends(facts: Facts) -> Iterator[Finding]:
    """Pushes that had to be sent again, lately."""
    for one in facts.followers:
        series = facts.recall.resends.get(one.id)
        points = [] if series is None else series.over(RESENDS_WINDOW_S)
        again = points[-1][1] - points[0][1] if len(points) > 1 else 0
        if again >= RESENDS_MIN and series is not None:
            since = moment(facts.now, points[-1][0] - points[0][0])
            text = f"{again:,} pushes to {one.id} were sent again in the last {RESENDS_WINDOW_S:.0f} s"
            yield Finding("resends", ATTENTION, text, one.id, since)
