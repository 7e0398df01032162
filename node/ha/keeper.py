"""Who owns a LocalMessageStore in a process: flushes in a thread, dispatches, lets waits end, saves now and then.

Invariants: the store is touched in the event loop only, files are synced in a thread with descriptors of its own; a
flush that fails ends all waits, and nothing more is taken, and so does a directory that was taken from under it; queues
and marks are saved behind a flush of the log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from node.ha.sockets import now_ms
from node.message_store.commit_log import COMMIT_LOG
from node.message_store.errors import MessageStoreError, NoSpaceToSave
from node.message_store.local_flush import FLUSH_EVERY_MS, FlushMode
from node.message_store.local_store import DISPATCH_BYTES, Answer, LocalMessageStore
from node.message_store.new_message import NewMessage
from node.message_store.newest_pages import NewestPages
from node.message_store.put_result import PutResult
from node.message_store.write_files import Disk, OsDisk

SAVE_EVERY_MS: Final = 10_000
LOOK_MS: Final = 100
NEXT_AGAIN_MS: Final = 5000
PLACE_LOOK_MS: Final = 1000  # so often, also where nothing is flushed, it is asked whether directory and log are there
BEHIND_BYTES: Final = 16 << 20  # from here on more is dispatched in a turn than a slave gets in one
T = TypeVar("T")


class StoreKeeper:
    """See the module's docstring. `after_put` wakes who sends to slaves, `after_flush` who reports to a master;
    `check_place` raises OSError where the next start would not find what is written here, and is called in a thread."""

    def __init__(
        self, store: LocalMessageStore, after_put: Callable[[], None] = lambda: None,
        after_flush: Callable[[], None] = lambda: None, check_place: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.store = store
        self._after_put, self._after_flush, self._check_place = after_put, after_flush, check_place
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self.on_dispatched: list[Callable[[dict[tuple[str, int], int]], None]] = []
        self.pages = NewestPages(store.root / COMMIT_LOG, store.log.file_bytes, store.log.max_offset)
        self._flushing = asyncio.Lock()
        self.removing = asyncio.Lock()  # of files that expired: whoever does it holds this
        self._has_put = False
        self._flushed_ms = self._saved_ms = now_ms()
        self._next_ms = 0
        self._place_ms = self._flushed_ms

    def put(self, message: NewMessage) -> asyncio.Future[PutResult]:
        """Done when it is answered."""
        return self.start(lambda answer: self.store.put(message, answer))

    def start(self, put: Callable[[Answer], None]) -> asyncio.Future[PutResult]:
        """The same of any put of the store's."""
        done: asyncio.Future[PutResult] = self._loop.create_future()

        def answer(result: PutResult) -> None:
            if not done.done():
                done.set_result(result)

        put(answer)
        self.has_put()
        return done

    def has_put(self) -> None:
        """Something was put in this turn of the loop."""
        if not self._has_put:
            self._has_put = True
            self._loop.call_soon(self._put_several)

    def _put_several(self) -> None:
        """Once for all puts of a turn of the loop."""
        self._has_put = False
        self._after_put()
        self._dispatch()
        self._wake.set()

    def _dispatch(self) -> None:
        store = self.store
        touched = store.dispatch(DISPATCH_BYTES if store.dispatch_behind_bytes < BEHIND_BYTES else 4 * DISPATCH_BYTES)
        if touched:
            for hear in self.on_dispatched:
                hear(touched)

    def wake(self) -> None:
        """A slave wrote something."""
        self._wake.set()

    async def run(self) -> None:
        """For ever; a flush that fails raises OSError when everybody was answered, and so does a log that found no room
        for a write, once there is some: its next start finds where it ends."""
        flush = next_file = look = None
        try:
            while True:
                self._wake.clear()
                now = now_ms()
                self.store.tick(now)
                if self.store.log.lacked_room and not self.store.full:
                    raise OSError(f"there is room again, and the log is opened anew ({self.store.log.broken_by})")
                flush, next_file, look = self._over(flush), self._over(next_file), self._over(look)
                if flush is None and self._flush_is_due(now):
                    flush = self._beside(self._flush())
                if next_file is None and self._next_is_due(now):
                    next_file = self._beside(self._make_next(now))
                if look is None and now - self._place_ms >= PLACE_LOOK_MS:
                    look = self._beside(self._look_at_place())
                before = self.store.end_position
                self._dispatch()
                if self.store.end_position > before:
                    await asyncio.sleep(0)
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_MS / 1000):
                        await self._wake.wait()
        finally:
            tasks = [task for task in (flush, next_file, look) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for task in tasks:
                if not task.cancelled():
                    task.result()

    def _beside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A flush may take seconds, of a slave that catches up above all: what it gets is dispatched meanwhile, while
        it is in memory, or it would be read and judged again."""
        task = self._loop.create_task(work)
        task.add_done_callback(lambda _task: self._wake.set())
        return task

    @staticmethod
    def _over(task: asyncio.Task[None] | None) -> asyncio.Task[None] | None:
        """None once it is. Raises what it did."""
        if task is not None and task.done():
            task.result()
            return None
        return task

    def _next_is_due(self, now: int) -> bool:
        following = self.store.log.next_file
        return not (following.is_ready or following.is_named) and now >= self._next_ms

    async def _make_next(self, now: int) -> None:
        """The log's next file; where there is no room for it, the put that needs it says so."""
        following = self.store.log.next_file
        try:
            await self._to_its_end(partial(_done, [following.make]))
            following.is_ready = True
        except OSError:
            self._next_ms = now + NEXT_AGAIN_MS

    async def _look_at_place(self) -> None:
        self._place_ms = now_ms()
        async with self._flushing:  # a cut removes files
            newest_is_there = self.store.log.place_check()
            try:
                await self._to_its_end(lambda: (self._check_place(), newest_is_there()))
            except OSError as error:
                self.store.flush_failed(error)
                raise

    async def exclusively(self, work: Callable[[], int]) -> int:
        """`work` in a thread, to its end also where this is cancelled. No flush runs meanwhile, for one that began
        before a cut would vouch for what is gone, nothing is dispatched, and no file is removed. Raises what it does.
        """
        async with self.removing, self._flushing:
            self.store.is_cutting = True
            try:
                return await self._to_its_end(work)
            finally:
                self.store.is_cutting = False
                self._wake.set()

    async def _to_its_end(self, work: Callable[[], T]) -> T:
        """`work` in a thread, which nobody can stop: whoever is cancelled waits for it, or the store would be closed
        under its hands, and nobody would hear that a sync failed. Raises what it does, before CancelledError."""
        working = self._loop.run_in_executor(None, work)
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            while not working.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([working])
            working.result()
            raise

    async def flushed_and_dispatched(self) -> None:
        """All that is in the log is on disk and in the queues. Raises OSError, MessageStoreError for want of room."""
        while self.store.log.flushed_offset < self.store.log.max_offset:
            await self._flush()
        while self.store.end_position < self.store.log.max_offset:
            self._dispatch()
            if self.store.stuck_by:
                raise MessageStoreError(self.store.stuck_by)
            await asyncio.sleep(0)

    def _flush_is_due(self, now: int) -> bool:
        store = self.store
        if store.log.flushed_offset >= store.log.max_offset:
            return False
        return store.settings.flush is FlushMode.SYNC_FLUSH or now - self._flushed_ms >= FLUSH_EVERY_MS

    async def _flush(self) -> None:
        async with self._flushing:
            await self._flush_now()

    async def _flush_now(self) -> None:
        found = self.store.begin_flush()
        is_save = now_ms() - self._saved_ms >= SAVE_EVERY_MS
        steps = [found.sync, lambda _disk: self._check_place(), self.pages.leaving(found.upto)]
        if is_save:
            steps += [self.store.dispatcher.begin_save(), self.store.begin_mark(found)]
        try:
            await self._to_its_end(partial(_done, steps))
        except NoSpaceToSave:  # the log, and what was dispatched, are on disk: a start begins further back
            pass
        except OSError as error:
            self.store.flush_failed(error)
            raise
        self._flushed_ms = now_ms()
        if is_save:
            self._saved_ms = self._flushed_ms
        self.store.flushed(found)
        self._after_flush()
        self._dispatch()


def _done(steps: Sequence[Callable[[Disk], None]]) -> None:
    """In a thread, in this order. Raises OSError."""
    disk = OsDisk()
    try:
        for step in steps:
            step(disk)
    finally:
        disk.close()
