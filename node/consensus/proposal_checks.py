"""Checks of one proposal at its leader: why nothing of it may be appended (SAFETY C2, C3).

How much may wait at once is another question: `consensus/admission.py`.

Invariant: a refusal changes nothing, but for a lane, which ends with the first append that is not taken whole.
"""

from __future__ import annotations

from node.consensus.api import Proposal
from node.consensus.lanes import Lanes, Refusal
from node.consensus.member_state import MemberState
from node.protocol.codes import ResponseCode
from node.protocol.entry import BLANK_BYTES, BODY_BYTES_MAX, HEAD_BYTES
from node.protocol.packed_bodies import longest_of


class ProposalChecks:
    """One leadership's."""

    def __init__(self, member: MemberState, lanes: Lanes) -> None:
        self._member, self._lanes = member, lanes
        self.body_bytes_max = min(BODY_BYTES_MAX, member.store.data_file_size - HEAD_BYTES - BLANK_BYTES)
        kind = member.config.kind
        self._only_lanes = ""
        if not (kind.is_plain or kind.takes_commands):
            self._only_lanes = (
                f"a log of kind {kind.name} takes appends over a lane only; send messages: quorumscope produce"
            )

    def refusal(self, proposal: Proposal, count: int, size_bytes: int, next_index: int) -> Refusal | None:
        """Why not; None where its `count` entries of `size_bytes` together may stand from `next_index` on."""
        if self._only_lanes and proposal.lane is None:
            return ResponseCode.UNEXPECTED_ARGUMENT, self._only_lanes
        kind = self._member.config.kind
        if kind.takes_commands and (proposal.lane is not None or not proposal.at_apply):
            text = f"a log of kind {kind.name} takes commands of its state machine only (docs/state-machines.md)"
            return ResponseCode.UNEXPECTED_ARGUMENT, text
        if count == 0:
            return ResponseCode.REQUEST_WITH_EMPTY_BODYS, "no entry to append"
        if size_bytes > self.body_bytes_max:
            longest = longest_of(proposal.bodies)
            if longest > self.body_bytes_max:
                text = f"a body of {longest} bytes is over the limit of {self.body_bytes_max}"
                return ResponseCode.UNEXPECTED_ARGUMENT, text
        if proposal.expected_index is not None and proposal.expected_index != next_index:
            text = f"expected index {proposal.expected_index}, the log ends at {next_index - 1}"
            return ResponseCode.INCONSISTENT_INDEX, text
        if proposal.at_apply and self._member.applying is not None and self._member.applying.is_full:
            return ResponseCode.LEADER_PENDING_FULL, "too many requests wait for the state machine already"
        return None if proposal.lane is None else self._lanes.take(proposal, count)
