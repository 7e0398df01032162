"""DLedger's JSON PUSH on a replica of ours: the layer below the gate of SAFETY C8 (served only to plain members).

Invariant: a JSON APPEND carries no link to the entry before it, so it is given one only where there is nothing to
doubt: it starts right behind what this leader verified in this term.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from node.consensus.replica import Replica
from node.protocol.codes import ResponseCode
from node.protocol.messages import PushKind, PushRequest, PushResponse
from node.store.errors import ColdEntry


def linked(push: PushRequest, replica: Replica) -> PushRequest | None:
    """The push as the core takes it; None where it would extend something that was not verified."""
    member = replica.member
    if push.kind is not PushKind.APPEND:
        return push
    same_leader = push.leader_id == member.leader_id and push.term == member.term
    if not same_leader:
        return push  # the core's own check of term and leader answers it
    try:
        prev = member.meta(push.first_index - 1)
    except ColdEntry:
        return None  # the leader asks again; by then it was looked up
    if push.first_index != member.verified_index + 1 or prev is None:
        return None
    return replace(push, prev_index=prev.index, prev_term=prev.term)


def answer_fields(push: PushRequest, answer: PushResponse | None, group: str) -> dict[str, Any]:
    """The answer as DLedger writes it; None: the entries before these are missing here."""
    code = ResponseCode.INCONSISTENT_STATE if answer is None else answer.code
    too_short = code is ResponseCode.INCONSISTENT_STATE and push.kind is PushKind.COMPARE
    x_term, x_index = (-1, -1) if answer is None else (answer.x_term, answer.x_index)
    fields: dict[str, Any] = {
        "beginIndex": 0,
        "code": int(code),
        "count": 0 if push.slab is None else push.slab.count,
        "endIndex": answer.end_index if answer is not None and too_short and x_term == -1 else 0,
        "group": group,
        "term": push.term,
        "xIndex": x_index,
        "xTerm": x_term,
    }
    if push.kind is not PushKind.COMMIT:
        fields["index"] = push.first_index if push.kind is PushKind.APPEND else -1
    return fields
