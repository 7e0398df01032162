"""Who of the members that hear the leader would not confirm a new write, and what that leaves of the quorum. Pure.

A quorum that hears each other is not yet one that writes get through: a member whose disk is full, whose log is damaged
or that is still being brought into step answers every heartbeat, and confirms nothing. Invariant: only what is known
counts against a member; whom the leader does not hear is missing in `quorum.standing` already.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from app.health.facts import join, seconds_since
from app.health.group_view import GroupView, MemberView
from app.health.links import ASK_NOBODY, heard_ms
from app.health.members import COUNTED_MS, codes_of, peers_full
from app.times import time_of

NOT_APPEND_S: Final = 1.5  # a moment of COMPARE belongs to every election
FULL: Final = "its disk is full"
DAMAGED: Final = "it cannot read part of its log"
NO_VOTE: Final = "it does not vote until it has caught up"
DIVERGED: Final = "it has DIVERGED"
UNREACHED: Final = "its leader has no connection to it"


def confirm_nothing(view: GroupView) -> dict[str, str]:
    """Voters that `quorum.standing` counts and that take no new entry in now, each with the reason; the leader is among
    them if its disk is full."""
    leader = view.leader
    if leader is None:
        return {}
    full = {alarm.peer_id for alarm in peers_full(leader, {one.id for one in view.members})}
    reasons: dict[str, str] = {}
    for one in view.members:
        if one.is_learner:
            continue
        if is_full(one) or (one.id in full and one.id != leader.id):
            reason = FULL
        else:
            reason = "" if one.id == leader.id else out_of_step(one, view)
        if reason and (one.id == leader.id or counted(leader, one)):
            reasons[one.id] = reason
    return reasons


def is_full(one: MemberView) -> bool:
    """By its own word."""
    return one.reach == "ok" and "disk_full" in codes_of(one)


def counted(leader: MemberView, one: MemberView) -> bool:
    age_ms = heard_ms(leader, one)
    return age_ms is not None and age_ms <= COUNTED_MS


def out_of_step(one: MemberView, view: GroupView) -> str:
    """Why a follower confirms nothing new, by its own word or by what its leader does with it; empty: it does."""
    if one.reach == "ok" and one.state is not None and one.state.faults:
        return DAMAGED
    if one.reach == "ok" and one.state is not None and one.state.voter_state in ASK_NOBODY:
        return NO_VOTE  # what it has acknowledged has no share in any quorum
    known = view.leader.state.peer(one.id) if view.leader is not None and view.leader.state is not None else None
    if known is not None and known.connected is False:
        return UNREACHED  # who reaches its leader is heard all the same
    now, since = time_of(view.as_of), time_of(one.dispatcher.since if one.dispatcher is not None else None)
    state = one.dispatcher_state
    if state == "DIVERGED":
        return DIVERGED
    if state in (None, "APPEND") or now is None or since is None or seconds_since(since, now) <= NOT_APPEND_S:
        return ""
    return f"it is in {state}"


def survives(view: GroupView, away: Collection[str] = ()) -> int | None:
    """How many more members may fail before writes stop, were those in `away` gone; below 0: they stopped. None: not
    known."""
    quorum = view.quorum
    if quorum.standing is None:
        return None
    return quorum.standing - len({*confirm_nothing(view), *away}) - quorum.needed


def writes_stopped(view: GroupView) -> str:
    """Why no new write gets through though the quorum stands; empty: they do, or it is not known."""
    if view.commits:
        return ""  # an alarm outlives its cause by a moment
    idle, left = confirm_nothing(view), survives(view)
    if view.leader_id in idle:
        return f"{view.leader_id} takes none while it leads, for {idle[view.leader_id]}"
    if idle and left is not None and left < 0 and view.quorum.stands:
        return f"{join(sorted(idle))} {'confirm' if len(idle) > 1 else 'confirms'} none"
    return ""


def takes_no_writes(view: GroupView) -> bool | None:
    """Whether no new write gets through, for whatever reason; None: not known."""
    if view.quorum.stands is False or writes_stopped(view):
        return True
    return None if view.leader is None or view.quorum.stands is None or survives(view) is None else False
