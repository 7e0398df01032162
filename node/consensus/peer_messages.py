"""Handles the messages of peers: each kind goes to the part of the replica that it concerns.

Invariants: no message passes by the term gate; damage that a message meets is noted and settled, never raised.
"""

from __future__ import annotations

from collections.abc import Callable

from node.consensus.entry_handler import EntryHandler
from node.consensus.group_naming import GroupNaming
from node.consensus.heartbeat import handle_heartbeat
from node.consensus.held_entries import HeldEntries
from node.consensus.leader_elector import LeaderElector
from node.consensus.leadership_transfer import LeadershipTransfer, judge_take_leadership
from node.consensus.log_giving import LogGiving
from node.consensus.log_repair import LogRepair
from node.consensus.lost_states import LostStates
from node.consensus.member_state import MemberState
from node.consensus.membership import Membership
from node.consensus.office import Office
from node.consensus.progress import Peers
from node.consensus.reads import FollowerReads
from node.consensus.term_gate import TermGate
from node.protocol.codes import ResponseCode, Role
from node.protocol.messages import (
    FetchRequest,
    FetchResponse,
    HeartBeatRequest,
    HeartBeatResponse,
    Hello,
    InstallRequest,
    Message,
    PushRequest,
    PushResponse,
    ReadIndexRequest,
    ReadIndexResponse,
    SnapshotPart,
    TransferRequest,
    TransferResponse,
    VoteRequest,
    VoteResponse,
)
from node.store.errors import StoreCorrupt


class PeerMessages:
    """One per replica. `recount`: a peer counts that did not; `settle`: what may follow from any step."""

    def __init__(
        self, member: MemberState, peers: Peers, gate: TermGate, membership: Membership, elector: LeaderElector,
        handler: EntryHandler, repair: LogRepair, giving: LogGiving, transfers: LeadershipTransfer,
        naming: GroupNaming, follower_reads: FollowerReads, held: HeldEntries, lost_states: LostStates, office: Office,
        recount: Callable[[int], None], settle: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._member, self._peers, self._gate, self._membership = member, peers, gate, membership
        self._elector, self._handler, self._repair, self._giving = elector, handler, repair, giving
        self._transfers, self._naming, self._follower_reads = transfers, naming, follower_reads
        self._held, self._lost_states, self._office = held, lost_states, office
        self._recount, self._settle = recount, settle

    def receive(self, sender: str, message: Message, now: int) -> None:
        """A message of a peer: a request, or the answer to one of ours."""
        if type(message) is Hello and message.answer and sender not in self._peers.of:
            return  # it is gone since we asked; whoever asks us gets that answer
        if not self._gate.admits(sender, message, now):
            return
        try:
            if type(message) is PushResponse:  # each append has some of these two
                leadership = self._office.leadership
                if leadership is not None and sender in leadership.dispatchers:
                    leadership.handle_push_answer(sender, message, now)
                    self._lost_states.answered(sender, message, now)
            elif type(message) is PushRequest:
                self._handler.handle(sender, message, now)
                self._leader_spoke(sender, now)
            else:
                peer = self._peers.of.get(sender)
                counted = peer is not None and peer.counts
                self._take_in(sender, message, now)
                if peer is not None and peer.counts and not counted:
                    self._recount(now)
        except StoreCorrupt as error:
            self._member.note_damage(error)  # the sender asks again, and what is known to be damaged has its rules
        self._settle(now)

    def _take_in(self, sender: str, message: Message, now: int) -> None:
        """One of the rarer kinds."""
        match message:
            case HeartBeatRequest():
                code = handle_heartbeat(self._member, sender, message, now)
                if code is ResponseCode.TERM_NOT_READY:
                    self._elector.stepped_down(now)
                elif code is ResponseCode.SUCCESS:
                    self._held.reported(message)
                    if self._is_proven(sender):
                        self._membership.records.note_marks(message.marks)
                self._leader_spoke(sender, now)
            case HeartBeatResponse():
                if self._office.leadership is not None and sender in self._office.leadership.dispatchers:
                    self._office.leadership.handle_beat_answer(sender, message, now)
                    self._lost_states.beat_answered(sender, message, now)
            case InstallRequest() | SnapshotPart():
                self._handler.handle(sender, message, now)
                self._leader_spoke(sender, now)
            case VoteRequest():
                self._elector.handle_vote(sender, message, now)
            case VoteResponse():
                if sender in self._peers.of:
                    self._elector.handle_answer(sender, message, now)
            case Hello():
                self._membership.handle_hello(sender, message, now)
                self._gate.greeted(sender, message, now)
            case TransferRequest():
                self._take_leadership(sender, message, now)
            case TransferResponse():
                self._transfers.handle_answer(sender, message, now)
            case ReadIndexRequest():
                self._read_index_asked(sender, message, now)
            case ReadIndexResponse():
                if not self._membership.handle_target(sender, message, now):
                    self._follower_reads.handle_answer(sender, message)
            case FetchRequest():
                self._giving.handle_request(sender, message)
            case FetchResponse():
                self._repair.handle_answer(sender, message, now)

    def _is_proven(self, sender: str) -> bool:
        peer = self._peers.of.get(sender)
        return peer.proven if peer is not None else self._member.configurations.guests[sender].proven

    def _leader_spoke(self, sender: str, now: int) -> None:
        member = self._member
        if member.role is Role.FOLLOWER and member.leader_id == sender and member.leader_contact_at == now:
            self._elector.leader_spoke(now)
            self._membership.leader_spoke(now)
            if member.hard.group_id is None and sender in self._peers.of:
                self._naming.follows(sender, now)

    def leader_bytes(self, peer_id: str, now: int) -> None:
        """Bytes of that member's unfinished frame came: our leader is not silent, and has promised nothing (E6)."""
        if self._member.role is Role.FOLLOWER and self._member.leader_id == peer_id:
            self._elector.leader_bytes(now)
            self._handler.leader_bytes(now)

    def _take_leadership(self, sender: str, request: TransferRequest, now: int) -> None:
        """The leader hands leadership over to us."""
        code = judge_take_leadership(self._member, sender, request)
        self._member.send(sender, TransferResponse(request.seq, self._member.term, code))
        if code is ResponseCode.SUCCESS and request.ticket is not None:
            self._elector.take_leadership(request.ticket, now)

    def _read_index_asked(self, sender: str, request: ReadIndexRequest, now: int) -> None:
        leads = self._office.leadership is not None and sender in self._office.leadership.dispatchers
        if self._office.leadership is not None and leads and request.term == self._member.term:
            self._office.leadership.handle_read_index(sender, request, now)
        else:
            self._member.send(sender, ReadIndexResponse(request.seq, self._member.term, ResponseCode.NOT_LEADER))
