"""Planted bugs of snapshots that are sent: which one, to whom, what is put together, and what is installed when."""

from __future__ import annotations

from typing import Any

from tests.simulation.mutants.applying import MACHINES
from tests.simulation.mutants.planting import Edit, Mutant, ignored, left_out, swapped
from tests.simulation.mutants.retention import TRIMS

GIVING = "node.consensus.snapshot_giving:SnapshotGiving."
INSTALL = "node.consensus.snapshot_install:SnapshotInstall."
RECEIVER = "node.snapshots.transfer:SnapshotReceiver."
DISPATCHER = "node.consensus.entry_dispatcher:EntryDispatcher."
MOVED: dict[str, Any] = {
    **TRIMS, **MACHINES, "apply_fail": 0.0, "appends": 150.0, "left_behind": 0.7, "partition": 3.0,
    "partition_ms": 500.0, "pause": 2.0, "wipe": 1.0, "clock_jump": 0.0,
}  # fmt: skip
LOSSY: dict[str, Any] = {**MOVED, "drop": 0.1, "duplicate": 0.1, "reorder": 0.2, "reset": 3.0}
CRASHES: dict[str, Any] = {**MOVED, "crash": 3.0, "crash_at_io": 8.0, "power_loss": 2.0}
NEVER_CHECKED = ignored(RECEIVER + "_finish", "self._checksum() != meta.data_crc")
# Also to whom the leader could compare with: the right code says that it holds that entry. Where nothing is committed
# behind the base, there is no state to save, and nothing ever would be if nobody were sent an entry. Whose front was
# removed by force beyond the snapshot refuses it for good; and a leader whose own state is lost has none to give.
GIVEN_TO_ALL = (
    Edit(
        DISPATCHER + "_send_compare",
        "if meta is not None:",
        "if meta is not None and (any(one.to_state in PAUSED for one in list(self.peer.transitions)[-2:])"
        " or (self._member.applying is not None and self._member.applying.needs_state_from >= 0)"
        " or self._member.store.begin_index == 0 or meta.index <= self._member.store.base.index or self.giving.obstacle"
        " or self._member.committed_index <= self._member.store.base.index):",
    ),
)

LOST: dict[str, Any] = {**MOVED, "wipe": 0.0, "lose_state": 3.0}

SNAPSHOTS_SENT = (
    Mutant(
        "lost_state_not_asked_for",
        "M6",
        "a member whose state is lost, and whose log does not bring it back, says so to nobody",
        (swapped("node.consensus.heartbeat:handle_heartbeat", "member.applying.needs_state_from", "-1"),),
        LOST,
    ),
    Mutant(
        "leader_without_state_stays",
        "M6",
        "a leader whose state is lost leads on, and nobody gives it another one",
        (ignored("node.consensus.lost_states:LostStates._leave", "best is not None"),),
        LOST,
    ),
    Mutant(
        "stuck_leader_without_state_stays",
        "M6",
        "a leader whose state is lost, and who cannot hand over because nothing is committed, leads on",
        (ignored("node.consensus.lost_states:LostStates._handed_over", "outcome.code is not ResponseCode.SUCCESS"),),
        LOST,
    ),
    Mutant(
        "snapshot_over_newer_state",
        "M6",
        "a member takes whatever snapshot its leader sends, and begins behind it",
        (ignored(INSTALL + "take", "refused is not None"), ignored(INSTALL + "taken", "refused is not None")),
        {**MOVED, "crash": 6.0, "wipe": 0.0, "partition": 0.0, "pause": 0.0},
        cause=GIVEN_TO_ALL,
    ),
    Mutant(
        "snapshots_mixed",
        "snapshot",
        "pieces of another snapshot are put to those of the one before, and nothing is checked",
        (swapped(RECEIVER + "_take", "self._goes_on(meta)", "self._has_data()"), NEVER_CHECKED),
        {**CRASHES, "transfers": 4.0},
        LOSSY,
    ),
    Mutant(
        "snapshot_installed_unchecked",
        "snapshot",
        "a piece goes to the end of what is there, whatever was sent, and the whole is not held against its checksum",
        (
            swapped(RECEIVER + "_take", "offset == held_bytes", "True"),
            swapped(RECEIVER + "_take", "self._append(data, offset)", "self._append(data, held_bytes)"),
            NEVER_CHECKED,
        ),
        LOSSY,
    ),
    Mutant(
        "snapshot_resumed_at_the_start",
        "snapshot",
        "a leader goes on at the start of the snapshot, whatever its peer says that it has",
        (
            Edit(
                GIVING + "went_on",
                "self._held_bytes = answer.x_index",
                "self._held_bytes = MUTANT.instead(answer.x_index, 0)",
            ),
        ),
        MOVED,
    ),
    Mutant(
        "snapshot_not_installed",
        "M6",
        "a log begins behind a snapshot, which is left where it was put together",
        (
            left_out(
                "node.store.recovery.base_switch:carry_out_order",
                "take_received(directory, base.meta.index, platform)",
            ),
        ),
        MOVED,
    ),
    Mutant(
        "snapshot_not_loaded",
        "applied",
        "a log begins behind a snapshot, and its state machine does not hear of it",
        (left_out("node.engine.feeder:Feeder.reload", "self._applier.reload()"),),
        {**MOVED, "apply_restart": 0.0},
    ),
    Mutant(
        "two_snapshots_at_once",
        "snapshot",
        "a leader sends a snapshot to all who need one",
        (swapped("node.consensus.snapshot_giving:SnapshotWay.take", "self.holder_id == peer_id", "True"),),
        {**MOVED, "members": 5, "wipe": 3.0},
    ),
    Mutant(
        "snapshot_shifted",
        "S5",
        "a leader says that the entry behind a snapshot lies in the file behind",
        (
            Edit(
                GIVING + "_part",
                "meta.next_pos, member.hard",
                "MUTANT.instead(meta.next_pos, meta.next_pos + member.store.data_file_size), member.hard",
            ),
        ),
        MOVED,
    ),
    Mutant(
        "snapshot_whole_too_early",
        "snapshot",
        "a snapshot is taken for whole before its last piece came",
        (
            swapped(RECEIVER + "_take", "held_bytes == meta.data_bytes", "held_bytes > 0"),
            NEVER_CHECKED,
        ),
        MOVED,
    ),
)
