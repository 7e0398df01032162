"""What becomes of puts when their lane ends: looked for in the log up to the next lane's end, never sent again."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence

import pytest

from node.broker import full_disk, put_lane
from node.broker.put_lane import PutLane
from node.client.append_group import AppendResult
from node.client.errors import LaneEnded, NotAppended, OutcomeUnknown, Trimmed, Unreachable
from node.message_store.batch import BatchedMessage, encode_batch
from node.message_store.new_message import PutLimits
from node.message_store.put_result import PutStatus
from node.message_store.record import TransactionType, decode_record
from node.protocol.codes import ResponseCode
from node.protocol.group_kind import Channel
from tests.unit.broker_kit import message
from tests.unit.engine_kit import until


class FakeLog:
    """A log of one leader, all of it dispatched as soon as `show` is called."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.dispatched_index = -1
        self.behind_s = 0.0
        self.looked_through: list[tuple[int, int]] = []

    def next_offset(self, topic: str, queue_id: int) -> int:
        shown = [decode_record(one) for one in self.records[: self.dispatched_index + 1]]
        return sum((one.topic, one.queue_id) == (topic, queue_id) and not one.sys_flag & 0xC for one in shown)

    def committed(self, index: int) -> None:
        self.dispatched_index = max(self.dispatched_index, index)

    async def reached(self, index: int) -> None:
        self.committed(index)

    def offsets_of(self, first_index: int, count: int) -> tuple[int, ...]:
        return tuple(1000 * one + 48 for one in range(first_index, first_index + count))

    async def look_through(self, from_index: int, upto_index: int, see: Callable[[int, bytes], None]) -> None:
        self.looked_through.append((from_index, upto_index))
        for index in range(from_index, upto_index + 1):
            place = self.offsets_of(index, 1)[0].to_bytes(8, "big")
            see(index, self.records[index][:28] + place + self.records[index][36:])


class FakeLane:
    """Takes what comes, and answers when the test says so."""

    def __init__(self, log: FakeLog) -> None:
        self.log, self.end_index, self.last_time_ms = log, len(log.records) - 1, -1
        self.window_entries, self.window_bytes = 1000, 1 << 20
        self.waits = False
        self.ended = ""
        self.appends: list[tuple[Sequence[bytes], asyncio.Future[AppendResult]]] = []

    def has_room(self, entries: int, size_bytes: int) -> bool:
        return True

    def append(
        self, bodies: Sequence[bytes], *, patch_at: int, channel: Channel = Channel.MESSAGE
    ) -> asyncio.Future[AppendResult]:
        assert patch_at == 28 and not self.ended
        answer: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        self.appends.append((bodies, answer))
        return answer

    def keep(self, at: int, count: int | None = None) -> AppendResult:
        """That append, or so many of its entries, is in the log."""
        first = len(self.log.records)
        self.log.records += self.appends[at][0][:count]
        return AppendResult(first, len(self.log.records) - 1, 1)

    def close(self) -> None:
        self.ended = "closed"


class Story:
    """One leadership with its lanes."""

    def __init__(self) -> None:
        self.log = FakeLog()
        self.lanes: list[FakeLane] = []
        self.put_lane = PutLane(self.log, self._open, PutLimits(), lambda: 1000)  # type: ignore[arg-type]

    async def _open(self) -> FakeLane:
        self.lanes.append(FakeLane(self.log))
        return self.lanes[-1]

    async def sent(self, appends: int = 1) -> FakeLane:
        """The lane, once so many appends left over it."""
        await until(lambda: len(self.lanes[-1].appends) >= appends)
        return self.lanes[-1]


async def lead(put_lane: PutLane) -> None:
    """As a change to MASTER does, and what goes on behind it."""
    await put_lane.take(await put_lane.open())
    await put_lane.keep()


def tell(story_of: Callable[[Story], Awaitable[None]]) -> None:
    async def whole() -> None:
        story = Story()
        leading = asyncio.create_task(lead(story.put_lane))
        await until(lambda: story.put_lane._lane is not None)
        try:
            await story_of(story)
        finally:
            leading.cancel()
            await asyncio.wait([leading])
            story.put_lane.stop_leading()
            story.put_lane.close()

    asyncio.run(whole())


UNKNOWN = OutcomeUnknown("no answer in time", code=ResponseCode.WAIT_QUORUM_ACK_TIMEOUT)


def test_what_was_unknown_is_found_in_the_log_or_is_not_there() -> None:
    async def story_of(story: Story) -> None:
        kept = story.put_lane.put(message(b"kept"))
        half = story.put_lane.put(message(b"half", sys_flag=int(TransactionType.PREPARED)))
        lane = await story.sent()
        lost = story.put_lane.put(message(b"lost"))
        await story.sent(2)
        lane.keep(0)
        lane.appends[0][1].set_exception(UNKNOWN)
        results = await asyncio.gather(kept, half, lost)
        assert [one.status for one in results] == [
            PutStatus.PUT_OK, PutStatus.PUT_OK, PutStatus.SERVICE_NOT_AVAILABLE,
        ]  # fmt: skip
        assert [one.physical_offsets for one in results] == [(48,), (1048,), ()]
        assert (len(story.lanes), story.log.looked_through) == (2, [(0, 1)])
        again = story.put_lane.put(message(b"again"))  # the table begins anew: the lost one's offset is free
        lane = await story.sent()
        assert decode_record(lane.appends[0][0][0]).queue_offset == 1
        lane.appends[0][1].set_result(lane.keep(0))
        assert (await again).queue_offset == 1

    tell(story_of)


def test_what_is_unknown_is_looked_for_until_the_engine_answers() -> None:
    async def story_of(story: Story) -> None:
        look_through, tries = story.log.look_through, 0

        async def lost_twice(from_index: int, upto_index: int, see: Callable[[int, bytes], None]) -> None:
            nonlocal tries
            tries += 1
            await look_through(from_index, upto_index - (tries < 3), see)  # a part of it was seen
            if tries < 3:
                raise Unreachable("n0: the connection was lost")

        story.log.look_through = lost_twice  # type: ignore[method-assign]
        kept, lost = story.put_lane.put(message(b"kept")), story.put_lane.put(message(b"lost"))
        lane = await story.sent()
        lane.keep(0, 1)
        lane.appends[0][1].set_exception(UNKNOWN)
        assert ((await kept).status, (await lost).status) == (PutStatus.PUT_OK, PutStatus.SERVICE_NOT_AVAILABLE)
        assert (tries, len(story.lanes)) == (3, 2)

    tell(story_of)


def test_what_cannot_be_looked_for_is_unknown_and_the_next_lane_opens() -> None:
    async def story_of(story: Story) -> None:
        async def gone(from_index: int, upto_index: int, see: Callable[[int, bytes], None]) -> None:
            raise Trimmed(0, 9, "n0")

        story.log.look_through = gone  # type: ignore[method-assign]
        put = story.put_lane.put(message())
        (await story.sent()).appends[0][1].set_exception(UNKNOWN)
        result = await put
        assert result.status is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH and "not kept any more" in result.reason
        await until(lambda: len(story.lanes) == 2 and story.put_lane.is_open)

    tell(story_of)


def test_who_is_looked_for_in_vain_is_answered_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(put_lane, "ANSWER_WITHIN_S", 0.01)

    async def story_of(story: Story) -> None:
        async def away(from_index: int, upto_index: int, see: Callable[[int, bytes], None]) -> None:
            raise Unreachable("n0: nothing listens there")

        story.log.look_through = away  # type: ignore[method-assign]
        put = story.put_lane.put(message())
        (await story.sent()).appends[0][1].set_exception(UNKNOWN)
        assert (await put).status is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
        await until(lambda: len(story.lanes) == 2 and story.put_lane.is_open)

    tell(story_of)


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("lane_ends", [True, False])
def test_who_would_put_it_again_waits_until_its_outcome_is_known(
    monkeypatch: pytest.MonkeyPatch, stored: bool, lane_ends: bool
) -> None:
    """A slow quorum had a delayed message delivered once more every 2.5 s, and a transaction committed twice."""
    monkeypatch.setattr(put_lane, "ANSWER_WITHIN_S", 0.01)

    async def story_of(story: Story) -> None:
        own = story.put_lane.put_own(message(b"own"), patient=True)
        put = story.put_lane.put(message(b"client's"))
        lane = await story.sent()
        assert (await put).status is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
        assert not own.done()
        kept = lane.keep(0) if stored else None
        if lane_ends or kept is None:
            lane.appends[0][1].set_exception(UNKNOWN)
        else:
            lane.appends[0][1].set_result(kept)
        assert (await own).status is (PutStatus.PUT_OK if stored else PutStatus.SERVICE_NOT_AVAILABLE)

    tell(story_of)


def test_one_that_waits_for_its_dispatch_hides_none_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(put_lane, "ANSWER_WITHIN_S", 0.01)

    async def story_of(story: Story) -> None:
        own = story.put_lane.put(message(b"own"), patient=True)
        put = story.put_lane.put(message(b"client's"))
        lane = await story.sent()
        monkeypatch.setattr(story.log, "committed", lambda index: None)
        lane.appends[0][1].set_result(lane.keep(0))
        assert (await put).reason == "it is committed, and its dispatch stands still"
        story.log.dispatched_index = 1
        story.put_lane.dispatched()
        assert (await own).physical_offsets == (48,)

    tell(story_of)


def test_what_was_refused_is_answered_by_its_cause_and_nothing_is_sent_again() -> None:
    causes = {
        ResponseCode.LEADER_PENDING_FULL: PutStatus.OS_PAGE_CACHE_BUSY,
        ResponseCode.NOT_LEADER: PutStatus.SERVICE_NOT_AVAILABLE,
        ResponseCode.LEADER_NOT_READY: PutStatus.SERVICE_NOT_AVAILABLE,
        ResponseCode.DISK_ERROR: PutStatus.CREATE_MAPPED_FILE_FAILED,
        ResponseCode.UNEXPECTED_ARGUMENT: PutStatus.UNKNOWN_ERROR,
        ResponseCode.DISK_FULL: PutStatus.SERVICE_NOT_AVAILABLE,  # the last: then none is tried for a while
    }

    async def story_of(story: Story) -> None:
        for number, (code, status) in enumerate(causes.items()):
            put = story.put_lane.put(message())
            lane = await story.sent()
            lane.appends[0][1].set_exception(LaneEnded("refused", code=code))
            assert (await put).status is status
            await until(lambda: story.put_lane._lane is not None)
            assert len(story.lanes) == number + 2
        assert sum(len(one.appends) for one in story.lanes) == len(causes)

    tell(story_of)


def test_on_a_full_disk_parts_of_a_snapshot_go_before_puts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_disk, "FULL_AGAIN_S", 0.0)

    async def story_of(story: Story) -> None:
        lanes, put_lane = story.lanes, story.put_lane
        put = put_lane.put(message())
        (await story.sent()).appends[0][1].set_exception(LaneEnded("full", code=ResponseCode.DISK_FULL))
        assert (await put).status is PutStatus.SERVICE_NOT_AVAILABLE
        await until(lambda: put_lane.is_open)
        put_lane.full_disk.is_held = lambda: True  # a snapshot is being written
        refused = await put_lane.put(message())
        assert (refused.status, refused.reason) == (PutStatus.SERVICE_NOT_AVAILABLE, "the disk is full")
        assert not put_lane.append_own(Channel.METADATA, b"m") and not lanes[-1].appends
        assert put_lane.append_own(Channel.SNAPSHOT_PART, b"p") and len(lanes[-1].appends) == 1
        lanes[-1].appends[0][1].set_result(lanes[-1].keep(0))
        put_lane.full_disk.is_held = lambda: False
        taken = put_lane.put(message())
        lane = await story.sent(2)
        lane.appends[1][1].set_result(lane.keep(1))
        assert (await taken).status is PutStatus.PUT_OK
        put_lane.full_disk.is_held = lambda: True  # of no matter while there is space
        assert put_lane.append_own(Channel.METADATA, b"m")
        lane.appends[2][1].set_result(lane.keep(2))

    tell(story_of)


def test_a_batch_of_which_a_part_is_there_is_not_known() -> None:
    async def story_of(story: Story) -> None:
        batch = encode_batch(BatchedMessage(0, b"%d" % n, b"") for n in range(3))
        put = story.put_lane.put_batch(message(batch))
        lane = await story.sent()
        lane.keep(0, 2)
        lane.appends[0][1].set_exception(UNKNOWN)
        assert (await put).status is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
        await until(lambda: story.put_lane._lane is not None)
        after = story.put_lane.put(message(b"after"))
        lane = await story.sent()
        assert decode_record(lane.appends[0][0][0]).queue_offset == 2
        lane.appends[0][1].set_result(lane.keep(0))
        assert (await after).status is PutStatus.PUT_OK

    tell(story_of)


def test_equal_half_messages_are_counted_apart_by_their_number() -> None:
    async def story_of(story: Story) -> None:
        halves = [story.put_lane.put(message(b"half", sys_flag=int(TransactionType.PREPARED))) for _ in range(2)]
        lane = await story.sent()
        lane.keep(0, 1)
        lane.appends[0][1].set_exception(UNKNOWN)
        statuses = [(await one).status for one in halves]
        assert statuses == [PutStatus.PUT_OK, PutStatus.SERVICE_NOT_AVAILABLE]

    tell(story_of)


def test_when_leadership_is_gone_nobody_knows_what_was_sent_and_nothing_else_left() -> None:
    async def story_of(story: Story) -> None:
        sent = story.put_lane.put(message(b"sent"))
        await story.sent()
        gathered = story.put_lane.put(message(b"gathered in this turn"))
        story.put_lane.stop_leading()
        assert (await sent).status is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
        assert (await gathered).status is PutStatus.SERVICE_NOT_AVAILABLE
        assert (await story.put_lane.put(message())).status is PutStatus.SERVICE_NOT_AVAILABLE

    tell(story_of)


def test_an_answer_comes_with_dispatch_and_not_with_the_commit() -> None:
    async def story_of(story: Story) -> None:
        put = story.put_lane.put(message())
        lane = await story.sent()
        committed: list[int] = []
        story.log.committed = committed.append  # type: ignore[method-assign]
        lane.appends[0][1].set_result(lane.keep(0))
        await until(lambda: bool(committed))
        await asyncio.sleep(0)
        assert not put.done()
        story.log.dispatched_index = 0
        story.put_lane.dispatched()
        assert (await put).physical_offsets == (48,)

    tell(story_of)


def test_puts_wait_for_a_lane_that_is_being_replaced() -> None:
    async def story_of(story: Story) -> None:
        first = story.put_lane.put(message(b"first"))
        lane = await story.sent()
        may_open, open_at_once = asyncio.Event(), story.put_lane._open_lane

        async def slow() -> object:
            await may_open.wait()
            return await open_at_once()

        story.put_lane._open_lane = slow  # type: ignore[assignment]
        lane.appends[0][1].set_exception(LaneEnded("another lane", code=ResponseCode.LANE_ENDED))
        assert (await first).status is PutStatus.SERVICE_NOT_AVAILABLE
        second = story.put_lane.put(message(b"second"))
        may_open.set()
        await until(lambda: len(story.lanes) == 2)
        lane = await story.sent()
        lane.appends[0][1].set_result(lane.keep(0))
        assert (await second).status is PutStatus.PUT_OK

    tell(story_of)


def test_a_lane_that_cannot_be_opened_is_tried_again() -> None:
    async def story() -> None:
        log, tries = FakeLog(), defaultdict(int)

        async def opened() -> FakeLane:
            tries["all"] += 1
            if tries["all"] < 3:
                raise NotAppended("not ready", code=ResponseCode.LEADER_NOT_READY)
            return FakeLane(log)

        put_lane = PutLane(log, opened, PutLimits(), lambda: 1000)  # type: ignore[arg-type]
        leading = asyncio.create_task(lead(put_lane))
        await until(lambda: put_lane.is_master)
        assert tries["all"] == 3 and put_lane.lanes_opened == 1
        leading.cancel()
        await asyncio.wait([leading])

    asyncio.run(story())
