"""The set of entries known to be damaged in an open log, and the file that keeps it for a start (SAFETY S6).

Invariants: `now` is sorted and disjoint and changes under a lock, because the loop notes what reads met while a thread
mends; whatever changed is `unsaved` until it is on disk.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

from node.store.errors import StoreCorrupt, StoreFull, StoreIOError
from node.store.faults.known_faults import save_known_faults
from node.store.faults.ranges import cut, fault_at, in_words, merged, next_fault, without
from node.store.faults.results import Fault
from node.store.log_files import LogFiles


class FaultSet:
    """The faults of one log."""

    def __init__(
        self, files: LogFiles, found: tuple[Fault, ...], changed: Callable[[tuple[Fault, ...], bool], None]
    ) -> None:
        """`changed` is called at once with `now` and `unsaved`, under the lock."""
        self._files, self._changed = files, changed
        self._lock = threading.Lock()
        self.now = found
        self.unsaved = False
        self._keep(found)
        changed(found, False)

    def at(self, index: int) -> Fault | None:
        """The fault that `index` is in."""
        return fault_at(self.now, index)

    def after(self, index: int) -> Fault | None:
        """The first fault behind `index`."""
        return next_fault(self.now, index)

    def refuse(self, index: int) -> None:
        """Raises StoreCorrupt for an entry that is known to be damaged."""
        fault = self.at(index)
        if fault is not None:
            raise StoreCorrupt(f"{in_words([fault])}: {fault.detail}", [fault])

    def note(self, faults: Sequence[Fault]) -> None:
        """More of them; also takes away what is outside the log by now."""
        with self._lock:
            self._set(merged([*self.now, *faults], self._files.begin_index, self._files.end.index))

    def heal(self, healed: Fault) -> None:
        """These entries are sound again; a fault may have grown while they were written."""
        with self._lock:
            left = without(self.now, healed)
            self._set(merged(left, self._files.begin_index, self._files.end.index))

    def cut(self, cut_index: int) -> None:
        """The log ends before `cut_index` now."""
        with self._lock:
            self._set(cut(self.now, cut_index))

    def _set(self, faults: tuple[Fault, ...]) -> None:
        """Under the lock."""
        if faults != self.now:
            self.now = faults
            self.unsaved = True
            self._changed(faults, True)

    def save(self) -> None:
        """Keeps them on disk. Raises StoreIOError."""
        with self._lock:
            faults, self.unsaved = self.now, False
            self._changed(faults, False)
        try:
            self._keep(faults)
        except StoreIOError:
            self._files.failed = True
            raise

    def _keep(self, faults: Sequence[Fault]) -> None:
        """On a full disk they are not kept: that costs no more than a later look, for the bytes say the same."""
        with contextlib.suppress(StoreFull):
            save_known_faults(self._files.directory, faults, self._files.platform)
