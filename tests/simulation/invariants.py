"""All that is checked in a simulated world, put together; what each name promises is written here once.

The parts are observers: `mirror` (log matching), `invariants_members`, `invariants_log`, `invariants_election`,
`invariants_disk`, `invariants_clients`, `invariants_apply`, `invariants_quorum`, `invariants_trims`,
`invariants_records`, `liveness`. Each
looks incrementally after every step; every hundredth step and at the end what can be looked at in full is. A broken
promise raises `Violation` under one of the names below, at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.simulation.invariants_apply import Appliers
from tests.simulation.invariants_bases import Bases
from tests.simulation.invariants_clients import Clients, KnownOutcomes
from tests.simulation.invariants_disk import Disks
from tests.simulation.invariants_election import Elections
from tests.simulation.invariants_log import Logs
from tests.simulation.invariants_members import Memberships
from tests.simulation.invariants_quorum import Quorums
from tests.simulation.invariants_records import RECORD_INVARIANTS, Records
from tests.simulation.invariants_settings import Settings
from tests.simulation.invariants_trims import Trims
from tests.simulation.liveness import Liveness
from tests.simulation.mirror import Mirrors
from tests.simulation.observer import Observer

INVARIANTS: Final[Mapping[str, str]] = {
    # Elections.
    "election_safety": "one leader a term (Raft)",
    "stored_term_led": "nobody campaigns in or leads a term that it had stored when it started (E1)",
    "one_vote_per_term": "one vote a term and store, across crashes, as persisted and as sent (E2)",
    "hard_state_first": "term and vote are durable before a message that depends on them leaves (E2)",
    "recorded_first": "a peer counts once its store is on durable record (E8)",
    "term_within_reach": "no stored term goes up by more than 2^20 at once (E10)",
    "term_monotonic": "a stored term never goes down (E2)",
    "vote_unasked": "nobody votes for who did not ask",
    "vote_newer_log": "a vote goes to a log at least as new as one's own (Raft)",
    "pre_vote_changes_nothing": "a pre-vote moves nobody's term (E3)",
    "live_leader_not_unseated": "a vote without a valid ticket moves no term while the leader lives (E4)",
    "check_quorum": "a leader that hears no quorum steps down (E6)",
    "deposed_by_silence": "a leader that heard a quorum just now does not step down for silence (E6, M3)",
    "stall_keeps_leader": "where members only stand still together, or links are slow, nobody's leadership ends (E6)",
    "transfer_caught_up": "take-leadership goes to a member that holds everything, all of it committed (E7)",
    "no_lease_after_transfer": "no lease read once take-leadership was sent (E7)",
    "rejoining_no_vote": "only a VOTER votes, except to form the group again (E8)",
    "learner_no_vote": "a learner asks for no vote, gives none, and counts nowhere (M4)",
    "restored_no_vote": "an older copy of a directory gives no vote, once any peer knows better (E8)",
    "rejoined_with_history": "who votes again holds all that was committed when its joining began (E8)",
    "confirmed_by_voters": "only VOTERs' answers confirm a leader (E8, C1)",
    "joined_under_this_leader": "who votes again reached what its present leader said (E8)",
    "rejoined_vote_floor": "who joined under a term votes in none up to it (E8)",
    "one_group_id": "the members of a group hold one group id, and none of them ever another (C9)",
    # Members that change.
    "configuration_of_the_log": "a member goes by the last configuration in its log, after a cut too (M1)",
    "quorums_overlap": "any quorum of a configuration meets any quorum of the one before it (M2)",
    "one_change_pending": "no change is appended before the one before is committed (M2)",
    "change_in_own_term": "no change is appended before an entry of the leader's own term is committed (M2)",
    "elected_by_quorum": "who leads has the votes of a quorum of its own configuration, learners left out (M3, M4)",
    "learner_first": "who is new is a learner first (M4)",
    "promoted_caught_up": "who becomes a voter holds the entry that made it a member (M4)",
    "asked_as_a_voter": "a vote depends on who asks for it, not on what the log of the one who is asked knows yet (M3)",
    "removed_leader_leaves": "a leader that removed itself does not lead on (M5)",
    "removed_unseats_nobody": "whoever knows that a member was removed changes no term for it (M5)",
    "removed_store_stays_out": "the store of a member that was removed counts nowhere and is not promoted (M5)",
    "strangers_stay_out": "a member of another group is let in nowhere (M7, C9)",
    "change_is_done": "a change that was reported as done is in the entry that was named",
    # The log.
    "log_matching": "one entry and one prefix per (index, term), for ever (Raft)",
    "terms_ascend": "terms never go down along a log",
    "leader_completeness": "a leader holds everything that leaders of earlier terms committed (Raft)",
    "state_machine_safety": "what one member has committed at an index, every member has (Raft)",
    "commit_monotonic": "a process never takes a commit back",
    "commit_within_end": "committed <= end",
    "commit_own_term": "counting commits only entries of the leader's own term (R3)",
    "commit_by_quorum": "what a leader commits, a quorum of voters holds as safely as the flush mode promises (R2, R3)",
    "commit_from_leader": "nobody commits what no leader committed (R3, R4)",
    "committed_never_cut": "no cut at or below what is committed or verified (R5)",
    "cut_only_conflicts": "no cut of what the ordering leader holds too (R5)",
    "verified_matches_leader": "`verified` in an answer is where both logs are equal (R1)",
    "watermark_held": "a leader counts a peer no further than it holds (R1, R2)",
    "acknowledged_kept": "every quorum holds what is committed, whoever forgot (nothing acknowledged is lost)",
    "no_fork": "equal index and term with different content exist only where a disk is bad (R7)",
    # Disks.
    "durable_is_durable": "what a store calls durable survives a power loss now (S1)",
    "hard_state_durable": "term and vote that were saved survive a power loss now (E2)",
    "watermark_durable": "no answer calls more durable than the store does (R2)",
    "checkpoint_honest": "no checkpoint slot names what is not durable, before, during and after a cut (S2)",
    "cut_archived": "every byte that was cut is in the archive first (S4)",
    "nothing_behind_end": "behind the end of a log there are zeros only (S4, S5, S8)",
    "lost_file_named": "what lay in a file that is gone is a fault, named at open (S6)",
    "no_false_refusal": "a disk that no fault damaged opens without an operator, without faults or loss (S3, E8)",
    "no_silent_loss": "an orderly disk brings back what was durable (S1)",
    "rot_stays_home": "an entry with a wrong body CRC lies only on a disk that was damaged (Frames)",
    "faulty_does_not_lead": "a member with faults in its log does not lead (S6)",
    "faulty_watermark": "no watermark passes the first fault (S6)",
    "needed_entries_kept": "nothing goes from the front of a log that a known member does not hold, or a pin keeps",
    "base_above_committed": "no log begins anew below what is committed in it (M6)",
    "base_committed": "a log begins anew behind an entry that is committed, of that term and chain",
    "base_members": "a log that begins anew is told who belonged to the group there, as the committed log says (M1)",
    "base_in_place": "the first entry behind a base lies where it lies at everybody (S5)",
    "base_begun": "a log that began anew is empty, durable, and knows who belonged to the group there (M1)",
    "base_archived": "what a log held that began anew is in its archive, entry by entry, also after a crash",
    "begin_exact": "a log begins where whole files were removed to, behind the entry before, also after a crash",
    # Clients.
    "linearizability": "the history is that of one log, online and against the log that is left (C1 to C4)",
    "expected_index": "an append with an expected index lies there or nowhere (C3)",
    "ordered": "on an ordered connection nothing follows a failure (C4)",
    "reported_before_commit": "nobody is told of what no leader has committed",
    "outcome_codes": "an acknowledged append says SUCCESS (C2)",
    "room_returned": "whatever does not wait any more has given its room back (C5)",
    "slow_links_cost_nothing": "where links are slow but alive, and nothing else happens, no outcome is unknown (C5)",
    "closure_once": "every append, read and transfer completes exactly once",
    "transfer_reported": "every transfer's outcome is reported (E7)",
    # Settings that change while the group runs.
    "settings_change": "no change of settings is refused that is safe",
    "lease_exclusive": "while a leader's lease lasts nobody else is elected (C1, E9)",
    "async_rejoins": "who may lack what it acknowledged rejoins after a power loss, whatever is configured since (E8)",
    # State machines.
    "applied_in_order": "one state takes in the entries in order, each once, however often engine or applier end",
    "applied_never_back": "no snapshot takes the place of a newer state",
    "snapshot_installed": "a log begins behind a snapshot that is there, with the state of exactly its entries",
    "one_snapshot_at_a_time": "a leader sends a snapshot to one member at a time",
    "read_behind_its_index": "a question is answered from a state that holds what was committed when it came",
    "read_of_the_state": "what a question is answered is the state of exactly the entries that it says",
    "applied_committed": "only what is committed is applied, and the entry that is committed",
    "applied_shown": "`applied` is what was applied, and never more than is committed",
    "applied_all": "when the faults stop, everything committed is applied everywhere, to the same state",
    "result_of_its_own": "a request that waits for its result gets those of its own entries, or is told it is unknown",
    # The end, and everything else.
    "liveness": "when the faults stop: a leader, all in APPEND, equal logs, no faults, appends and reads everywhere",
    "no_exception": "the product raises nothing but what its driver expects",
    # Broker groups.
    **RECORD_INVARIANTS,
}


def checks() -> list[Observer]:
    """One set of observers for one world, in the order in which they must hear of things."""
    mirrors = Mirrors()
    members = Memberships(mirrors)
    logs = Logs(mirrors, members)
    return [
        mirrors, Records(mirrors), members, logs, Elections(mirrors, members), Disks(mirrors), Quorums(members),
        Clients(logs), Appliers(logs), KnownOutcomes(), Trims(mirrors, members), Settings(),
        Bases(mirrors, logs.committed), Liveness(mirrors, logs),
    ]  # fmt: skip
