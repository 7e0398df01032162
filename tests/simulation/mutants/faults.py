"""Planted bugs of a damaged log's life: SAFETY S3, S6, R7."""

from __future__ import annotations

from typing import Any

from tests.simulation.mutants.planting import Edit, Mutant, ignored, swapped

# Much that rots, read from the disk again because little is kept in memory, and leaders that change.
ROT: dict[str, Any] = {
    "members": 3, "rot": 6.0, "crash": 2.0, "isolate_leader": 2.0, "ring_bytes": 512, "appends": 100.0,
}  # fmt: skip

FAULTY = (
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
            ignored("node.consensus.entry_dispatcher:EntryDispatcher._faults_seen", "faulty_from >= 0"),
        ),
        ROT,
    ),
)
