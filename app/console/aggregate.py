"""Builds the GroupView, one picture of the group, from the nodes' last samples.

Pure: samples and a time in, a view out. Invariants: nothing unknown reads 0 (it is None and listed in `unknown`);
members are sorted by id and never reordered; a stale member keeps its last marks and does not count towards the quorum;
who is not in the leader's configuration is no member, whatever it says of itself, and its silence is no problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from app.console.sample import NodeSample
from app.console.their_clock import TheirClock
from app.health.facts import natural
from app.health.group_view import ClusterView, GroupView, Marks, MemberView, QuorumView
from app.health.leading import may_go_on
from app.times import rfc3339, time_of
from node.protocol.quorum import majority_of
from node.views.base import UnknownView
from node.views.replication import WatermarksView, WatermarkView
from node.views.state import LinkView, LogView, StateView

# Who was heard longer ago than this says nothing about now (the leader steps down without a quorum in about 1 s).
ACK_FRESH_MS: Final = 2000
BEGINS_MS: Final = 1000
STALE_S: Final = 2.0  # an answer older than this is no picture of now, whoever is still being asked
# Watermarks are of one term: a deposed leader's answer must not colour the new one's picture.
NO_LEADER_REASON: Final = "no leader is known that could tell"


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    id: str
    name: str
    group: str
    group_id: str | None = None
    demo: bool = False
    shows_token: bool = False


def reach_of(sample: NodeSample, now: datetime) -> str:
    """As the sample says; one that has not been answered for too long is stale before it has missed often enough. What
    this console itself did not read while it stood still is no member's silence."""
    age_s = 0.0 if sample.last_seen is None else (now - sample.last_seen).total_seconds() - sample.stood_still_s
    return "stale" if sample.reach in ("ok", "down") and age_s > max(STALE_S, 3 * sample.interval_s) else sample.reach


def find_leader(samples: Iterable[NodeSample], now: datetime) -> NodeSample | None:
    """The reachable leader of the highest term; a deposed one may still believe it leads, or said so just before."""
    every = list(samples)
    leaders = [one for one in every if one.leads and reach_of(one, now) == "ok"]
    newest = max(leaders, key=lambda one: one.term or 0, default=None)
    return None if newest is None or is_left(newest, every) else newest


def is_left(leader: NodeSample, samples: Sequence[NodeSample]) -> bool:
    """Whether too few voters are left in its term for a quorum. Who has gone on to a higher one never comes back, so
    that it does not matter who was asked first."""
    voters = [one for one in samples if is_voter(one, leader)]
    gone_on = [one for one in voters if (one.term or 0) > (leader.term or 0) and not was_removed(one)]
    return len(voters) - len(gone_on) < majority_of(len(voters))


def is_voter(sample: NodeSample, leader: NodeSample) -> bool:
    """By the leader's log; where it does not say, everybody is one."""
    peers = leader.state.peers if leader.state is not None else None
    known = {one.id: one.is_voter is not False for one in peers or ()}
    return known.get(sample.node_id, False) if known else True


def member_ids(leader: NodeSample | None) -> frozenset[str] | None:
    """Who belongs to the group by its leader's log (SAFETY M1); None where no leader says so."""
    return ids_in(leader.state) if leader is not None else None


def ids_in(state: StateView | None) -> frozenset[str] | None:
    """The configuration in a member's log."""
    peers = state.peers if state is not None else None
    return frozenset(one.id for one in peers) if peers else None


def newest_log(states: Iterable[StateView | None]) -> StateView | None:
    """Whose log the next leader's would be, of those that answer (Raft's order): its configuration is what counts while
    nobody leads, whoever was named to be asked."""

    def end(state: StateView) -> tuple[int, int]:
        term, index = (state.log.end_term, state.log.end_index) if state.log is not None else (None, None)
        return -1 if term is None else term, -1 if index is None else index

    return max((one for one in states if one is not None), key=end, default=None)


def was_removed(sample: NodeSample) -> bool:
    """It says so itself, and a member that was removed stays so (M5)."""
    return any(one.code == "removed" for one in (sample.state and sample.state.alarms) or ())


def group_view(
    info: ClusterInfo, samples: Sequence[NodeSample], now: datetime, known: frozenset[str] | None = None
) -> GroupView:
    """Everything but problems, sentence and what needs a memory (`app.console.watch` adds these). `known`: the members
    by the last leader that was heard, for as long as there is none."""
    leader = find_leader(samples, now)
    removed = frozenset(one.node_id for one in samples if was_removed(one))
    inside = member_ids(leader) or known
    if not inside:
        newest = newest_log(one.state for one in samples if one.node_id not in removed)
        inside = ids_in(newest) or frozenset(one.node_id for one in samples)
        inside = inside - removed or inside  # removed ones alone are asked: nobody tells more
    ordered = sorted((one for one in samples if one.node_id in inside), key=lambda one: natural(one.node_id))
    others = sorted((one for one in samples if one.node_id not in inside), key=lambda one: natural(one.node_id))
    members = tuple(member(one, leader, now) for one in ordered)
    marks = leader_marks(leader) if leader else Marks()
    closures = TheirClock(leader.last_clock).closures(leader.closures) if leader else None
    return GroupView(
        cluster=ClusterView(
            id=info.id,
            name=info.name,
            group=info.group,
            group_id=info.group_id,
            demo=info.demo,
            shows_token=info.shows_token,
        ),
        as_of=rfc3339(now),
        at=None,
        leader_id=leader.node_id if leader else None,
        term=newest_term(ordered, now),
        flush=flush_mode(leader, ordered),
        leader_end_index=marks.end_index,
        quorum=quorum(members, leader),
        quorum_index=marks.quorum_index,
        leader_marks=marks,
        members=members,
        others=tuple(member(one, leader, now) for one in others),
        closures=closures,
        leader_since=None,
        last_completed=closures.last_completed if closures else None,
    )


def leader_marks(leader: NodeSample) -> Marks:
    """The leader's log at the instant of its peers' watermarks. A leader's marks never go back within its term, so that
    what it said of itself just before holds then too."""
    log = leader.state.marks if leader.state else LogView()
    reported = leader.watermarks or WatermarksView()
    own = reported.of(leader.node_id) or WatermarkView(id=leader.node_id)
    end = first_known(reported.end_index, own.match_index, log.end_index)

    def within(*values: int | None) -> int | None:
        """Of two answers, the log may have been another one in between."""
        known = first_known(*values)
        return known if known is None or end is None else min(known, end)

    return Marks(
        begin_index=log.begin_index,
        applied_index=within(reported.applied_index, log.applied_index),
        committed_index=within(reported.committed_index, log.committed_index),
        durable_index=within(own.durable_index, log.durable_index),
        quorum_index=within(reported.quorum_index),
        end_index=end,
    )


def first_known(*values: int | None) -> int | None:
    return next((one for one in values if one is not None), None)


def newest_term(samples: Iterable[NodeSample], now: datetime) -> int | None:
    terms = [one.term for one in samples if reach_of(one, now) == "ok"]
    return max((term for term in terms if term is not None), default=None)


def flush_mode(leader: NodeSample | None, samples: Sequence[NodeSample]) -> str | None:
    """The leader's word; without one, what any member said last."""
    said = [one.state.flush for one in ([leader] if leader else samples) if one.state]
    return next((one for one in said if one), None)


def member(sample: NodeSample, leader: NodeSample | None, now: datetime) -> MemberView:
    state, reach = TheirClock(sample.last_clock).state(sample.state) if sample.state else None, reach_of(sample, now)
    dispatcher = leader.dispatchers.of(sample.node_id) if leader and leader.dispatchers else None
    own = state.peer(sample.node_id) if state else None
    unknown = list(state.unknown or ()) if state else []
    since = rfc3339(sample.last_seen or sample.added_at)
    if reach != "ok":
        reason = sample.problem or ("its engine does not run" if reach == "down" else "no answer yet")
        unknown.append(UnknownView(field="state", reason=reason, since=since))
    else:
        unknown += [UnknownView(field=name, reason=why, since=since) for name, why in sample.unanswered.items()]
    if leader is None:
        unknown += [UnknownView(field=f, reason=NO_LEADER_REASON, since=since) for f in ("watermark", "dispatcher")]
    return MemberView(
        id=sample.node_id,
        address=(own.address if own is not None else None) or sample.address,  # others may look for it elsewhere
        control_url=sample.control_url,
        role=state.role if state and reach == "ok" else None,
        reach=reach,
        last_seen=rfc3339(sample.last_seen) if sample.last_seen else None,
        age_ms=max(0.0, (now - sample.last_seen).total_seconds() * 1000) if sample.last_seen else None,
        interval_ms=sample.interval_s * 1000,
        missed_since=rfc3339(sample.missed_at) if sample.missed_at else None,
        never_reached_since=rfc3339(sample.added_at) if reach == "never" else None,
        is_java=bool(state and state.is_java),
        is_learner=learns(sample, leader),
        problem=sample.problem,
        answers=sample.answers,
        state=state,
        start=sample.start,
        certificate_ends=rfc3339(sample.certificate_ends) if sample.certificate_ends else None,
        clock_ahead_s=sample.last_clock.offset_ms / 1000 if sample.last_clock else None,
        watermark=leader.watermarks.of(sample.node_id) if leader and leader.watermarks else None,
        dispatcher=TheirClock(leader.last_clock).dispatcher(dispatcher) if leader else None,
        ha=sample.ha,
        ha_before=None if sample.ha_before is None else TheirClock(sample.last_clock).moved(sample.ha_before, "as_of"),
        unknown=tuple(unknown),
    )


def learns(sample: NodeSample, leader: NodeSample | None) -> bool:
    """Whether it has no vote, as the leader's log says; without a leader, as its own does."""
    source = leader or sample
    peer = source.state.peer(sample.node_id) if source.state else None
    return peer is not None and peer.is_voter is False


def quorum(members: Sequence[MemberView], leader: NodeSample | None) -> QuorumView:
    """How many are needed, how many answer us, how many stand with the leader, and whether that is a quorum.

    `standing`: the leader and those that it hears; 0 where nobody leads. Its fresh acknowledgements are better evidence
    than our own view: it may hear whom we do not, and we may hear whom it does not. None: nobody can tell.
    """
    voters = [one for one in members if not one.is_learner]
    size = len(voters)
    marks = leader.watermarks if leader else None
    # The leader's marks may be of an instant before its newest configuration, or after.
    same = marks is not None and {one.id for one in marks.peers or ()} == {one.id for one in members}
    needed = (same and marks is not None and marks.needed) or majority_of(size)
    answering = sum(1 for one in voters if one.reach == "ok")
    standing: int | None = None
    stands: bool | None
    if leader is not None:
        links = {one.peer_id: one for one in (leader.state and leader.state.links) or ()}
        acks = {one.id: one for one in (marks and marks.peers) or ()}
        others = [one.id for one in voters if one.id != leader.node_id]
        heard = sum(1 for one in others if ack_is_fresh(acks.get(one)) or link_is_fresh(links.get(one)))
        reported = any(one in acks and acks[one].last_ack_ms is not None for one in others)
        reported = reported or any(one.last_heard_ms is not None for one in links.values())
        itself = any(one.id == leader.node_id for one in voters)  # one that removes itself leads on until that stands
        standing = itself + heard if reported or size == 1 else None
        if standing is not None and standing < needed and has_just_begun(members, leader):
            standing = None  # a majority has just voted for it, and not answered its heartbeats yet
        stands = standing >= needed if standing is not None else (True if answering >= needed else None)
    elif any(one.role == "FOLLOWER" and one.leader_id for one in members):
        stands = None  # somebody follows a leader that we cannot reach
    elif all(one.reach in ("never", "stale") for one in members):
        stands = None
    elif len(may_go_on(voters)) >= needed:
        stands = None  # those that answer may be on the wrong side of a cut, and we with them
    else:
        standing, stands = 0, False
    return QuorumView(size=size, needed=needed, answering=answering, standing=standing, stands=stands)


def has_just_begun(members: Sequence[MemberView], leader: NodeSample) -> bool:
    """Whether it has led for less time than voters may take to answer it."""
    one = next((one for one in members if one.id == leader.node_id), None)
    led = time_of(one.state.role_since) if one is not None and one.state is not None else None
    asked = time_of(one.last_seen) if one is not None else None
    return led is not None and asked is not None and (asked - led).total_seconds() * 1000 < BEGINS_MS


def ack_is_fresh(watermark: WatermarkView | None) -> bool:
    return watermark is not None and watermark.last_ack_ms is not None and 0 <= watermark.last_ack_ms <= ACK_FRESH_MS


def link_is_fresh(link: LinkView | None) -> bool:
    return link is not None and link.last_heard_ms is not None and 0 <= link.last_heard_ms <= ACK_FRESH_MS
