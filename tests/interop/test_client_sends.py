"""What Java's producers sent, as the bytes that they sent, over a socket to a broker before a real engine: 4.9.8 and
5.3.3, both header forms, one by one, in batches, one-way, compressed, delayed, half messages, the old code 10.
"""

from __future__ import annotations

import asyncio
import json
import struct
from pathlib import Path

from node.broker.client_port import ClientPort
from node.message_store.batch import decode_batch
from node.message_store.queue_units import SCHEDULE_TOPIC
from node.message_store.record import MessageRecord, decode_record
from node.rocketmq.codes import Request
from node.rocketmq.command import Command, decode
from node.rocketmq.header_fields import read_header
from node.rocketmq.headers import SendRequest, SendRequestV2
from tests.interop.test_client_vectors import DIFFERENCES, Exchange, exchanges
from tests.ports import free_ports
from tests.unit.broker_kit import broker_of, engine_of, settings_of
from tests.unit.engine_kit import until

SENDS = (Request.SEND_MESSAGE, Request.SEND_MESSAGE_V2, Request.SEND_BATCH_MESSAGE)
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
# The recorded broker was configured otherwise by then (code 25), or its groups knew less.
OTHERWISE = {"raw-send-broker-readonly", "raw-no-autocreate", "raw-send-topic-not-exist", "raw-autocreate-again"}


def frames(folder: Path) -> dict[int, bytes]:
    found = [json.loads(path.read_bytes()) for path in folder.glob("*.json") if path.name != "index.json"]
    return {frame["seq"]: bytes.fromhex(frame["hex"]) for one in found for frame in one["frames"]}


def sent_by(one: Exchange) -> tuple[SendRequest | SendRequestV2, list[bytes]]:
    """Header and bodies."""
    header = read_header(SendRequest if one.request.code == Request.SEND_MESSAGE else SendRequestV2, one.request.fields)
    is_batch = one.request.code == Request.SEND_BATCH_MESSAGE
    body = bytes(one.request.body)
    return header, [each.body for each in decode_batch(body, 1000)] if is_batch else [body]


def test_recorded_sends_are_stored_and_answered_as_bytes_over_a_socket(vectors: Path, tmp_path: Path) -> None:
    folder = vectors / "rocketmq" / "rpc"
    raw = frames(folder)
    wanted = [
        one
        for one in exchanges(folder)
        if one.request.code in (*SENDS, Request.UPDATE_AND_CREATE_TOPIC) and one.case not in OTHERWISE
    ]
    stored: list[tuple[SendRequest | SendRequestV2, bytes]] = []

    async def story() -> list[MessageRecord]:
        settings = settings_of(tmp_path, free_ports(1))
        async with engine_of(settings), broker_of(settings) as broker:
            port = ClientPort(broker)
            reader, writer = await asyncio.open_connection("127.0.0.1", await port.open("127.0.0.1", 0))

            async def answer() -> Command:
                head = await reader.readexactly(4)
                return decode(head + await reader.readexactly(struct.unpack(">i", head)[0]))

            try:
                for one in wanted:
                    before = sum(broker.log.next_offsets.values())
                    writer.write(raw[one.number])
                    code = 0
                    if one.request.is_one_way:
                        await until(lambda before=before: sum(broker.log.next_offsets.values()) > before)  # type: ignore[misc]
                    else:
                        answered = await answer()
                        expected = one.answer.code if one.answer is not None else 0
                        code = DIFFERENCES[one.number][0] if one.number in DIFFERENCES else expected
                        assert (answered.code, answered.opaque) == (code, one.request.opaque), (one.case, answered)
                        assert answered.binary == one.request.binary
                    if one.request.code in SENDS and code == 0:
                        header, bodies = sent_by(one)
                        stored.extend((header, body) for body in bodies)
                queues = sorted(broker.log.next_offsets.items())
                return [
                    decode_record(record)
                    for (topic, queue_id), count in queues
                    for at in range(count)
                    for record in broker.reads.get(topic, queue_id, at, 1).records
                ]
            finally:
                writer.close()
                port.close()

    found = asyncio.run(story())
    assert len(stored) == len(found) > 40

    def of_sent(header: SendRequest | SendRequestV2, body: bytes) -> tuple[object, ...]:
        return header.topic, body, header.flag, header.born_timestamp, header.sys_flag & 0x703

    def of_stored(one: MessageRecord) -> tuple[object, ...]:
        topic = one.properties["REAL_TOPIC"] if one.topic in (SCHEDULE_TOPIC, HALF_TOPIC) else one.topic
        return topic, one.body, one.flag, one.born_timestamp_ms, one.sys_flag & 0x703

    assert sorted(map(str, (of_stored(one) for one in found))) == sorted(map(str, (of_sent(*one) for one in stored)))
    assert {one.sys_flag & 1 for one in found} == {0, 1}, "some are compressed"
    assert {SCHEDULE_TOPIC, HALF_TOPIC} <= {one.topic for one in found}
