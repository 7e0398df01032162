"""Sends of the usual form, from the frame to the record and from its place to the answer, with nothing made between.

A message to a topic that is there, of a queue that it has, without a delay level, a transaction or a retry, is most of
all that brokers get. What such messages have in common is judged once for each form of header (`Sends._checked` and
`PutLimits` are the judges); whatever is not known to pass is left to `Sends.send`, which refuses it as it should be.

Invariants: what is taken here would be stored by `Sends.send` in the same bytes, and is answered in the same bytes;
what is not taken has changed nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from node.broker.open_puts import OpenPut
from node.broker.requests.context import Context, peer_host
from node.broker.requests.sends import ALWAYS, CLUSTER, WAIT, Sends
from node.broker.requests.topics import NOT_SENT_TO, RETRY_PREFIX, check_name
from node.broker.transaction_records import TRAN_MSG
from node.message_store.new_message import CRC_NAME, NewMessage, PutLimits, Refused, without
from node.message_store.properties import DELAY, PROPERTIES_BYTES_MAX
from node.message_store.put_result import PutResult, PutStatus
from node.message_store.record import Host
from node.message_store.record_building import PlainRecords, host_bytes
from node.rocketmq.bodies import PERM_WRITE, TopicConfig
from node.rocketmq.codes import FLAG_RESPONSE, LANGUAGES, VERSION
from node.rocketmq.command import LANGUAGE, Command
from node.rocketmq.dispatch import Peer, Refusal
from node.rocketmq.send_frames import SendFrame, SendFront

_PLAIN_FLAGS: Final = 0x1 | 0x2 | 0x700  # compression and several tags; transactions and IPv6 hosts go the other way
_OTHERS: Final = (f"{DELAY}\x01".encode(), f"{CRC_NAME}\x01".encode(), b"TIMER_DE", TRAN_MSG.encode())
_WAITS_NOT: Final = f"{WAIT}\x01false".encode()
_DROPPED: Final = tuple(f"{name}\x01".encode() for name in (WAIT, CLUSTER))
_ANSWER: Final = struct.Struct(">iIhbhiiii")
_BINARY: Final = 1 << 24
Take = Callable[[str, int, int, Callable[[int, int, float], OpenPut]], bool]


def _field(name: str, value: str) -> bytes:
    return struct.pack(">h", len(name)) + name.encode() + struct.pack(">i", len(value)) + value.encode()


_MESSAGE_ID: Final = struct.pack(">h", 5) + b"msgId" + struct.pack(">i", 32)
_QUEUE_ID: Final = struct.pack(">h", 7) + b"queueId"
_QUEUE_OFFSET: Final = struct.pack(">h", 11) + b"queueOffset"
_ENDING: Final = b"".join(_field(name, value) for name, value in ALWAYS.items())
_JSON_ALWAYS: Final = ",".join(f'"{name}":"{value}"' for name, value in ALWAYS.items())
_JSON_ENDING: Final = f'"serializeTypeCurrentRPC":"JSON","version":{VERSION}'
_SIZE: Final = struct.Struct(">i")


class _Form:
    """What is known of sends with such a header: where they go, and that they may."""

    __slots__ = ("host", "perm", "queue_id", "records", "store_hex", "sys_flag", "topic")

    def __init__(self, topic: TopicConfig, queue_id: int, sys_flag: int, perm: int, store: Host) -> None:
        self.topic, self.queue_id, self.sys_flag, self.perm = topic, queue_id, sys_flag, perm
        self.records = PlainRecords(topic.name, queue_id, store)
        self.host, self.store_hex = store, host_bytes(store).hex().upper()


class QuickSends:
    """See the module's docstring. `take` is the lane's `put_record`, as it is now. `waits`: whether a put waits for
    more than its own storing, so that WAIT=false goes the other way."""

    def __init__(
        self, context: Context, sends: Sends, limits: PutLimits, take: Take, *, waits: bool = False
    ) -> None:  # fmt: skip
        self._others = (*_OTHERS, _WAITS_NOT) if waits else _OTHERS
        self._context, self._sends, self._limits, self._take = context, sends, limits, take
        self._host = context.identity.host

    def send(self, peer: Peer, frame: SendFrame) -> bool:
        """Whether it was taken, and will be answered."""
        front, body = frame.front, bytes(frame.body)
        form = front.note
        topic = self._context.topics.get(front.said.topic)
        if type(form) is not _Form or form.topic is not topic or form.perm != self._context.perm:
            form = front.note = self._form(front, topic)
            if form is None:
                return False
        data = frame.properties
        for mark in self._others:
            if mark in data:
                return False
        for mark in _DROPPED:
            if mark in data:
                data = without(data, WAIT, CLUSTER)
                break
        data = self._sends.with_cluster(data)
        born = _born(peer.address)
        size = form.records.fixed_bytes + len(body) + len(data)
        limits = self._limits
        if born is None or len(data) > PROPERTIES_BYTES_MAX or len(body) > limits.body_bytes_max:
            return False
        if size > limits.record_bytes_max:
            return False
        put = SendPut(peer, frame, form, self._sends, len(body))
        return self._take(
            front.said.topic, form.queue_id, size,
            lambda offset, ms, due_at: put.built(
                offset, size, due_at, form.records.encoded(
                    offset, ms, born, body, data, frame.flag, form.sys_flag, frame.born_ms, frame.reconsume_times
                ),
            ),
        )  # fmt: skip

    def _form(self, front: SendFront, topic: TopicConfig | None) -> _Form | None:
        """None for what `Sends.send` has to see."""
        said, perm = front.said, self._context.perm
        if topic is None or topic.order or not perm & PERM_WRITE or said.sys_flag & ~_PLAIN_FLAGS:
            return None
        if said.topic in NOT_SENT_TO or said.topic.startswith(RETRY_PREFIX) or len(self._host.ip) != 4:
            return None
        if not 0 <= said.queue_id < max(topic.read_queues, topic.write_queues):
            return None
        try:
            check_name(said.topic)
            self._limits.judged(NewMessage(said.topic, said.queue_id, b"", self._host, self._host))
        except (Refusal, Refused):
            return None
        return _Form(topic, said.queue_id, said.sys_flag, perm, self._host)


@lru_cache(maxsize=4096)
def _born(address: str) -> bytes | None:
    """None for what is no IPv4 address."""
    host = peer_host(address)
    return host_bytes(host) if len(host.ip) == 4 else None


class SendPut:
    """One that is answered over its connection."""

    __slots__ = (
        "_body_bytes", "_first_offset", "_form", "_frame", "_is_over", "_peer", "_sends", "due_at", "indexes",
        "records", "size_bytes",
    )  # fmt: skip
    records: Sequence[bytes]
    size_bytes: int
    due_at: float
    indexes: Sequence[int]

    def __init__(self, peer: Peer, frame: SendFrame, form: _Form, sends: Sends, body_bytes: int) -> None:
        self._peer, self._frame, self._form, self._sends = peer, frame, form, sends
        self._body_bytes, self._is_over, self._first_offset = body_bytes, False, -1

    def built(self, offset: int, size_bytes: int, due_at: float, record: bytes) -> SendPut:
        """The record is built and goes out; one more request of its connection is open."""
        self._first_offset = offset
        self.records, self.size_bytes, self.due_at, self.indexes = (record,), size_bytes, due_at, ()
        self._peer.note_open(1, self._body_bytes)
        return self

    def is_over(self) -> bool:
        return self._is_over

    def _over(self) -> bool:
        """Ends the request, once; whether its connection is still there to be answered."""
        if self._is_over:
            return False
        self._is_over = True
        self._peer.note_open(-1, self._body_bytes)
        return not self._peer.closed

    def placed(self, offsets: tuple[int, ...]) -> None:
        if self._over():
            form, frame = self._form, self._frame
            message_id = f"{form.store_hex}{offsets[0]:016X}" if offsets else ""
            write = binary_answer if frame.binary else json_answer
            self._peer.send_encoded(write(frame.opaque, message_id, form.queue_id, self._first_offset))

    def stored(self, status: PutStatus, places: tuple[int, ...]) -> None:
        if status is PutStatus.PUT_OK:
            self.placed(places)
        else:
            form = self._form
            self.end(PutResult(status, "", form.topic.name, form.queue_id, self._first_offset, places, 0, form.host))

    def end(self, result: PutResult) -> None:
        if self._over():
            reply = self._sends.reply_to(result, self._form.queue_id)
            answer = Command(
                reply.code, self._frame.opaque, FLAG_RESPONSE, reply.fields, reply.remark, reply.body,
                binary=self._frame.binary,
            )  # fmt: skip
            self._peer.send(answer)


def binary_answer(opaque: int, message_id: str, queue_id: int, queue_offset: int) -> bytes:
    """SUCCESS with SendAnswer's fields, as `encode` writes it."""
    queue, offset = b"%d" % queue_id, b"%d" % queue_offset
    id_data = message_id.encode()
    name = _MESSAGE_ID if len(id_data) == 32 else _MESSAGE_ID[:-4] + _SIZE.pack(len(id_data))
    fields = b"".join(
        (
            name,
            id_data,
            _QUEUE_ID,
            _SIZE.pack(len(queue)),
            queue,
            _QUEUE_OFFSET,
            _SIZE.pack(len(offset)),
            offset,
            _ENDING,
        )
    )
    size = len(fields)
    return _ANSWER.pack(size + 25, _BINARY | size + 21, 0, _LANGUAGE, VERSION, opaque, FLAG_RESPONSE, 0, size) + fields


def json_answer(opaque: int, message_id: str, queue_id: int, queue_offset: int) -> bytes:
    """The same in JSON."""
    header = (
        f'{{"code":0,"extFields":{{"msgId":"{message_id}","queueId":"{queue_id}","queueOffset":"{queue_offset}",'
        f'{_JSON_ALWAYS}}},"flag":1,"language":"{LANGUAGE}","opaque":{opaque},{_JSON_ENDING}}}'
    ).encode()
    return _PREFIX.pack(len(header) + 4, len(header)) + header


_LANGUAGE: Final = LANGUAGES.index(LANGUAGE)
_PREFIX: Final = struct.Struct(">iI")
