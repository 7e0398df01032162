"""Planted bugs of who counts and what is counted: SAFETY C1, C5, E7, E8."""

from __future__ import annotations

from tests.simulation.mutants.election import MEMBERSHIP, WIPES
from tests.simulation.mutants.planting import Edit, Mutant, ignored, swapped

COUNTING = (
    Mutant(
        "rejoining_confirms_reads",
        "E8, C1",
        "a member that lost its history helps to confirm a leader for reads",
        (
            Edit(
                "node.consensus.reads:LeaderReads._confirmed_seq",
                "peer.answered_seq if peer.counts else -1",
                "MUTANT.instead(peer.answered_seq if peer.counts else -1, peer.answered_seq)",
            ),
            Edit(
                "node.consensus.leadership:Leadership._heard",
                "not peer.counts or",
                "MUTANT.instead(not peer.counts, False) or",
            ),
        ),
        {**WIPES, "reads": 100.0},
    ),
    Mutant(
        "join_kept_across_terms",
        "E8",
        "what a joining member has to reach stays what an earlier leader said",
        (
            ignored(MEMBERSHIP + "progress", "self._target_of != (member.term, member.leader_id)"),
            Edit(MEMBERSHIP + "tick", "self.target_index = None", "MUTANT.left_out()"),
        ),
        {
            **WIPES,
            "wipe": 3.0,
            "isolate_leader": 5.0,
            "transfers": 8.0,
            "slow_disk": 0.3,
            "sync_ms": 6.0,
            "appends": 150.0,
        },
    ),
    Mutant(
        "handed_over_uncommitted",
        "E7",
        "leadership is handed over as soon as the transferee holds everything, committed or not",
        (
            ignored(
                "node.consensus.leadership_transfer:LeadershipTransfer.step",
                "member.committed_index != end",
            ),
        ),
        {"members": 5, "transfers": 8.0, "appends": 150.0, "sync_ms": 6.0, "slow_disk": 0.3},
    ),
    Mutant(
        "expired_closures_leak",
        "C5",
        "what waited too long is told so, and its room stays taken",
        (
            Edit(
                "node.consensus.closures:ClosureTable.expire",
                "self._forget(closure)",
                "MUTANT.left_out()",
            ),
        ),
        {"members": 3, "slow_disk": 0.5, "sync_ms": 20.0, "appends": 100.0},
    ),
    Mutant(
        "learner_campaigns",
        "M4",
        "a learner that holds everything takes itself for a voter",
        (
            swapped(
                "node.consensus.member_state:MemberState.has_vote",
                "self.configurations.may_campaign(self.self_id)",
                "True",
            ),
        ),
        {"learner": 4.0, "isolate_leader": 4.0, "members": 3},
    ),
    Mutant(
        "learner_counts",
        "M4",
        "a learner that is on record counts as a voter does",
        (swapped("node.consensus.progress:Progress.judged", "counts and self.is_voter", "counts"),),
        {"learner": 4.0, "members": 3},
    ),
)
