"""Sends as RocketMQ's clients make them: 310, 320 (batch), 10.

A put's status becomes the code and the text that a Java broker answers. An answer always has its header: clients read
the region in it unguarded, also in a refusal.

Invariants: a send is answered once, when its put is; nothing of one that is refused is stored.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from ipaddress import ip_address
from typing import Final, Protocol

from node.broker.open_puts import Answer as PutAnswer
from node.message_store.java_text import bytes_of
from node.message_store.new_message import MESSAGE_BYTES_MAX, NewMessage, joined, without
from node.message_store.put_result import PutResult, PutStatus
from node.message_store.record import TRANSACTION_BITS, Host, TransactionType
from node.rocketmq.codes import Answer, Request
from node.rocketmq.command import Command
from node.rocketmq.dispatch import Call, Handler, Refusal, Reply
from node.rocketmq.header_fields import read_header, write_header
from node.rocketmq.headers import SendAnswer, SendRequest, SendRequestV2

QUEUES_MAX: Final = 1024  # of a topic, as long as nothing says how many it has
NOT_STORED: Final = "WAIT"  # a property that is between the client and its broker
_ILLEGAL: Final = (
    "the message is illegal, maybe msg body or properties length not matched. msg body length limit"
    f" {MESSAGE_BYTES_MAX}B, msg properties length limit 32KB."
)
_AWAY: Final = (
    "service not available now. It may be caused by one of the following reasons: the broker's disk is full, messages"
    " are put to the slave, message store has been shut down, etc."
)
ANSWERS: Final[Mapping[PutStatus, tuple[Answer, str | None]]] = {
    PutStatus.PUT_OK: (Answer.SUCCESS, None),
    PutStatus.FLUSH_DISK_TIMEOUT: (Answer.FLUSH_DISK_TIMEOUT, None),
    PutStatus.FLUSH_SLAVE_TIMEOUT: (Answer.FLUSH_SLAVE_TIMEOUT, None),
    PutStatus.SLAVE_NOT_AVAILABLE: (Answer.SLAVE_NOT_AVAILABLE, None),
    PutStatus.CREATE_MAPPED_FILE_FAILED: (
        Answer.SYSTEM_ERROR, "create mapped file failed, server is busy or broken.",
    ),
    PutStatus.MESSAGE_ILLEGAL: (Answer.MESSAGE_ILLEGAL, _ILLEGAL),
    PutStatus.PROPERTIES_SIZE_EXCEEDED: (Answer.MESSAGE_ILLEGAL, _ILLEGAL),
    PutStatus.SERVICE_NOT_AVAILABLE: (Answer.SERVICE_NOT_AVAILABLE, _AWAY),
    PutStatus.OS_PAGE_CACHE_BUSY: (
        Answer.SYSTEM_BUSY, "[PC_SYNCHRONIZED]broker busy, start flow control for a while",
    ),
    PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: (Answer.SYSTEM_ERROR, "in-sync replicas not enough"),
    PutStatus.WHEEL_TIMER_NOT_ENABLE: (
        Answer.SYSTEM_ERROR, "accurate timer message is not enabled, timerWheelEnable is false",
    ),
}  # fmt: skip


class Puts(Protocol):
    """What takes messages."""

    def put(self, message: NewMessage) -> PutAnswer: ...
    def put_batch(self, batch: NewMessage) -> PutAnswer: ...


class SendRequests:
    """`store_host`: this broker's own address, which ids of messages carry; `cluster`: what they name as CLUSTER."""

    def __init__(self, puts: Puts, store_host: Host, cluster: str) -> None:
        self._puts, self._store_host = puts, store_host
        self._cluster = f"CLUSTER\x01{cluster}\x02".encode()

    def handlers(self) -> Mapping[int, Handler]:
        """By request code."""
        return {
            Request.SEND_MESSAGE: partial(self._send, _long_names),
            Request.SEND_MESSAGE_V2: partial(self._send, _short_names),
            Request.SEND_BATCH_MESSAGE: partial(self._send, _short_names),
        }

    def _send(self, read: Callable[[Command], SendRequest | SendRequestV2], call: Call) -> None:
        header = read(call.request)
        is_batch = bool(header.batch) or call.request.code == Request.SEND_BATCH_MESSAGE
        message = self._message(header, call)
        answer = self._puts.put_batch(message) if is_batch else self._puts.put(message)
        if answer.done():
            call.answer(reply_of(answer.result(), message.queue_id))
        else:
            answer.add_done_callback(lambda done: call.answer(reply_of(done.result(), message.queue_id)))

    def _message(self, header: SendRequest | SendRequestV2, call: Call) -> NewMessage:
        """Raises Refusal."""
        if header.sys_flag & TRANSACTION_BITS == TransactionType.PREPARED:
            text = "sending transaction message is forbidden: this broker does not check half messages"
            raise Refusal(Answer.NO_PERMISSION, text, write_header(SendAnswer()))
        queue_id = max(header.queue_id, 0)  # negative: any
        if queue_id >= QUEUES_MAX:
            text = f"request queueId[{header.queue_id}] is illegal, a topic has {QUEUES_MAX} queues at most"
            raise Refusal(Answer.SYSTEM_ERROR, text, write_header(SendAnswer()))
        properties = without(bytes_of(header.properties or ""), NOT_STORED, "CLUSTER")
        return NewMessage(
            header.topic, queue_id, bytes(call.request.body), host_of(call.peer.address), self._store_host,
            joined(properties, self._cluster), header.flag, header.sys_flag, header.born_timestamp,
            header.reconsume_times or 0,
        )  # fmt: skip


def _long_names(request: Command) -> SendRequest:
    return read_header(SendRequest, request.fields)


def _short_names(request: Command) -> SendRequestV2:
    return read_header(SendRequestV2, request.fields)


def reply_of(result: PutResult, queue_id: int) -> Reply:
    """`queue_id`: the one that was asked for, also where the message waits for its time in another."""
    code, text = ANSWERS.get(result.status, (Answer.SYSTEM_ERROR, result.status.value))
    if not result.status.is_stored:
        return Reply(code, write_header(SendAnswer()), f"{text} {result.reason}".strip())
    return Reply(code, write_header(SendAnswer(result.message_ids, queue_id, result.queue_offset)))


@lru_cache(maxsize=4096)
def host_of(address: str) -> Host:
    """Of "host:port", an IPv6 one in brackets or not; a name is looked up. Raises OSError."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        return Host(ip_address(host).packed, int(port))
    except ValueError:
        return Host(ip_address(socket.gethostbyname(host)).packed, int(port))
