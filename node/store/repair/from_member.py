"""`store repair DIR --from OTHER`: damaged entries taken from another member's directory (SAFETY S6).

What a member does by itself over the network, done over files: `mend` takes nothing that does not continue the intact
chain on the left and lead to the intact entry on the right, so a directory of another history cannot do harm. One fault
may be put together from several directories, each of which has damage of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from node.protocol.entry import EntryError, Slab
from node.protocol.slab_verify import verify_slab
from node.store.errors import StoreError, StoreRefused
from node.store.faults.ranges import next_fault
from node.store.faults.results import Fault, Mended
from node.store.file_store import FileStore
from node.store.files.platform import Platform
from node.store.reader import StoreReader
from node.store.repair.problems import faults_left
from node.store.repair.report import Report, range_in_words, sentence
from node.store.repair.tools import archives_reported, open_for_repair, our_identity, scrub_all

_ATTEMPTS_PER_SOURCE = 8


def heal_from(directory: Path, others: Sequence[Path], platform: Platform) -> Report:
    """Heals every fault that the others can give; `problems` holds what is left. Raises StoreRefused."""
    identity = our_identity(directory, platform)
    sources: list[StoreReader] = []
    for other in others:
        if other.resolve() == directory.resolve():
            raise StoreRefused(f"{other} is the directory that is to be repaired")
        reader = StoreReader(other, platform=platform)
        if reader.identity is not None and reader.identity.group != identity.group:
            raise StoreRefused(f"{other} belongs to group {reader.identity.group!r}, not to {identity.group!r}")
        sources.append(reader)
    report = Report(directory, "from " + ", ".join(map(str, others)), group=identity.group, node_id=identity.node_id)
    store = open_for_repair(directory, platform)
    try:
        scrub_all(store)
        with archives_reported(report, directory, platform):
            if not store.faults:
                report.done.append("Every record was read and none is damaged: nothing was to be healed.")
            looked_at_index = -1
            while (fault := next_fault(store.faults, looked_at_index + 1)) is not None:
                looked_at_index = _heal(store, fault, sources, report)
        scrub_all(store)
        report.problems += faults_left(directory, store)
        report.see(store)
        if not report.problems:
            report.next.append("Start the member.")
        return report
    finally:
        store.close()


def _heal(store: FileStore, fault: Fault, sources: list[StoreReader], report: Report) -> int:
    """One fault, from its left end to its right; a source whose entry did not fit is not asked for it again.

    Gives the last entry that it is done with: what lies behind it in the fault may need another source.
    """
    words = sentence(range_in_words(fault.first_index, fault.last_index))
    unfit: set[tuple[Path, int]] = set()
    why = ""
    for _ in range(_ATTEMPTS_PER_SOURCE * len(sources)):
        given: list[Path] = []
        index, last_index = fault.first_index, fault.last_index
        mended: Mended | None = None
        while mended is None or not (mended.healed or mended.detail):
            slab, source = _next_slab(sources, index, last_index, unfit, in_steps=bool(unfit))
            if slab is None or source is None:
                report.done.append(f"{words}: not healed. No directory has entry {index} whole{why}.")
                return fault.last_index
            if source not in given:
                given.append(source)
            mended = store.mend(slab)
            if mended.detail:
                unfit.add((source, index))
                why = f" and fitting ({source}: {mended.detail})"
            index = mended.mended_through + 1
            last_index = max(last_index, mended.wanted_through)
        if mended.healed:
            whole = sentence(", ".join(range_in_words(one.first_index, one.last_index) for one in mended.healed))
            report.done.append(f"{whole} ({fault.kind}): healed from {', '.join(map(str, given))}.")
            return mended.healed[-1].last_index
    report.done.append(f"{words}: not healed{why}.")
    return fault.last_index


def _next_slab(
    sources: list[StoreReader], index: int, last_index: int, unfit: set[tuple[Path, int]], *, in_steps: bool
) -> tuple[Slab | None, Path | None]:
    """Entries from `index` on that one of the sources holds whole; one at a time where a source did not fit before."""
    for reader in sources:
        if (reader.directory, index) in unfit or not reader.begin_index <= index <= reader.end_index:
            continue
        for last in (index,) if in_steps else (last_index, index):
            try:
                slab = next(reader.slabs(index, last))
                verify_slab(slab, None, bodies=True)
            except (StopIteration, StoreError, EntryError):
                continue
            return slab, reader.directory
    return None, None
