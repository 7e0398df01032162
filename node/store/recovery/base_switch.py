"""The switch to a log that begins behind another base: one order on disk, carried out however often (SAFETY M6).

A log cannot be replaced in one step, since it has many files. So what it is to begin behind is written down first, in
`install`; from then on the old log is void, and everything that follows can be done again: its files go, the
checkpoint says nothing of them any more, the base is the new one, and the order goes last. A state machine's snapshot
that goes up to that base, and lies there whole, becomes the store's first of all. A start that finds the
order finishes what it says before it looks at anything else.

Invariants: what the old log held was archived before the order is written; without the order nothing of the old log was
touched, with it nothing of the old log counts; no file of the old log is written to, since the archive has the same
ones under another name.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from node.snapshots.transfer import take_received
from node.store.errors import wrap
from node.store.faults.known_faults import FAULTS
from node.store.files.checkpoint import CHECKPOINT, Checkpoint, Slot
from node.store.files.hard_state import with_reserve
from node.store.files.identity import Base, base_of, fields_of, write_base
from node.store.files.os_files import pack_sealed_json, read_sealed_json, replace_file, sync_directory
from node.store.files.platform import OS, Platform
from node.store.files.segment import NAME_DIGITS

ORDER: Final = "install"


def write_order(directory: Path, base: Base, platform: Platform) -> None:
    """Durable on return: the log begins behind `base` now. Raises StoreFull, and then it does not."""
    order = pack_sealed_json(fields_of(replace(base, is_installed=True)))
    with_reserve(directory, lambda: replace_file(directory / ORDER, order, platform=platform), platform)


def read_order(directory: Path, platform: Platform = OS) -> Base | None:
    """What a switch that did not end was about. Raises StoreRefused where the order is damaged."""
    value = read_sealed_json(directory / ORDER, platform)
    return None if value is None else base_of(value, directory / ORDER)


def carry_out_order(directory: Path, base: Base, checkpoint: Checkpoint, boot_id: str, platform: Platform) -> None:
    """Everything on disk; may have been done before, or in part. Raises StoreIOError, StoreFull."""
    take_received(directory, base.meta.index, platform)
    for kind in ("data", "index"):
        folder = directory / kind
        try:
            for name in reversed(log_files_in(folder, platform)):
                platform.unlink(folder / name)
        except OSError as error:
            raise wrap(error, f"removing the files in {folder}") from error
        sync_directory(folder, platform)
    platform.unlink(directory / FAULTS)
    checkpoint.write_both(slot_behind(base, checkpoint.last, boot_id))
    installed = replace(base, is_installed=True)
    with_reserve(directory, lambda: write_base(directory, installed, platform), platform)
    platform.unlink(directory / ORDER)
    sync_directory(directory, platform)


def log_files_in(folder: Path, platform: Platform) -> list[str]:
    """The names of a row of segments, in the order of their positions."""
    return [name for name in platform.names(folder) if len(name) == NAME_DIGITS and name.isdigit()]


def slot_behind(base: Base, last: Slot | None, boot_id: str) -> Slot:
    """A log that ends where it begins, all of it durable, committed and applied."""
    meta, index = base.meta, base.meta.index
    marks = () if last is None else last.marks
    return Slot(
        index, index + 1, base.pos, meta.term, meta.chain, index, index, index, index + 1, False, boot_id, marks=marks
    )


def finish_switch(directory: Path, platform: Platform) -> None:
    """At a start: what a crash interrupted. Raises StoreRefused, StoreIOError, StoreFull."""
    base = read_order(directory, platform)
    if base is None:
        return
    sync_directory(directory, platform)  # its process may have ended before: nothing goes while power may take it back
    checkpoint = Checkpoint(directory / CHECKPOINT, platform)
    try:
        carry_out_order(directory, base, checkpoint, platform.boot_id(), platform)
    except OSError as error:
        raise wrap(error, f"beginning the log in {directory} behind entry {base.meta.index}") from error
    finally:
        checkpoint.close()
