"""Planted bugs of replication and commit: SAFETY R1 to R8, and closures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from node.protocol.messages import PushKind, PushResponse
from tests.simulation.mutants.election import UNREST
from tests.simulation.mutants.planting import Edit, Mutant, ignored, swapped

HANDLER = "node.consensus.entry_handler:EntryHandler."
DISPATCHER = "node.consensus.entry_dispatcher:EntryDispatcher."
PROGRESS = "node.consensus.progress:Progress."
LEADERSHIP = "node.consensus.leadership:Leadership."
CHECKER = "node.consensus.quorum_ack_checker:"
CONFIGURATION = "node.consensus.configuration:Configuration."

# Leaders that write what nobody else has, so that later ones have to cut it.
FORKS: dict[str, Any] = {
    "members": 3,
    "isolate_leader": 5.0,
    "appends": 150.0,
    "crash": 1.0,
    "reorder": 0.1,
    "reset": 2.0,
}


def echo(member: Any, push: Any) -> int:
    """The answer just made names what the request carried; how often that was more than is true."""
    send = member.effects.sends[-1]
    carried = push.slab.last_index if push.slab is not None else push.prev_index
    if push.kind is not PushKind.APPEND or not isinstance(send.message, PushResponse):
        return 0
    wrong = replace(send.message, verified_index=carried, durable_index=carried)
    member.effects.sends[-1] = send._replace(message=wrong)
    return int(carried > send.message.verified_index or carried > send.message.durable_index)


def durable_ever(peer: Any, answer: PushResponse) -> int:
    """The highest durable index that this peer ever named to this leadership."""
    window = peer.window  # as new as the leadership
    highest: int = max(vars(window).get("durable_named", -1), answer.durable_index)
    window.durable_named = highest
    return highest


def from_below(member: Any, end_index: int) -> int:
    """The Java dispatcher's write index: what its process saw at its start (FORMATS 6.1)."""
    store = member.store
    if not hasattr(store, "end_at_start"):
        store.end_at_start = -1
    return min(end_index, store.end_at_start)


def slot_first(jobs: Any) -> None:
    """The idle timer fires between the order of a cut and the cut: its sync belongs to the cut's own epoch."""
    ticket = None if jobs._syncing else jobs._store.prepare_checkpoint()
    if ticket is not None:
        jobs._run_ticket(ticket, slot_owed=False)


# The loop hears late of what the writer did: a sync that began before a cut is told after it.
REPORTED_LATE = (
    Edit("tests.simulation.jobs:Jobs._work", "self._rng.random() < 0.3", "self._rng.random() < 0.8"),
    Edit("tests.simulation.jobs:Jobs._work", "self._rng.randrange(MS)", "self._rng.randrange(20 * MS)"),
)


# What the handler's guards stand against, one by one: no conflict; verified or committed entries.
NO_CONFLICT = ignored(HANDLER + "_truncate", "not conflict")
OBEY_ANY_CUT = (
    NO_CONFLICT,
    ignored(HANDLER + "_truncate", "cut <= max(member.verified_index, member.committed_index)"),
)
# A leader that looks for the match too far below: harmless while the follower keeps R5.
LOW_COMPARE = (
    Edit(
        DISPATCHER + "_send_compare",
        "meta = self._member.meta(self._compare_index)",
        "self._compare_index = min(self._compare_index, self._member.committed_index)\n"
        "    meta = self._member.meta(self._compare_index)",
    ),
)
# Every other time: where the follower's log begins above, it is refused, and the next try has to do without. Never up:
# where its log ends below the leader's base, that is to be seen.
LOWER_COMPARE = (
    Edit(
        DISPATCHER + "_send_compare",
        "meta = self._member.meta(self._compare_index)",
        "lower = max(self._compare_index // 2, self._member.store.base.index)\n"
        "    if self.peer.dispatch_epoch % 2:\n"
        "        self._compare_index = min(self._compare_index, lower)\n"
        "    meta = self._member.meta(self._compare_index)",
    ),
)

REPLICATION = (
    Mutant(
        "watermark_echoed",
        "R1",
        "an APPEND's answer names what the request carried, whatever came of it",
        (
            Edit(
                HANDLER + "handle",
                "self._answer(sender, push.seq, push.dispatch_epoch, verdict)",
                "self._answer(sender, push.seq, push.dispatch_epoch, verdict)\n"
                "        MUTANT.differed += echo(self._member, push)",
            ),
        ),
        FORKS,
        {"echo": echo},
    ),
    Mutant(
        "verified_survives_terms",
        "R1",
        "what was verified under one leader is taken for verified under the next",
        (
            Edit("node.consensus.member_state:MemberState.adopt_term", "self.verified_index = -1", "MUTANT.left_out()"),
            Edit(
                "node.consensus.member_state:MemberState.stand_for_election",
                "self.verified_index = -1",
                "MUTANT.left_out()",
            ),
        ),
        {**FORKS, "members": 5},
    ),
    Mutant(
        "ack_before_sync",
        "R2",
        "a follower says durable what only its page cache holds",
        (swapped(HANDLER + "_answer", "member.durable_index", "store.end_index"),),
        {"power_loss": 3.0, "sync_ms": 8.0},
    ),
    Mutant(
        "leader_counts_unsynced",
        "R2",
        "the leader counts its own entries before they are durable",
        (
            swapped(
                "node.consensus.member_state:MemberState.own_watermark",
                "self.durable_index if self.config.flush is FlushMode.SYNC else self.store.end_index",
                "self.store.end_index",
            ),
        ),
        {"power_loss": 3.0, "sync_ms": 8.0, "members": 3},
    ),
    Mutant(
        "durable_not_of_this_answer",
        "R2",
        "a later `verified` meets the highest `durable` that the peer ever named, also one that a cut took back",
        (
            swapped(
                PROGRESS + "acknowledge",
                "watermark(verified, durable, flush, faulty_from)",
                "watermark(verified, durable_ever(self, answer), flush, faulty_from)",
            ),
        ),
        {**FORKS, "sync_ms": 6.0},
        {"durable_ever": durable_ever},
    ),
    Mutant(
        "earlier_term_by_counting",
        "R3",
        "an entry of an earlier term is committed because a quorum holds it",
        (
            Edit(
                CHECKER + "committable",
                "index > committed_index and index >= own_term_from",
                "MUTANT.instead(index > committed_index and index >= own_term_from, index > committed_index)",
            ),
        ),
        {**FORKS, "members": 5, "crash": 3.0, "sync_ms": 6.0},
    ),
    Mutant(
        "follower_commits_to_its_end",
        "R3",
        "a follower's commit = min(leader's commit, its end)",
        (
            swapped(HANDLER + "_commit", "self._member.verified_index", "self._member.store.end_index"),
            swapped(
                "node.consensus.heartbeat:handle_heartbeat",
                "min(beat.commit_index, member.verified_index)",
                "min(beat.commit_index, member.store.end_index)",
            ),
        ),
        FORKS,
    ),
    Mutant(
        "median_of_even_group",
        "R3",
        "half of an even group is taken for a majority",
        (swapped(CONFIGURATION + "reached", "ordered[self.majority - 1]", "ordered[(len(ordered) - 1) // 2]"),),
        {**FORKS, "members": 4, "partition": 3.0},
    ),
    Mutant(
        "commit_of_deposed_leader",
        "R4",
        "the commit index of a push is taken before its term and leader are checked, as DLedger does, up to the end",
        (
            Edit(
                HANDLER + "handle",
                "if code is not ResponseCode.SUCCESS:",
                "if code is not ResponseCode.SUCCESS:\n"
                "        MUTANT.differed += "
                "self._member.advance_commit(min(push.commit_index, self._member.store.end_index), now)\n"
                "    if code is not ResponseCode.SUCCESS:",
            ),
        ),
        {
            **FORKS,
            "asymmetric": 5.0,
            "pause": 5.0,
            "slow_link": 3.0,
            "hold": 1.0,
            "partition_ms": 60.0,
            "election_ms": 60,
            "members": 5,
            "pause_ms": 150.0,
        },
    ),
    Mutant(
        "expired_term_obeyed",
        "R4",
        "the orders of a leader of an earlier term are carried out",
        (ignored(HANDLER + "check", "push.term < member.term"),),
        {**FORKS, "asymmetric": 3.0, "pause": 3.0},
    ),
    Mutant(
        "cut_without_conflict",
        "R5",
        "TRUNCATE cuts also what does not conflict, as long as it is above what is committed",
        (
            NO_CONFLICT,
            swapped(
                HANDLER + "_truncate",
                "max(member.verified_index, member.committed_index)",
                "member.committed_index",
            ),
        ),
        FORKS,
        cause=LOW_COMPARE,
    ),
    Mutant(
        "cut_below_committed",
        "R5",
        "TRUNCATE is obeyed wherever it says, also below what is committed",
        OBEY_ANY_CUT,
        FORKS,
        cause=LOWER_COMPARE,
    ),
    Mutant(
        "java_wipe",
        "R5, FORMATS 6.1",
        "a new leader compares from the write index that its process started with, and followers cut what it says",
        (
            Edit(
                DISPATCHER + "_send_compare",
                "meta = self._member.meta(self._compare_index)",
                "self._compare_index = MUTANT.instead(self._compare_index, "
                "from_below(self._member, self._compare_index))\n"
                "    meta = self._member.meta(self._compare_index)",
            ),
            *OBEY_ANY_CUT,
        ),
        {**UNREST, "transfers": 4.0},
        {"from_below": from_below},
    ),
    Mutant(
        "stale_order_obeyed",
        "R5",
        "a follower obeys orders from before its leader's present view of it",
        (ignored(HANDLER + "handle", "push.dispatch_epoch < self._dispatch_epoch"), *OBEY_ANY_CUT),
        {**FORKS, "isolate_leader": 9.0, "crash": 0.0, "reset": 0.5, "duplicate": 0.4, "reorder": 0.4},
    ),
    Mutant(
        "compare_ignores_term",
        "R6",
        "COMPARE matches wherever the follower has an entry at all",
        (ignored(HANDLER + "_match", "meta.term != push.prev_term"),),
        FORKS,
    ),
    Mutant(
        "stale_flush_taken",
        "R8",
        "a sync that began before a cut says what is durable after it",
        (
            ignored("node.consensus.disk_reports:DiskReports.flushed", "log_epoch != member.log_epoch"),
            ignored("node.consensus.member_state:MemberState.note_durable", "self.truncating_from is not None"),
            Edit(
                "node.store.durability:Durability.finish_sync",
                "ticket.cuts == self.files.cuts",
                "MUTANT.instead(ticket.cuts == self.files.cuts, True)",
            ),
        ),
        {**FORKS, "slow_disk": 0.3, "sync_ms": 6.0},
        cause=REPORTED_LATE,
    ),
    Mutant(
        "durable_survives_cut",
        "R8",
        "a cut leaves the core's durable index where it was",
        (
            Edit(
                "node.consensus.member_state:MemberState.close_log",
                "self.durable_index = min(self.durable_index, from_index - 1)",
                "MUTANT.left_out()",
            ),
            swapped(
                "node.consensus.member_state:MemberState._cut_over",
                "min(self.store.durable_index, upto_index)",
                "self.durable_index",
            ),
        ),
        FORKS,
    ),
    Mutant(
        "durable_report_not_clamped",
        "R8",
        "a sync that begins after a cut was ordered counts what is about to go",
        (ignored("node.consensus.member_state:MemberState.note_durable", "self.truncating_from is not None"),),
        FORKS,
        {"slot_first": slot_first},
        cause=(
            Edit(
                "tests.simulation.process:Process._carry_out",
                "self.jobs.truncate(effects.truncate)",
                "slot_first(self.jobs)\n        self.jobs.truncate(effects.truncate)",
            ),
        ),
    ),
    Mutant(
        "lost_push_not_resent",
        "FORMATS 6.19",
        "an APPEND that was never answered is never sent again",
        (
            ignored(DISPATCHER + "tick", "oldest is not None"),
            Edit(DISPATCHER + "next_deadline", "self.peer.window.silent_from()", "None"),
        ),
        {"drop": 0.1, "appends": 20.0},
    ),
    Mutant(
        "closure_completed_twice",
        "C2",
        "a request that timed out stays in the table, and is told again at its commit",
        (
            Edit(
                "node.consensus.closures:Closure.complete",
                "if self.outcome is not None:",
                "if MUTANT.ignored(self.outcome is not None):",
            ),
            Edit(
                "node.consensus.closures:ClosureTable.expire",
                'closure.unknown(ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, leader_id, "no quorum of acks in time")',
                'closure.unknown(ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, leader_id, "no quorum of acks in time")\n'
                "            MUTANT.left_out(kept.append(closure))",
            ),
        ),
        {"members": 3, "slow_disk": 0.5, "sync_ms": 20.0, "appends": 100.0},
    ),
    Mutant(
        "unknown_called_failed",
        "C2",
        "a leader that steps down tells its clients that nothing was appended",
        (
            Edit(
                "node.consensus.closures:ClosureTable.fail_all",
                "closure.unknown(code, leader_id, detail)",
                "MUTANT.left_out(closure.refuse(ResponseCode.NOT_LEADER, leader_id, detail))",
            ),
        ),
        {**UNREST, "appends": 150.0},
    ),
    Mutant(
        "acked_at_append",
        "C2",
        "a request is told its success when its entries are written, not when committed",
        (
            Edit(
                LEADERSHIP + "_append_accepted",
                "self._replicate(slabs, now)",
                "MUTANT.left_out(self.closures.commit(self._member.store.end_index, self._member.self_id, now))\n"
                "    self._replicate(slabs, now)",
            ),
        ),
        FORKS,
    ),
    Mutant(
        "expected_index_ignored",
        "C3",
        "an append is accepted wherever the log ends",
        (
            ignored(
                "node.consensus.proposal_checks:ProposalChecks.refusal",
                "proposal.expected_index is not None and proposal.expected_index != next_index",
            ),
        ),
        {"expected_index": 0.5, "clients": 5},
    ),
)
