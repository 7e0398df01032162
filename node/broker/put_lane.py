"""Puts into the log: offsets given out, records built and sent over a lane, each put answered when it can be read.

While this member's engine leads, `keep` replaces a lane that ended. Whatever ends a lane, nothing is sent again: the
next lane's end index bounds what of the earlier one can be in the log; once that is dispatched, what was unknown is
looked up there and the table of queue offsets begins anew. RocketMQ's put lock is this lane: while it is replaced, puts
wait for it, and when that takes longer than a second, they are answered OS_PAGE_CACHE_BUSY, as there.

Invariants: load refuses before an offset is given out; messages are in the log in the order of their offsets; what has
left is never sent again; one broker task writes, so no lock is needed.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Protocol

from node.broker.full_disk import FullDisk
from node.broker.open_puts import Answer, MessagePut, OpenPut, PlacedPuts, Places, Search, SentPuts, look_for
from node.broker.put_statuses import away, busy, result_of, unknown
from node.client.append_group import AppendResult
from node.client.errors import Denied, LaneEnded, LedgerError, NotAppended
from node.client.lane import Lane
from node.message_store.errors import MessageFormatError
from node.message_store.new_message import NewMessage, PutLimits, Refused, record_bytes
from node.message_store.put_result import PutResult, refused
from node.message_store.record import PHYSICAL_OFFSET_AT
from node.message_store.record_building import QueueOffsets
from node.protocol.group_kind import Channel
from node.protocol.inert_records import inert_record

LOCKED_S_MAX: Final = 1.0  # the lane is being replaced, or dispatch is behind, for so long: busy
ANSWER_WITHIN_S: Final = 2.5  # then the put's outcome is not known; RocketMQ's clients wait 3 s
FRAME_BYTES: Final = 1 << 20
FRAME_ENTRIES: Final = 4096
OPEN_AGAIN_S: Final = 0.02
DENIED_AGAIN_S: Final = 1.0


class Log(Places, Protocol):
    """What is needed of the dispatched log. `awaits_next`: puts wait for what is committed next."""

    awaits_next: bool

    @property
    def behind_s(self) -> float:
        """For how long something committed has waited for its dispatch."""

    def next_offset(self, topic: str, queue_id: int) -> int: ...
    def committed(self, index: int) -> None: ...
    async def reached(self, index: int) -> None: ...
    async def look_through(self, from_index: int, upto_index: int, see: Callable[[int, bytes], None]) -> None: ...


class PutLane:
    """See the module's docstring. `open_lane` asks this member's own engine; `now_ms` is the wall clock."""

    def __init__(
        self, log: Log, open_lane: Callable[[], Awaitable[Lane]], limits: PutLimits, now_ms: Callable[[], int]
    ) -> None:
        self._log, self._open_lane, self._limits, self._now_ms = log, open_lane, limits, now_ms
        self._loop = asyncio.get_running_loop()
        self._lane: Lane | None = None
        self._offsets: QueueOffsets | None = None
        self._ended = asyncio.Event()
        self._why_away = "this member does not lead"
        self._replaced_since: float | None = None  # a lane ended, and the next is not open yet
        self._turn: list[OpenPut] = []
        self._turn_entries = self._turn_bytes = 0
        self._sent: deque[SentPuts] = deque()
        self._placed = PlacedPuts(log)
        self._waiting: deque[tuple[list[NewMessage], Answer, float, bool]] = deque()
        self._last_index = -1  # the highest that an append of ours is known to have
        self._sweeping: asyncio.TimerHandle | None = None
        self.lanes_opened = 0
        self.full_disk = FullDisk()
        self.on_open: list[Callable[[], None]] = []  # before any message goes over the new lane
        self.on_left: list[Callable[[], None]] = []  # this member stopped leading

    @property
    def is_open(self) -> bool:
        return self._lane is not None

    @property
    def is_master(self) -> bool:
        """Whether puts are taken."""
        return self._lane is not None or self._replaced_since is not None

    # --- puts -----------------------------------------------------------------------------------------------------
    def put(self, message: NewMessage, *, patient: bool = False) -> Answer:
        """Starts it; the future has the result, and never an error. `patient`: for as long as this member leads, what
        became of it is waited for, so that nobody puts it again who should not."""
        try:
            return self._enter([self._limits.judged(message)], patient)
        except Refused as refusal:
            return self._over(refused(refusal.status, refusal.reason))

    def put_own(self, message: NewMessage, *, spare_bytes: int = 0, patient: bool = False) -> Answer:
        """The same, for what the broker itself puts: it goes where it says, also with a delay level."""
        try:
            return self._enter([self._limits.judged(message, moves=False, spare_bytes=spare_bytes)], patient)
        except Refused as refusal:
            return self._over(refused(refusal.status, refusal.reason))

    def put_batch(self, batch: NewMessage) -> Answer:
        """The same, for a batch: all of it or nothing."""
        try:
            return self._enter(self._limits.judged_batch(batch))
        except Refused as refusal:
            return self._over(refused(refusal.status, refusal.reason))

    def _over(self, result: PutResult) -> Answer:
        answer: Answer = self._loop.create_future()
        answer.set_result(result)
        return answer

    def _enter(self, messages: list[NewMessage], patient: bool = False) -> Answer:
        if not self.is_master:
            return self._over(away(self._why_away))
        if self.full_disk.is_full:
            return self._over(away("the disk is full"))
        if self._log.behind_s > LOCKED_S_MAX:
            return self._over(busy(f"dispatch is {self._log.behind_s:.1f} s behind"))
        answer: Answer = self._loop.create_future()
        if self._lane is not None:
            self._give(messages, answer, self._due_at(patient))
        elif self._loop.time() - (self._replaced_since or 0.0) > LOCKED_S_MAX:
            answer.set_result(busy("the lane is being replaced for more than a second"))
        else:
            self._waiting.append((messages, answer, self._loop.time() + LOCKED_S_MAX, patient))
            self._sweep_later()
        return answer

    def _due_at(self, patient: bool) -> float:
        return math.inf if patient else self._loop.time() + ANSWER_WITHIN_S

    def _give(self, messages: list[NewMessage], answer: Answer, due_at: float) -> None:
        """Gives messages their queue offsets and builds their records; a full window is answered "busy" before that."""
        lane, offsets = self._lane, self._offsets
        assert lane is not None and offsets is not None
        count, size_bytes = len(messages), sum(map(record_bytes, messages))
        if not self._has_room(lane, count, size_bytes):
            answer.set_result(busy("the lane is full: as much waits for its commit as is allowed"))
            return
        built = offsets.build(messages, self._now_ms())
        self._in_turn(MessagePut(built, messages[0], answer, size_bytes, due_at))

    def put_record(
        self, topic: str, queue_id: int, size_bytes: int, record_of: Callable[[int, int, float], OpenPut]
    ) -> bool:
        """Starts a put of one record that was judged already; False: nothing was done, and `put` knows why.

        `record_of` makes it of its queue offset, the time at which it is stored, and when it is to be over at last.
        """
        lane, offsets = self._lane, self._offsets
        if lane is None or offsets is None or self.full_disk.was_met or self._log.behind_s > LOCKED_S_MAX:
            return False
        if not self._has_room(lane, 1, size_bytes):
            return False
        due_at = self._loop.time() + ANSWER_WITHIN_S
        self._in_turn(offsets.build_one(topic, queue_id, self._now_ms(), lambda at, ms: record_of(at, ms, due_at)))
        return True

    def _in_turn(self, put: OpenPut) -> None:
        if not self._turn:
            self._loop.call_soon(self._flush)
        self._turn.append(put)
        self._turn_entries += len(put.records)
        self._turn_bytes += put.size_bytes
        self._sweep_later()

    def _has_room(self, lane: Lane, count: int, size_bytes: int) -> bool:
        """Whether the lane's window takes these entries; one put alone always fits."""
        count, size_bytes = count + self._turn_entries, size_bytes + self._turn_bytes
        if lane.waits:
            return lane.has_room(count, size_bytes)
        return not self._turn or (count <= lane.window_entries and size_bytes <= lane.window_bytes)

    # --- the lane -------------------------------------------------------------------------------------------------
    def _flush(self) -> None:
        """What came in this turn of the loop leaves together."""
        turn, self._turn = self._turn, []
        self._turn_entries = self._turn_bytes = 0
        begin = entries = size_bytes = 0
        for at, put in enumerate(turn):
            records, put_bytes = put.records, put.size_bytes
            if at > begin and (entries + len(records) > FRAME_ENTRIES or size_bytes + put_bytes > FRAME_BYTES):
                self._send(turn[begin:at])
                begin, entries, size_bytes = at, 0, 0
            entries += len(records)
            size_bytes += put_bytes
        if turn:
            self._send(turn[begin:])

    def _send(self, puts: list[OpenPut]) -> None:
        lane = self._lane
        if lane is None:  # it ended within this turn: their offsets ended with it, and nothing of them left
            _end_all(puts, away(self._why_away))
            return
        try:
            bodies = [record for put in puts for record in put.records]
            under_way = lane.append(bodies, patch_at=PHYSICAL_OFFSET_AT)
        except NotAppended as error:
            _end_all(puts, result_of(error))
            self._lane_over(lane, str(error))
            return
        sent = SentPuts(puts, max(self._last_index, lane.end_index))
        self._sent.append(sent)
        under_way.add_done_callback(partial(self._answered, lane, sent))

    def _answered(self, lane: Lane, sent: SentPuts, done: asyncio.Future[AppendResult]) -> None:
        error = ConnectionError("cancelled") if done.cancelled() else done.exception()
        if sent.is_settled:
            return  # the next lane has bounded what became of it
        if error is None:
            self._take_out(sent)
            self._place(sent, done.result())
        elif isinstance(error, LaneEnded):
            self._take_out(sent)
            _end_all(sent.puts, result_of(error))
            self.full_disk.refused(error)
            self._lane_over(lane, str(error))
        else:  # what is not known stays until it is looked for, or its time is up
            self._lane_over(lane, str(error))

    # --- entries that are no messages -----------------------------------------------------------------------------
    def append_own(self, channel: Channel, content: bytes, restarted: Sequence[str] = ()) -> bool:
        """Metadata, or a part of a snapshot, behind every put that was called before it; whether it has left.

        What became of it the log says: once it is dispatched, or by the next lane, it is there or never will be.
        `restarted`: topics that it deletes.
        """
        self._flush()
        lane, offsets = self._lane, self._offsets
        if lane is None or offsets is None or (channel is not Channel.SNAPSHOT_PART and self.full_disk.is_full):
            return False
        record = inert_record(channel, content, offsets.time_ms(self._now_ms()))
        if not lane.has_room(1, len(record)):
            return False
        try:
            under_way = lane.append([record], patch_at=PHYSICAL_OFFSET_AT, channel=channel)
        except NotAppended as error:
            self._lane_over(lane, str(error))
            return False
        for topic in restarted:
            offsets.restart(topic)
        under_way.add_done_callback(partial(self._own_answered, lane))
        return True

    def _own_answered(self, lane: Lane, done: asyncio.Future[AppendResult]) -> None:
        error = ConnectionError("cancelled") if done.cancelled() else done.exception()
        if error is not None:
            self.full_disk.refused(error)
            self._lane_over(lane, str(error))
        else:
            self._last_index = max(self._last_index, done.result().last_index)
            self._log.committed(done.result().last_index)

    def _take_out(self, sent: SentPuts) -> None:
        sent.is_settled = True
        if self._sent and self._sent[0] is sent:
            self._sent.popleft()
        else:
            self._sent.remove(sent)

    def _place(self, sent: SentPuts, result: AppendResult) -> None:
        index = result.first_index
        for put in sent.puts:
            put.indexes = range(index, index + len(put.records))
            index += len(put.records)
        self._last_index = max(self._last_index, result.last_index)
        self.full_disk.taken()
        self._log.committed(result.last_index)
        for put in sent.puts:
            self._placed.add(put)

    def _lane_over(self, lane: Lane, why: str) -> None:
        if self._lane is lane:
            lane.close()
            self._lane, self._offsets, self._why_away = None, None, why
            self._replaced_since = self._loop.time()
            self._ended.set()

    def dispatched(self) -> None:
        """More of the log is dispatched: puts that can be read now are answered."""
        self._placed.dispatched()

    # --- leading --------------------------------------------------------------------------------------------------
    async def open(self) -> Lane:
        """The next lane, which voids every earlier one; tried until it is open."""
        self._why_away = "this member leads, and has no lane yet"
        while True:
            try:
                return await self._open_lane()
            except Denied as error:
                self._why_away = str(error)
                await asyncio.sleep(DENIED_AGAIN_S)
            except LedgerError as error:
                self._why_away = str(error)
                await asyncio.sleep(OPEN_AGAIN_S)

    async def take(self, lane: Lane) -> None:
        """Once everything up to its end is dispatched: puts are taken over it. What earlier lanes left is settled, and
        the table of queue offsets begins anew (RocketMQ's recoverTopicQueueTable)."""
        await self._settle(lane.end_index)
        self._offsets = QueueOffsets(self._log.next_offset, lane.last_time_ms)
        self._lane, self._replaced_since = lane, None
        self._log.awaits_next = True
        self._ended.clear()
        self.lanes_opened += 1
        for hear in self.on_open:
            hear()
        self._let_in()

    async def keep(self) -> None:
        """For ever, while this member leads: a lane that ended is replaced."""
        while True:
            await self._ended.wait()
            lane = await self.open()
            await self._log.reached(lane.end_index)
            await self.take(lane)

    async def _settle(self, end_index: int) -> None:
        """What earlier lanes left: it is in the log up to here, or nowhere."""
        open_ = list(self._sent)  # they stay there while they are looked for: their time may end
        for sent in open_:
            sent.is_settled = True
        try:
            search = await look_for(open_, self._log.look_through, end_index)
        except (LedgerError, MessageFormatError) as error:
            search = Search([])
            _end_all([put for sent in open_ for put in sent.puts], unknown(f"it cannot be looked for: {error}"))
        self._sent.clear()
        for put in search.stored():
            self._placed.add(put)
        _end_all(search.absent(), away("the lane ended before it was in the log"))
        _end_all(search.partly(), unknown("a part of it is in the log"))

    def _let_in(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for messages, answer, _busy_at, patient in waiting:
            if not answer.done():
                self._give(messages, answer, self._due_at(patient))

    def stop_leading(self) -> None:
        """This member does not lead any more: nothing is taken, and what has no outcome is answered."""
        lane, self._lane, self._offsets, self._replaced_since = self._lane, None, None, None
        self._why_away = "this member does not lead"
        self._log.awaits_next = False
        if lane is not None:
            lane.close()
        turn, self._turn = self._turn, []
        self._turn_entries = self._turn_bytes = 0
        _end_all(turn, away(self._why_away))
        for _messages, answer, _busy_at, _patient in self._waiting:
            _end(answer, away(self._why_away))
        self._waiting.clear()
        for sent in list(self._sent):
            self._take_out(sent)
            _end_all(sent.puts, unknown("this member stopped leading"))
        for hear in self.on_left:
            hear()

    # --- time -----------------------------------------------------------------------------------------------------
    def _sweep_later(self) -> None:
        if self._sweeping is None:
            self._sweeping = self._loop.call_later(LOCKED_S_MAX / 4, self._sweep)

    def _sweep(self) -> None:
        """Nobody waits for ever: neither for a lane, nor for a quorum, nor for a dispatch that stands still."""
        self._sweeping, now = None, self._loop.time()
        while self._waiting and (self._waiting[0][2] <= now or self._waiting[0][1].done()):
            _end(self._waiting.popleft()[1], busy("the lane is being replaced for more than a second"))
        _end_all(self._placed.late(now), unknown("it is committed, and its dispatch stands still"))
        for sent in self._sent:
            _end_all([put for put in sent.puts if put.due_at <= now], unknown("no quorum has it in time"))
        if self._waiting or self._sent or self._placed:
            self._sweep_later()

    def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()


def _end(answer: Answer, result: PutResult) -> None:
    if not answer.done():
        answer.set_result(result)


def _end_all(puts: Sequence[OpenPut], result: PutResult) -> None:
    for put in puts:
        put.end(result)
