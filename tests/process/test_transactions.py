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


async def stored(group: BrokerGroup, body: bytes, fields: dict[str, str], *but: str) -> str:
    """Whoever has taken that message: tried until one does."""
    async with asyncio.timeout(START_WITHIN_S):
        while True:
            for node_id in group.ports.keys() - set(but):
                try:
                    async with connected(group.ports[node_id]) as client:
                        sent = await client.ask(Request.SEND_MESSAGE_V2, fields, body)
                except (OSError, EOFError):
                    continue
                if sent.code == 0:
                    return node_id
            await asyncio.sleep(0.05)


async def ended_at(port: int) -> bool:
    """Whether this broker asked for the transaction, and has its end; not where it is no master any more."""
    try:
        async with connected(port) as client, asyncio.timeout(START_WITHIN_S / 3):
            await client.ask(Request.HEART_BEAT, None, Heartbeat("c", ("G",), ()).encode())
            while True:
                question = (await client.question()).fields or {}
                assert question["msgId"] == "U1"
                end = {name: question[name] for name in ("commitLogOffset", "tranStateTableOffset", "msgId")}
                end |= {"producerGroup": "G", "commitOrRollback": str(int(TransactionType.COMMIT))}
                ended = await client.ask(Request.END_TRANSACTION, end | {"fromTransactionCheck": "true"})
                if ended.code == 0:
                    return True
    except (OSError, EOFError, TimeoutError):
        return False


async def first_of(port: int, queue_id: int) -> bytes:
    """The first message of that queue, once there is one."""
    async with connected(port) as client, asyncio.timeout(START_WITHIN_S):
        while True:
            got = await client.ask(Request.PULL_MESSAGE, pull_fields(0, queue_id) | {"sysFlag": "6"})
            if got.code == 0:
                return decode_record(got.body).body
            await asyncio.sleep(0.05)


def test_the_next_master_checks_a_transaction_and_delivers_what_waits(tmp_path: Path) -> None:
    group = CheckedGroup(tmp_path)

    async def story() -> None:
        await stored(group, b"half", send_fields(f="4", i=HALF_PROPERTIES))
        first = await stored(group, b"waits", send_fields(e="1", i="DELAY\x012"))
        group.kill(first)
        group.end_broker(first, signal.SIGKILL)
        second = await stored(group, b"x", send_fields(b="Hello"), first)
        async with connected(group.ports[second]) as client:
            assert (await client.ask(Request.PULL_MESSAGE, pull_fields(0))).code != 0  # it is not committed
        async with asyncio.timeout(START_WITHIN_S):
            while not await ended_at(group.ports[second]):
                second = await stored(group, b"x", send_fields(b="Hello"), first)
        assert await first_of(group.ports[second], 0) == b"half"
        assert await first_of(group.ports[second], 1) == b"waits"

    try:
        group.start_all()
        asyncio.run(story())
    finally:
        group.close()


def test_an_old_master_that_was_stopped_answers_nothing_that_is_not_so_any_more(tmp_path: Path) -> None:
    group = CheckedGroup(tmp_path)

    async def story() -> None:
        first = await stored(group, b"1", send_fields())
        async with connected(group.ports[first]) as old:
            answer = await old.ask(Request.GET_MAX_OFFSET, QUEUE)
            known = int((answer.fields or {})["offset"])
            group.signal_all(first, signal.SIGSTOP)
            await stored(group, b"2", send_fields(), first)
            offset = old.say(Request.GET_MAX_OFFSET, QUEUE)  # before it knows anything
            locked = old.say(Request.LOCK_BATCH_MQ, {}, LOCK)
            moved = old.say(Request.PULL_MESSAGE, pull_fields(known + 1))  # behind all that it knows of
            sent = old.say(Request.SEND_MESSAGE_V2, send_fields(), b"3")
            group.signal_all(first, signal.SIGCONT)
            found = {one.opaque: one for one in [await old.receive() for _ in range(4)]}
            assert found[offset].code == 14 or int((found[offset].fields or {})["offset"]) > known
            assert found[locked].code == 14
            assert found[sent].code != 0
            assert found[moved].code == 14 or int((found[moved].fields or {})["nextBeginOffset"]) > known

    try:
        group.start_all()
        asyncio.run(story())
    finally:
        for node_id in list(group.brokers):
            group.signal_all(node_id, signal.SIGCONT)
        group.close()
