"""Every status of a put that can come about here, produced over a socket by its real cause."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from node.broker import put_lane
from node.broker.own_engine import EntryDamaged
from node.message_store.batch import BatchedMessage, encode_batch
from node.message_store.recent_entries import Piece
from node.message_store.record import Host, decode_record, parse_message_id
from node.rocketmq.codes import Answer, Request
from node.store.memory_store import MemoryStore
from tests.ports import free_ports
from tests.unit.broker_kit import broker_of, client_of, engine_of, pull_fields, send_fields, settings_of
from tests.unit.engine_kit import until


def test_sends_are_answered_as_a_java_broker_does_and_can_be_pulled(tmp_path: Path) -> None:
    async def story() -> None:
        settings = settings_of(tmp_path, free_ports(1))
        async with engine_of(settings), broker_of(settings) as broker, client_of(broker) as client:
            sent = await client.send(*(b"%d" % n for n in range(20)), i="KEYS\x01k\x02WAIT\x01true")
            assert {one.code for one in sent} == {Answer.SUCCESS}
            fields = [one.fields or {} for one in sent]
            assert [one["queueOffset"] for one in fields] == [str(n) for n in range(20)]
            assert all(one["MSG_REGION"] and one["queueId"] == "0" for one in fields)
            host, offset = parse_message_id(fields[3]["msgId"])
            assert host == Host(bytes([127, 0, 0, 1]), 10911)
            batch = encode_batch(BatchedMessage(0, b"b%d" % n, b"") for n in range(3))
            [answer] = await client.ask((Request.SEND_BATCH_MESSAGE, send_fields(m="true"), batch))
            assert answer.fields is not None and answer.fields["queueOffset"] == "20"
            assert len(answer.fields["msgId"].split(",")) == 3
            [viewed, pulled, over] = await client.ask(
                (Request.VIEW_MESSAGE_BY_ID, {"offset": str(offset)}, b""),
                (Request.PULL_MESSAGE, pull_fields(0), b""),
                (Request.PULL_MESSAGE, pull_fields(23), b""),
            )
            record = decode_record(viewed.body)
            assert (record.body, record.properties) == (b"3", {"KEYS": "k", "CLUSTER": "default"})
            assert (pulled.code, over.code) == (Answer.SUCCESS, Answer.PULL_NOT_FOUND)
            assert pulled.fields is not None and pulled.fields["nextBeginOffset"] == "16"  # a file of the queue ends

    asyncio.run(story())


def test_what_no_log_may_hold(tmp_path: Path) -> None:
    async def story() -> None:
        settings = settings_of(tmp_path, free_ports(1))
        async with engine_of(settings), broker_of(settings) as broker, client_of(broker) as client:
            illegal = (Answer.MESSAGE_ILLEGAL, "the message is illegal")
            for changes, body, (code, text) in [
                ({}, bytes(65536), illegal),  # no data file holds it
                ({"b": "t" * 128}, b"", (Answer.SYSTEM_ERROR, "The specified topic is longer")),
                ({"i": "p" * 32768}, b"", illegal),
                ({"b": "rmq_sys_quorumscope_term"}, b"", illegal),
                ({"i": "DELAY\x01soon"}, b"", (Answer.SYSTEM_ERROR, "UNKNOWN_ERROR")),
                ({"i": "TIMER_DELAY_SEC\x013"}, b"", (Answer.SYSTEM_ERROR, "accurate timer message is not enabled")),
                ({"e": "1024"}, b"", (Answer.SYSTEM_ERROR, "request queueId[1024] is illegal")),
                ({"f": "4"}, b"", (Answer.NO_PERMISSION, "sending transaction message is forbidden")),
            ]:
                [answer] = await client.send(body, **changes)
                assert (answer.code, (answer.remark or "")[: len(text)]) == (code, text)
                assert answer.fields is not None and "MSG_REGION" in answer.fields
            [mixed] = await client.ask((Request.SEND_BATCH_MESSAGE, send_fields(m="true"), b"\0\0\0\x17broken"))
            assert mixed.code == Answer.MESSAGE_ILLEGAL
            assert broker.log.next_offsets == {}

    asyncio.run(story())


def test_a_full_window_is_busy_before_an_offset_is_given_out(tmp_path: Path) -> None:
    """DLedger's position -1."""

    async def story() -> None:
        settings = settings_of(tmp_path, free_ports(1), **{"node.max_pending_requests_num": "40"})
        async with engine_of(settings), broker_of(settings) as broker, client_of(broker) as client:
            sent = await client.send(*(b"%d" % n for n in range(200)))
            codes = [one.code for one in sent]
            assert set(codes) == {Answer.SUCCESS, Answer.SYSTEM_BUSY}  # how many: the group's own entries count, too
            stored = [one.fields["queueOffset"] for one in sent if one.code == Answer.SUCCESS and one.fields]
            assert stored == [str(n) for n in range(len(stored))]  # no gap where others were refused
            assert broker.lane.lanes_opened == 1  # load ends no lane

    asyncio.run(story())


def test_dispatch_that_stands_still_is_busy_and_what_is_committed_then_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(put_lane, "LOCKED_S_MAX", 0.2)
    monkeypatch.setattr(put_lane, "ANSWER_WITHIN_S", 0.5)

    async def story() -> None:
        settings = settings_of(tmp_path, free_ports(1))
        async with engine_of(settings), broker_of(settings) as broker, client_of(broker) as client:
            take = broker.log._take

            def damaged(piece: Piece) -> None:
                raise EntryDamaged(f"entry {piece.first_index}")

            monkeypatch.setattr(broker.log, "_take", damaged)
            [unknown] = await client.send(b"committed")
            assert unknown.code == Answer.SYSTEM_ERROR and "not known whether it is stored" in (unknown.remark or "")
            [busy] = await client.send(b"refused")
            assert busy.code == Answer.SYSTEM_BUSY and "behind" in (busy.remark or "")
            monkeypatch.setattr(broker.log, "_take", take)
            await until(lambda: broker.log.next_offset("TopicTest", 0) == 1)
            [after] = await client.send(b"after")
            assert after.fields is not None and after.fields["queueOffset"] == "1"

    asyncio.run(story())


def test_a_lane_that_is_replaced_for_long_is_the_lock_that_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(put_lane, "LOCKED_S_MAX", 0.2)

    async def story() -> None:
        settings = settings_of(tmp_path, free_ports(1))
        async with engine_of(settings), broker_of(settings) as broker, client_of(broker) as client:
            open_lane, may_open = broker.lane._open_lane, asyncio.Event()

            async def slow() -> object:
                await may_open.wait()
                return await open_lane()

            broker.lane._open_lane = slow  # type: ignore[assignment]
            await broker.engine.open_lane()  # another broker of this member, perhaps: it voids ours
            [ended] = await client.send(b"ended")
            assert ended.code == Answer.SERVICE_NOT_AVAILABLE
            waited = asyncio.create_task(client.send(b"waits too long"))
            [late] = await waited
            assert late.code == Answer.SYSTEM_BUSY and "being replaced" in (late.remark or "")
            [at_once] = await client.send(b"refused at once")
            assert at_once.code == Answer.SYSTEM_BUSY
            may_open.set()
            await until(lambda: broker.lane._lane is not None)
            [after] = await client.send(b"after")
            assert after.fields is not None and after.fields["queueOffset"] == "0"

    asyncio.run(story())


def test_a_full_disk_and_a_member_that_does_not_lead_take_nothing(tmp_path: Path) -> None:
    async def full() -> None:
        settings, store = settings_of(tmp_path / "full", free_ports(1)), MemoryStore(kind="broker")
        async with engine_of(settings, store), broker_of(settings) as broker, client_of(broker) as client:
            store.full = True
            codes = [one.code for one in await client.send(b"a", b"b")]
            assert Answer.SUCCESS not in codes and set(codes) <= {Answer.SERVICE_NOT_AVAILABLE, Answer.SYSTEM_BUSY}

    async def follower() -> None:
        settings = settings_of(tmp_path / "alone", free_ports(3))
        store = MemoryStore(kind="broker")
        async with (
            engine_of(settings, store), broker_of(settings, as_master=False) as broker, client_of(broker) as client,
        ):  # fmt: skip
            [away] = await client.send(b"a")
            assert (away.code, broker.is_master) == (Answer.SERVICE_NOT_AVAILABLE, False)

    asyncio.run(full())
    asyncio.run(follower())


def test_without_a_quorum_nobody_knows(tmp_path: Path) -> None:
    async def story() -> None:
        ports = free_ports(2)
        both = [settings_of(tmp_path, ports, n, **{"timing.max_wait_ack_time_ms": "200"}) for n in range(2)]
        stores = [MemoryStore(kind="broker") for _ in both]
        async with engine_of(both[0], stores[0]) as first, engine_of(both[1], stores[1]) as second:
            await until(lambda: first.replica.leadership is not None or second.replica.leadership is not None)
            leads = 0 if first.replica.leadership is not None else 1
            async with broker_of(both[leads]) as broker, client_of(broker) as client:
                assert [one.code for one in await client.send(b"kept")] == [Answer.SUCCESS]
                (second if leads == 0 else first).stop()
                [unknown] = await client.send(b"lost from sight")
                assert unknown.code == Answer.SYSTEM_ERROR and "not known" in (unknown.remark or "")

    asyncio.run(story())
