"""A message on its way into the log: what its sender and its broker know of it, and what it may not be.

Judged here: what a broker's hook and its encoder judge (topic, body, properties, delay level, batches), each with the
status that RocketMQ gives it. A message that asks for a delay level is moved to the schedule topic, where its level's
queue keeps it until its time.

Invariants: `judged` changes nothing of a message that needs no change, to the byte of its properties; a batch is taken
whole or not at all; what passes here can be encoded, and fits the engine and a data file.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import Final

from node.message_store.batch import BatchedMessage, decode_batch
from node.message_store.errors import MessageFormatError
from node.message_store.java_text import bytes_of, units_of
from node.message_store.properties import (
    DELAY,
    PROPERTIES_BYTES_MAX,
    REAL_QID,
    REAL_TOPIC,
    join_properties,
    parse_properties,
)
from node.message_store.put_result import PutStatus
from node.message_store.queue_units import SCHEDULE_TOPIC
from node.message_store.record import RECORD_BYTES_MIN, TRANSACTION_BITS, V1_TOPIC_UNITS_MAX, Host, TransactionType
from node.protocol.entry import BODY_BYTES_MAX, HEAD_BYTES
from node.protocol.value_class import value_class

MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024  # maxMessageSize: of a body
HOOK_TOPIC_BYTES_MAX: Final = 127
RETRY_TOPIC_BYTES_MAX: Final = 255
RETRY_PREFIX: Final = "%RETRY%"
OWN_TOPIC_PREFIX: Final = "rmq_sys_quorumscope"  # inert records: nobody sends to these
BATCH_MESSAGES_MAX: Final = 16_384  # what the engine takes as one append, and a batch is taken whole
RECORDS_SPARE_BYTES: Final = 64 * 1024  # so much more than a body of maxMessageSize all records of a batch may have
DELAY_LEVELS: Final = 18
BLANK_BYTES: Final = 8  # of the log's file, behind its last entry
CRC_NAME: Final = "__CRC32#"  # covers the record's place, which no sender knows
TIMER_NAMES: Final = frozenset({"TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"})
_TOPIC: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_INT32: Final = 1 << 31
_INT64: Final = 1 << 63
_PLAIN_TYPE: Final = int(TransactionType.NONE)
_DELAYED: Final = (_PLAIN_TYPE, int(TransactionType.COMMIT))
_PAIR_END: Final = b"\x02"
_MARKS: Final = re.compile("|".join(f"{name}\x01" for name in (DELAY, CRC_NAME, *sorted(TIMER_NAMES))).encode())


@value_class(slots=True, frozen=True)
class NewMessage:
    """`body` None: its sender gave none, which is refused. Of a batch the body is the batch (`batch.py`)."""

    topic: str
    queue_id: int
    body: bytes | None
    born_host: Host
    store_host: Host
    properties_data: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    waits: bool = True

    @property
    def takes_offset(self) -> bool:
        """Whether it has a place in its queue: half messages and rolled back ones have none."""
        return self.sys_flag & TRANSACTION_BITS in _DELAYED


class Refused(Exception):
    """It does not enter the log, with the status that its sender is to hear."""

    def __init__(self, status: PutStatus, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


@value_class(slots=True, frozen=True)
class PutLimits:
    """`file_bytes`: of a data file of the log, which the largest entry must fit; 0: they are larger than any entry."""

    body_bytes_max: int = MESSAGE_BYTES_MAX
    file_bytes: int = 0
    delay_levels: int = DELAY_LEVELS

    @property
    def record_bytes_max(self) -> int:
        """Of one record: what the engine takes as an entry's body, and a data file holds."""
        if not self.file_bytes:
            return BODY_BYTES_MAX
        return min(BODY_BYTES_MAX, self.file_bytes - HEAD_BYTES - BLANK_BYTES)

    def judged(self, message: NewMessage, *, moves: bool = True, spare_bytes: int = 0) -> NewMessage:
        """The message as it is to be stored. Raises Refused. `moves` False: a delay level is of its past, as in what
        the schedule service delivers. `spare_bytes`: so much its later forms need more, also of properties."""
        self._check_topic(message.topic)
        if message.body is None:
            raise Refused(PutStatus.MESSAGE_ILLEGAL, "the message has no body")
        _check_numbers(message)
        data = message.properties_data
        if _MARKS.search(data) is not None:
            message = self._by_properties(message, moves=moves)
            data = message.properties_data
        if len(data) > PROPERTIES_BYTES_MAX - spare_bytes:
            text = f"{len(data)} bytes of properties, {PROPERTIES_BYTES_MAX - spare_bytes} at most"
            raise Refused(PutStatus.PROPERTIES_SIZE_EXCEEDED, text)
        self._check_size(message, spare_bytes)
        return message

    def judged_batch(self, batch: NewMessage) -> list[NewMessage]:
        """Its messages, one record each; the batch's own properties are behind each message's. Raises Refused."""
        if batch.body is None:
            raise Refused(PutStatus.MESSAGE_ILLEGAL, "the batch has no body")
        if batch.sys_flag & TRANSACTION_BITS != _PLAIN_TYPE:
            raise Refused(PutStatus.MESSAGE_ILLEGAL, "a batch cannot be part of a transaction")
        if _delay_level(batch.properties_data) > 0:
            raise Refused(PutStatus.MESSAGE_ILLEGAL, "a batch cannot wait for its time")
        if len(batch.body) > self.body_bytes_max:
            text = f"a batch of {len(batch.body)} bytes, {self.body_bytes_max} at most"
            raise Refused(PutStatus.MESSAGE_ILLEGAL, text)
        try:
            found = decode_batch(batch.body, BATCH_MESSAGES_MAX)
        except MessageFormatError as error:
            raise Refused(PutStatus.MESSAGE_ILLEGAL, str(error)) from error
        if not found:
            raise Refused(PutStatus.MESSAGE_ILLEGAL, "the batch holds no message")
        own = batch.properties_data
        self._check_records(batch, found)
        if _MARKS.search(batch.body) is None and _MARKS.search(own) is None:
            return self._judged_alike(batch, found)
        judged: list[NewMessage] = []
        for one in found:
            if _delay_level(one.properties_data) > 0:
                raise Refused(PutStatus.MESSAGE_ILLEGAL, "a message of a batch cannot wait for its time")
            properties = joined(one.properties_data, own)
            judged.append(self.judged(replace(batch, flag=one.flag, body=one.body, properties_data=properties)))
        return judged

    def _check_records(self, batch: NewMessage, found: list[BatchedMessage]) -> None:
        """A head, the topic and the batch's own properties come to each message, however short. Raises Refused."""
        self._check_topic(batch.topic)
        said_bytes = sum(len(one.body) + len(one.properties_data) for one in found)
        size_bytes = len(found) * record_bytes(replace(batch, body=None)) + said_bytes
        most_bytes = self.body_bytes_max + RECORDS_SPARE_BYTES
        if size_bytes > most_bytes:
            text = f"a batch of {len(found)} messages, whose records have {size_bytes} bytes, {most_bytes} at most"
            raise Refused(PutStatus.MESSAGE_ILLEGAL, text)

    def _judged_alike(self, batch: NewMessage, found: list[BatchedMessage]) -> list[NewMessage]:
        """Where no message has a property that decides anything: what they share is judged once. Raises Refused."""
        own = batch.properties_data
        self.judged(replace(batch, flag=0, body=b"", properties_data=b""))
        judged: list[NewMessage] = []
        for one in found:
            properties = joined(one.properties_data, own) if own else one.properties_data
            if len(properties) > PROPERTIES_BYTES_MAX:
                text = f"{len(properties)} bytes of properties, {PROPERTIES_BYTES_MAX} at most"
                raise Refused(PutStatus.PROPERTIES_SIZE_EXCEEDED, text)
            message = NewMessage(
                batch.topic, batch.queue_id, one.body, batch.born_host, batch.store_host, properties, one.flag,
                batch.sys_flag, batch.born_timestamp_ms, batch.reconsume_times, batch.prepared_transaction_offset,
                batch.waits,
            )  # fmt: skip
            self._check_size(message, 0)
            judged.append(message)
        return judged

    def _check_topic(self, topic: str) -> None:
        size_bytes = len(topic) if topic.isascii() else len(bytes_of(topic))
        if not topic.startswith(RETRY_PREFIX) and size_bytes > HOOK_TOPIC_BYTES_MAX:
            text = f"a topic of {size_bytes} bytes, {HOOK_TOPIC_BYTES_MAX} at most"
            raise Refused(PutStatus.MESSAGE_ILLEGAL, text)
        if size_bytes > RETRY_TOPIC_BYTES_MAX:
            text = f"a retry topic of {size_bytes} bytes, {RETRY_TOPIC_BYTES_MAX} at most"
            raise Refused(PutStatus.MESSAGE_ILLEGAL, text)
        if _TOPIC.fullmatch(topic) is None:
            raise Refused(PutStatus.MESSAGE_ILLEGAL, "a topic's name has letters, digits, %, |, _ and - only")
        if topic.startswith(OWN_TOPIC_PREFIX):
            raise Refused(PutStatus.MESSAGE_ILLEGAL, f"topics named {OWN_TOPIC_PREFIX}... are the group's own")

    def _by_properties(self, message: NewMessage, *, moves: bool) -> NewMessage:
        """Without a CRC of its sender's; into the schedule topic where it asks for a delay level. Raises Refused."""
        data = without(message.properties_data, CRC_NAME)
        message = replace(message, properties_data=data)
        if not moves or message.topic == SCHEDULE_TOPIC or message.sys_flag & TRANSACTION_BITS not in _DELAYED:
            return message
        level = _delay_level(data)
        if level <= 0:
            if any(name in TIMER_NAMES for name, _value in parse_properties(data)):
                text = "there is no timer wheel here: give a delay level (DELAY) instead of a time"
                raise Refused(PutStatus.WHEEL_TIMER_NOT_ENABLE, text)
            return message
        level = min(level, self.delay_levels)
        queue_id = str(message.queue_id)
        added = [(DELAY, str(level)), (REAL_TOPIC, message.topic), (REAL_QID, queue_id)]
        data = joined(without(data, DELAY, REAL_TOPIC, REAL_QID), join_properties(added))
        return replace(message, topic=SCHEDULE_TOPIC, queue_id=level - 1, properties_data=data)

    def _check_size(self, message: NewMessage, spare_bytes: int) -> None:
        body_bytes = len(message.body or b"")
        if body_bytes > self.body_bytes_max:
            text = f"a body of {body_bytes} bytes, {self.body_bytes_max} at most"
            raise Refused(PutStatus.MESSAGE_ILLEGAL, text)
        size_bytes = record_bytes(message) + spare_bytes
        if size_bytes > self.record_bytes_max:
            room = self.record_bytes_max - (size_bytes - body_bytes)
            text = f"a body of {body_bytes} bytes, {max(room, 0)} at most with this topic and these properties"
            raise Refused(PutStatus.MESSAGE_ILLEGAL, text)


def record_bytes(message: NewMessage) -> int:
    """The size of its record."""
    hosts = len(message.born_host.ip) + len(message.store_host.ip) - 8
    return hosts + _topic_and_fixed_bytes(message.topic) + len(message.body or b"") + len(message.properties_data)


@lru_cache(maxsize=4096)
def _topic_and_fixed_bytes(topic: str) -> int:
    """Of a record with IPv4 hosts and nothing else."""
    return RECORD_BYTES_MIN + (1 if units_of(topic) > V1_TOPIC_UNITS_MAX else 0) + len(bytes_of(topic))


def without(data: bytes, *names: str) -> bytes:
    """The properties but for these; the bytes of all others as they were."""
    marks = tuple(f"{name}\x01".encode() for name in names)
    if not any(mark in data for mark in marks):
        return data
    return _PAIR_END.join(piece for piece in data.split(_PAIR_END) if not piece.startswith(marks))


def joined(first: bytes, second: bytes) -> bytes:
    """Both, with a separator between them: clients of 4.9 write none at the end."""
    if not first or not second:
        return first or second
    return first + second if first.endswith(_PAIR_END) else first + _PAIR_END + second


def _delay_level(data: bytes) -> int:
    """0: none. Raises Refused where it is no number, for which Java's broker fails the request."""
    if b"DELAY\x01" not in data:
        return 0
    text = dict(parse_properties(data)).get(DELAY)
    if text is None:
        return 0
    if not re.fullmatch(r"[+-]?[0-9]{1,10}", text) or not -_INT32 <= int(text) < _INT32:
        raise Refused(PutStatus.UNKNOWN_ERROR, f"{text[:40]!r} is no delay level: it is a number")
    return int(text)


def _check_numbers(message: NewMessage) -> None:
    """What no field of a record can hold. Raises Refused."""
    ints = (message.flag, message.sys_flag, message.reconsume_times, message.born_host.port, message.store_host.port)
    longs = (message.born_timestamp_ms, message.prepared_transaction_offset)
    if not 0 <= message.queue_id < _INT32:
        raise Refused(PutStatus.MESSAGE_ILLEGAL, f"queue {message.queue_id}: a queue's number is 0 or more")
    if min(ints) < -_INT32 or max(ints) >= _INT32 or min(longs) < -_INT64 or max(longs) >= _INT64:
        raise Refused(PutStatus.MESSAGE_ILLEGAL, "a number does not fit its field")


def waits_until_stored(message: NewMessage) -> bool:
    """isWaitStoreMsgOK: unless its sender says WAIT=false, which a broker takes out of what is stored."""
    if b"WAIT\x01" not in message.properties_data:
        return message.waits
    return dict(parse_properties(message.properties_data)).get("WAIT", "true").lower() == "true"
