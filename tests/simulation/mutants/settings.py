"""Planted bugs of settings that change while the group runs: SAFETY R2, C1, E8, E9."""

from __future__ import annotations

from typing import Any

from tests.simulation.mutants.planting import Edit, Mutant, ignored, left_out, swapped

CHANGE = "node.consensus.settings_change:SettingsChange."
BOOK = "node.consensus.settings_book:SettingsBook."
READS = "node.consensus.reads:LeaderReads."
QUIET: dict[str, Any] = dict.fromkeys(
    ("rot", "misdirected_write", "lost_write", "lost_tail", "lost_checkpoint", "lost_file", "wipe", "restore",
     "fsync_error", "enospc", "clock_jump", "learner"), 0.0,
)  # fmt: skip
# An operator who is always at it, and syncs that take long.
FLUSHES: dict[str, Any] = {
    **QUIET, "members": 3, "retune": 25.0, "appends": 150.0, "sync_ms": 6.0, "slow_disk": 0.3, "delay_ms": 0.5,
}  # fmt: skip
LEASES: dict[str, Any] = {
    **QUIET, "members": 3, "retune": 15.0, "retune_only": "election", "lease_reads": True, "reads": 60.0,
    "appends": 60.0, "sync_ms": 0.3, "slow_disk": 0.0, "delay_ms": 0.2, "isolate_leader": 8.0, "partition_ms": 200.0,
    "drop": 0.0, "hold": 0.0, "transfers": 0.0, "stop": 0.0, "crash": 0.0, "crash_at_io": 0.0, "power_loss": 0.0,
    "pause": 0.0, "stall": 0.0, "preferred_leader": False,
}  # fmt: skip
STARTS: dict[str, Any] = {**LEASES, "isolate_leader": 0.0, "cut_lease": 8.0, "retune": 6.0}
SETTINGS = (
    Mutant(
        "counted_as_async_after_sync",
        "R2",
        "a leader that says sync from now on goes on counting what was counted before it was durable",
        (left_out(CHANGE + "_reflush", "peer.count_durable()"),),
        FLUSHES,
    ),
    Mutant(
        "counts_unsynced_of_who_says_sync",
        "R2",
        "a leader under async counts every peer's entries before they are durable, whatever that peer says",
        (swapped("node.consensus.progress:Progress.flush", "self.hello.flush", "config.flush"),),
        FLUSHES,
    ),
    Mutant(
        "async_forgotten_at_restart",
        "E8",
        "after a power loss the configured mode is asked, not the one that the member ran under",
        (
            ignored(
                "node.store.recovery.opening:_settle_voter_state",
                "hard.kept is not None and hard.kept.promises.unsynced",
            ),
        ),
        {**FLUSHES, "power_loss": 8.0, "partition": 1.0},
    ),
    Mutant(
        "lease_longer_than_the_peers",
        "E9",
        "a leader reckons its lease by its own election time-out, whatever its peers say of theirs",
        (swapped(READS + "_granted_until", "min(own_ns, said_ns)", "own_ns"),),
        LEASES,
    ),
    Mutant(
        "own_vote_breaks_a_promise",
        "E9",
        "a member campaigns by its shorter time-outs while its leader still counts on its longer ones",
        (
            swapped(
                "node.consensus.leader_elector:LeaderElector.campaign",
                "max(kept_until, member.leader_contact_at + member.config.vote_kept_ns)",
                "kept_until",
            ),
        ),
        LEASES,
    ),
    Mutant(
        "promise_shortened_at_once",
        "E9",
        "a member keeps its vote for the new, shorter time from the moment it is told, before anybody else knows",
        (swapped(CHANGE + "_say_anew", "kept.promises.and_also(after.promises)", "after.promises"),),
        LEASES,
    ),
    Mutant(
        "promise_forgotten_at_restart",
        "E9",
        "a member that starts with other settings keeps to nothing that it promised before",
        (swapped(CHANGE + "__init__", "kept.promises.and_also(ours.promises)", "ours.promises"),
         Edit("node.consensus.replica:Replica.__init__", "kept.promises.lease_ms * MS",
              "MUTANT.instead(kept.promises.lease_ms * MS, 0)")),
        STARTS,
    ),
)  # fmt: skip
