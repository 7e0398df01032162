"""Orders to the driver that take entries away: cuts at the log's end (SAFETY R5, S4), and a log that begins anew (M6).

Invariant: from the order on nothing of what is to go counts (R8); the driver archives it before it goes.
"""

from __future__ import annotations

from dataclasses import replace

from node.consensus.effects import BeginBehind, TruncateLog
from node.consensus.member_state import MemberState
from node.store.files.identity import Base
from node.store.log_store import TruncationRecord


def order_cut(member: MemberState, cut: int, leader_id: str | None, reason: str, now: int) -> None:
    """Archive and cut from `cut` on."""
    member.close_log(cut)
    record = _record(member, cut, leader_id, reason)
    member.effects.truncate = TruncateLog(member.log_epoch, cut, record)
    to_index, term = record.to_index, member.term
    member.event("truncation", now, "warning", from_index=cut, to_index=to_index, leader=leader_id, term=term)


def order_beginning(member: MemberState, base: Base, leader_id: str, reason: str, now: int) -> None:
    """Archive everything and begin behind `base`. What is committed here stays so: it is below that (M6)."""
    member.close_log(member.committed_index + 1)
    record = replace(_record(member, member.store.begin_index, leader_id, reason), begins_behind=base.meta.index)
    member.effects.begin_behind = BeginBehind(member.log_epoch, base, record)
    was_from, was_to = record.from_index, record.to_index
    member.event(
        "base_ordered", now, "warning", base_index=base.meta.index, was_from=was_from, was_to=was_to, leader=leader_id,
        term=member.term,
    )  # fmt: skip


def _record(member: MemberState, from_index: int, leader_id: str | None, reason: str) -> TruncationRecord:
    return TruncationRecord(
        by=member.self_id, leader_id=leader_id, term=member.term, from_index=from_index,
        to_index=member.store.end_index, reason=reason, committed_index=member.committed_index,
    )  # fmt: skip
