"""Reads the log over and over, slowly, so that rot is found before anybody needs what it took (SAFETY R7, S6).

One pass goes from the first entry to what was durable when it began, and then through the snapshots of a state machine,
in steps through the disk's reading threads; it rests after each so that it reads `bytes_per_s` on average. A fork, or
an operator, asks for a pass at once: that one reads faster, and takes the place of a slow one. What is found goes to
the core, which lives with it.

Invariants: one pass at a time, one step at a time; what a step met while the log was being cut is not believed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from node.engine.clock import wall_text
from node.engine.disk import Disk
from node.engine.snapshot_scrub import SnapshotScrubs
from node.snapshots.scrub import SnapshotStep
from node.store.faults.results import Fault, Scrubbed
from node.store.log_store import LogStore
from node.views.state import ScrubPassView, ScrubView

STEP_BYTES: Final = 1024 * 1024
ASKED_BYTES_PER_S: Final = 64 * 1024 * 1024
FIRST_PASS_AFTER_S: Final = 60.0


@dataclass(slots=True)
class Pass:
    """One way through the log, and the snapshots beside it."""

    number: int
    reason: str  # "background", "fork", "request"
    bytes_per_s: int
    from_index: int
    next_index: int
    last_index: int
    began_at: str
    read_bytes: int = 0
    faults: int = 0
    snapshots: int | None = None  # read to their end; None: there is no state machine
    damaged_snapshots: int | None = None
    log_read: bool = False
    ended_at: str | None = None

    def view(self) -> ScrubPassView:
        return ScrubPassView(
            number=self.number, reason=self.reason, bytes_per_s=self.bytes_per_s,
            from_index=self.from_index, next_index=self.next_index, last_index=self.last_index,
            read_bytes=self.read_bytes, faults=self.faults, snapshots=self.snapshots,
            damaged_snapshots=self.damaged_snapshots, began_at=self.began_at, ended_at=self.ended_at,
        )  # fmt: skip


class Scrubber:
    """One per engine; lives on its loop."""

    def __init__(
        self,
        store: LogStore,
        disk: Disk,
        *,
        bytes_per_s: int,
        pause_s: int,
        found: Callable[[Sequence[Fault]], None],
        finished: Callable[[], None],
        snapshots: SnapshotScrubs | None = None,
    ) -> None:
        """`finished` is called when a pass has read all of the log; `snapshots`: a state machine's."""
        self._store, self._disk, self._snapshots = store, disk, snapshots
        self._bytes_per_s, self._pause_s = bytes_per_s, pause_s
        self._found, self._finished = found, finished
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._current: Pass | None = None
        self._last: Pass | None = None
        self._passes = 0
        self._stopped = False

    def start(self) -> None:
        """The first pass in the background, unless the rate is 0."""
        self._rest(min(FIRST_PASS_AFTER_S, self._pause_s))

    def change(self, bytes_per_s: int, pause_s: int) -> None:
        """Another rate from now on; a pass that is under way ends at its own."""
        self._bytes_per_s, self._pause_s = bytes_per_s, pause_s
        if self._current is None:
            self._cancel_timer()
            self._rest(min(FIRST_PASS_AFTER_S, pause_s))

    def stop(self) -> None:
        self._stopped = True
        self._cancel_timer()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rest(self, seconds: float) -> None:
        self._cancel_timer()
        if self._bytes_per_s > 0 and not self._stopped:
            self._timer = self._loop.call_later(seconds, self._begin, "background", self._bytes_per_s)

    def ask(self, reason: str) -> int:
        """A pass at once; the number of the one that answers it (a fast one that runs already is as good, unless it has
        read the log, and a fork waits for that)."""
        current = self._current
        if current is None or current.reason == "background" or (current.log_read and reason == "fork"):
            self._begin(reason, max(ASKED_BYTES_PER_S, self._bytes_per_s))
        assert self._current is not None or self._last is not None
        answering = self._current or self._last
        assert answering is not None
        return answering.number

    def _begin(self, reason: str, bytes_per_s: int) -> None:
        self._cancel_timer()
        store = self._store
        self._passes += 1
        begin, last = store.begin_index, min(store.durable_index, store.end_index)
        self._current = Pass(self._passes, reason, bytes_per_s, begin, begin, last, wall_text())
        if self._snapshots is not None:
            self._current.snapshots = self._current.damaged_snapshots = 0
            self._snapshots.begin()
        self._step()

    def _step(self) -> None:
        self._timer = None
        current = self._current
        if current is None or self._stopped:
            return
        current.next_index = max(current.next_index, self._store.begin_index)
        if current.log_read or current.next_index > min(current.last_index, self._store.end_index):
            self._behind_the_log(current)
        else:
            self._disk.scrub(current.next_index, STEP_BYTES, lambda step, _error: self._stepped(current, step))

    def _stepped(self, current: Pass, step: Scrubbed | None) -> None:
        """None: the log was cut or trimmed under this step; it goes on from where the log now is."""
        if current is not self._current or self._stopped:
            return
        read_bytes = 0
        if step is not None:
            read_bytes = step.read_bytes
            current.read_bytes += read_bytes
            current.faults += len(step.faults)
            current.next_index = max(step.next_index, current.next_index + 1)
            if step.faults:
                self._found(step.faults)
        self._timer = self._loop.call_later(max(0.001, read_bytes / current.bytes_per_s), self._step)

    def _behind_the_log(self, current: Pass) -> None:
        if not current.log_read:
            current.log_read = True
            self._finished()
        if self._snapshots is None:
            self._end(current)
        else:
            self._snapshots.step(STEP_BYTES, lambda step: self._snapshot_stepped(current, step))

    def _snapshot_stepped(self, current: Pass, step: SnapshotStep) -> None:
        if current is not self._current or self._stopped:
            return
        current.read_bytes += step.read_bytes
        current.snapshots = (current.snapshots or 0) + step.snapshots
        current.damaged_snapshots = (current.damaged_snapshots or 0) + len(step.damaged)
        if step.is_done:
            self._end(current)
        else:
            self._timer = self._loop.call_later(max(0.001, step.read_bytes / current.bytes_per_s), self._step)

    def _end(self, current: Pass) -> None:
        current.ended_at = wall_text()
        self._last, self._current = current, None
        self._rest(self._pause_s)

    def view(self) -> ScrubView:
        """For `GET state`: a pass is null where there was none yet."""
        return ScrubView(
            bytes_per_s=self._bytes_per_s,
            pause_s=self._pause_s,
            running=None if self._current is None else self._current.view(),
            last=None if self._last is None else self._last.view(),
        )
