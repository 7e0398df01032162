"""Planted bugs of elections and of the right to vote: SAFETY E1 to E8."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from node.protocol.messages import HeartBeatRequest
from tests.simulation.invariants_election import UNSETTLING
from tests.simulation.mutants.planting import Edit, Mutant, ignored, swapped

ELECTOR = "node.consensus.leader_elector:LeaderElector."
RECORDS = "node.consensus.store_records:"
MEMBERSHIP = "node.consensus.membership:Membership."
CHECK_QUORUM = "node.consensus.quorum_contact:QuorumContact.lost"
TICKS = "node.consensus.ticks:Ticks."

# Elections all the time, and machines that forget what was not durable.
UNREST: dict[str, Any] = {"members": 3, "isolate_leader": 4.0, "crash": 2.0, "power_loss": 2.0, "reset": 2.0}
STALLS: dict[str, Any] = {"stall": 3.0} | dict.fromkeys(UNSETTLING, 0)
WIPES: dict[str, Any] = {"members": 3, "wipe": 2.0, "isolate_leader": 3.0, "partition": 2.0, "crash": 1.0, "rot": 0.0}


def forget_vote(member: Any, candidate_id: str) -> None:
    """The vote as a process without a disk keeps it."""
    from dataclasses import replace

    member.hard = replace(member.hard, voted_for=candidate_id)


# Directories are put back from older copies, in a group that writes all the time.
RESTORES: dict[str, Any] = {"members": 3, "restore": 12.0, "crash": 2.0, "isolate_leader": 2.0, "appends": 100.0}


def with_an_absurd_term(message: Any) -> Any:
    """Now and then a heartbeat says what no group reaches by elections."""
    forged = isinstance(message, HeartBeatRequest) and message.seq % 40 == 0
    return replace(message, term=1 << 40) if forged else message


ELECTION = (
    Mutant(
        "stored_term_led_again",
        "E1",
        "the first campaign of a process takes the stored term, as DLedger's does, unless it voted for another in it",
        (
            Edit(
                "node.consensus.member_state:MemberState.stand_for_election",
                "term=self.term + 1,",
                "term=MUTANT.instead(self.term + 1, stored_term_again(self)),",
            ),
        ),
        {**UNREST, "power_loss": 4.0},
        {
            "stored_term_again": lambda member: (
                member.term
                if vars(member).setdefault("campaigned_at", member.term) == member.term
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
            ignored(CHECK_QUORUM, "self.silent_ticks() > self._silent_ticks_max"),
            ignored(CHECK_QUORUM, "now >= self.at() + self._member.config.timing.quorum_silence_max_ns"),
        ),
        {"isolate_leader": 4.0, "partition": 2.0, "partition_ms": 1500.0},
    ),
    Mutant(
        "leader_silence_by_the_clock",
        "E6",
        "a leader that stood still takes the time that passed for silence",
        (
            Edit(
                CHECK_QUORUM,
                "self.ticks.passed(now) and self.silent_ticks() > self._silent_ticks_max",
                "MUTANT.instead(self.ticks.passed(now) and self.silent_ticks() > self._silent_ticks_max, "
                "now >= self.at() + self._member.config.timing.election_max_ns)",
            ),
        ),
        STALLS,
    ),
    Mutant(
        "late_tick_counts_many",
        "E6",
        "a tick that comes late counts for all those that it should have come after",
        (
            Edit(
                TICKS + "passed",
                "self.count += 1",
                "self.count += MUTANT.instead(1, 1 + (now - self.due_at) // self.period_ns)",
            ),
        ),
        STALLS,
    ),
    Mutant(
        "missed_ticks_come_after",
        "E6",
        "the ticks of a stall are made up for, one at every look",
        (
            Edit(
                TICKS + "passed",
                "self.due_at = now + self.period_ns",
                "self.due_at = MUTANT.instead(now + self.period_ns, self.due_at + self.period_ns)",
            ),
        ),
        STALLS,
    ),
    Mutant(
        "campaign_by_the_clock",
        "E6",
        "a follower that stood still campaigns, because its leader was not heard for a time-out by the clock",
        (
            Edit(
                ELECTOR + "tick",
                "self._silence.passed(now) and self._silence.count >= self._ticks_needed",
                "(self._silence.passed(now) and self._silence.count >= self._ticks_needed) or MUTANT.instead("
                "False, now >= (self._member.leader_contact_at or now) + self._timing.election_max_ns)",
            ),
        ),
        STALLS,
    ),
    Mutant(
        "lease_in_ticks",
        "E6",
        "a leader that stood still goes on with the lease that it had by its ticks",
        (
            Edit(
                "node.consensus.leadership:Leadership.read_index",
                "self.reads.lease_holds(now)",
                "MUTANT.instead(self.reads.lease_holds(now), "
                "self._member.config.lease_reads and not self.reads.lease_void and self.contact.silent_ticks() < 4)",
            ),
        ),
        {
            "members": 3,
            "lease_reads": True,
            "pause": 4.0,
            "pause_ms": 400.0,
            "reads": 150.0,
            "appends": 150.0,
            "clients": 5,
        },
    ),
    Mutant(
        "wiped_node_votes",
        "E8",
        "an empty directory that nobody called new starts as a voter",
        (
            swapped(
                "node.store.recovery.opening:_hard_state",
                "VoterState.FORMING if init else VoterState.REJOINING",
                "VoterState.FORMING if init else VoterState.VOTER",
            ),
            ignored(
                "node.store.recovery.opening:_settle_voter_state",
                "slot is None and ours and hard.voter_state is VoterState.VOTER",
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
                "member.voter_state is VoterState.VOTER",
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
                "counts = False",
                "counts = MUTANT.instead(False, state is VoterState.REJOINING)",
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
                "self.read_index(deliver, now, request.way)",
                "MUTANT.left_out()\n    deliver(ResponseCode.SUCCESS, member.committed_index)",
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
                "node.store.recovery.opening:_settle_voter_state",
                "slot is not None and flush is FlushMode.ASYNC and not slot.clean and slot.boot_id != boot_id",
            ),
        ),
        {"flush_sync": False, "power_loss": 3.0, "isolate_leader": 3.0},
    ),
    Mutant(
        "restored_life_ignored",
        "E8",
        "a store that does not know the life that its peers have on record goes on as it is",
        (
            Edit(
                RECORDS + "why_restored",
                "record.store_id == store_id and record.life_id not in life_ids",
                "MUTANT.ignored(record.store_id == store_id and record.life_id not in life_ids)",
            ),
        ),
        RESTORES,
    ),
    Mutant(
        "restored_mark_ignored",
        "E8",
        "a store that does not hold what its peers know it acknowledged goes on as it is",
        (
            Edit(
                RECORDS + "why_restored",
                "record.mark_index > end_index and record.mark_term >= marks_from",
                "MUTANT.ignored(record.mark_index > end_index and record.mark_term >= marks_from)",
            ),
        ),
        RESTORES,
    ),
    Mutant(
        "copy_rewrites_its_record",
        "E8",
        "the life that a restored copy says while its joining is being saved replaces the one on record",
        (
            swapped(
                "node.consensus.store_records:StoreRecords.note_life",
                "known is None or known in hello.life_ids",
                "True",
            ),
        ),
        {**RESTORES, "power_loss": 4.0, "crash_at_io": 4.0, "slow_disk": 0.5, "sync_ms": 6.0},
    ),
    Mutant(
        "restored_keeps_vote",
        "E8",
        "a store that found out that it is a restored copy takes another id, and goes on voting",
        (
            Edit(
                MEMBERSHIP + "_judge_stores",
                "self._become(VoterState.REJOINING, text,",
                "self._become(MUTANT.instead(VoterState.REJOINING, member.voter_state), text,",
            ),
        ),
        RESTORES,
    ),
    Mutant(
        "any_term_adopted",
        "E10",
        "a single heartbeat with an absurd term is obeyed",
        (
            Edit(
                "node.consensus.term_gate:TermGate.admits",
                "term <= self._member.term + TERM_LEAP_MAX or self._said(term)",
                "MUTANT.instead(term <= self._member.term + TERM_LEAP_MAX, True)",
            ),
        ),
        {"members": 3, "crash": 1.0},
        helpers={"with_an_absurd_term": with_an_absurd_term},
        cause=(
            Edit(
                "tests.simulation.links:Links.arrived",
                "peer_id = wire.ends[1 - end]",
                "message = with_an_absurd_term(message)\n    peer_id = wire.ends[1 - end]",
            ),
        ),
    ),
)
