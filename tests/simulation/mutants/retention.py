"""Planted bugs of retention: what goes from the front of a log, and where it begins then."""

from __future__ import annotations

from typing import Any

from tests.simulation.mutants.planting import Edit, Mutant, ignored, left_out, swapped

HELD = "node.consensus.held_entries:HeldEntries."
PROGRESS = "node.consensus.progress:Progress."
TRUNCATION = "node.store.truncation:Truncation.remove_prefix"
NOTHING_LOST: dict[str, Any] = dict.fromkeys(
    (
        "rot", "misdirected_write", "lost_write", "lost_tail", "lost_checkpoint", "lost_file", "wipe", "restore",
        "learner",
    ), 0.0,
)  # fmt: skip
TRIMS: dict[str, Any] = {
    **NOTHING_LOST, "trim": 12.0, "data_file_size": 4096, "body_bytes": 400, "appends": 150.0, "clock_drift": 0.0,
}  # fmt: skip
LAGGING: dict[str, Any] = {**TRIMS, "partition": 3.0, "pause": 3.0, "partition_ms": 500.0}
LEARNING: dict[str, Any] = {**TRIMS, "trim": 40.0, "membership": 0.0, "learner": 8.0, "partition_ms": 60.0}
CHANGING: dict[str, Any] = {**TRIMS, "trim": 40.0, "membership": 12.0}
CRASHING: dict[str, Any] = {**TRIMS, "crash_at_io": 8.0, "power_loss": 2.0}

RETENTION = (
    Mutant(
        "trims_what_a_voter_lacks",
        "retention",
        "a leader removes what it holds itself, whoever lacks it",
        (ignored(HELD + "needs", "peer.held_index < safe_index"),),
        LAGGING,
    ),
    Mutant(
        "trims_what_an_absent_voter_lacks",
        "retention",
        "a leader asks only the members that are connected",
        (
            swapped(
                HELD + "needs",
                "peer.held_index < safe_index",
                "(peer.connected and peer.held_index < safe_index)",
            ),
        ),
        LAGGING,
    ),
    Mutant(
        "trims_what_a_learner_lacks",
        "retention",
        "a leader asks only the voters",
        (swapped(HELD + "needs", "peer.held_index < safe_index", "(peer.is_voter and peer.held_index < safe_index)"),),
        LEARNING,
    ),
    Mutant(
        "trims_what_the_logs_learner_lacks",
        "retention",
        "a leader says what all voters hold, and leaves out a learner that its log names",
        (
            swapped(
                "node.consensus.progress:Peers.held_by_all",
                "[own_index, *(peer.held_index for peer in self.of.values())]",
                "[own_index, *(peer.held_index for peer in self.voters)]",
            ),
        ),
        CHANGING,
    ),
    Mutant(
        "follower_trims_what_it_committed",
        "retention",
        "a follower removes what it has committed, whatever its leader says of the others",
        (Edit(HELD + "needs", "if index < safe_index:", "if MUTANT.ignored(index < safe_index):"),),
        LAGGING,
    ),
    Mutant(
        "trims_what_is_not_durable_at_a_peer",
        "R2",
        "a peer counts as holding what it has matched, before that is on its disk",
        (swapped(PROGRESS + "acknowledge", "min(verified, durable)", "verified"),),
        {**LAGGING, "sync_ms": 6.0, "slow_disk": 0.3, "power_loss": 3.0},
    ),
    Mutant(
        "trims_what_is_not_committed_durably_here",
        "R3",
        "a leader calls the group's what only it has committed and synced",
        (
            Edit(
                "node.consensus.progress:Peers.held_by_all",
                "min([own_index, *(peer.held_index for peer in self.of.values())])",
                "MUTANT.instead(min([own_index, *(peer.held_index for peer in self.of.values())]), own_index)",
            ),
        ),
        LAGGING,
    ),
    Mutant(
        "pins_ignored",
        "pins",
        "a store removes what somebody has pinned",
        (left_out("node.store.file_store:FileStore.remove_prefix", "self._pins.refuse(through_index)"),),
        TRIMS,
    ),
    Mutant(
        "begin_off_by_one",
        "begin",
        "the first entry that is left is taken for the one before it",
        (
            swapped(TRUNCATION, "self._reads.meta(begin_index - 1)", "self._reads.meta(begin_index)"),
            Edit(TRUNCATION, "not first.continues(base.chain)", "False"),
        ),
        TRIMS,
    ),
    Mutant(
        "file_too_many",
        "begin",
        "a file goes of which entries at its end were to stay",
        (
            swapped(
                "node.store.files.retention:whole_files_below",
                "first_index > through_index + 1",
                "first_index > through_index + 30",
            ),
        ),
        LAGGING,
    ),
    Mutant(
        "base_after_the_files",
        "S2",
        "files go before the base that stands for them is durable",
        (
            Edit(
                TRUNCATION,
                "with_reserve(files.directory, written, files.platform)",
                "files.begin_at(kept); MUTANT.left_out(); with_reserve(files.directory, written, files.platform)",
            ),
        ),
        CRASHING,
    ),
)
