"""The messages of a transaction, each made from the one before, as RocketMQ makes them.

half message: as sent, but in the half topic, with the real topic and queue as properties
-> final message: in the real topic, of the type COMMIT, with the half message's place
-> op message: the half message is not open any more
-> again: the half message once more, with a higher count of checks
-> asked: what a producer is shown that is asked for its decision

Invariant: bytes that nobody needs to change stay, also the order of properties.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from node.broker.requests.topics import HALF_TOPIC, OP_TOPIC
from node.broker.transaction_table import CHECK_TIMES, REMOVED_TAG
from node.message_store.java_text import bytes_of
from node.message_store.new_message import NewMessage, joined, without
from node.message_store.properties import DELAY, REAL_QID, REAL_TOPIC, TAGS, UNIQ_KEY, join_properties, parse_properties
from node.message_store.put_result import PutResult
from node.message_store.record import (
    TRANSACTION_BITS,
    Host,
    MessageRecord,
    TransactionType,
    encode_record,
    magic_for,
)

TRAN_MSG: Final = "TRAN_MSG"
TRANSACTION_ID: Final = "__transactionId__"
WAIT: Final = "WAIT"
SPARE_BYTES: Final = 64
GIVEN_UP_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"


def is_half(properties_data: bytes, reconsume_times: int) -> bool:
    """Whether a sent message is one: RocketMQ goes by the property. It stays with the message, so what a consumer sends
    again, to be consumed later, is none."""
    if TRAN_MSG.encode() not in properties_data:
        return False
    known = dict(parse_properties(properties_data))
    level = known.get(DELAY, "")
    return known.get(TRAN_MSG, "").lower() == "true" and not (
        reconsume_times > 0 and level.isascii() and level.isdigit() and int(level[:9]) > 0
    )


def spare_bytes(message: NewMessage) -> int:
    """What its later forms need more than the half message: the real topic's name, the count of checks."""
    return max(0, len(bytes_of(message.topic)) + 1 - len(HALF_TOPIC)) + SPARE_BYTES


def half_message(message: NewMessage) -> NewMessage:
    """As it waits for its end."""
    known = dict(parse_properties(message.properties_data))
    added = {REAL_TOPIC: message.topic, REAL_QID: str(message.queue_id)}
    if known.get(UNIQ_KEY):
        added[TRANSACTION_ID] = known[UNIQ_KEY]
    data = joined(without(message.properties_data, *added), join_properties(added.items()))
    return replace(
        message, topic=HALF_TOPIC, queue_id=0, properties_data=data, sys_flag=message.sys_flag & ~TRANSACTION_BITS
    )


def real_place(record: MessageRecord) -> tuple[str, int] | None:
    """The topic and queue that it is for; None: it does not say."""
    known = record.properties
    topic, queue = known.get(REAL_TOPIC), known.get(REAL_QID, "")
    if not topic or not queue.isascii() or not queue.isdigit() or len(queue) > 9:
        return None
    return topic, int(queue)


def final_message(record: MessageRecord, topic: str, queue_id: int) -> NewMessage:
    """What consumers get once the transaction is committed."""
    sys_flag = record.sys_flag & ~TRANSACTION_BITS | int(TransactionType.COMMIT)
    return replace(_copy(record), topic=topic, queue_id=queue_id, sys_flag=sys_flag,
                   prepared_transaction_offset=record.physical_offset)  # fmt: skip


def op_message(offset: int, host: Host, now_ms: int) -> NewMessage:
    """Ends the half message of that queue offset. Without the comma that 5.x adds: 4.9 reads none, 5.x both."""
    data = join_properties([(TAGS, REMOVED_TAG)])
    return NewMessage(OP_TOPIC, 0, b"%d" % offset, host, host, data, born_timestamp_ms=now_ms)


def again(record: MessageRecord, checks: int) -> NewMessage:
    """The half message as it is stored before its producer is asked."""
    added = join_properties([(CHECK_TIMES, str(checks)), (WAIT, "false")])
    data = joined(without(record.properties_data, CHECK_TIMES, WAIT), added)
    return replace(_copy(record), properties_data=data)


def given_up(record: MessageRecord) -> NewMessage:
    """What is kept of one that was checked too often."""
    return replace(_copy(record), topic=GIVEN_UP_TOPIC, queue_id=0)


def asked(record: MessageRecord, stored: PutResult, properties: bytes, topic: str, queue_id: int) -> bytes:
    """The record that goes with the question: in its real topic and queue, at the place of the half message that was
    stored last."""
    return encode_record(
        replace(
            record,
            magic=magic_for(topic),
            topic=topic,
            queue_id=queue_id,
            queue_offset=stored.queue_offset,
            physical_offset=stored.physical_offsets[0],
            properties_data=properties,
        )
    )


def _copy(record: MessageRecord) -> NewMessage:
    return NewMessage(
        record.topic, record.queue_id, record.body, record.born_host, record.store_host, record.properties_data,
        record.flag, record.sys_flag, record.born_timestamp_ms, record.reconsume_times,
    )  # fmt: skip
