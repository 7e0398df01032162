"""One machine's disk under a real engine, which knows who calls it: the loop's turn, the writing or a reading thread.

Invariants that it keeps itself: a process that has crashed changes nothing any more, however long its code goes on
unwinding. What it judges (SAFETY S9, `node/engine/disk.py`), once the store is open and until its engine has ended: the
loop reads no data or index file and waits for no sync, of a directory neither; a reading thread changes nothing. The
one exception is counted by the product itself (`files_made_late`): an append that needs a file which is not made yet
makes it, and syncs that file and its folder once each.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.simulation.disk import SECTOR_BYTES, SimulatedCrash, SimulatedPlatform
from tests.simulation.disk_files import sectors_of
from tests.simulation.observer import Observer, Violation

if TYPE_CHECKING:
    from tests.simulation.driver.loop import SimulatedLoop
    from tests.simulation.driver.machine import Machine
    from tests.simulation.driver.threads import Threads

PAGE_SECTORS = 4096 // SECTOR_BYTES
LOG_FOLDERS = ("/data/", "/index/")
SYNCS = ("fdatasync", "sync_directory")
# Asked for, a sync begins within this time where the writer has nothing else to do: flush async waits for 10 ms.
IDLE_NS_MAX = 100_000_000


class DriverPlatform(SimulatedPlatform):
    """See the module's docstring."""

    def __init__(self, rng: random.Random, clock: Callable[[], int], name: str) -> None:
        super().__init__(rng, clock, name)
        self.taken_from = False  # the process is gone, and no other has started
        self.on_crash: Callable[[], None] = lambda: None  # at once, before anything unwinds
        self.violate: Callable[[Violation], None] = lambda _violation: None
        self.observed: Callable[[], bool] = lambda: False  # whether it is an observer who asks
        # A file of the log that none was made ahead for: what is still to be synced of it, by the append that needs it.
        self._made_late: set[tuple[str, str]] = set()
        self._late_count: Callable[[], int] = lambda: 0  # the store's own count of such files
        self._late_seen = 0
        # None: a store is being opened or closed, or none is open.
        self._serving: tuple[SimulatedLoop, Threads] | None = None

    def serve(self, loop: SimulatedLoop, threads: Threads, files_made_late: Callable[[], int]) -> None:
        """The store is open: from now on the loop's turn has to leave the disk alone."""
        self._serving = loop, threads
        self._late_count, self._late_seen = files_made_late, files_made_late()
        self._made_late.clear()

    def serve_no_more(self) -> None:
        """What is left to do keeps nobody waiting."""
        self._serving = None

    def _caller(self) -> str:
        """ "loop", "writer" or "reader"; "" where it does not matter: at open, at the end, another process."""
        if self._serving is None or self.observed():
            return ""
        loop, threads = self._serving
        return threads.at_work or ("loop" if loop.in_turn else "")

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        file, path = self._opened(fd)
        if self._caller() == "loop" and any(folder in path for folder in LOG_FOLDERS):
            # What was written and not synced yet is in memory, whole pages of it.
            pages = {sector // PAGE_SECTORS for sector in file.dirty}
            if any(
                one in file.used and one // PAGE_SECTORS not in pages for one in sectors_of(offset, offset + length)
            ):
                text = f"{self._name} reads {path} at {offset} on its loop, where everybody waits for the disk"
                self.violate(Violation("no_cold_read_on_loop", text))
        return super().pread(fd, length, offset)

    def _enter(self, what: str, path: str, size_bytes: int) -> bool:
        if self.taken_from:
            raise SimulatedCrash(f"{what} of {path} by a process that is gone")
        caller = self._caller()
        if caller == "loop" and what == "create" and self._late_count() != self._late_seen:
            self._late_seen = self._late_count()
            self._made_late = {("fdatasync", path), ("sync_directory", str(Path(path).parent))}
        if caller == "loop" and what in SYNCS:
            if (what, path) in self._made_late:
                self._made_late.remove((what, path))
            else:
                self.violate(Violation("no_sync_on_loop", f"{self._name}: {what} of {path} on its loop"))
        elif caller == "reader":
            text = f"{self._name}: {what} of {path} by a reading thread, beside whatever the writer does"
            self.violate(Violation("one_thread_writes", text))
        try:
            return super()._enter(what, path, size_bytes)
        except SimulatedCrash:
            self._gone()
            raise

    def _leave(self, last: bool, what: str, path: str) -> None:
        if last:
            self._gone()
        super()._leave(last, what, path)

    def _gone(self) -> None:
        self.taken_from = True
        self.on_crash()


class Promptness(Observer):
    """What is in a log becomes durable without another append having to come (R2, S9)."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[int, int]] = {}  # member -> (incarnation, since when nobody works for it)

    def stepped(self, world: Any) -> None:
        for member in world.members.values() if self._since else world.touched:
            if not self._is_left(member):
                self._since.pop(member.id, None)
                continue
            incarnation, since = self._since.setdefault(member.id, (member.incarnation, world.now))
            if incarnation != member.incarnation:
                self._since[member.id] = member.incarnation, world.now
            elif world.now - since > IDLE_NS_MAX:
                text = (
                    f"{member.id} has entries up to {member.store.end_index}, durable up to"
                    f" {member.store.durable_index}, and its disk does nothing for {IDLE_NS_MAX // 1_000_000} ms"
                )
                raise Violation("soon_durable", text)

    def _is_left(self, member: Machine) -> bool:
        """Whether something waits to become durable while the writer has nothing to do."""
        engine, store = member.engine, member.store
        if engine is None or store is None or engine.reason or member.paused or not member.is_writer_idle:
            return False
        return store.durable_index < store.end_index
