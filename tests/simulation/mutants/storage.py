"""Planted bugs of the store: SAFETY E2, S1 to S8."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from node.protocol.entry import EntryError, Slab
from node.protocol.slab_verify import verify_slab
from node.store.errors import StoreFull
from tests.simulation.mutants.planting import Edit, Mutant, ignored, swapped
from tests.simulation.mutants.replication import slot_first

TRUNCATION = "node.store.truncation:Truncation."
FILES = "node.store.files.os_files:"
RECOVERY = "node.store.recovery.log_recovery:Recovery."

# Machines that lose their page cache while much is in it.
OUTAGES: dict[str, Any] = {"members": 3, "power_loss": 4.0, "crash": 3.0, "sync_ms": 6.0, "appends": 150.0}
CUTS: dict[str, Any] = {**OUTAGES, "isolate_leader": 5.0, "reset": 2.0}


def fills(files: Any) -> None:
    """Every other cut meets a disk that copies what is overwritten, and has no space for some of the zeros."""
    if files.cuts % 4 == 1:
        files.platform.faults.no_space_in, files.platform.faults.no_space_for = files.cuts % 3, 4


FILLS = (Edit(TRUNCATION + "_cut", "files.begin_cut()", "files.begin_cut()\n    fills(files)"),)


@contextmanager
def counting(tally: Any) -> Iterator[None]:
    """What finds no space there is counted, and goes on to whoever called."""
    try:
        yield
    except StoreFull:
        tally.left_out()
        raise


def sync_twice(platform: Any, fd: int) -> int:
    """What was tried before fsyncgate: 1 where the first try failed."""
    try:
        platform.fdatasync(fd)
    except OSError:
        platform.fdatasync(fd)
        return 1
    return 0


def with_and_without(slab: Slab, prev_chain: int | None) -> tuple[int | None, int | None]:
    """The chain after a slab as the right code finds it (-1: its bodies are damaged), and without a look at bodies."""
    without = verify_slab(slab, prev_chain)
    try:
        return verify_slab(slab, prev_chain, bodies=True), without
    except EntryError:
        return -1, without


STORAGE = (
    Mutant(
        "cache_trusted_at_open",
        "S1",
        "what a killed process left in the page cache is taken for durable",
        (
            Edit(
                RECOVERY + "_make_durable",
                "if slot is None or not slot.clean:",
                "if MUTANT.ignored(slot is None or not slot.clean):",
            ),
        ),
        {**OUTAGES, "crash": 5.0, "flush_sync": True},
    ),
    Mutant(
        "interrupted_start_believed",
        "S1",
        "what a start that ended before its first checkpoint slot left in the page cache is taken for durable",
        (
            swapped(
                RECOVERY + "_make_durable",
                "not slot.clean",
                "not slot.clean and slot.boot_id == self._case.boot_id",
            ),
        ),
        {**OUTAGES, "crash_at_io": 5.0},
    ),
    Mutant(
        "fsync_error_retried",
        "S1",
        "an fsync that failed is tried again, and the second one succeeds",
        (
            Edit(
                FILES + "sync_fd",
                "platform.fdatasync(fd)",
                "MUTANT.differed += sync_twice(platform, fd)",
            ),
        ),
        {**OUTAGES, "fsync_error": 3.0},
        {"sync_twice": sync_twice},
    ),
    Mutant(
        "scrub_drops_unsynced_pages",
        "S1",
        "a scrub drops pages that no sync has covered: behind a failed one they are clean, and all that is left",
        (
            swapped(
                "node.store.durability:Durability.synced",
                "files.failed or files.end.index > durable.index",
                "False",
            ),
        ),
        {**OUTAGES, "power_loss": 0.0, "crash": 0.0, "fsync_error": 6.0, "scrub": 20.0, "appends": 400.0},
    ),
    Mutant(
        "slot_not_lowered_before_cut",
        "S2",
        "a cut leaves the checkpoint slots where they were",
        (
            Edit(
                "node.store.durability:Durability.lower_to",
                "self.checkpoint.write_both(self._slot(self.durable))",
                "MUTANT.left_out()",
            ),
        ),
        CUTS,
    ),
    Mutant(
        "slot_raised_after_cut",
        "S2",
        "a group commit that a cut overtook still writes its checkpoint slot",
        (
            Edit(
                "node.store.sync_ticket:FileTicket.run",
                "self.cuts == self._syncing.files.cuts",
                "MUTANT.instead(self.cuts == self._syncing.files.cuts, True)",
            ),
        ),
        {**CUTS, "slow_disk": 0.3},
        {"slot_first": slot_first},
        cause=(
            Edit(
                "tests.simulation.process:Process._carry_out",
                "self.jobs.truncate(effects.truncate)",
                "self.jobs.truncate(effects.truncate)\n        slot_first(self.jobs)",
            ),
        ),
    ),
    Mutant(
        "slot_before_data",
        "S2",
        "a checkpoint slot is written before the data it speaks of is synced",
        (
            Edit(
                "node.store.sync_ticket:FileTicket.run",
                "for segment in self._data:",
                "MUTANT.left_out(self._slot and self._syncing.write_slot(self._slot))\n"
                "        for segment in self._data:",
            ),
        ),
        {**OUTAGES, "crash_at_io": 5.0},
    ),
    Mutant(
        "cut_not_archived",
        "S4",
        "a truncation keeps no copy of what it cuts",
        (
            Edit(
                TRUNCATION + "truncate",
                "files.archive.add(",
                "MUTANT.left_out(",
            ),
        ),
        CUTS,
    ),
    Mutant(
        "cut_not_zeroed",
        "S4, FORMATS 6.5",
        "a truncation leaves the bytes of what it cut in the files",
        (
            Edit(
                TRUNCATION + "_cut",
                "files.clear(last)",
                "MUTANT.left_out()\n        files.half_cut = None",
            ),
        ),
        CUTS,
    ),
    Mutant(
        "half_cut_appended_to",
        "S4, S8",
        "a log goes on in front of what a cut found no space to zero",
        (
            Edit(
                "node.store.log_writer:LogWriter._write",
                'raise StoreFull("no space left for the zeros over what was cut, and nothing is appended before them")',
                "MUTANT.left_out()\n        files.half_cut = None",
            ),
        ),
        CUTS,
        {"fills": fills},
        cause=FILLS,
    ),
    Mutant(
        "half_cut_is_none",
        "S4, S8",
        "a cut whose zeros found no space is said not to be made, though a part of it is gone",
        (Edit(TRUNCATION + "_cut", "with suppress(StoreFull):", "with counting(MUTANT):"),),
        CUTS,
        {"counting": counting, "fills": fills},
        cause=FILLS,
    ),
    Mutant(
        "directory_not_synced",
        "E2, S4",
        "names are never synced: a rename or a new file may be undone by a power cut",
        (
            Edit(
                FILES + "sync_directory",
                "platform.sync_directory(path)",
                "MUTANT.left_out()",
            ),
        ),
        {**OUTAGES, "isolate_leader": 4.0},
    ),
    Mutant(
        "small_files_not_synced",
        "E2",
        "term and vote are renamed into place before their bytes are durable",
        (
            Edit(
                FILES + "write_synced",
                "platform.fsync(fd)",
                "MUTANT.left_out()",
            ),
        ),
        {**OUTAGES, "isolate_leader": 4.0},
    ),
    Mutant(
        "lost_term_is_zero",
        "E2",
        "term and vote that cannot be read are taken for those of a new store",
        (
            Edit(
                "node.store.files.hard_state:load_hard_state",
                'raise StoreRefused(f"{error}; {_HOW_TO_SET_IT}") from error',
                "MUTANT.left_out(error)\n        return HardState(voter_state=VoterState.VOTER)",
            ),
            Edit(
                "node.store.files.hard_state:load_hard_state",
                'raise StoreRefused(f"{directory / HARDSTATE} is missing; {_HOW_TO_SET_IT}")',
                "MUTANT.left_out()\n            return HardState(voter_state=VoterState.VOTER)",
            ),
        ),
        {**OUTAGES, "rot": 2.0},
    ),
    Mutant(
        "short_write_kept",
        "S8",
        "what was written before the disk was full stays where it is",
        (
            Edit(
                FILES + "write_all",
                "zero(fd, offset, done, attempt, platform)",
                "MUTANT.left_out()",
            ),
            Edit(
                "node.store.log_writer:LogWriter._write",
                "files.take_back(written_pos, last_index)",
                "MUTANT.left_out()",
            ),
        ),
        {**OUTAGES, "enospc": 3.0},
    ),
    Mutant(
        "chains_inside_not_compared",
        "S6, Frames",
        "of a slab from the disk only the last entry's chain is compared, and what those before it say is sent on",
        (
            ignored("node.protocol.slab_verify:_verify_each_chain", "wrong.any()"),
            ignored("node.protocol.slab_verify:_verify_loop", "chain not in (None, head[6])"),
        ),
        {
            "members": 3,
            "rot": 6.0,
            "crash": 3.0,
            "isolate_leader": 2.0,
            "ring_bytes": 512,
            "appends": 150.0,
            "batch_max": 20,
            "body_bytes": 12,
            "wipe": 2.0,
        },
    ),
    Mutant(
        "rot_sent_on",
        "S6, Frames",
        "a slab that was read from the disk is sent with fresh CRCs, whatever it holds",
        (
            Edit(
                "node.store.cold_reads:ColdReads.read_slab",
                "verify_slab(slab, prev_chain, bodies=True)",
                "MUTANT.instead(*with_and_without(slab, prev_chain))",
            ),
        ),
        {"rot": 3.0, "wipe": 2.0, "crash": 2.0, "isolate_leader": 2.0, "ring_bytes": 512},
        {"with_and_without": with_and_without},
    ),
)
