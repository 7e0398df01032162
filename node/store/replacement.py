"""Replacing a whole log by one that begins, empty, behind a base from its leader (SAFETY M6).

Invariants: what the log held is in `truncated/` before anything of it goes; at any moment a start finds either the old
log or the new one (`recovery/base_switch.py`); no entry of the old one can be asked for once the order is durable. Runs
in the writing thread, while the loop appends nothing.
"""

from __future__ import annotations

from dataclasses import replace

from node.protocol.entry import EntryError
from node.store.durability import Durability
from node.store.errors import StoreError, StoreIOError, StoreRefused, wrap
from node.store.faults.fault_set import FaultSet
from node.store.faults.healing import Healer
from node.store.files.hard_state import keep_reserve
from node.store.files.identity import Base, check_base
from node.store.log_files import LogFiles
from node.store.log_store import TruncationRecord
from node.store.recovery.base_switch import carry_out_order, write_order


class Replacement:
    """Of one log."""

    def __init__(self, files: LogFiles, durability: Durability, faults: FaultSet, healer: Healer) -> None:
        self._files, self._durability, self._faults, self._healer = files, durability, faults, healer

    def begin_behind(self, base: Base, record: TruncationRecord) -> None:
        """See LogStore."""
        files = self._files
        files.refuse_after_failure()
        try:
            check_base(files.directory, base, files.data_file_size, files.kind)
        except StoreRefused as error:
            raise EntryError(str(error)) from error
        if base.meta.index <= files.base.index:
            raise EntryError(f"the log begins behind entry {files.base.index} already, not behind {base.meta.index}")
        self._healer.drop_stage()
        if files.end.index >= files.begin_index:
            self._sync_old()
            order = replace(record, from_index=files.begin_index, to_index=files.end.index)
            files.archive.add_files(order, [segment.path for segment in files.data])
        write_order(files.directory, base, files.platform)
        files.is_cutting = True
        files.cuts += 1
        try:
            self._switch(base)
        except (StoreError, OSError) as error:  # the order stands: the next start carries it out
            files.failed = True
            what = wrap(error, "removing the old log") if isinstance(error, OSError) else error
            raise StoreIOError(f"the log could not begin behind entry {base.meta.index}: {what}") from error
        finally:
            files.cuts += 1
            files.is_cutting = False
        keep_reserve(files.directory, files.platform)

    def _sync_old(self) -> None:
        """Also what nobody was promised: the archive is all that is left of it."""
        try:
            self._files.data.sync()
        except StoreIOError:  # its pages are clean and not durable: a close must not say that they are (S1)
            self._files.failed = True
            raise

    def _switch(self, base: Base) -> None:
        files, durability = self._files, self._durability
        files.replaced(base)
        self._faults.note(())  # those of the old log are outside of this one
        durability.replaced()
        self._healer.end_at(files.end)  # the old log's end is no witness any more
        carry_out_order(files.directory, base, durability.checkpoint, durability.boot_id, files.platform)
