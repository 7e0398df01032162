"""Snapshots on their way to and from this member: the core's orders, carried out by the threads that read.

Sending: one snapshot is open at a time, with a pin on the log behind it; what comes next is read while a piece is being
sent. It stays open for a while after the last piece was asked for, so that a peer whose connection broke goes on with
that very one, although newer ones were saved meanwhile and it is not among those kept.

Receiving: one piece after the other is put to those before. Invariants: nothing here runs on the loop but what hands
over; a disk without room is the outcome `None`; any other error of the disk ends the engine (SAFETY S1), except that a
snapshot which cannot be read is not sent.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

from node.consensus.effects import OpenSnapshot, ReadSnapshot, TakePart
from node.consensus.snapshot_install import meta_of
from node.engine.pin_leases import SENT
from node.protocol.entry import EntryError
from node.snapshots.directory import SnapshotMeta
from node.snapshots.transfer import OpenedSnapshot, SnapshotReceiver, Taken, open_newest, take_received
from node.store.errors import StoreError, StoreFull
from node.store.log_store import LogStore

T = TypeVar("T")
KEPT_OPEN_S: Final = 60.0  # after the last piece was asked for
RECEIVED_KEPT_S: Final = 600.0  # what was put together, after the last piece came
SAVE_AGAIN_S: Final = 10.0
SAVES: Final = "no snapshot goes up to where this log begins: one is being saved"

Ask = OpenSnapshot | ReadSnapshot | TakePart


def close_behind(opened: OpenedSnapshot, reads: Sequence[Future[bytes]]) -> None:
    """Once all of these have ended, in whichever thread: its descriptor may be another file's at once."""
    left = [one for one in reads if not one.done()]
    if left:
        left[0].add_done_callback(lambda _: close_behind(opened, left[1:]))
    else:
        opened.close()


class Reports(Protocol):
    """Where the outcomes go, on the loop."""

    def snapshot_opened(self, order: OpenSnapshot, meta: SnapshotMeta | None, why: str) -> None: ...
    def snapshot_read(self, order: ReadSnapshot, piece: bytes | None) -> None: ...
    def part_taken(self, order: TakePart, taken: Taken | None) -> None: ...


class SnapshotTransfer:
    """One per engine of a group with a state machine."""

    def __init__(
        self, store: LogStore, directory: Path, readers: Executor, reports: Reports,
        fail: Callable[[str], None], save: Callable[[int], None],
    ) -> None:  # fmt: skip
        """`save`: has the state machine save a snapshot that goes up to that entry or beyond."""
        self._store, self._directory, self._readers, self._reports = store, directory, readers, reports
        self._fail, self._save = fail, save
        self._loop = asyncio.get_running_loop()
        self._receiver = SnapshotReceiver(directory)
        self._open: OpenedSnapshot | None = None
        self._open_for = ""
        self._ahead: tuple[int, Future[bytes]] | None = None  # by its offset
        self._reads: list[Future[bytes]] = []  # of the open one, that may not have ended
        self._close_timer: asyncio.TimerHandle | None = None
        self._receiving = threading.Lock()  # the receiver takes one call at a time
        # What an earlier process left is kept as long.
        self._drop_timer: asyncio.TimerHandle | None = self._loop.call_later(RECEIVED_KEPT_S, self._drop)
        self._saved_at_s = -SAVE_AGAIN_S
        self._closed = False

    def carry_out(self, order: Ask) -> None:
        match order:
            case OpenSnapshot():
                self._open_newest(order)
            case ReadSnapshot() if order.pause_ns > 0:
                self._loop.call_later(order.pause_ns / 1e9, self._read, order)
            case ReadSnapshot():
                self._read(order)
            case TakePart():
                self._take(order)

    def close(self) -> None:
        """No outcome comes afterwards."""
        self._closed = True
        self._close_open()
        if self._drop_timer is not None:
            self._drop_timer.cancel()

    # --- sending ------------------------------------------------------------------------------------------------
    def _open_newest(self, order: OpenSnapshot) -> None:
        if self._open is not None and self._open_for == order.peer_id and self._open.meta.index >= order.from_index:
            self._kept_open()
            self._reports.snapshot_opened(order, self._open.meta, "")
            return
        self._close_open()
        self._run(partial(open_newest, self._directory, order.from_index), partial(self._opened, order))

    def _opened(self, order: OpenSnapshot, found: OpenedSnapshot | None, error: BaseException | None) -> None:
        if found is None:
            now_s = self._loop.time()
            if now_s - self._saved_at_s >= SAVE_AGAIN_S:
                self._saved_at_s = now_s
                self._save(order.from_index)
            self._reports.snapshot_opened(order, None, SAVES if error is None else str(error))
            return
        self._close_open()
        try:
            self._store.pin(found.meta.index + 1, SENT)
        except EntryError as refused:  # the log was trimmed by force since it was asked for, or too many hold pins
            found.close()
            self._reports.snapshot_opened(order, None, str(refused))
            return
        self._open, self._open_for = found, order.peer_id
        self._kept_open()
        self._reports.snapshot_opened(order, found.meta, "")

    def _read(self, order: ReadSnapshot) -> None:
        opened, ahead = self._open, self._ahead
        if self._closed:
            return
        if opened is None or self._open_for != order.peer_id:
            self._reports.snapshot_read(order, None)
            return
        self._kept_open()
        if ahead is None or ahead[0] != order.offset:
            ahead = order.offset, self._reading(opened, order.offset, order.max_bytes)
        self._ahead = None
        self._when_done(ahead[1], partial(self._was_read, order, opened))

    def _was_read(
        self, order: ReadSnapshot, opened: OpenedSnapshot, piece: bytes | None, error: BaseException | None
    ) -> None:
        if piece and opened is self._open:
            at = order.offset + len(piece)
            if at < opened.meta.data_bytes:
                self._ahead = at, self._reading(opened, at, order.max_bytes)
        if error is not None:
            self._close_open()
        self._reports.snapshot_read(order, piece)

    def _reading(self, opened: OpenedSnapshot, offset: int, max_bytes: int) -> Future[bytes]:
        work = self._readers.submit(opened.read, offset, max_bytes)
        self._reads = [one for one in self._reads if not one.done()] + [work]
        return work

    def _kept_open(self) -> None:
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._close_timer = self._loop.call_later(KEPT_OPEN_S, self._close_open)

    def _close_open(self) -> None:
        opened, self._open, self._open_for, self._ahead = self._open, None, "", None
        self._store.release(SENT)
        if self._close_timer is not None:
            self._close_timer.cancel()
            self._close_timer = None
        if opened is not None:
            reads, self._reads = self._reads, []
            close_behind(opened, reads)

    # --- receiving ----------------------------------------------------------------------------------------------
    def _take(self, order: TakePart) -> None:
        if self._drop_timer is not None:
            self._drop_timer.cancel()
        self._drop_timer = self._loop.call_later(RECEIVED_KEPT_S, self._drop)
        part = order.part

        def work() -> Taken:
            with self._receiving:
                taken = self._receiver.take(meta_of(part), part.offset, part.data)
                if taken.is_whole and order.keeps:
                    take_received(self._directory, part.base_index)
                return taken

        self._run(work, partial(self._taken, order))

    def _taken(self, order: TakePart, taken: Taken | None, error: BaseException | None) -> None:
        if error is None or isinstance(error, StoreFull):
            self._reports.part_taken(order, taken)
        else:
            self._fail(f"a snapshot that comes from {order.part.leader_id} cannot be written: {error}")

    def _drop(self) -> None:
        self._drop_timer = None

        def work() -> None:
            with self._receiving:
                self._receiver.drop()

        self._run(work, lambda _none, _error: None)

    # --- threads ------------------------------------------------------------------------------------------------
    def _run(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        if not self._closed:
            self._when_done(self._readers.submit(work), done)

    def _when_done(self, work: Future[T], done: Callable[[T | None, BaseException | None], None]) -> None:
        def on_loop() -> None:
            error = work.exception()
            if self._closed:
                return
            if error is not None and not isinstance(error, StoreError):
                self._fail(f"a snapshot could not be moved: {error!r}")
            elif error is not None:
                done(None, error)
            else:
                done(work.result(), None)

        def back_to_loop(outcome: Future[T]) -> None:
            if not self._closed and not outcome.cancelled():
                self._loop.call_soon_threadsafe(on_loop)

        work.add_done_callback(back_to_loop)
