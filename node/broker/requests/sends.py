"""SEND_MESSAGE (10, 310), SEND_BATCH_MESSAGE (320) and CONSUMER_SEND_MSG_BACK (36): from a request to a put.

The order of checks, the codes and the texts are those of RocketMQ 4.9.8. A put's answer carries the message's id and
place only once it is committed and can be read here.

Invariants: what is refused here never reaches the store; every answer to a send has the region, which clients read
unguarded; a put that may be stored is never answered as one that is not.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from node.broker.requests.context import FAQ, REGION, Context, peer_host
from node.broker.requests.topics import DLQ_PREFIX, NOT_SENT_TO, RETRY_PREFIX, check_name
from node.broker.transaction_records import half_message, is_half, spare_bytes
from node.message_store.errors import MessageStoreError
from node.message_store.java_text import bytes_of
from node.message_store.new_message import TIMER_NAMES, NewMessage, without
from node.message_store.properties import DELAY, join_properties, parse_properties
from node.message_store.put_result import PutResult, PutStatus
from node.message_store.record import TRANSACTION_BITS, Host, MessageRecord, SysFlag, TransactionType, decode_record
from node.rocketmq.bodies import PERM_WRITE, TopicConfig
from node.rocketmq.codes import Answer, Request
from node.rocketmq.dispatch import Call, Refusal, Reply
from node.rocketmq.header_fields import read_header, write_header
from node.rocketmq.headers import SendAnswer, SendBackRequest, SendRequest, SendRequestV2

WAIT: Final = "WAIT"
WAITS_NOT: Final = b"wait\x01false"  # isWaitStoreMsgOK: matters where a put can be answered before all have it
CLUSTER: Final = "CLUSTER"
RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
NO_TRANSACTION: Final = "sending transaction message is forbidden: it is a batch, or has the flag without TRAN_MSG=true"
FIRST_RETRY_LEVEL: Final = 3
DEAD_LETTER_QUEUES: Final = 1
_PAIR_END: Final = b"\x02"
_INT32_MAX: Final = (1 << 31) - 1
ALWAYS: Final[Mapping[str, str]] = {"MSG_REGION": REGION, "TRACE_ON": "true"}
AWAY: Final = (
    "service not available now. It may be caused by one of the following reasons: the broker's disk is full, messages"
    " are put to the slave, message store has been shut down, etc."
)
TIMERS: Final = "accurate timer message is not enabled, timerWheelEnable is false"
# What is answered for a put's end; the text of what is not here is the status's name.
CODES: Final[Mapping[PutStatus, tuple[int, str | None]]] = {
    PutStatus.PUT_OK: (Answer.SUCCESS, None),
    PutStatus.FLUSH_DISK_TIMEOUT: (Answer.FLUSH_DISK_TIMEOUT, None),
    PutStatus.FLUSH_SLAVE_TIMEOUT: (Answer.FLUSH_SLAVE_TIMEOUT, None),
    PutStatus.SLAVE_NOT_AVAILABLE: (Answer.SLAVE_NOT_AVAILABLE, None),
    PutStatus.SERVICE_NOT_AVAILABLE: (Answer.SERVICE_NOT_AVAILABLE, AWAY),
    PutStatus.CREATE_MAPPED_FILE_FAILED: (
        Answer.SYSTEM_ERROR, "create mapped file failed, server is busy or broken.",
    ),
    PutStatus.OS_PAGE_CACHE_BUSY: (Answer.SYSTEM_BUSY, "[PC_SYNCHRONIZED]broker busy, start flow control for a while"),
    PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: (
        Answer.SYSTEM_ERROR, "in-sync replicas not enough: not known whether it is stored",
    ),
    PutStatus.WHEEL_TIMER_NOT_ENABLE: (
        Answer.SYSTEM_ERROR, TIMERS,
    ),
    PutStatus.UNKNOWN_ERROR: (Answer.SYSTEM_ERROR, "UNKNOWN_ERROR"),
}  # fmt: skip


class Sends:
    """See the module's docstring."""

    def __init__(self, context: Context, check_room: Callable[[], None] = lambda: None) -> None:
        """`check_room`: for one more half message; raises Refusal."""
        self._context, self._check_room = context, check_room
        self._random = random.Random()
        self._cluster = join_properties([(CLUSTER, context.identity.cluster)])

    # --- 10, 310, 320 -------------------------------------------------------------------------------------------
    def send(self, call: Call) -> Reply | None:
        request = call.request
        said: SendRequest | SendRequestV2
        if request.code == Request.SEND_MESSAGE:
            said = read_header(SendRequest, request.fields)
        else:
            said = read_header(SendRequestV2, request.fields)
        batch = bool(said.batch) or request.code == Request.SEND_BATCH_MESSAGE
        try:
            half = is_half(bytes_of(said.properties or ""), said.reconsume_times or 0)
            if (batch and half) or (not half and said.sys_flag & TRANSACTION_BITS == TransactionType.PREPARED):
                raise Refusal(Answer.NO_PERMISSION, NO_TRANSACTION)
            topic = self._checked(said, call.peer.address)
            message = self._message(said, topic, bytes(request.body), peer_host(call.peer.address), batch=batch)
            if said.topic.startswith(RETRY_PREFIX):
                message = self._retried(said, message, batch=batch)
            put = self._prepared(message) if half else None
        except Refusal as refusal:
            return refusal.reply._replace(fields=ALWAYS)
        if put is not None:
            return self._answered(call, put, said.queue_id)
        lane = self._context.store.lane
        return self._answered(call, lane.put_batch(message) if batch else lane.put(message), said.queue_id)

    def _prepared(self, message: NewMessage) -> asyncio.Future[PutResult]:
        """A half message, which waits for its transaction's end. Raises Refusal."""
        if any(name in TIMER_NAMES for name, _value in parse_properties(message.properties_data)):
            raise Refusal(Answer.SYSTEM_ERROR, TIMERS)
        self._check_room()
        return self._context.store.lane.put_own(half_message(message), spare_bytes=spare_bytes(message))

    def _checked(self, said: SendRequest | SendRequestV2, address: str) -> TopicConfig:
        """The topic, made if need be. Raises Refusal."""
        context, name = self._context, said.topic
        topic = context.topics.get(name)
        if not context.perm & PERM_WRITE and topic is not None and topic.order:
            text = f"the broker[{context.identity.ip}] sending message is forbidden"
            raise Refusal(Answer.NO_PERMISSION, text)
        check_name(name)
        if name in NOT_SENT_TO:
            raise Refusal(Answer.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")
        if topic is None:
            context.check_master()
            topic = context.topics.create_for_send(name, said.default_topic, said.default_topic_queue_nums)
        if topic is None:
            raise Refusal(Answer.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!{FAQ}")
        if said.queue_id >= max(topic.read_queues, topic.write_queues):
            text = f"request queueId[{said.queue_id}] is illegal, {topic} Producer: {address}"
            raise Refusal(Answer.SYSTEM_ERROR, text)
        return topic

    def _message(
        self, said: SendRequest | SendRequestV2, topic: TopicConfig, body: bytes, born: Host, *, batch: bool
    ) -> NewMessage:
        queue_id = said.queue_id
        if queue_id < 0:
            queue_id = self._random.randrange(max(1, topic.write_queues))
        host = self._context.identity.host
        asked = bytes_of(said.properties or "")
        properties = self._properties(asked)
        sys_flag = said.sys_flag & ~int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
        sys_flag |= SysFlag.BORN_HOST_V6 if len(born.ip) == 16 else 0
        sys_flag |= SysFlag.STORE_HOST_V6 if len(host.ip) == 16 else 0
        return NewMessage(
            said.topic, queue_id, body, born, host, properties, said.flag, int(sys_flag),
            said.born_timestamp, said.reconsume_times or 0, waits=WAITS_NOT not in asked.lower(),
        )  # fmt: skip

    def _properties(self, data: bytes) -> bytes:
        """As they are stored: without WAIT, which is for the broker alone, and with the cluster's name. That is at the
        front, so that they end as their sender had them end (4.9 without a separator, 5.x with one)."""
        return self.with_cluster(without(data, WAIT, CLUSTER))

    def with_cluster(self, data: bytes) -> bytes:
        """Before properties that have neither of the two."""
        return self._cluster + data if data else self._cluster.removesuffix(_PAIR_END)

    def _retried(self, said: SendRequest | SendRequestV2, message: NewMessage, *, batch: bool) -> NewMessage:
        """A consumer's own retry: into the dead letters once it was consumed too often. Raises Refusal."""
        if batch:
            raise Refusal(Answer.MESSAGE_ILLEGAL, f"batch request does not support retry group {said.topic}")
        name = said.topic.removeprefix(RETRY_PREFIX)
        group = self._context.groups.find(name)
        if group is None:
            text = f"subscription group not exist, {name} {FAQ}"
            raise Refusal(Answer.SUBSCRIPTION_GROUP_NOT_EXIST, text)
        most = group.retry_max_times if said.max_reconsume_times is None else said.max_reconsume_times
        if message.reconsume_times < most:
            return message
        letters = self._context.topics.create_own(f"{DLQ_PREFIX}{name}", DEAD_LETTER_QUEUES)
        return replace(message, topic=letters.name, queue_id=0, properties_data=without(message.properties_data, DELAY))

    def _answered(self, call: Call, put: asyncio.Future[PutResult], queue_id: int) -> Reply | None:
        if put.done():
            return self.reply_to(put.result(), queue_id)
        put.add_done_callback(lambda done: call.answer(self.reply_to(done.result(), queue_id)))
        return None

    def reply_to(self, result: PutResult, queue_id: int) -> Reply:
        """The queue that was asked for, also where the message waits elsewhere for its time."""
        if result.status.is_stored:
            code, text = CODES[result.status]
            shown = queue_id if queue_id >= 0 else result.queue_id
            fields = write_header(SendAnswer(result.message_ids, shown, result.queue_offset))
            return Reply(code, fields, text)
        code, text = self._refusal(result)
        return Reply(code, ALWAYS, text)

    def _refusal(self, result: PutResult) -> tuple[int, str]:
        """RocketMQ's text, and our reason behind it."""
        if result.status in (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED):
            illegal = "the message is illegal, maybe msg body or properties length not matched. msg body length limit"
            text = f"{illegal} {self._context.body_bytes_max}B, msg properties length limit 32KB."
            return Answer.MESSAGE_ILLEGAL, f"{text} {result.reason}".strip()
        code, said = CODES.get(result.status, (Answer.SYSTEM_ERROR, None))
        return code, f"{said or result.status.value} {result.reason}".strip()

    # --- 36 -----------------------------------------------------------------------------------------------------
    def send_back(self, call: Call) -> Reply | None:
        """A consumer could not consume it: again later, or into the dead letters."""
        context, said = self._context, read_header(SendBackRequest, call.request.fields)
        group = context.groups.find(said.group)
        if group is None:
            text = f"subscription group not exist, {said.group} {FAQ}"
            return Reply(Answer.SUBSCRIPTION_GROUP_NOT_EXIST, None, text)
        if not context.perm & PERM_WRITE:
            text = f"the broker[{context.identity.ip}] sending message is forbidden"
            return Reply(Answer.NO_PERMISSION, None, text)
        if not context.store.is_master:
            return Reply(Answer.SERVICE_NOT_AVAILABLE, None, AWAY)
        if group.retry_queues <= 0:
            return Reply()
        check_name(f"{RETRY_PREFIX}{said.group}")
        topic = context.topics.create_own(f"{RETRY_PREFIX}{said.group}", group.retry_queues)
        if not topic.perm & PERM_WRITE:
            return Reply(Answer.NO_PERMISSION, None, f"the topic[{topic.name}] sending message is forbidden")
        try:
            record = decode_record(context.store.reads.message_at(said.offset))
        except MessageStoreError:
            return Reply(Answer.SYSTEM_ERROR, None, f"look message by offset failed, {said.offset}")
        most = group.retry_max_times if said.max_reconsume_times is None else said.max_reconsume_times
        level = said.delay_level or FIRST_RETRY_LEVEL + record.reconsume_times
        if record.reconsume_times >= most or level < 0:
            topic, level = context.topics.create_own(f"{DLQ_PREFIX}{said.group}", DEAD_LETTER_QUEUES), 0
        put = context.store.lane.put(self._again(record, topic, level))
        if put.done():
            return _sent_back(put.result())
        put.add_done_callback(partial(_answer_sent_back, call))
        return None

    def _again(self, record: MessageRecord, topic: TopicConfig, level: int) -> NewMessage:
        known = record.properties
        added = {
            WAIT: "false",  # as Java has it there
            RETRY_TOPIC: known.get(RETRY_TOPIC) or record.topic,
            ORIGIN_MESSAGE_ID: known.get(ORIGIN_MESSAGE_ID) or record.message_id,
        }
        added[DELAY] = str(level)  # 0 with the dead letters, as in RocketMQ
        data = without(record.properties_data, RETRY_TOPIC, ORIGIN_MESSAGE_ID, DELAY, WAIT)
        host = self._context.identity.host
        sys_flag = record.sys_flag & ~int(SysFlag.STORE_HOST_V6) | (SysFlag.STORE_HOST_V6 if len(host.ip) == 16 else 0)
        queue_id = self._random.randrange(max(1, topic.write_queues))
        return NewMessage(
            topic.name, queue_id, record.body, record.born_host, host, join_properties(added.items()) + data,
            record.flag, int(sys_flag), record.born_timestamp_ms, min(record.reconsume_times + 1, _INT32_MAX),
        )  # fmt: skip


def _sent_back(result: PutResult) -> Reply:
    if result.status is PutStatus.PUT_OK:
        return Reply()
    return Reply(Answer.SYSTEM_ERROR, None, result.status.name)


def _answer_sent_back(call: Call, done: asyncio.Future[PutResult]) -> None:
    call.answer(_sent_back(done.result()))
