"""Planted bugs of what no checksum covers, of old files, and of damage that is given up: SAFETY S2, S6."""

from __future__ import annotations

from typing import Any

from node.store.files.checkpoint import SLOT_SPACING_BYTES
from node.store.files.os_files import SECTOR_BYTES
from tests.simulation.mutants.faults import ROT
from tests.simulation.mutants.planting import Edit, Mutant, swapped

WRITER = "node.store.log_writer:LogWriter."
READS = "node.store.cold_reads:ColdReads."

# Copies that travel: few entries in memory, much that rots, leaders that change.
TRAVEL: dict[str, Any] = {
    "members": 3, "rot": 6.0, "crash": 3.0, "stop": 2.0, "isolate_leader": 4.0, "reset": 2.0, "appends": 100.0,
    "wipe": 1.0,
}  # fmt: skip
# What would end a process before it has asked its peers twice.
QUIET = (
    "crash",
    "crash_at_io",
    "power_loss",
    "pause",
    "stop",
    "stall",
    "fsync_error",
    "wipe",
    "lost_file",
    "lost_tail",
)
TAKEN_AS_IT_COMES = Edit(
    WRITER + "append_slab",
    "[straightened(piece, files.straight_from) for piece in pieces]",
    "MUTANT.instead([straightened(piece, files.straight_from) for piece in pieces], pieces)",
)


# What rots in an entry is its position: nothing but a look at where it lies can tell.
POSITIONS_ROT = Edit("tests.simulation.damage:Damage.spot_of", "rng.randrange(unit.size)", "24 + rng.randrange(8)")


def doubt(damage: Any, store: Any, pos: int) -> int:
    """The newer checkpoint slot rots, and the machine starts anew; how much of the log to forget from `pos` on.

    To the end of one sector only: it reads as if that had never been written, and what follows is sound. Where nothing
    does, nothing of the log is lost: the older slot alone cannot show that a log ended later than it does.
    """
    length = SECTOR_BYTES - pos % SECTOR_BYTES
    checkpoint = store.durability.checkpoint
    damage.flip(checkpoint.path, checkpoint._number % 2 * SLOT_SPACING_BYTES + 20, 1)
    damage._platform._boot += 1
    return length if pos + length < store.files.end.end_pos else 0


def nobody_can(repair: Any, attempt: Any) -> bool:
    """What peers send for damage above what is verified and committed never fits: as if their history were another."""
    member = repair._member
    return bool(attempt.fault.first_index > max(member.verified_index, member.committed_index))


GIVE_UP: dict[str, Any] = {
    **dict.fromkeys(QUIET, 0.0),
    "members": 3,
    "rot": 1.5,
    "isolate_leader": 0.7,
    "appends": 60.0,
}
# Damage in the last entries, which nobody can link: the member gives up its vote, archives and cuts.
GIVEN_UP = (
    Edit(
        "node.consensus.log_repair:LogRepair.handle_answer",
        "elif slab is None or not self._is_what_was_asked(attempt, slab):",
        "elif slab is None or not self._is_what_was_asked(attempt, slab) or nobody_can(self, attempt):",
    ),
    Edit(
        "tests.simulation.nemesis:Nemesis._rot_entry",
        "min(member.replica.committed_index, store.durable_index, store.end_index - 2)",
        "store.durable_index if self.may_forget(member) else -1",
    ),
    Edit("node.store.durability:Durability._slot", "min(self._committed, mark.index)", "-1"),
    Edit(
        "tests.simulation.nemesis:Nemesis._rot_entry",
        "self._rng.randrange(store.begin_index, last + 1)",
        "last",
    ),
    Edit(
        "tests.simulation.nemesis:Nemesis._rot_entry",
        'self._fault("rot", f"{member.id} entries {hit}")',
        'self._fault("rot", f"{member.id} entries {hit}") and not member.crash()',
    ),
)


# Damage above what the older slot says, where the newer one is rotten: sound records behind it, of a lost leadership.
DOUBTED: dict[str, Any] = {**ROT, "rot": 0.0, "lost_tail": 8.0, "power_loss": 3.0}
DOUBT = (
    Edit(
        "tests.simulation.damage:Damage.lose_tail",
        "for segment in store.files.data:",
        "length = doubt(self, store, unit.pos)\n    for segment in [store.files.data.find(unit.pos)]:",
    ),
    Edit(
        "tests.simulation.damage:Damage.lose_tail",
        "max(0, segment.end - segment.start - offset))",
        "min(length, segment.end - unit.pos))",
    ),
)


COPIES = (
    Mutant(
        "copy_kept_across_mend",
        "S6",
        "memory keeps what a start read, with a position that rotted, also once the disk is mended, and it is sent on",
        (
            Edit(
                "node.store.recovery.log_recovery:Recovery._straighten",
                "wrong_positions(slab, self._case.straight_from)",
                "MUTANT.instead(wrong_positions(slab, 0), [])",
            ),
            Edit("node.store.log_files:LogFiles.mended", "self.ring.forget_through(last_index)", "MUTANT.left_out()"),
            TAKEN_AS_IT_COMES,
        ),
        {
            **TRAVEL,
            "wipe": 4.0,
            "scrub": 10.0,
            "transfers": 4.0,
            "ring_bytes": 0,
            "data_file_size": 65536,
            "isolate_leader": 1.0,
            "appends": 40.0,
            "body_bytes": 12,
            "lost_file": 0.0,
            "recheck_bytes": 0,
        },
        cause=(POSITIONS_ROT,),
    ),
    Mutant(
        "pos_not_compared",
        "S6",
        "the position in a head is taken as it comes: read from the disk, received, and mended with",
        (
            swapped(READS + "read_slab", "position_faults(slab, files.straight_from)", "()"),
            TAKEN_AS_IT_COMES,
            swapped(
                "node.store.faults.mending:Stage.add",
                "[straightened(one, straight_from) for one in settled]",
                "settled",
            ),
        ),
        {**TRAVEL, "ring_bytes": 512},
        cause=(POSITIONS_ROT,),
    ),
    Mutant(
        "missing_file_ignored",
        "S6",
        "a start reads the end of the log only, whatever is missing before it",
        (
            Edit(
                "node.store.recovery.log_recovery:Recovery._start_near_checkpoint",
                "target_pos if gap is None else min(target_pos, gap)",
                "MUTANT.instead(target_pos if gap is None else min(target_pos, gap), target_pos)",
            ),
        ),
        {**ROT, "rot": 0.0, "lost_file": 6.0, "data_file_size": 4096, "recheck_bytes": 1500, "appends": 150.0},
    ),
    Mutant(
        "length_right_before_it_is_noted",
        "S6",
        "a start that gives a short file its length leaves no word of it for the next one",
        (
            Edit(
                "node.store.recovery.odd_files:set_lengths_right",
                "not reports",
                "MUTANT.instead(not reports, False)",
            ),
        ),
        {**ROT, "rot": 0.0, "lost_file": 6.0, "data_file_size": 4096, "recheck_bytes": 1500, "enospc": 3.0},
    ),
    Mutant(
        "doubted_checkpoint_believed",
        "S2, S3, E8",
        "where the newer checkpoint slot is rotten, the older one is believed as if it were the newest",
        (
            Edit(
                "node.store.recovery.log_recovery:Recovery._trust",
                "not self._case.slot_doubtful and slot.boot_id",
                "MUTANT.instead(not self._case.slot_doubtful, True) and slot.boot_id",
            ),
            Edit(
                "node.store.recovery.log_recovery:Recovery._settle_end",
                "self._slot is None or self._case.slot_doubtful",
                "MUTANT.instead(self._slot is None or self._case.slot_doubtful, self._slot is None)",
            ),
        ),
        DOUBTED,
        {"doubt": doubt},
        cause=DOUBT,
    ),
    Mutant(
        "committed_damage_waits",
        "S6",
        "damage from committed entries into a tail that no leader shares needs an operator",
        (
            Edit(
                "node.consensus.log_repair:LogRepair._take_the_leaders_word",
                "self._damaged.vouched_in(attempt.fault)",
                "MUTANT.instead(self._damaged.vouched_in(attempt.fault), None)",
            ),
        ),
        DOUBTED,
        {"doubt": doubt},
        cause=DOUBT,
    ),
    Mutant(
        "given_up_with_its_vote",
        "S6, E8",
        "damage that nobody can link is cut by a member that goes on voting",
        (
            Edit(
                "node.consensus.entry_handler:EntryHandler._give_up",
                'member.on_rejoin(f"{what}; everything from there on is given up", now)',
                "MUTANT.left_out()",
            ),
        ),
        GIVE_UP,
        {"nobody_can": nobody_can},
        cause=GIVEN_UP,
    ),
    Mutant(
        "push_answers_confirm_reads",
        "E8, C1",
        "an answer to a push, which does not say whether its sender still is a voter, helps to confirm a leader",
        (swapped("node.consensus.leadership:Leadership.handle_push_answer", "-1", "answer.seq"),),
        GIVE_UP,
        {"nobody_can": nobody_can},
        cause=GIVEN_UP,
    ),
)
