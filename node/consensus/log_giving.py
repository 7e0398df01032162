"""Entries for a damaged peer, whoever leads: the giving side of `log_repair.py` (SAFETY S6).

Invariants: one read a peer at a time, off the loop; what is damaged in this log, too, is never given.
"""

from __future__ import annotations

from node.consensus.effects import FetchLog
from node.consensus.member_state import MemberState
from node.consensus.progress import Peers
from node.protocol.codes import ResponseCode
from node.protocol.entry import SLAB_BYTES_MAX, Slab
from node.protocol.messages import FetchRequest, FetchResponse
from node.store.faults.ranges import fault_at
from node.store.slab_pieces import cut_slab

BUSY = ResponseCode.PUSH_REQUEST_IS_FULL


class LogGiving:
    """One per replica."""

    def __init__(self, member: MemberState, peers: Peers) -> None:
        self._member, self._peers = member, peers
        self._serving: set[str] = set()

    def peer_lost(self, peer_id: str) -> None:
        """Whoever asked is gone."""
        self._serving.discard(peer_id)

    def handle_request(self, sender: str, request: FetchRequest) -> None:
        """A damaged peer asks."""
        code = self.judge_request(sender, request)
        if code is not ResponseCode.SUCCESS:
            self._member.send(sender, FetchResponse(request.seq, code, self._member.store.end_index))
            return
        self._serving.add(sender)
        max_bytes = min(request.max_bytes, SLAB_BYTES_MAX)
        order = FetchLog(sender, request.seq, request.first_index, request.last_index, max_bytes)
        self._member.effects.fetches.append(order)

    def judge_request(self, sender: str, request: FetchRequest) -> ResponseCode:
        """Whether this log can give what was asked for."""
        member, store = self._member, self._member.store
        if sender not in self._peers.of:
            return ResponseCode.UNKNOWN_MEMBER
        if request.last_index < request.first_index or request.max_bytes < 1:
            return ResponseCode.UNEXPECTED_ARGUMENT
        if request.first_index < store.begin_index:
            return ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN
        if request.first_index > store.end_index:
            return ResponseCode.INDEX_OUT_OF_RANGE
        if fault_at(store.faults, request.first_index) is not None:
            return ResponseCode.DISK_ERROR
        return BUSY if sender in self._serving or member.truncating_from is not None else ResponseCode.SUCCESS

    def fetched(self, order: FetchLog, slab: Slab | None) -> None:
        """The outcome of `effects.fetches`; None: this disk could not give it."""
        member = self._member
        self._serving.discard(order.peer_id)
        code = ResponseCode.SUCCESS
        if slab is None:
            damaged = fault_at(member.store.faults, order.first_index) is not None
            # Damage behind it is known by now: the next try stops there.
            code = ResponseCode.DISK_ERROR if damaged else BUSY
        elif slab.last_index > order.last_index:
            slab = cut_slab(slab, order.first_index, order.last_index - order.first_index + 1)
        member.send(order.peer_id, FetchResponse(order.seq, code, member.store.end_index, slab))
