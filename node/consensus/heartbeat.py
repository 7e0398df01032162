"""The follower's side of heartbeats, with DLedger's result codes.

A higher term is adopted and answered TERM_NOT_READY, as DLedger does; the leader repeats at once. A heartbeat names the
leader's committed index and the chain there, so that one comparison checks a whole prefix ten times a second.
"""

from __future__ import annotations

from node.consensus.contradictions import fork_found, two_leaders
from node.consensus.member_state import MemberState
from node.protocol.codes import ResponseCode, Role
from node.protocol.messages import HeartBeatRequest, HeartBeatResponse


def handle_heartbeat(member: MemberState, sender: str, beat: HeartBeatRequest, now: int) -> ResponseCode:
    """Answers one heartbeat, and says how."""
    code = _judge(member, sender, beat, now)
    if code is ResponseCode.SUCCESS:
        member.follow(sender, now)
        _check_prefix(member, beat, now)
        member.advance_commit(min(beat.commit_index, member.verified_index), now)
    needs = -1 if member.applying is None else member.applying.needs_state_from
    answer = HeartBeatResponse(beat.seq, member.term, code, member.store.end_index, member.voter_state, needs)
    member.send(sender, answer)
    return code


def _judge(member: MemberState, sender: str, beat: HeartBeatRequest, now: int) -> ResponseCode:
    if not member.configurations.knows(beat.leader_id):
        return ResponseCode.UNKNOWN_MEMBER
    if beat.leader_id == member.self_id or beat.leader_id != sender:
        return ResponseCode.UNEXPECTED_MEMBER
    if beat.term < member.term:
        return ResponseCode.EXPIRED_TERM
    if beat.term > member.term:
        member.adopt_term(beat.term, now, f"{sender} leads term {beat.term}")
        return ResponseCode.TERM_NOT_READY
    if member.role is Role.LEADER or member.leader_id not in (None, sender):
        two_leaders(member, sender, now)
        return ResponseCode.INCONSISTENT_LEADER
    return ResponseCode.SUCCESS


def _check_prefix(member: MemberState, beat: HeartBeatRequest, now: int) -> None:
    if beat.commit_chain is None or beat.commit_index > member.verified_index:
        return
    ours = member.chain_at(beat.commit_index)
    if ours is not None and ours != beat.commit_chain:
        text = f"the prefix up to entry {beat.commit_index} differs from {beat.leader_id}'s; both logs are scrubbed"
        fork_found(member, text, now, beat.leader_id)
