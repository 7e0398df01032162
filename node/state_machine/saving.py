"""The two ways in which a state is saved beside what is applied: by a copy of the process, or in steps.

A copy (fork) has the state of that moment, and needs nothing of the state machine; but making it takes as long as the
process has memory (some 0.1 s for 100 MB), and each page that either of them touches is copied then. A state machine
that can hand its state out piece by piece (`StateMachine.save_in_steps`) is saved by this process itself: a piece at a
time between commands, and a thread of low priority writes them.

Invariants: a snapshot is named as saved when it is durable; making it takes a share of the time only (STEPS_SHARE), and
of the disk (DISK_SHARE, BYTES_PER_S); what is made and not written yet is bounded; a save that was abandoned leaves
nothing under a snapshot's name.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from traceback import format_exc
from typing import Final, NamedTuple, Protocol

from node.children import end_with_parent, how_ended
from node.priority import LOW_PRIORITY_NICENESS, lower_priority
from node.snapshots import directory as snapshots
from node.state_machine.interface import Write
from node.state_machine.raised import tell_raised
from node.store.errors import StoreError, StoreRefused

ERROR_BYTES_MAX: Final = 1000
STEPS_SHARE: Final = 3  # one part in so many of the time is for making pieces
DISK_SHARE: Final = 4  # one part in so many of the time is for writing it
REST_S_MAX: Final = 2.0
BYTES_PER_S: Final = 32 * 1024 * 1024  # so that the log's syncs take as long as ever: the disk is everybody's
AHEAD_BYTES_MAX: Final = 8 * 1024 * 1024  # made, and not written yet
# What was forgotten looks like it, and would count as sound: the log could be removed up to there.
EMPTY: Final = "the state machine saved nothing: hand at least one byte to `write`, also for an empty state"
LOOK_AGAIN_S: Final = 0.005  # while that much is ahead


class Target(NamedTuple):
    """What is saved as. `directory`: the store's; `kept`: how many stay; `damaged`: which of those that are there count
    for nothing, by their last included index."""

    meta: snapshots.SnapshotMeta
    directory: Path
    kept: int
    damaged: frozenset[int] = frozenset()


class Save(Protocol):
    """One that is under way. It can be read (`fileno`) when it has ended; `ended` then says why it failed, or ""."""

    def fileno(self) -> int: ...
    def ended(self) -> str: ...
    def due_in_s(self, now_ns: int) -> float | None:
        """When `step` has something to do; None: never."""
        ...

    def step(self, now_ns: int) -> None: ...
    def abandon(self) -> None:
        """The state is not worth it any more; `ended` comes as ever."""
        ...


class CopiedSave:
    """By a copy of the process."""

    def __init__(self, save: Callable[[Write], None], target: Target, in_copy: Callable[[], None]) -> None:
        """`in_copy` is called in the copy first: it closes what is not the copy's. Raises OSError."""
        self._reading, writing = os.pipe()
        gc.freeze()  # a collection here would write to every object, and so copy every page
        try:
            self._pid = os.fork()
        except OSError:
            gc.unfreeze()
            os.close(self._reading)
            os.close(writing)
            raise
        if self._pid:
            os.close(writing)
            return
        error = "it was ended"
        try:
            gc.disable()
            os.close(self._reading)
            in_copy()
            end_with_parent(signal.SIGKILL)
            lower_priority()  # applying goes on beside it
            error = _saved(save, target)
            os.write(writing, error.encode()[:ERROR_BYTES_MAX])
        finally:
            os._exit(1 if error else 0)

    def fileno(self) -> int:
        return self._reading

    def due_in_s(self, now_ns: int) -> float | None:
        return None

    def step(self, now_ns: int) -> None:
        """It needs nothing from here."""

    def abandon(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def ended(self) -> str:
        error = os.read(self._reading, ERROR_BYTES_MAX).decode(errors="replace")
        os.close(self._reading)
        _, status = os.waitpid(self._pid, 0)
        gc.unfreeze()
        if status and not error:
            error = f"the copy that saved it {how_ended(os.waitstatus_to_exitcode(status))}"
        return error


def _saved(save: Callable[[Write], None], target: Target) -> str:
    """Why it failed, or nothing."""
    try:
        writer = snapshots.SnapshotWriter(target.directory)
        try:
            save(partial(_write_gently, writer.write))
            if not writer.data_bytes:
                raise StoreRefused(EMPTY)
        except BaseException:
            writer.abandon()
            raise
        writer.commit(target.meta, target.damaged)
        snapshots.keep_newest(target.directory, target.kept)
    except (StoreError, _Abandoned) as error:
        return str(error)
    except Exception as error:
        tell_raised(format_exc())
        return f"{type(error).__name__}: {error}"
    return ""


def _write_gently(write: Write, piece: bytes) -> None:
    """Now and then it waits for the disk. While it rests, the disk is the log's."""
    began_s = time.monotonic()
    write(piece)
    rest_s = max((DISK_SHARE - 1) * (time.monotonic() - began_s), len(piece) / BYTES_PER_S)
    time.sleep(min(rest_s, REST_S_MAX))


class _Abandoned(Exception):
    """Whoever makes the pieces stopped."""


class SteppedSave:
    """In steps."""

    def __init__(self, pieces: Iterator[bytes], target: Target) -> None:
        self._pieces: Iterator[bytes] | None = pieces  # None: all are made
        self._why = ""
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._made_bytes = self._written_bytes = 0  # the second is the thread's
        self._next_ns = 0
        self._reading, self._writing = os.pipe()
        self._error = ""
        self._thread = threading.Thread(target=self._write_all, args=(target,), name="snapshot", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        return self._reading

    def due_in_s(self, now_ns: int) -> float | None:
        if self._pieces is None:
            return None
        if self._made_bytes - self._written_bytes > AHEAD_BYTES_MAX:
            return LOOK_AGAIN_S
        return max(0.0, (self._next_ns - now_ns) / 1e9)

    def step(self, now_ns: int) -> None:
        """The next piece, if its time has come."""
        if self._pieces is None or self.due_in_s(now_ns) != 0.0:
            return
        try:
            piece = next(self._pieces, None)
        except Exception as error:
            tell_raised(format_exc())
            self._stop(f"{type(error).__name__}: {error}")
            return
        if piece is None:
            self._pieces = None
        else:
            self._made_bytes += len(piece)
        self._queue.put(piece)
        ended_ns = time.monotonic_ns()
        pause_ns = max((STEPS_SHARE - 1) * (ended_ns - now_ns), len(piece or b"") * 1_000_000_000 // BYTES_PER_S)
        self._next_ns = ended_ns + pause_ns

    def abandon(self) -> None:
        if self._pieces is not None:
            self._stop("the state is another one by now")

    def _stop(self, why: str) -> None:
        pieces, self._pieces, self._why = self._pieces, None, why
        close = getattr(pieces, "close", None)
        if close is not None:
            close()
        self._queue.put(None)

    def ended(self) -> str:
        os.read(self._reading, 1)
        self._thread.join()
        os.close(self._reading)
        os.close(self._writing)
        return self._why or self._error

    # --- in the thread --------------------------------------------------------------------------------------------
    def _write_all(self, target: Target) -> None:
        try:
            with contextlib.suppress(OSError):  # of this thread alone
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW_PRIORITY_NICENESS)
            self._error = _saved(self._take, target)
        finally:
            os.write(self._writing, b"1")

    def _take(self, write: Write) -> None:
        while (piece := self._queue.get()) is not None:
            write(piece)
            self._written_bytes += len(piece)
        if self._why:
            raise _Abandoned(self._why)
