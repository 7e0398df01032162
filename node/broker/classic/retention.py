"""Old files of a classic broker's log go by RocketMQ's rules (fileReservedTime, deleteWhen, the disk's ratios).

The keys are those of `[retention]`; only whole files go, the oldest first, never the one that is written. What a
connected slave has not got yet stays, unless the disk is so full that files go whatever their age.

Invariant: queues and index follow the log: of what they have of a removed file nothing is answered.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from typing import Final

from node.config_models import RetentionTable
from node.message_store.commit_log import COMMIT_LOG
from node.message_store.expired_files import removed_expired
from node.message_store.live_reads import LiveReads
from node.message_store.local_recovery import file_name
from node.message_store.local_store import LocalMessageStore
from node.message_store.write_files import OsDisk

HOUR_S: Final = 3600.0
Note = Callable[[str, str, str], None]


class Retention:
    """See the module's docstring. `kept_from`: the lowest place that a connected slave still needs; None: no slave.

    `removing` is held while files go."""

    def __init__(
        self, table: RetentionTable, store: LocalMessageStore, reads: LiveReads, note: Note,
        kept_from: Callable[[], int | None] = lambda: None, removing: asyncio.Lock | None = None,
    ) -> None:  # fmt: skip
        self._table, self._store, self._reads, self._note = table, store, reads, note
        self._kept_from = kept_from
        self._removing = removing if removing is not None else asyncio.Lock()

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(self._table.check_interval_s)
            if self._table.enabled:
                await self.look(time.time())

    async def look(self, now_s: float) -> int:
        """What goes now; how many files that were. Raises OSError."""
        async with self._removing:  # and not while the log is cut
            return await self._look(now_s)

    async def _look(self, now_s: float) -> int:
        upto, is_forced = self._expired_upto(now_s)
        kept = self._kept_from()
        if kept is not None and not is_forced:
            upto = min(upto, kept)
        gone = self._store.log.forget_below(upto)
        if not gone:
            return 0
        await asyncio.to_thread(self._store.log.remove_forgotten, gone)
        await asyncio.to_thread(self._reads.refresh)
        for path in await asyncio.to_thread(removed_expired, self._reads.store, OsDisk()):
            self._store.dispatcher.removed(path)
        self._reads.forget_all()
        self._note("files_expired", "info", f"{len(gone)} files of the commit log, which begins at {upto} now")
        return len(gone)

    def _expired_upto(self, now_s: float) -> tuple[int, bool]:
        """Below where all may go, and whether the disk forces it."""
        table, log = self._table, self._store.log
        folder = log.root / COMMIT_LOG
        disk = shutil.disk_usage(folder)
        used = disk.used / disk.total
        is_hour = f"{time.localtime(now_s).tm_hour:02}" in table.delete_when
        is_forced = table.enable_disk_force_clean and used >= table.disk_space_ratio_to_force_clean
        upto = log.min_offset
        starts = log.starts
        total = len(starts) * log.file_bytes
        for start in starts[:-1]:
            try:
                age_s = now_s - (folder / file_name(start)).stat().st_mtime
            except OSError:
                break
            is_old = age_s >= table.file_reserved_hours * HOUR_S
            may = is_old and (is_hour or used >= table.disk_space_ratio_to_check_expired)
            too_large = table.max_log_bytes and total > table.max_log_bytes
            if not (may or too_large or (is_forced and start == starts[0])):
                break
            upto = start + log.file_bytes
            total -= log.file_bytes
        return upto, is_forced
