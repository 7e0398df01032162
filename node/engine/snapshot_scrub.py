"""The scrub's way through a state machine's snapshots, and what follows where one is not what was written (SAFETY S6).

A pass is read in steps by the threads that read. What is damaged is an alarm that names it, and the state machine saves
its state again, which is as good as ever in memory; or a newer snapshot stands for it already. The alarm ends when
either is so, or the leader's snapshot was installed. A process that is not there, or a full disk, is asked again.

Invariants: nothing is read on the loop; only the state machine's process renames a snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, Final

from node.engine.applier import Machine
from node.snapshots.directory import Damage
from node.snapshots.scrub import SnapshotScrub, SnapshotStep

ASK_AGAIN_S: Final = 30.0


class SnapshotScrubs:
    """One per engine of a group with a state machine; lives on its loop."""

    def __init__(
        self, directory: Path, readers: Executor, machine: Machine, alarm: Callable[[str | None], None],
        note: Callable[[str, str, dict[str, Any]], None],
    ) -> None:  # fmt: skip
        """`directory`: the store's. `alarm`: what is wrong, or None where nothing is any more."""
        self._directory, self._readers, self._machine = directory, readers, machine
        self._alarm, self._note = alarm, note
        self._loop = asyncio.get_running_loop()
        self._pass: SnapshotScrub | None = None
        self._passes = 0
        self._damaged: dict[int, Damage] = {}  # for which no sound one stands yet, by the last included index
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def begin(self) -> None:
        """The next step is the first one of a pass."""
        self._pass = None
        self._passes += 1

    def step(self, max_bytes: int, done: Callable[[SnapshotStep], None]) -> None:
        """`done` on the loop; not called once this is closed."""
        one, number = self._pass, self._passes

        def work() -> tuple[SnapshotScrub, SnapshotStep]:
            scrub = one or SnapshotScrub(self._directory)
            return scrub, scrub.step(max_bytes)

        def on_loop(outcome: Future[tuple[SnapshotScrub, SnapshotStep]]) -> None:
            if self._closed:
                return
            error = outcome.exception()
            if error is not None:  # the next pass reads them; nothing that was acknowledged depends on it
                self._note("read_failed", "warning", {"reason": f"the snapshots: {error}"})
                done(SnapshotStep(0, (), 0, is_done=True))
                return
            scrub, step = outcome.result()
            if number == self._passes:
                self._pass = scrub
            if step.damaged:
                self._found(step)
            done(step)

        def back_to_loop(outcome: Future[tuple[SnapshotScrub, SnapshotStep]]) -> None:
            if not self._closed and not outcome.cancelled():
                self._loop.call_soon_threadsafe(on_loop, outcome)

        if not self._closed:
            self._readers.submit(work).add_done_callback(back_to_loop)

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    # --- damage ---------------------------------------------------------------------------------------------------
    def _found(self, step: SnapshotStep) -> None:
        self._damaged |= {one.index: one for one in step.damaged}
        said = "; ".join(f"{one.file}: {one.detail}" for one in self._damaged.values())
        self._alarm(f"{said}. The state machine's state is saved again")
        self._ask()

    def _ask(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(ASK_AGAIN_S, self._ask)
        self._machine.damaged(sorted(self._damaged), self._known)

    def _known(self, is_over: bool) -> None:
        if self._closed or not is_over or not self._damaged:
            return
        self._damaged.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._alarm(None)
