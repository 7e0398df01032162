"""A broker beside a real engine on real files: puts, reads, restarts, lanes that end."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from node.broker import broker as broker_module
from node.broker import dispatched_log
from node.broker.broker import Broker
from node.broker.dispatched_log import AnotherLog
from node.broker.introspection import INTROSPECT
from node.broker.own_engine import EntryDamaged
from node.message_store.batch import BatchedMessage, encode_batch
from node.message_store.consume_queue import PullStatus
from node.message_store.dispatch_mark import read_mark, write_mark
from node.message_store.errors import MessageStoreError
from node.message_store.properties import join_properties
from node.message_store.put_result import PutStatus
from node.message_store.recent_entries import Piece
from node.message_store.record import TransactionType, decode_record
from node.message_store.write_files import OsDisk
from node.protocol.codes import RequestCode, ResponseCode
from node.rocketmq.codes import Answer, Request
from node.store.memory_store import MemoryStore
from node.transport.slab_frames import ReadAnswer
from tests.ports import free_ports
from tests.unit.broker_kit import broker_of, client_of, engine_of, message, pull_fields, settings_of
from tests.unit.engine_kit import until

Work = Callable[[Broker], Awaitable[None]]


def run(tmp_path: Path, *works: Work) -> None:
    """Each with a broker of its own, one after the other, beside one engine."""

    async def all_of_them() -> None:
        settings = settings_of(tmp_path, free_ports(1))
        async with engine_of(settings):
            for work in works:
                async with broker_of(settings) as broker:
                    await work(broker)

    asyncio.run(all_of_them())


def bodies(broker: Broker, topic: str = "TopicTest", queue_id: int = 0) -> list[bytes]:
    """All of a queue, read as a consumer does."""
    found: list[bytes] = []
    offset = broker.reads.min_offset(topic, queue_id)
    while (got := broker.reads.get(topic, queue_id, offset)).status is PullStatus.FOUND:
        records = [decode_record(one) for one in got.records]
        assert [one.queue_offset for one in records] == list(range(offset, got.next_offset))
        found += [one.body for one in records]
        offset = got.next_offset
    assert got.status in (PullStatus.OFFSET_OVERFLOW_ONE, PullStatus.NO_MESSAGE_IN_QUEUE)
    return found


def test_what_is_answered_can_be_read_also_by_the_next_broker(tmp_path: Path) -> None:
    async def puts(broker: Broker) -> None:
        results = await asyncio.gather(*(broker.lane.put(message(b"%d" % n, queue_id=n % 3)) for n in range(300)))
        assert {one.status for one in results} == {PutStatus.PUT_OK}
        assert [one.queue_offset for one in results] == [n // 3 for n in range(300)]
        batch = encode_batch(BatchedMessage(0, b"b%d" % n, b"") for n in range(5))
        one = await broker.lane.put_batch(message(batch))
        assert (one.queue_offset, len(one.physical_offsets)) == (100, 5)
        for name, result in [(b"7", results[7]), (b"b0", one)]:
            record = decode_record(broker.reads.message_at(result.physical_offsets[0]))
            assert (record.body, record.physical_offset) == (name, result.physical_offsets[0])
            assert broker.reads.by_id(result.message_ids.split(",")[0]) is not None
        assert bodies(broker) == [b"%d" % n for n in range(0, 300, 3)] + [b"b%d" % n for n in range(5)]

    async def reads(broker: Broker) -> None:
        assert bodies(broker) == [b"%d" % n for n in range(0, 300, 3)] + [b"b%d" % n for n in range(5)]
        again = await broker.lane.put(message(b"after"))
        assert again.queue_offset == 105 and bodies(broker)[-1] == b"after"

    run(tmp_path, puts, reads)


def test_keys_times_and_transactions(tmp_path: Path) -> None:
    async def work(broker: Broker) -> None:
        keyed = join_properties([("UNIQ_KEY", "U1"), ("KEYS", "k1 k2"), ("TAGS", "A")])
        await broker.lane.put(message(b"keyed", properties_data=keyed))
        half = await broker.lane.put(message(b"half", sys_flag=int(TransactionType.PREPARED)))
        assert half.status is PutStatus.PUT_OK and half.queue_offset == 0
        second = await broker.lane.put(message(b"second"))
        assert second.queue_offset == 1 and bodies(broker) == [b"keyed", b"second"]
        for key in ("U1", "k1", "k2"):
            assert [decode_record(one).body for one in broker.reads.query("TopicTest", key) if one] == [b"keyed"]
        assert list(broker.reads.query("TopicTest", "k3")) == []
        at_ms = broker.reads.stored_at_ms("TopicTest", 0, 1)
        assert broker.reads.offset_at("TopicTest", 0, 0) == 0
        assert broker.reads.offset_at("TopicTest", 0, at_ms) in (0, 1)  # both within one millisecond, perhaps
        assert broker.reads.offset_at("TopicTest", 0, at_ms + 10_000) == 1
        with pytest.raises(MessageStoreError):
            broker.reads.message_at(1)

    run(tmp_path, work)


def test_traces_of_rocketmqs_clients_go_into_a_system_topic(tmp_path: Path) -> None:
    """Made by the first of them, as RocketMQ makes it where no `traceTopicEnable` is set; nobody makes or deletes it by
    hand, and lists leave it out."""
    trace = "RMQ_SYS_TRACE_TOPIC"

    async def work(broker: Broker) -> None:
        async with client_of(broker) as client:
            keys = join_properties([("KEYS", "0A0B 0A0C")])
            [sent] = await client.send(b"Pub\x01...\x02", a="_INNER_TRACE_PRODUCER", b=trace, i=keys.decode())
            assert (sent.code, (sent.fields or {})["queueOffset"]) == (Answer.SUCCESS, "0")
            [got] = await client.ask((Request.PULL_MESSAGE, pull_fields(0, topic=trace), b""))
            assert decode_record(got.body).body == b"Pub\x01...\x02"
            [route] = await client.ask((Request.GET_ROUTEINFO_BY_TOPIC, {"topic": trace}, b""))
            assert route.code == Answer.SUCCESS
            [kept] = await client.ask((Request.DELETE_TOPIC_IN_BROKER, {"topic": trace}, b""))
            assert kept.code == Answer.SYSTEM_ERROR and "conflict with system topic" in (kept.remark or "")
            for system, is_there in ((False, False), (True, True)):
                question = json.dumps({"ask": "topics", "system": system}).encode()
                [said] = await client.ask((INTROSPECT, {}, question))
                assert (trace in {one["topic"] for one in json.loads(bytes(said.body))["items"]}) is is_there

    run(tmp_path, work)


def test_every_status_of_a_read_and_its_next_offset(tmp_path: Path) -> None:
    async def work(broker: Broker) -> None:
        tagged = join_properties([("TAGS", "A")])
        for n in range(40):
            await broker.lane.put(message(b"%d" % n, properties_data=tagged if n % 2 else b""))
        get = broker.reads.get

        def seen(got: Any) -> tuple[PullStatus, int, int, int, int]:
            return got.status, got.next_offset, got.min_offset, got.max_offset, len(got.records)

        assert seen(get("TopicTest", 0, 0)) == (PullStatus.FOUND, 16, 0, 40, 16)  # a file of the queue ends
        assert seen(get("TopicTest", 0, 16, 3)) == (PullStatus.FOUND, 19, 0, 40, 3)
        assert seen(get("TopicTest", 0, 0, tags=frozenset("A"))) == (PullStatus.FOUND, 16, 0, 40, 8)
        assert seen(get("TopicTest", 0, 0, tags=frozenset("B"))) == (PullStatus.NO_MATCHED_MESSAGE, 16, 0, 40, 0)
        assert seen(get("TopicTest", 0, 40)) == (PullStatus.OFFSET_OVERFLOW_ONE, 40, 0, 40, 0)
        assert seen(get("TopicTest", 0, 41)) == (PullStatus.OFFSET_OVERFLOW_BADLY, 40, 0, 40, 0)
        assert seen(get("TopicTest", 0, -1)) == (PullStatus.OFFSET_TOO_SMALL, 0, 0, 40, 0)
        assert seen(get("NoTopic", 0, 5)) == (PullStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0, 0)
        assert seen(get("NoTopic", 0, 5, corrects=False)) == (PullStatus.NO_MESSAGE_IN_QUEUE, 5, 0, 0, 0)
        assert seen(get("TopicTest", 0, 41, corrects=False)) == (PullStatus.OFFSET_OVERFLOW_BADLY, 41, 0, 40, 0)

    run(tmp_path, work)


def test_a_lane_that_ends_loses_and_repeats_nothing(tmp_path: Path) -> None:
    async def work(broker: Broker) -> None:
        first = [broker.lane.put(message(b"%d" % n)) for n in range(200)]
        await asyncio.sleep(0)
        broker.engine._client.link_of("n0").give_up("a test")
        second = [broker.lane.put(message(b"%d" % n)) for n in range(200, 400)]
        results = await asyncio.gather(*first, *second)
        await until(lambda: broker.lane._lane is not None)
        last = await broker.lane.put(message(b"last"))
        found = bodies(broker)  # only now: what ended with an unknown outcome may have come later than its answer
        assert last.queue_offset == len(found) - 1 == found.index(b"last")
        for n, result in enumerate(results):
            count = found.count(b"%d" % n)
            assert count == 1 if result.status is PutStatus.PUT_OK else count <= 1
            if result.status is PutStatus.SERVICE_NOT_AVAILABLE:
                assert count == 0

    run(tmp_path, work)


def test_a_broker_that_crashed_derives_again_what_it_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def crashes(broker: Broker) -> None:
        await asyncio.gather(*(broker.lane.put(message(b"%d" % n)) for n in range(50)))
        assert broker.log.dispatcher is not None
        monkeypatch.setattr(broker.log.dispatcher, "close", lambda: None)  # nothing is synced, nothing marked

    async def goes_on(broker: Broker) -> None:
        assert bodies(broker) == [b"%d" % n for n in range(50)]
        assert (await broker.lane.put(message(b"after"))).queue_offset == 50

    run(tmp_path, crashes, goes_on)


def test_derived_files_of_another_log_are_refused(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, free_ports(1))

    async def story() -> None:
        async with engine_of(settings):
            async with broker_of(settings) as broker:
                await broker.lane.put(message())
            mark = read_mark(settings.node.data)
            assert mark is not None and mark.is_clean
            point = dataclasses.replace(mark.point, chain=mark.point.chain ^ 1)
            disk = OsDisk()
            write_mark(settings.node.data, dataclasses.replace(mark, point=point), disk)
            with pytest.raises(AnotherLog, match="rebuild-queues"):
                async with broker_of(settings):
                    pass

    asyncio.run(story())


def test_derived_files_of_a_longer_log_are_refused_once_this_member_leads(tmp_path: Path) -> None:
    """They were left behind where a log was made anew. Waiting for their last entry, dispatch stood still for ever."""
    settings = settings_of(tmp_path, free_ports(1))

    async def story() -> None:
        async with engine_of(settings):
            async with broker_of(settings) as broker:
                await broker.lane.put(message())
            mark = read_mark(settings.node.data)
            assert mark is not None
            point = dataclasses.replace(mark.point, index=mark.point.index + 100)
            write_mark(settings.node.data, dataclasses.replace(mark, point=point), OsDisk())
            with pytest.raises(AnotherLog, match="rebuild-queues"):
                async with asyncio.timeout(60), broker_of(settings):
                    await asyncio.Event().wait()

    asyncio.run(story())


def test_leadership_that_comes_back_is_handed_over_more_and_more_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no member's dispatch gets on, it would change hands every five seconds for ever."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def work(broker: Broker) -> None:
        enough = asyncio.Event()

        async def noted(delay_s: float) -> None:
            if delay_s >= broker_module.STANDS_STILL_S:
                pauses.append(delay_s)
            if len(pauses) > 8:
                enough.set()
            await sleep(0)

        async def hand_over() -> str:
            return "leadership goes to n1, and comes back"

        monkeypatch.setattr(broker.engine, "hand_over", hand_over)
        monkeypatch.setattr(type(broker.log), "still_s", property(lambda _: 6.0))
        monkeypatch.setattr(broker_module.asyncio, "sleep", noted)
        try:
            await enough.wait()
        finally:
            monkeypatch.setattr(broker_module.asyncio, "sleep", sleep)

    run(tmp_path, work)
    assert pauses[:8] == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]


def test_a_save_beside_dispatch_is_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatched_log, "SAVE_EVERY_S", 0.0)  # one after the other

    async def puts(broker: Broker) -> None:
        for n in range(30):
            await broker.lane.put(message(b"%d" % n, properties_data=join_properties([("KEYS", f"k{n}")])))
        assert broker.log.dispatcher is not None
        await until(lambda: (mark := read_mark(broker.log.root)) is not None and mark.point.index >= 30)
        monkeypatch.setattr(broker.log.dispatcher, "close", lambda: None)

    async def reads(broker: Broker) -> None:
        assert bodies(broker) == [b"%d" % n for n in range(30)]
        assert [decode_record(one).body for one in broker.reads.query("TopicTest", "k29") if one] == [b"29"]

    run(tmp_path, puts, reads)


def test_a_member_whose_dispatch_stands_still_hands_leadership_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "STANDS_STILL_S", 0.1)

    async def work(broker: Broker) -> None:
        asked = asyncio.Event()

        def damaged(piece: Piece) -> None:
            raise EntryDamaged(f"entry {piece.first_index}")

        async def hand_over() -> str:
            asked.set()
            return "leadership goes to n1"

        monkeypatch.setattr(broker.engine, "hand_over", hand_over)
        await asyncio.sleep(0.3)
        assert not asked.is_set()  # nothing waits
        monkeypatch.setattr(broker.log, "_take", damaged)
        put = broker.lane.put(message())
        await asked.wait()
        put.cancel()

    run(tmp_path, work)


def test_an_engine_that_lets_no_read_wait_is_not_asked_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(broker: Broker) -> None:
        asked: list[int] = []

        async def at_once(index: int) -> ReadAnswer:
            asked.append(index)
            return ReadAnswer(ResponseCode.SUCCESS, index - 1, index, index - 1, 0)

        monkeypatch.setattr(dispatched_log, "AGAIN_S_MIN", 60.0)
        monkeypatch.setattr(broker.engine, "entries_awaited", at_once)
        before = broker.log.dispatched_index
        for number in range(4):  # of the first the read may wait already
            assert (await broker.lane.put(message(b"%d" % number))).status is PutStatus.PUT_OK
        assert broker.log.awaits_next and len(set(asked)) == len(asked)
        # Before the puts there may be a term's first entry that was not dispatched yet.
        assert set(asked) <= set(range(before + 1, broker.log.dispatched_index + 2)) and asked

    run(tmp_path, work)


def test_beside_an_engine_of_an_older_release_that_lets_no_read_wait_messages_are_dispatched_as_they_are_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        settings = settings_of(tmp_path, free_ports(1))
        async with engine_of(settings) as engine:
            del engine.client_requests._handlers[RequestCode.AWAITED_READ]
            async with broker_of(settings) as broker:
                monkeypatch.setattr(dispatched_log, "AGAIN_S_MIN", 60.0)  # whoever tries again then comes too late
                for number in range(4):
                    assert (await broker.lane.put(message(b"%d" % number))).status is PutStatus.PUT_OK

    asyncio.run(story())


def test_leadership_goes_to_another_member_indeed(tmp_path: Path) -> None:
    async def story() -> None:
        ports = free_ports(2)
        both = [settings_of(tmp_path, ports, number) for number in range(2)]
        stores = [MemoryStore(kind="broker") for _ in both]
        async with engine_of(both[0], stores[0]) as first, engine_of(both[1], stores[1]) as second:
            engines = [first, second]
            await until(lambda: any(one.replica.leadership is not None for one in engines))
            leads = 0 if first.replica.leadership is not None else 1
            async with broker_of(both[leads]) as broker:
                assert await broker.engine.hand_over() == f"leadership goes to n{1 - leads}"
                await until(lambda: not broker.is_master)

    asyncio.run(story())


def test_who_waits_for_an_entry_while_the_files_are_opened_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what an earlier broker dispatched: no later entry comes that would say it, for no lane opens before."""
    asked = threading.Event()

    def late(*_: object) -> None:
        assert asked.wait(60)

    async def puts(broker: Broker) -> None:
        assert (await broker.lane.put(message(b"one"))).status is PutStatus.PUT_OK

    async def both() -> None:
        settings = settings_of(tmp_path, free_ports(1))
        async with engine_of(settings) as engine:
            async with broker_of(settings) as broker:
                await puts(broker)
                await until(lambda: broker.log.dispatched_index == engine.store.end_index)
            monkeypatch.setattr(dispatched_log, "dispatch_old_log", late)
            async with broker_of(settings, as_master=False) as broker:
                log, left = broker.log, [-1]
                log.on_state.append(lambda: left.append(sum(at <= log.dispatched_index for at, _ in log._reached)))
                mark = read_mark(settings.node.data)
                assert mark is not None and mark.point.index >= 1 and log.dispatcher is None
                waits = asyncio.create_task(log.reached(mark.point.index))  # a lane's end, perhaps
                await until(lambda: bool(log._reached))
                asked.set()
                await until(lambda: broker.is_master)
                await waits
                assert left == [-1, 0], "nobody waits for what is there"
                await puts(broker)

    asyncio.run(both())
