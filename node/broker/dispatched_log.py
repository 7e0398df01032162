"""The committed log as this broker has it: followed, dispatched into queues and index, and what waits for that.

Follows the committed position of the own engine only, in order, in pieces of up to 1 MiB, from where the derived files
are sound. A committed entry that cannot be read or dispatched stops this until it can be; none is ever passed over.

Invariants: what is dispatched is committed; `dispatched_index` never goes back; the derived files are synced now and
then, and when it ends cleanly; a write of theirs that fails ends the process, which takes them up again where they are
sound; one that only lacks space is tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

from node.broker.derived_files import finish_save, remove_derived
from node.broker.host import MACHINE, BrokerHost
from node.broker.own_entries import own_entries, split_behind_metadata
from node.broker.state_replay import replayed
from node.client.errors import LedgerError, Trimmed, Unreachable
from node.message_store.dispatch import Dispatcher
from node.message_store.dispatch_mark import DerivedSizes, LogPoint, read_mark
from node.message_store.errors import MessageFormatError, MessageStoreError, NoSpaceToSave, NoSpaceToWrite
from node.message_store.message_store import log_begin
from node.message_store.metadata_state import Applied, MetadataState, OwnEntry
from node.message_store.old_part import border, dispatch_old_log, old_begin
from node.message_store.recent_entries import Piece, RecentEntries, pieces_of
from node.message_store.state_file import SavedState, saved
from node.protocol.entry import HEAD_BYTES
from node.transport.slab_frames import ReadAnswer

SAVE_EVERY_S: Final = 10.0
SAVE_STATE_BYTES: Final = 256 << 20  # so far behind the end of the log it may lie where nothing has changed
AGAIN_S_MIN: Final = 0.05
AGAIN_S_MAX: Final = 1.0
Touched = dict[tuple[str, int], int]
Note = Callable[[str, str, str], None]


class Source(Protocol):
    """Where committed entries are read."""

    async def entries_from(self, index: int) -> ReadAnswer: ...
    async def entries_awaited(self, index: int) -> ReadAnswer: ...


class AnotherLog(MessageStoreError):
    """The derived files are of a log that is not the one here."""


class _TrimmedPast(Exception):
    """The log begins behind what is dispatched."""

    def __init__(self, trimmed: Trimmed) -> None:
        super().__init__(str(trimmed))
        self.trimmed = trimmed


class DispatchedLog:
    """See the module's docstring. `on_dispatched` is called with the queues that got messages, and their new ends."""

    def __init__(
        self, root: Path, source: Source, note: Note, sizes: DerivedSizes | None = None,
        recent: RecentEntries | None = None, delay_levels_ms: tuple[int, ...] | None = None,
        host: BrokerHost = MACHINE,
    ) -> None:  # fmt: skip
        self.root, self._source, self._note, self._sizes = root, source, note, sizes
        self._levels_ms, self._host = delay_levels_ms, host
        self._loop = asyncio.get_running_loop()
        self.recent = RecentEntries() if recent is None else recent
        self.dispatcher: Dispatcher | None = None
        self.on_dispatched: list[Callable[[Touched], None]] = []
        self.state: MetadataState | None = None  # as of `dispatched_index`; None: not known yet
        self.on_state: list[Callable[[], None]] = []  # it is known now
        self.on_applied: list[Callable[[Applied], None]] = []  # each entry that is no message, in the log's order
        self.dispatched_index = -1
        self.committed_index = -1
        self.end_position = 0
        self.last_term = -1  # of the last entry that is dispatched
        self.stopped_by = ""  # why nothing is dispatched; empty: nothing is wrong
        self.awaits_next = False  # while puts wait for it: what is committed comes without being asked for
        self._leaders_end = -1  # where the own log ended when its engine led: no committed entry is behind that
        self._wake = asyncio.Event()
        self._reached: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._due: deque[tuple[int, float]] = deque()  # committed indexes, and when they were first heard of
        self._saved_at = self._loop.time()
        self._is_saved = True
        self._moved_at = self._loop.time()
        self._saving: asyncio.Future[None] | None = None
        self._unsaved_by = ""  # why the last save found no space
        self._state_saved = -1, 0  # changes in the state that is on disk, and where the log ended then

    # --- what is asked of it --------------------------------------------------------------------------------------
    @property
    def behind_s(self) -> float:
        """For how long something committed has waited for its dispatch."""
        return self._loop.time() - self._due[0][1] if self._due else 0.0

    @property
    def still_s(self) -> float:
        """For how long nothing was dispatched, though something waits for it."""
        return self._loop.time() - max(self._due[0][1], self._moved_at) if self._due else 0.0

    @property
    def next_offsets(self) -> Mapping[tuple[str, int], int]:
        """The number that the next message of each queue gets."""
        return {} if self.dispatcher is None else self.dispatcher.next_offsets

    def queue_end(self, queue: tuple[str, int]) -> int:
        """The number behind its last message here; 0 where it has none."""
        return 0 if self.dispatcher is None else self.dispatcher.queue_end(queue)

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Also of a queue that only a snapshot, or an adopted directory, knows."""
        found = self.queue_end((topic, queue_id))
        return found if found or self.state is None else self.state.places.get((topic, queue_id), 0)

    def committed(self, index: int) -> None:
        """The engine says that the log is committed up to `index`: it is dispatched next."""
        if index > self.committed_index:
            self.committed_index = index
            if index > self.dispatched_index:
                now = self._loop.time()
                if not self._due or now - self._due[-1][1] > 0.01:  # to a hundredth of a second, however many come
                    self._due.append((index, now))
                else:
                    self._due[-1] = (index, self._due[-1][1])
                self._wake.set()

    def led_with_end(self, end_index: int) -> None:
        """The own engine leads, and its log ends there. A leader's log has every committed entry (Raft, 5.4.3)."""
        self._leaders_end = end_index

    async def reached(self, index: int) -> None:
        """Returns once everything up to there is dispatched."""
        if index > self.dispatched_index:
            done: asyncio.Future[None] = self._loop.create_future()
            self._reached.append((index, done))
            await done

    def offsets_of(self, first_index: int, count: int) -> tuple[int, ...]:
        """Where the records of dispatched entries begin; none for what was dispatched long ago."""
        return self.recent.offsets_of(first_index, count) or ()

    async def look_through(self, from_index: int, upto_index: int, see: Callable[[int, bytes], None]) -> None:
        """Shows the messages of a range that is committed. Raises LedgerError, MessageFormatError."""
        index = from_index
        while index <= upto_index:
            answer = await self._source.entries_from(index)
            for piece in pieces_of(answer.records, answer.first_index) if answer.count else ():
                batch = piece.messages()
                indexes = [piece.first_index + at for at, channel in enumerate(piece.channels) if not channel]
                for at, start, size in zip(indexes, batch.starts.tolist(), batch.sizes.tolist(), strict=True):
                    if from_index <= at <= upto_index:
                        see(at, bytes(piece.data[start : start + size]))
                index = piece.last_index + 1
            if not answer.count:
                await asyncio.sleep(AGAIN_S_MIN)

    # --- the work -------------------------------------------------------------------------------------------------
    async def run(self) -> None:
        """For ever. Raises OSError, and AnotherLog where the derived files do not fit this log."""
        await self._open()
        wait_s = AGAIN_S_MIN
        while True:
            self._save_if_due()
            try:
                if self.dispatched_index >= self.committed_index and not self.awaits_next:
                    await self._idle()
                    continue
                await self._step()
                wait_s = AGAIN_S_MIN
                self._go_on()
            except (LedgerError, MessageFormatError, MessageStoreError, NoSpaceToWrite) as error:
                if isinstance(error, Trimmed) and error.begin_index > self.dispatched_index + 1:
                    await self._begin_anew(error)
                    await self._open()
                    continue
                self._stop_at(error)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, AGAIN_S_MAX)

    async def _idle(self, most_s: float = SAVE_EVERY_S) -> None:
        self._wake.clear()
        left_s = most_s if self._is_saved else max(0.01, self._saved_at + SAVE_EVERY_S - self._loop.time())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(left_s, most_s)):
                await self._wake.wait()

    async def _step(self) -> None:
        waits = (index := self.dispatched_index + 1) > self.committed_index
        answer = await (self._source.entries_awaited(index) if waits else self._source.entries_from(index))
        if answer.count:
            for whole in pieces_of(answer.records, answer.first_index):
                for piece in split_behind_metadata(whole) if any(whole.channels) else (whole,):
                    self._take(piece)
        elif waits and index > self.committed_index:
            await self._idle(AGAIN_S_MIN)  # where the engine has no room for reads that wait, it answers at once
        elif not waits and answer.committed_index < self.committed_index:
            await asyncio.sleep(AGAIN_S_MIN)

    def _take(self, piece: Piece) -> None:
        assert self.dispatcher is not None and self.state is not None
        own = own_entries(piece)
        touched = self.dispatcher.dispatch(piece.messages(), piece.end)
        self.recent.add(piece)
        self.dispatched_index, self.end_position = piece.last_index, piece.end.position
        self.last_term = piece.end.term
        self._is_saved, self._moved_at = False, self._loop.time()
        while self._due and self._due[0][0] <= self.dispatched_index:
            self._due.popleft()
        self.committed(piece.last_index)
        for one in own:
            self._take_own(one, piece.position)
        self.state.passed(piece.last_index)
        for listener in self.on_dispatched:
            listener(touched)
        self._say_reached()

    def _say_reached(self) -> None:
        """Wakes those that wait for an entry which is dispatched by now."""
        if self._reached:
            for _index, done in [one for one in self._reached if one[0] <= self.dispatched_index]:
                if not done.done():
                    done.set_result(None)
            self._reached = deque(one for one in self._reached if not one[1].done())

    def _take_own(self, one: OwnEntry, position: int) -> None:
        """Metadata, or a part of a snapshot. What it means to queues is done again where they are written again."""
        assert self.dispatcher is not None and self.state is not None
        applied = self.state.take(one)
        if applied.snapshot is not None:
            self.state.snapshot_at = position
        for topic in one.dropped:
            self.dispatcher.drop_topic(topic)
        if applied.is_replaced:
            self._keep_places()
        for listener in self.on_applied:
            listener(applied)

    def _keep_places(self) -> None:
        """Keeps the next offset of each queue that has no message left in this log."""
        assert self.dispatcher is not None and self.state is not None
        known, begin = self.dispatcher.next_offsets, log_begin(self.root, self._host.files)
        for queue, offset in self.state.places.items():
            if queue not in known:
                self.dispatcher.keep_place(queue, offset, begin)

    def _save_if_due(self) -> None:
        """In a thread, while dispatch goes on: a slow disk must not hold up puts. Raises OSError of the last one."""
        if self._saving is not None and self._saving.done():
            saving, self._saving = self._saving, None
            self._is_saved = self._was_saved(saving) and self._is_saved  # asked whatever was dispatched meanwhile
        due = not self._is_saved and self._loop.time() - self._saved_at >= SAVE_EVERY_S
        if due and self._saving is None and self.dispatcher is not None:
            state = self._state_to_save()
            finish = self.dispatcher.begin_save()
            self._saving = self._loop.run_in_executor(None, finish_save, finish, state, self.root, self._host)
            self._saving.add_done_callback(lambda _: self._wake.set())
            self._saved_at, self._is_saved = self._loop.time(), True

    def _was_saved(self, saving: asyncio.Future[None]) -> bool:
        """Where only the space was missing it is tried again, and until then a start begins further back."""
        try:
            saving.result()
        except NoSpaceToSave as error:
            if not self._unsaved_by:
                self._note("save_put_off", "warning", f"how far queues and index are is not on disk: {error}")
            self._unsaved_by, self._state_saved = str(error), (-1, 0)
            return False
        self._unsaved_by = ""
        return True

    def _state_to_save(self, *, at_end: bool = False) -> SavedState | None:
        """None: what is on disk is as good, or nearly."""
        state, (changes, position) = self.state, self._state_saved
        if (
            state is None
            or not state.is_whole
            or (state.changes == changes and self.end_position - position < SAVE_STATE_BYTES and not at_end)
        ):
            return None
        self._state_saved = state.changes, self.end_position
        return saved(state)

    def _stop_at(self, error: Exception) -> None:
        if str(error) != self.stopped_by and not isinstance(error, Unreachable):  # an engine that starts, or is away
            self.stopped_by = str(error)
            self._note("dispatch_stopped", "error", f"entry {self.dispatched_index + 1}: {error}")

    def _go_on(self) -> None:
        if self.stopped_by:
            self.stopped_by = ""
            self._note("dispatch_goes_on", "info", f"up to entry {self.dispatched_index}")

    # --- the beginning --------------------------------------------------------------------------------------------
    async def _open(self) -> None:
        """Where the derived files are sound, in the log that is here."""
        while self.dispatcher is None:
            try:
                mark = read_mark(self.root, self._host.files)
                old = old_begin(self.root, self._host.files)
                point = (old or await self._first_point()) if mark is None else mark.point
                if point is not None:
                    if mark is not None:
                        await self._check(point)
                    state = await replayed(self.root, self._source, point.index, self._host.files)
                    dispatcher = Dispatcher(
                        self.root, self._sizes, begin=point, dense_from=border(self.root, self._host.files),
                        delay_levels_ms=self._levels_ms, disk=self._host.disk(), files=self._host.files,
                    )  # fmt: skip
                    await asyncio.to_thread(dispatch_old_log, dispatcher, self.root, self._host.files)
                    self.dispatcher, point = dispatcher, dispatcher.point
                    self.dispatched_index, self.end_position = point.index, point.position
                    self.last_term = point.term
                    self._say_reached()  # who asked while this was opened: there may be nothing behind it
                    self.state = state
                    for hear in self.on_state:
                        hear()
                    return
            except AnotherLog:
                raise
            except _TrimmedPast as error:
                await self._begin_anew(error.trimmed)
                continue
            except (LedgerError, MessageFormatError, MessageStoreError) as error:
                self._stop_at(error)
            await asyncio.sleep(AGAIN_S_MIN)

    async def _begin_anew(self, trimmed: Trimmed) -> None:
        """Entries that were not dispatched yet are gone from this member's log (it was given another beginning, behind
        them): queues and index are written anew from its beginning, and the snapshot in it says the rest. The mark goes
        last: a start that finds it finds this again. Raises OSError."""
        reason = f"the log begins at entry {trimmed.begin_index} now: queues and index are written anew from there"
        self._note("queues_written_anew", "warning", reason)
        if self._saving is not None:
            await asyncio.wait([self._saving])
            self._saving = None
        if self.dispatcher is not None:
            self.dispatcher.abandon()
        self.dispatcher, self.state = None, None
        self._is_saved, self._state_saved = True, (-1, 0)
        await asyncio.to_thread(remove_derived, self.root, self._host)

    async def _first_point(self) -> LogPoint | None:
        """Where the log begins; None: nothing is committed yet."""
        try:
            answer = await self._source.entries_from(0)
        except Trimmed as trimmed:
            answer = await self._source.entries_from(trimmed.begin_index)
        if not answer.count:
            return None
        first = pieces_of(answer.records, answer.first_index)[0]
        return LogPoint(first.position, first.first_index - 1)

    async def _check(self, point: LogPoint) -> None:
        """The last entry that was dispatched is still the one that it was. Raises AnotherLog."""
        if point.index < 0:
            return
        while True:
            try:
                answer = await self._source.entries_from(point.index)
            except Trimmed as trimmed:
                if trimmed.begin_index == point.index + 1:
                    return
                raise _TrimmedPast(trimmed) from trimmed
            if answer.count:
                break
            if 0 <= self._leaders_end < point.index:
                raise AnotherLog(
                    f"queues and index end at entry {point.index}, the log ends at {self._leaders_end}:"
                    " `quorumscope store rebuild-queues` writes them anew"
                )
            self._stop_at(MessageStoreError(f"queues and index end at entry {point.index}, which is not here yet"))
            await asyncio.sleep(AGAIN_S_MIN)  # this member has not got it back yet
        self._go_on()
        first = pieces_of(answer.records, answer.first_index)[0]
        end = first.starts[1] if len(first.starts) > 1 else len(first.data)
        chain = int.from_bytes(first.data[36:40], "big") if len(first.data) >= HEAD_BYTES else -1
        if (first.position + end, chain) != (point.position, point.chain):
            raise AnotherLog(
                f"entry {point.index} is not the one that queues and index were written from:"
                " `quorumscope store rebuild-queues` writes them anew"
            )

    async def close(self) -> None:
        """Synced, and marked as clean, unless a write or a sync failed. Raises OSError, also of a save under way."""
        if self._saving is not None:
            await asyncio.wait([self._saving])
        if self.dispatcher is not None:
            self.dispatcher.close()
            if not self.dispatcher.is_broken and (state := self._state_to_save(at_end=True)) is not None:
                state.write(self.root, self._host.disk())
        if self._saving is not None:
            with contextlib.suppress(NoSpaceToSave):  # what it could not write is written now
                self._saving.result()
