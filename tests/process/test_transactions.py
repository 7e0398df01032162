"""Masters that die or are stopped: open transactions, messages that wait, and what an old master says."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from node.message_store.record import TransactionType, decode_record
from node.rocketmq.bodies import Heartbeat
from node.rocketmq.codes import Request
from node.rocketmq.command import Command, decode, encode
from tests.process.group import START_WITHIN_S
from tests.process.test_broker import BrokerGroup
from tests.unit.broker_kit import pull_fields, send_fields

pytestmark = [pytest.mark.process, pytest.mark.long]
HALF_PROPERTIES: Final = "TRAN_MSG\x01true\x02PGROUP\x01G\x02UNIQ_KEY\x01U1"
TIMES: Final = ("broker.transaction_timeout_ms=1", "broker.transaction_check_interval_ms=200")
LOCK: Final = b'{"clientId":"c","consumerGroup":"G","mqSet":[{"brokerName":"b","queueId":0,"topic":"TopicTest"}]}'
QUEUE: Final = {"topic": "TopicTest", "queueId": "0"}


class CheckedGroup(BrokerGroup):
    """Producers are asked soon; messages of level 1 wait for some time."""

    def arguments(self, node_id: str, *more: str) -> list[str]:
        return super().arguments(node_id, *(part for one in TIMES for part in ("--set", one)), *more)

    def signal_all(self, node_id: str, number: int) -> None:
        """The member's engine and its broker."""
        os.kill(self.processes[node_id].pid, number)
        os.kill(self.brokers[node_id].pid, number)


class Connection:
    """A client's, which is asked as well."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer, self._opaque = reader, writer, 1 << 20
        self.asked: list[Command] = []

    def say(self, code: int, fields: dict[str, str] | None, body: bytes = b"") -> int:
        self._opaque += 1
        self._writer.write(encode(Command(code, self._opaque, 0, fields, None, body, "JAVA", binary=True)))
        return self._opaque

    async def receive(self) -> Command:
        async with asyncio.timeout(START_WITHIN_S):
            head = await self._reader.readexactly(4)
            return decode(head + await self._reader.readexactly(struct.unpack(">i", head)[0]))

    async def answer(self, opaque: int) -> Command:
        while (found := await self.receive()).opaque != opaque or not found.is_response:
            self.asked.append(found)
        return found

    async def ask(self, code: int, fields: dict[str, str] | None, body: bytes = b"") -> Command:
        return await self.answer(self.say(code, fields, body))

    async def question(self) -> Command:
        """What the broker asks of a producer."""
        while not any(one.code == Request.CHECK_TRANSACTION_STATE for one in self.asked):
            self.asked.append(await self.receive())
        return next(one for one in reversed(self.asked) if one.code == Request.CHECK_TRANSACTION_STATE)


@asynccontextmanager
async def connected(port: int) -> AsyncGenerator[Connection, None]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()


async def master_of(group: BrokerGroup, *but: str) -> str:
    """Whoever takes a message."""
    async with asyncio.timeout(START_WITHIN_S):
        while True:
            for node_id in group.ports.keys() - set(but):
                try:
                    async with connected(group.ports[node_id]) as client:
                        sent = await client.ask(Request.SEND_MESSAGE_V2, send_fields(b="Hello"), b"x")
                except OSError:
                    continue
                if sent.code == 0:
                    return node_id
            await asyncio.sleep(0.05)


def test_the_next_master_checks_a_transaction_and_delivers_what_waits(tmp_path: Path) -> None:
    group = CheckedGroup(tmp_path)

    async def story() -> None:
        first = await master_of(group)
        async with connected(group.ports[first]) as client:
            half = await client.ask(Request.SEND_MESSAGE_V2, send_fields(f="4", i=HALF_PROPERTIES), b"half")
            waits = await client.ask(Request.SEND_MESSAGE_V2, send_fields(e="1", i="DELAY\x012"), b"waits")
            assert (half.code, waits.code) == (0, 0)
        group.kill(first)
        group.end_broker(first, signal.SIGKILL)
        second = await master_of(group, first)
        async with connected(group.ports[second]) as client:
            assert (await client.ask(Request.PULL_MESSAGE, pull_fields(0))).code != 0  # it is not committed
            await client.ask(Request.HEART_BEAT, None, Heartbeat("c", ("G",), ()).encode())
            question = (await client.question()).fields or {}
            assert question["msgId"] == "U1"
            end = {name: question[name] for name in ("commitLogOffset", "tranStateTableOffset", "msgId")}
            end |= {"producerGroup": "G", "commitOrRollback": str(int(TransactionType.COMMIT))}
            ended = await client.ask(Request.END_TRANSACTION, end | {"fromTransactionCheck": "true"})
            while ended.code != 0 and "not open" not in (ended.remark or ""):  # it was stored again for another check
                question = (await client.question()).fields or {}
                end |= {name: question[name] for name in ("commitLogOffset", "tranStateTableOffset")}
                ended = await client.ask(Request.END_TRANSACTION, end | {"fromTransactionCheck": "true"})
            for queue_id, body in ((0, b"half"), (1, b"waits")):
                got = await client.ask(Request.PULL_MESSAGE, pull_fields(0, queue_id) | {"sysFlag": "6"})  # it waits
                assert decode_record(got.body).body == body
                again = await client.ask(Request.PULL_MESSAGE, pull_fields(1, queue_id))
                assert again.code == 19  # once

    try:
        group.start_all()
        asyncio.run(story())
    finally:
        group.close()


def test_an_old_master_that_was_stopped_answers_nothing_that_is_not_so_any_more(tmp_path: Path) -> None:
    group = CheckedGroup(tmp_path)

    async def story() -> None:
        first = await master_of(group)
        async with connected(group.ports[first]) as old:
            assert (await old.ask(Request.SEND_MESSAGE_V2, send_fields(), b"1")).code == 0
            known = await old.ask(Request.GET_MAX_OFFSET, QUEUE)
            assert (known.fields or {})["offset"] == "1"
            group.signal_all(first, signal.SIGSTOP)
            second = await master_of(group, first)
            async with connected(group.ports[second]) as new:
                assert (await new.ask(Request.SEND_MESSAGE_V2, send_fields(), b"2")).code == 0
            offset = old.say(Request.GET_MAX_OFFSET, QUEUE)  # before it knows anything
            locked = old.say(Request.LOCK_BATCH_MQ, {}, LOCK)
            moved = old.say(Request.PULL_MESSAGE, pull_fields(2))  # behind all that it knows of
            sent = old.say(Request.SEND_MESSAGE_V2, send_fields(), b"3")
            group.signal_all(first, signal.SIGCONT)
            found = {one.opaque: one for one in [await old.receive() for _ in range(4)]}
            assert found[offset].code == 14 or (found[offset].fields or {})["offset"] == "2"
            assert found[locked].code == 14
            assert found[sent].code != 0
            correction = found[moved]
            assert correction.code in (14, 19) or (correction.fields or {})["nextBeginOffset"] == "2"

    try:
        group.start_all()
        asyncio.run(story())
    finally:
        for node_id in list(group.brokers):
            group.signal_all(node_id, signal.SIGCONT)
        group.close()
