"""LocalMessageStore: a broker's store on a commit log of RocketMQ's own, for classic HA and for old directories.

What the log's store is on the replicated log, this is on `LocalCommitLog`: puts give a put result, queues and index
follow by dispatch, `LiveReads` reads. A put ends when its message is in its queue and whatever it waits for has
happened: the flush with SYNC_FLUSH, the slaves with SYNC_MASTER (`slaves`, see `node/ha`). Its owner has threads.

Invariants: refusals come before a queue offset is given out; offsets of a queue have no gaps; a put is answered once;
what a failed disk leaves unknown is never answered PUT_OK; the slaves' status counts before the disk's, as in RocketMQ.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from node.message_store.delay_levels import parse_delay_levels
from node.message_store.dispatch import Dispatcher
from node.message_store.dispatch_batch import Batch
from node.message_store.dispatch_mark import DerivedSizes, LogPoint
from node.message_store.errors import MessageStoreError, NoSpaceToWrite
from node.message_store.local_derived import open_dispatcher, rebuild_derived
from node.message_store.local_flush import SYNC_FLUSH_TIMEOUT_MS, FlushMode, GroupCommitRequest, GroupCommitService
from node.message_store.local_log import FILE_BYTES, Flush, LocalCommitLog
from node.message_store.local_mark import write_log_mark
from node.message_store.local_records import Stop, walk
from node.message_store.local_recovery import ABORT
from node.message_store.new_message import NewMessage, PutLimits, Refused, record_bytes, waits_until_stored
from node.message_store.not_read import check_forms
from node.message_store.put_result import PutResult, PutStatus, refused
from node.message_store.read_files import OS, Files
from node.message_store.record_building import QueueOffsets
from node.message_store.write_files import Disk, OsDisk
from node.protocol.entry import HEAD_BYTES, BytesLike
from node.protocol.value_class import value_class

DISPATCH_BYTES: Final = 1 << 20
RESERVE_BYTES: Final = 256 << 20  # of the disk, below which nothing is taken any more
Answer = Callable[[PutResult], None]
StatusOf = Callable[[PutStatus], None]


class Slaves(Protocol):
    """Whom a put may have to wait for: HAService.handle_ha."""

    def handle_ha(self, next_offset: int, now_ms: int, done: StatusOf) -> None:
        """Calls `done` once: at once where there is nothing to wait for."""


@value_class(slots=True, frozen=True)
class LocalSettings:
    """mappedFileSizeCommitLog, flushDiskType, syncFlushTimeout. `reserve_bytes`: of the disk, left free."""

    file_bytes: int = FILE_BYTES
    flush: FlushMode = FlushMode.ASYNC_FLUSH
    sync_flush_timeout_ms: int = SYNC_FLUSH_TIMEOUT_MS
    reserve_bytes: int = RESERVE_BYTES
    sizes: DerivedSizes | None = None
    delay_levels_ms: tuple[int, ...] = parse_delay_levels()


@dataclass(slots=True, eq=False)
class _OpenPut:
    """One that is in the log and not answered. A status None: not known yet. `say`: its answer, by its status."""

    end: int
    say: Callable[[PutStatus], None]
    disk: PutStatus | None = None
    slaves: PutStatus | None = None
    is_read: bool = False  # it is in its queue
    is_over: bool = False


class LocalMessageStore:
    """See the module's docstring. `now_ms`: the wall clock, for storing times; `elapsed_ms`: for waits.

    Raises MessageStoreError where the directory cannot be written on; NotRead, before anything is changed, where queues
    are in a form that is not read here: what writes the others anew would take these for none, and remove them.
    """

    def __init__(
        self, root: Path, settings: LocalSettings, now_ms: Callable[[], int], *,
        elapsed_ms: Callable[[], int] | None = None, free_bytes: Callable[[], int] | None = None,
        disk: Disk | None = None, files: Files = OS,
    ) -> None:  # fmt: skip
        check_forms(root, files)
        self.root, self.settings, self._now_ms = root, settings, now_ms
        self._elapsed_ms = elapsed_ms or now_ms
        self._free_bytes, self._files = free_bytes, files
        self._disk = disk if disk is not None else OsDisk()
        levels_ms = settings.delay_levels_ms
        self.limits = PutLimits(file_bytes=settings.file_bytes + HEAD_BYTES, delay_levels=len(levels_ms))
        self.log = LocalCommitLog(root, settings.file_bytes, disk=self._disk, files=files)
        self.dispatcher = open_dispatcher(
            root, self.log.min_offset, self.log.max_offset, settings.sizes, levels_ms, self._disk, files
        )
        self._disk.replace(root / ABORT, str(os.getpid()).encode())
        self.commits = GroupCommitService()
        self.slaves: Slaves | None = None
        self.takes_puts = False  # a slave's does not
        self.stuck_by = ""  # why dispatch finds no room
        self.is_cutting = False  # in another thread: nothing is dispatched, and what is read may not be whole
        self.on_rebuilt: list[Callable[[], None]] = []  # queues and index are others now
        self._offsets: QueueOffsets | None = None
        self._open: deque[_OpenPut] = deque()  # in the log's order, until they are dispatched
        self._ready: list[_OpenPut] = []  # that wait for nothing any more

    # --- what LiveReads asks --------------------------------------------------------------------------------------
    def queue_end(self, queue: tuple[str, int]) -> int:
        return self.dispatcher.queue_end(queue)

    @property
    def next_offsets(self) -> Mapping[tuple[str, int], int]:
        return self.dispatcher.next_offsets

    @property
    def end_position(self) -> int:
        """Behind what is dispatched, or where the log begins: an empty slave's with what its master has left."""
        return max(self.dispatcher.point.position, self.log.min_offset)

    @property
    def confirm_offset(self) -> int:
        """Up to where messages may be read."""
        return self.log.flushed_offset if self.settings.flush is FlushMode.SYNC_FLUSH else self.log.max_offset

    @property
    def durable_offset(self) -> int:
        """Up to where the log is as safe as its flush mode promises: what a slave may report."""
        return self.confirm_offset

    @property
    def dispatch_behind_bytes(self) -> int:
        return self.log.max_offset - self.end_position

    @property
    def full(self) -> str:
        """Why nothing is taken: too little of the disk is left; empty: it is. It passes when there is room again."""
        if self.stuck_by or self._free_bytes is None or self._free_bytes() >= self.settings.reserve_bytes:
            return self.stuck_by
        return f"the disk is full: less than {self.settings.reserve_bytes} bytes are free"

    # --- puts -----------------------------------------------------------------------------------------------------
    def become_master(self) -> None:
        """From now on puts are taken. All of the log is in the queues first: they say which offsets come next."""
        if self.log.flushed_offset < self.log.max_offset:
            self.log.save()
        while self.dispatch():
            pass
        if self.end_position < self.log.max_offset:
            why = self.stuck_by or f"dispatch ends at {self.end_position}, the log at {self.log.max_offset}"
            raise MessageStoreError(why)
        self._offsets = QueueOffsets(lambda topic, queue_id: self.next_offsets.get((topic, queue_id), 0), self._last_ms)
        self.takes_puts = True

    @property
    def _last_ms(self) -> int:
        return max(self.log.last_time_ms, self.dispatcher.last_time_ms)

    def become_slave(self) -> None:
        """From now on only its master's bytes come in."""
        self.takes_puts, self._offsets = False, None

    def put(self, message: NewMessage, answer: Answer) -> None:
        """One message. `answer` may be called before this returns."""
        try:
            self._put([self.limits.judged(message)], answer)
        except Refused as error:
            answer(refused(error.status, error.reason))

    def put_own(self, message: NewMessage, answer: Answer, spare_bytes: int = 0) -> None:
        """What the broker itself puts: it goes where it says, also with a delay level."""
        try:
            self._put([self.limits.judged(message, moves=False, spare_bytes=spare_bytes)], answer)
        except Refused as error:
            answer(refused(error.status, error.reason))

    def put_batch(self, batch: NewMessage, answer: Answer) -> None:
        """All of its messages lie in one file, one behind the other."""
        try:
            self._put(self.limits.judged_batch(batch), answer)
        except Refused as error:
            answer(refused(error.status, error.reason))

    def _put(self, messages: Sequence[NewMessage], answer: Answer) -> None:
        """Raises Refused: nothing of it is in the log."""
        self._check_can_put()
        size = sum(map(record_bytes, messages))
        if size + 8 > self.settings.file_bytes:
            text = f"{size} bytes do not fit a file of the commit log, which has {self.settings.file_bytes}"
            raise Refused(PutStatus.MESSAGE_ILLEGAL, text)
        try:
            self.log.make_room(size)
        except OSError as error:
            status = PutStatus.SERVICE_NOT_AVAILABLE if self.log.broken_by else PutStatus.CREATE_MAPPED_FILE_FAILED
            raise Refused(status, f"no file of the commit log could be begun: {error}") from error
        self.append(messages, answer)

    def append(self, messages: Sequence[NewMessage], answer: Answer) -> None:
        """Judged messages, for which there is room."""
        assert self._offsets is not None
        first = messages[0]
        built = self._offsets.build(messages, self._now_ms())
        try:
            places = self.log.append(built.records)
        except OSError as error:  # some of it may be there at the next start, and a later try may do better
            text = f"the commit log could not be written: {error}"
            raise Refused(PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, text) from error
        result = PutResult(
            PutStatus.PUT_OK, "", first.topic, first.queue_id, built.first_offset, places, built.store_timestamp_ms,
            first.store_host,
        )  # fmt: skip
        self._opened(lambda status: answer(replace(result, status=status)), waits=waits_until_stored(messages[-1]))

    def put_record(
        self, topic: str, queue_id: int, size_bytes: int, record_of: Callable[[int, int], bytes],
        answer: Callable[[PutStatus, int], None],
    ) -> bool:  # fmt: skip
        """One record that was judged already, of a put whose sender waits; `record_of` makes it of its queue offset and
        storing time, `answer` gets its place. False: nothing was done, and `put` says why."""
        try:
            self._check_can_put()
            self.log.make_room(size_bytes)
        except (Refused, MessageStoreError, OSError):
            return False
        assert self._offsets is not None
        try:
            [place] = self.log.append([self._offsets.build_one(topic, queue_id, self._now_ms(), record_of)])
        except OSError:
            answer(PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, -1)
            return True
        self._opened(lambda status: answer(status, place), waits=True)
        return True

    def _opened(self, say: Callable[[PutStatus], None], *, waits: bool) -> None:
        """It lies at the log's end."""
        put = _OpenPut(self.log.max_offset, say)
        self._open.append(put)
        self._wait_for(put, waits=waits, now_ms=self._elapsed_ms())

    def _wait_for(self, put: _OpenPut, *, waits: bool, now_ms: int) -> None:
        """For the disk and the slaves, where its sender and this broker's mode ask for it."""

        def disk_said(status: PutStatus) -> None:
            put.disk = status
            self._look_at(put)

        def slaves_said(status: PutStatus) -> None:
            put.slaves = status
            self._look_at(put)

        if self.settings.flush is FlushMode.SYNC_FLUSH and waits:
            deadline_ms = now_ms + self.settings.sync_flush_timeout_ms
            self.commits.put_request(GroupCommitRequest(put.end, deadline_ms, disk_said))
        else:
            put.disk = PutStatus.PUT_OK
        if self.slaves is not None and waits:
            self.slaves.handle_ha(put.end, now_ms, slaves_said)
        else:
            put.slaves = PutStatus.PUT_OK

    def _check_can_put(self) -> None:
        if not self.takes_puts:
            raise Refused(PutStatus.SERVICE_NOT_AVAILABLE, "this broker is a slave: send to its master")
        if self.log.broken_by:
            raise Refused(PutStatus.SERVICE_NOT_AVAILABLE, f"the commit log cannot be written: {self.log.broken_by}")
        if full := self.full:
            raise Refused(PutStatus.SERVICE_NOT_AVAILABLE, full)

    # --- what its owner calls -------------------------------------------------------------------------------------
    def dispatch(self, bytes_max: int = DISPATCH_BYTES) -> dict[tuple[str, int], int]:
        """Some of what is confirmed goes into queues and index; the queues that got messages, and their new ends."""
        touched: dict[tuple[str, int], int] = {}
        left, self.stuck_by = 0 if self.is_cutting else bytes_max, ""
        while left > 0 and self.end_position < self.confirm_offset:
            place = self.end_position
            batch, end = self.log.recent.take(place, self.confirm_offset, left) or self._read_batch(place)
            try:
                touched |= self.dispatcher.dispatch(batch, LogPoint(end))
            except NoSpaceToWrite as error:  # until there is room, it is tried again and again
                self.stuck_by = f"the disk is full: {error}"
                break
            left -= end - place
        self.settle()
        return touched

    def _read_batch(self, place: int) -> tuple[Batch, int]:
        data = self.log.read(place, min(DISPATCH_BYTES, self.confirm_offset - place))
        found = walk(data, place, self.settings.file_bytes)
        if not found.at and found.stop is Stop.PARTIAL:
            data = self.log.read(place, min(found.needs, self.confirm_offset - place))
            found = walk(data, place, self.settings.file_bytes)
        if not found.at:
            raise MessageStoreError(f"dispatch stops at {place}: {found.why or 'no whole record is there'}")
        starts = np.array(found.starts, "i8")
        return Batch(data, starts, np.array(found.sizes, "i8"), starts + place, found.heads), place + found.at

    def settle(self) -> None:
        """Answers the puts that wait for nothing any more."""
        end = self.end_position
        while self._open and self._open[0].end <= end:
            put = self._open.popleft()
            put.is_read = True
            self._look_at(put)
        ready, self._ready = self._ready, []
        for one in ready:
            assert one.disk is not None and one.slaves is not None
            status = one.slaves if one.slaves is not PutStatus.PUT_OK else one.disk
            # Who was replaced does not know what the new master has.
            one.say(status if self.takes_puts or status is not PutStatus.PUT_OK else PutStatus.FLUSH_SLAVE_TIMEOUT)

    def _look_at(self, put: _OpenPut) -> None:
        """Whether it is over. A message that is not on disk in time is answered before it can be read."""
        if put.is_over or put.disk is None or put.slaves is None:
            return
        if put.is_read or put.disk is PutStatus.FLUSH_DISK_TIMEOUT:
            put.is_over = True
            self._ready.append(put)

    def flush(self) -> None:
        """In this thread. OSError: nothing more is written here."""
        self.log.flush()
        self.commits.flushed(self.log.flushed_offset)

    def begin_flush(self) -> Flush:
        """For a thread of the owner's; then `flushed` or `flush_failed`."""
        return self.log.begin_flush()

    def flushed(self, found: Flush) -> None:
        self.log.flushed(found)
        self.commits.flushed(self.log.flushed_offset)

    def flush_failed(self, error: OSError) -> None:
        self.log.flush_failed(str(error))
        self.commits.failed()
        self.settle()

    def tick(self, now_ms: int) -> None:
        """Waits that took too long end; by the clock of `elapsed_ms`."""
        self.commits.expire(now_ms)
        self.settle()

    def save(self) -> None:
        """The log, then queues, index, checkpoint and marks are on disk. OSError."""
        self.log.save()
        self.commits.flushed(self.log.flushed_offset)
        self.dispatcher.save()

    def append_data(self, offset: int, data: BytesLike) -> int:
        """A master's bytes; how many were taken. Raises MessageStoreError: nothing was written."""
        if full := self.full:  # a write that failed would end this log, until it is opened anew
            raise MessageStoreError(full)
        return self.log.append_data(offset, data)

    def cut_back(self, end: int) -> int:
        """A slave's log goes back to where its master's agrees; how many bytes were cut, and are kept aside.

        In any thread, while nothing else uses this store; then `was_cut` in the owner's."""
        gone = self.log.cut(end)
        if self.end_position > end:
            begin, levels_ms = self.log.min_offset, self.settings.delay_levels_ms
            try:
                rebuild_derived(self.root, begin, end, self.dispatcher.sizes, levels_ms, self._disk, self._files)
                self.dispatcher = Dispatcher(self.root, delay_levels_ms=levels_ms, disk=self._disk, files=self._files)
            except (OSError, MessageStoreError, ValueError) as error:  # of what is gone, until a start does it
                self.log.flush_failed(f"its queues could not be written anew: {error}")
                raise
        return gone

    def was_cut(self) -> None:
        """Readers begin anew: what they remember may be gone."""
        for hear in self.on_rebuilt:
            hear()

    def begin_mark(self, found: Flush) -> Callable[[Disk], None]:
        """For a thread of the owner's, after that flush: a recovery begins there. Nothing is cut meanwhile."""
        mark = self.log.mark_of(found)
        return lambda disk: write_log_mark(self.root, mark, disk)

    def close(self) -> None:
        """All is saved, and a start finds a clean stop; not after a write that failed."""
        if not self.log.broken_by:
            self.log.save()
            while self.dispatch():
                pass
            self.dispatcher.save(is_clean=True)
            self.log.next_file.remove()
            if self.end_position == self.log.max_offset:
                self._disk.remove(self.root / ABORT)
        self._disk.close()
