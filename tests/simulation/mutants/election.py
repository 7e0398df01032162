"""Planted bugs of elections and of the right to vote: SAFETY E1 to E8."""

from __future__ import annotations

from typing import Any

from tests.simulation.mutants.planting import Edit, Mutant, ignored, swapped

ELECTOR = "node.consensus.leader_elector:LeaderElector."
MEMBERSHIP = "node.consensus.membership:Membership."

# Elections all the time, and machines that forget what was not durable.
UNREST: dict[str, Any] = {"members": 3, "isolate_leader": 4.0, "crash": 2.0, "power_loss": 2.0, "reset": 2.0}
WIPES: dict[str, Any] = {"members": 3, "wipe": 2.0, "isolate_leader": 3.0, "partition": 2.0, "crash": 1.0, "rot": 0.0}


def forget_vote(member: Any, candidate_id: str) -> None:
    """The vote as a process without a disk keeps it."""
    from dataclasses import replace

    member.hard = replace(member.hard, voted_for=candidate_id)


ELECTION = (
    Mutant(
        "stored_term_led_again",
        "E1",
        "the first campaign of a process takes the stored term, as DLedger's does, unless it voted for another in it",
        (
            Edit(
                ELECTOR + "_real_campaign",
                "term=member.term + 1,",
                "term=MUTANT.instead(member.term + 1, stored_term_again(self, member)),",
            ),
        ),
        {**UNREST, "power_loss": 4.0},
        {
            "stored_term_again": lambda elector, member: (
                member.term
                if vars(elector).setdefault("campaigned_at", member.term) == member.term
                and member.hard.voted_for in (None, member.self_id)
                and member.term > 0
                else member.term + 1
            )
        },
    ),
    Mutant(
        "vote_not_persisted",
        "E2",
        "a vote is remembered by the process only",
        (
            Edit(
                ELECTOR + "_judge_real",
                "member.save(voted_for=vote.candidate_id)",
                "MUTANT.left_out(forget_vote(member, vote.candidate_id))",
            ),
        ),
        UNREST,
        {"forget_vote": forget_vote},
    ),
    Mutant(
        "vote_for_shorter_log",
        "E3",
        "a vote goes to a candidate whose log ends earlier in the same term",
        (
            ignored(
                ELECTOR + "_judge", "vote.ledger_end_term == store.end_term and vote.ledger_end_index < store.end_index"
            ),
        ),
        UNREST,
    ),
    Mutant(
        "vote_for_older_log",
        "E3",
        "a vote goes to a candidate whose last entry is of an older term",
        (ignored(ELECTOR + "_judge", "vote.ledger_end_term < store.end_term"),),
        UNREST,
    ),
    Mutant(
        "votes_twice_in_a_term",
        "E2",
        "who voted already votes for the next one that asks, too",
        (
            ignored(ELECTOR + "_judge_real", "member.hard.voted_for is not None"),
            swapped(ELECTOR + "_judge_real", "member.hard.voted_for is None", "True"),
        ),
        UNREST,
    ),
    Mutant(
        "pre_vote_raises_terms",
        "E3",
        "a pre-vote with a higher term makes its receiver adopt that term",
        (
            Edit(
                ELECTOR + "_judge_pre",
                "member = self._member",
                "member = self._member\n"
                "    if vote.term > member.term:\n"
                "        MUTANT.left_out()\n"
                "        member.adopt_term(vote.term, now, 'a pre-vote')",
            ),
        ),
        UNREST,
    ),
    Mutant(
        "vote_unseats_live_leader",
        "E4",
        "a vote of a higher term is taken up although this node's leader is alive",
        (ignored(ELECTOR + "_judge_real", "member.leader_alive(now) and not self._ticket_valid(vote)"),),
        {**UNREST, "members": 5, "asymmetric": 4.0, "reset": 6.0},
    ),
    Mutant(
        "check_quorum_off",
        "E6",
        "a leader leads on, whether a quorum answers or not",
        (
            ignored(
                "node.consensus.leadership:Leadership.tick",
                "now >= self.quorum_contact_at() + self._timing.election_max_ns",
            ),
            Edit(
                "node.consensus.leadership:Leadership.next_deadline",
                "times = [self._beat_at, self.quorum_contact_at() + self._timing.election_max_ns]",
                "times = [self._beat_at]",
            ),
        ),
        {"isolate_leader": 4.0, "partition": 2.0, "partition_ms": 1500.0},
    ),
    Mutant(
        "wiped_node_votes",
        "E8",
        "an empty directory that nobody called new starts as a voter",
        (
            swapped(
                "node.store.opening:_hard_state",
                "VoterState.FORMING if init else VoterState.REJOINING",
                "VoterState.FORMING if init else VoterState.VOTER",
            ),
        ),
        {**WIPES, "drop": 0.02},
    ),
    Mutant(
        "rejoining_votes",
        "E8",
        "a member that lost its history gives votes before it has it back",
        (
            Edit(
                ELECTOR + "_judge",
                "self._membership.may_reform() if vote.reform else member.voter_state is VoterState.VOTER",
                "self._membership.may_reform() if vote.reform else "
                "MUTANT.instead(member.voter_state is VoterState.VOTER, True)",
            ),
        ),
        WIPES,
    ),
    Mutant(
        "rejoining_counts",
        "E8",
        "the acks of a member that lost its history count",
        (
            Edit(
                MEMBERSHIP + "voter_state_seen",
                "peer.counts = False",
                "peer.counts = MUTANT.instead(False, state is VoterState.REJOINING)",
            ),
        ),
        WIPES,
    ),
    Mutant(
        "rejoins_at_deposed_leader",
        "E8",
        "a leader tells a joining member its end without asking a quorum first",
        (
            Edit(
                "node.consensus.leadership:Leadership.handle_read_index",
                "if self.reads.add(deliver, now):",
                "MUTANT.left_out()\n    deliver(ResponseCode.SUCCESS, member.committed_index)\n    if False:",
            ),
        ),
        {**WIPES, "wipe": 4.0},
    ),
    Mutant(
        "joined_without_catching_up",
        "E8",
        "a joining is complete as soon as the leader has named its target",
        (
            Edit(
                MEMBERSHIP + "progress",
                "self._held_through() >= self.target_index",
                "MUTANT.instead(self._held_through() >= self.target_index, True)",
            ),
        ),
        WIPES,
    ),
    Mutant(
        "no_vote_floor",
        "E8",
        "after a joining a member votes in terms in which it may have voted before its loss",
        (swapped(MEMBERSHIP + "progress", "max(member.hard.vote_floor, member.term)", "member.hard.vote_floor"),),
        WIPES,
    ),
    Mutant(
        "async_loss_keeps_vote",
        "E8",
        "a member that lost unsynced writes with its machine goes on as a voter",
        (
            ignored(
                "node.store.opening:_settle_voter_state",
                "slot is not None and flush is FlushMode.ASYNC and not slot.clean and slot.boot_id != boot_id",
            ),
        ),
        {"flush_sync": False, "power_loss": 3.0, "isolate_leader": 3.0},
    ),
)
