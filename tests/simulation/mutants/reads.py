"""Planted bugs of reads and of leadership transfer: SAFETY C1, E7."""

from __future__ import annotations

from typing import Any

from tests.simulation.mutants.planting import Edit, Mutant, ignored

LEADERSHIP = "node.consensus.leadership:Leadership."
READS = "node.consensus.reads:"

# A leader that is cut off and asked nevertheless.
LONELY: dict[str, Any] = {"members": 3, "isolate_leader": 5.0, "partition": 3.0, "reads": 100.0, "appends": 80.0}

READING = (
    Mutant(
        "read_without_leadership",
        "C1",
        "a leader serves a read at once, without asking anybody whether it still leads",
        (
            Edit(
                LEADERSHIP + "read_index",
                "self.own_entry_committed and self.reads.lease_holds(now)",
                "MUTANT.instead(self.own_entry_committed and self.reads.lease_holds(now), True)",
            ),
        ),
        LONELY,
    ),
    Mutant(
        "read_before_own_entry",
        "C1",
        "a new leader serves reads before an entry of its own term is committed",
        (ignored(READS + "LeaderReads.drain", "not ready"),),
        {**LONELY, "crash": 3.0, "sync_ms": 8.0},
    ),
    Mutant(
        "read_confirmed_by_earlier_frames",
        "C1",
        "answers to frames that were sent before the read came confirm it",
        (
            Edit(
                READS + "LeaderReads.add",
                "PendingRead(member.last_seq,",
                "PendingRead(MUTANT.instead(member.last_seq, -2),",
            ),
        ),
        LONELY,
    ),
    Mutant(
        "log_read_at_once",
        "C1",
        "a read through the log is served where its entry is appended, not where it is committed",
        (
            Edit(
                READS + "LeaderReads.add_through_log",
                "self._behind_it.append(PendingRead(-1, now + member.config.timing.read_timeout_ns, deliver))",
                "MUTANT.left_out(deliver(ResponseCode.SUCCESS, member.committed_index))",
            ),
        ),
        {**LONELY, "read_ways": True, "reads": 300.0, "appends": 200.0, "sync_ms": 0.3, "delay_ms": 0.2},
    ),
    Mutant(
        "follower_read_before_commit",
        "C1",
        "a follower serves a read at the leader's index before it got there itself",
        (
            Edit(
                READS + "FollowerReads.progress",
                "r.read_index <= committed",
                "MUTANT.instead(r.read_index <= committed, True)",
            ),
        ),
        LONELY,
    ),
    Mutant(
        "lease_too_long",
        "C1",
        "a lease lasts for three election time-outs",
        (
            Edit(
                READS + "LeaderReads._certain_ns",
                "lease_ns - lease_ns // self._member.config.timing.lease_drift_divisor",
                "MUTANT.instead(lease_ns - lease_ns // self._member.config.timing.lease_drift_divisor, 3 * lease_ns)",
            ),
        ),
        {**LONELY, "lease_reads": True, "reads": 300.0, "appends": 300.0, "sync_ms": 0.3, "delay_ms": 0.2},
    ),
    Mutant(
        "lease_ends_with_connection",
        "E5",
        "with lease reads on, a follower votes as soon as its leader's connection closed, not when the lease ended",
        (
            ignored(
                "node.consensus.leader_elector:LeaderElector.leader_lost",
                "member.config.grants_leases and member.leader_contact_at is not None",
            ),
        ),
        {
            **LONELY,
            "lease_reads": True,
            "reset": 8.0,
            "asymmetric": 4.0,
            "reads": 300.0,
            "appends": 300.0,
            "sync_ms": 0.3,
            "delay_ms": 0.2,
        },
    ),
    Mutant(
        "lease_forgotten_at_restart",
        "E9",
        "with lease reads on, a member that starts anew votes at once, whatever lease it granted before",
        (
            Edit(
                "node.consensus.leader_elector:LeaderElector._judge",
                "may_vote and (now >= self._no_vote_before or self._handed_over(vote))",
                "MUTANT.instead(may_vote and (now >= self._no_vote_before or self._handed_over(vote)), may_vote)",
            ),
        ),
        {
            **LONELY,
            "lease_reads": True,
            "cut_lease": 6.0,
            **dict.fromkeys(("isolate_leader", "partition", "reset", "crash", "fsync_error", "transfers"), 0.0),
            "reads": 200.0,
            "appends": 120.0,
            "sync_ms": 0.3,
            "delay_ms": 0.2,
        },
    ),
    Mutant(
        "lease_read_after_transfer",
        "E7",
        "lease reads go on after take-leadership was sent",
        (
            Edit(
                "node.consensus.handover:Handover.go_on",
                "leadership.reads.lease_void = True",
                "MUTANT.left_out()",
            ),
        ),
        {"lease_reads": True, "transfers": 8.0, "reads": 150.0, "appends": 100.0, "asymmetric": 2.0},
    ),
    Mutant(
        "transfer_ordered_past_deadline",
        "E7",
        "a leader that wakes up past a transfer's deadline orders it, and writes on in the same turn",
        (
            Edit(
                "node.consensus.leadership_transfer:LeadershipTransfer.step",
                "now >= current.deadline_at",
                "MUTANT.instead(now >= current.deadline_at, False)",
            ),
        ),
        {"lease_reads": True, "pause": 4.0, "pause_ms": 400.0, "transfers": 6.0, "appends": 150.0, "clients": 5},
    ),
    Mutant(
        "transfer_never_ends",
        "E7",
        "a transfer that fails keeps the leader from writing for ever",
        (
            Edit(
                "node.consensus.leadership_transfer:LeadershipTransfer.tick",
                "if current is None or now < current.deadline_at:",
                "MUTANT.instead(current is None or now < current.deadline_at, True)\n    if True:",
            ),
            Edit(
                "node.consensus.leadership_transfer:LeadershipTransfer.next_deadline",
                "None if self.current is None else self.current.deadline_at",
                "None",
            ),
        ),
        {"transfers": 6.0, "partition": 3.0, "isolate_leader": 3.0},
    ),
)
