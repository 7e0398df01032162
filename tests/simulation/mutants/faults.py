"""Planted bugs of a damaged log's life: SAFETY S3, S6, R7."""

from __future__ import annotations

from typing import Any

from node.protocol.entry import Slab, iter_bodies
from node.protocol.messages import PushKind
from node.protocol.slab_encode import encode_slab
from node.store.faults.mending import NoLinkError
from tests.simulation.mutants.planting import Edit, Mutant, ignored, swapped
from tests.simulation.mutants.replication import FORKS, HANDLER, NO_CONFLICT

# Much that rots, read from the disk again because little is kept in memory, and leaders that change.
ROT: dict[str, Any] = {
    "members": 3, "rot": 6.0, "crash": 2.0, "isolate_leader": 2.0, "ring_bytes": 512, "appends": 100.0,
}  # fmt: skip


def head_rots(member: Any, push: Any) -> bool:
    """Every third COMPARE above what is committed meets a head whose chain reads wrong this once."""
    if push.kind is not PushKind.COMPARE or push.prev_index <= member.committed_index:
        return False
    met = vars(member).get("heads_met", 0) + 1
    member.heads_met = met
    return bool(met % 3 == 1)


def forged(repair: Any, order: Any, slab: Slab | None) -> Slab | None:
    """The first answer to each FETCH carries entries that fit on the left only: other bodies of the same lengths."""
    met = vars(repair).setdefault("met", set())
    asked = order.peer_id, order.first_index
    again = asked in met
    met.add(asked)
    plain = slab is not None and slab.first_term == slab.last_term and slab.last_index <= order.last_index
    if slab is None or not plain or slab.prev_chain is None or again:
        return slab
    bodies = [b"?" * len(body) for body in iter_bodies(slab)]
    return encode_slab(bodies, slab.first_index, slab.first_term, slab.pos, slab.prev_chain)


def unlinked(check: Any, *what: Any) -> int:
    """Whether a check of the right link, whose outcome is ignored, failed."""
    try:
        check(*what)
    except NoLinkError:
        return 1
    return 0


# Java's recovery, in two halves: the first bad record ends the log, and that it is too short for its checkpoint is not
# seen.
CUT_AT_FIRST_BAD = Edit(
    "node.store.recovery.survey:Survey._after",
    "place: tuple[Cursor, bool] | None = None",
    "place: tuple[Cursor, bool] | None = None\n"
    "    if not self._java and self._data.has_bytes(stop.cursor.pos):\n"
    "        MUTANT.differed += stop.cursor.index <= self._trust.durable_index\n"
    "        self.ending = Ending.TORN\n"
    "        return None, None",
)
TOO_SHORT_UNSEEN = Edit(
    "node.store.recovery.log_recovery:Recovery._compare_with_slot",
    "if end_index < max(slot.durable_index, slot.committed_index):",
    "if MUTANT.ignored(end_index < max(slot.durable_index, slot.committed_index)):",
)

FAULTY = (
    Mutant(
        "recovery_cuts_at_first_bad",
        "S3",
        "at open the log ends before its first bad record, however much was durable behind it",
        (CUT_AT_FIRST_BAD, TOO_SHORT_UNSEEN),
        {**ROT, "crash": 6.0},
    ),
    Mutant(
        "checkpoint_believed_above_log",
        "S2, E8",
        "a log that ends below its own checkpoint goes on as if nothing had been lost",
        (TOO_SHORT_UNSEEN,),
        {**ROT, "rot": 0.0, "lost_tail": 6.0},
    ),
    Mutant(
        "fork_mended_by_truncation",
        "R7",
        "an entry of equal index and term with another chain is cut like any conflict",
        (
            Edit(HANDLER + "_match", "self._fork(index, push, now)", "MUTANT.left_out()"),
            Edit(
                "node.consensus.log_backtracking:is_fork",
                "answer.x_index == asked and answer.x_term != -1 and answer.x_term == _term_of(store, asked)",
                "False",
            ),
            NO_CONFLICT,
        ),
        {**FORKS, "rot": 0.001},
        {"head_rots": head_rots},
        cause=(
            Edit(
                HANDLER + "_match",
                "push.prev_chain != meta.chain",
                "(push.prev_chain != meta.chain or head_rots(member, push))",
            ),
        ),
    ),
    Mutant(
        "faulty_member_leads",
        "S6",
        "a member with faults in its log campaigns and leads",
        (
            Edit(
                "node.consensus.member_state:MemberState.may_lead",
                "return not self.store.faults",
                "return MUTANT.instead(not self.store.faults, True)",
            ),
        ),
        {**ROT, "members": 5},
    ),
    Mutant(
        "watermark_not_capped_at_fault",
        "S6",
        "a follower counts up to what it verified, whatever is damaged below",
        (
            swapped(
                "node.consensus.quorum_ack_checker:watermark",
                "mark if faulty_from < 0 else min(mark, faulty_from - 1)",
                "mark",
            ),
            ignored("node.consensus.progress:Progress._faults_seen", "faulty_from >= 0"),
        ),
        ROT,
    ),
    Mutant(
        "mended_without_right_link",
        "S6",
        "a fault counts as healed when a peer's entries fit on its left, whatever they lead to on its right",
        (
            Edit(
                "node.store.faults.mending:Mending._check_anchor",
                "if (end.chain, end.term, end.end_pos) != (anchor.chain, anchor.term, anchor.end_pos):",
                "if MUTANT.ignored((end.chain, end.term, end.end_pos) != (anchor.chain, anchor.term, anchor.end_pos)):",
            ),
            Edit(
                "node.store.faults.mending:Mending.right_pos",
                "self._walk_on(Cursor(",
                "MUTANT.differed += unlinked(self._walk_on, Cursor(",
            ),
        ),
        ROT,
        {"forged": forged, "unlinked": unlinked},
        cause=(
            Edit(
                "node.consensus.log_giving:LogGiving.fetched",
                "member = self._member",
                "member = self._member\n    slab = forged(self, order, slab)",
            ),
        ),
    ),
)
