"""Messages that wait for their time: delivered once due, as RocketMQ does, none lost, none again without need."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from node.broker import schedule
from node.broker.broker import Broker
from node.broker.schedule import ScheduleService
from node.message_store.broker_tables import DELAY_OFFSETS
from node.message_store.new_message import NewMessage
from node.message_store.properties import join_properties
from node.message_store.put_result import PutStatus
from node.message_store.queue_units import SCHEDULE_TOPIC
from node.message_store.record import MessageRecord, decode_record
from tests.ports import free_ports
from tests.unit.broker_kit import HOST, STORE, broker_of, engine_of, message, settings_of
from tests.unit.engine_kit import until
from tests.unit.memory_messages import MemoryMessages

LEVELS_MS = (1_000, 5_000)


class Offsets:
    def __init__(self) -> None:
        self.kept: dict[int, int] = {}
        self.takes = True

    def get(self, level: int) -> int | None:
        return self.kept.get(level)

    def commit(self, offsets: Mapping[int, int]) -> bool:
        self.kept |= offsets if self.takes else {}
        return self.takes


class Story:
    """A service over messages in memory, with a clock that the test sets."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.steady_ms = 0
        self.store = MemoryMessages(now_ms=lambda: self.now_ms)
        self.offsets = Offsets()
        self.noted: list[str] = []
        self.service = self.begun()

    def begun(self) -> ScheduleService:
        """Another master's, or this one's again."""
        self.service = ScheduleService(
            self.store, self.offsets, LEVELS_MS, lambda: self.now_ms, lambda: self.steady_ms,
            lambda *said: self.noted.append(said[2]),
        )  # fmt: skip
        self.store.on_dispatched = [self.service.arrived]
        self.service.start()
        return self.service

    async def put(self, body: bytes, level: int = 1, **changes: object) -> None:
        properties = join_properties([("KEYS", "k"), ("DELAY", str(level))])
        assert (await self.store.put(message(body, properties_data=properties, queue_id=3))).status is PutStatus.PUT_OK

    def delivered(self) -> list[bytes]:
        return [decode_record(one).body for one in self.store.queues.get(("TopicTest", 3), [])]


def tell(story_of: Callable[[Story], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK_S_MAX", "AGAIN_S", "COMMIT_EVERY_S"):
        monkeypatch.setattr(schedule, name, 0.005)

    async def whole() -> None:
        story = Story()
        try:
            await story_of(story)
        finally:
            story.service.stop()

    asyncio.run(whole())


def test_messages_are_delivered_when_they_are_due_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story_of(story: Story) -> None:
        for n in range(40):
            await story.put(b"%d" % n)
        await story.put(b"later", 2)
        story.now_ms += 999
        await asyncio.sleep(0.03)
        assert story.delivered() == []
        due_ms = story.now_ms - 999 + 1000
        assert [(one.level, one.waiting, one.due_ms, one.overdue_ms) for one in story.service.pending()] == [
            (1, 40, due_ms, 0), (2, 1, due_ms + 4000, 0)
        ]  # fmt: skip
        story.now_ms += 1
        await until(lambda: len(story.delivered()) == 40)
        assert story.delivered() == [b"%d" % n for n in range(40)]
        story.now_ms += 4_000
        await until(lambda: story.delivered()[40:] == [b"later"])
        await until(lambda: story.offsets.kept == {1: 40, 2: 1})
        assert story.service.delivered == 41 and story.service.pending() == []
        assert story.store.patient[-41:] == [True] * 41, "what may be stored after all would be delivered again"

    tell(story_of, monkeypatch)


def test_what_is_delivered_is_the_message_with_its_properties_as_in_rocketmq(monkeypatch: pytest.MonkeyPatch) -> None:
    """vectors/rocketmq/rpc/retry-dlq: DELAY, REAL_TOPIC and REAL_QID stay."""

    async def story_of(story: Story) -> None:
        properties = join_properties([("KEYS", "k"), ("DELAY", "1")])
        given = message(b"b", properties_data=properties, queue_id=3, flag=7, born_timestamp_ms=9, reconsume_times=2)
        await story.store.put(given)
        story.now_ms += 1_000
        await until(lambda: bool(story.delivered()))
        found = decode_record(story.store.queues["TopicTest", 3][0])
        assert found.properties == {"KEYS": "k", "DELAY": "1", "REAL_TOPIC": "TopicTest", "REAL_QID": "3"}
        assert (found.born_host, found.born_timestamp_ms, found.store_host) == (HOST, 9, STORE)
        assert (found.flag, found.reconsume_times, found.prepared_transaction_offset) == (7, 2, 0)

    tell(story_of, monkeypatch)


def test_what_was_not_stored_is_put_again_and_an_offset_never_runs_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story_of(story: Story) -> None:
        await story.put(b"a")
        await story.put(b"b")
        story.store.answers_with = PutStatus.SERVICE_NOT_AVAILABLE
        story.now_ms += 1_000
        await asyncio.sleep(0.03)
        assert story.offsets.kept.get(1, 0) == 0
        story.store.answers_with = None
        await until(lambda: story.delivered() == [b"a", b"b"])
        await until(lambda: story.offsets.kept == {1: 2})

    tell(story_of, monkeypatch)


def test_the_next_master_goes_on_behind_what_was_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story_of(story: Story) -> None:
        await story.put(b"a")
        story.now_ms += 1_000
        await until(lambda: story.offsets.kept == {1: 1})
        story.offsets.takes = False  # the lane has no room for what comes
        await story.put(b"b")
        await story.put(b"c", 2)
        story.now_ms += 1_000
        await until(lambda: story.delivered() == [b"a", b"b"])
        story.service.stop()
        story.offsets.takes = True
        story.begun()
        story.now_ms += 4_000
        await until(lambda: story.offsets.kept == {1: 2, 2: 1})
        assert sorted(story.delivered()) == [b"a", b"b", b"b", b"c"]  # again: its offset was not committed

    tell(story_of, monkeypatch)


def test_what_can_never_be_delivered_is_noted_and_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story_of(story: Story) -> None:
        for properties in ([], [("REAL_TOPIC", "T"), ("REAL_QID", "x")], [("REAL_TOPIC", "a b"), ("REAL_QID", "0")]):
            lost = NewMessage(SCHEDULE_TOPIC, 0, b"lost", HOST, STORE, join_properties(properties))
            await story.store.put_own(lost)
        half = join_properties([("REAL_TOPIC", "RMQ_SYS_TRANS_HALF_TOPIC"), ("REAL_QID", "0")])
        await story.store.put_own(NewMessage(SCHEDULE_TOPIC, 0, b"half", HOST, STORE, half))
        await story.put(b"whole")
        story.now_ms += 1_000
        await until(lambda: story.delivered() == [b"whole"])
        assert len(story.noted) == 4 and "offset 2" in story.noted[2]
        assert set(story.store.queues) == {(SCHEDULE_TOPIC, 0), ("TopicTest", 3)}

    tell(story_of, monkeypatch)


def test_a_clock_that_was_set_makes_nothing_wait_longer_than_its_level(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story_of(story: Story) -> None:
        await story.put(b"a")
        story.now_ms -= 3_600_000
        story.steady_ms += 1000
        await until(lambda: story.delivered() == [b"a"])

    tell(story_of, monkeypatch)


def test_behind_a_clock_that_was_ahead_messages_wait_for_as_long_as_their_level_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Records never go back in time, so until the clock has come so far all of them carry the time that it had."""

    async def story_of(story: Story) -> None:
        await story.put(b"stored by a clock that is a day ahead")
        story.service.stop()
        story.now_ms -= 86_400_000
        story.begun()  # another master's clock, or this one's is set
        story.steady_ms += 400
        story.now_ms += 400
        await story.put(b"stored since")
        story.steady_ms += 599
        story.now_ms += 599
        await asyncio.sleep(0.03)
        assert story.delivered() == []
        assert [(one.waiting, one.due_ms, one.overdue_ms) for one in story.service.pending()] == [
            (2, story.now_ms + 1, 0)
        ]
        story.steady_ms += 1
        await until(lambda: len(story.delivered()) == 1)
        await asyncio.sleep(0.03)
        assert story.delivered() == [b"stored by a clock that is a day ahead"]
        story.steady_ms += 400
        await until(lambda: story.delivered()[1:] == [b"stored since"])

    tell(story_of, monkeypatch)


def test_arrivals_are_kept_in_bounded_memory_and_to_a_thousandth_of_the_delay() -> None:
    arrivals = schedule.Arrivals(10_000)
    for at_ms in range(60_000):
        arrivals.note(at_ms + 1, at_ms)
    assert len(arrivals._notes) < 1_100
    assert arrivals.waits_ms(0, 60_000) <= 0
    for came_ms in (50_500, 55_000, 59_999):
        assert 0 <= arrivals.waits_ms(came_ms, 60_000) - (came_ms + 10_000 - 60_000) <= 10
    assert arrivals.waits_ms(60_000, 60_000) == 10_000, "of one that was not noted yet"
    arrivals.note(50_000, 61_000)
    assert arrivals.waits_ms(49_999, 61_000) == 10_000, "another history"


# --- over a real engine -----------------------------------------------------------------------------------------------
def test_a_broker_delivers_also_what_another_one_was_to(tmp_path: Path) -> None:
    async def story() -> None:
        delayed = message(b"late", properties_data=join_properties([("DELAY", "9")]), queue_id=1)
        ports = free_ports(1)
        settings = settings_of(tmp_path, ports, **{"broker.delay_levels": "1s 2h"})
        async with engine_of(settings):
            async with broker_of(settings) as broker:
                assert broker.schedule.next_offsets.keys() <= {1, 2}
                put = await broker.lane.put(delayed)
                assert (put.topic, put.queue_id) == (SCHEDULE_TOPIC, 1)  # 9 is more than there are
                first = message(b"first", properties_data=join_properties([("DELAY", "1")]), queue_id=1)
                await broker.lane.put(first)
            async with broker_of(settings) as broker:
                await until(lambda: records(broker) and broker.metadata.value(DELAY_OFFSETS, "1") == 1)
                assert [one.body for one in records(broker)] == [b"first"]
                assert [(one.level, one.waiting) for one in broker.schedule.pending()] == [(2, 1)]
            async with broker_of(settings) as broker:
                await until(lambda: broker.schedule.next_offsets.get(1) == 1)
                assert len(records(broker)) == 1

    asyncio.run(story())


def records(broker: Broker) -> list[MessageRecord]:
    return [decode_record(one) for one in broker.reads.get("TopicTest", 1, 0).records]
