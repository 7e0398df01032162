"""The records of a put: each message with its offset in its queue and the time at which it is stored.

The table of next offsets begins with a lane and ends with it. Where a queue stands, the log alone knows: it is asked
for each queue when its first message comes, after everything below the lane's beginning has been dispatched.

Invariants: offsets of a queue are given out without gaps and never twice while the table lives; an outcome that is not
known takes nothing back, for the table ends with its lane; storing times never go back, also where the clock does; the
place in the log (8 bytes) is 0 and the engine's to write.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, TypeVar

from node.message_store.java_text import bytes_of
from node.message_store.new_message import NewMessage
from node.message_store.record import HEAD, HEAD_BYTES, MAGIC_V2, Host, SysFlag, body_crc_of, magic_for
from node.protocol.value_class import value_class

P = TypeVar("P")
_HOST_FLAGS: Final = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
_BETWEEN: Final = struct.Struct(">q")  # storing time, between the hosts
_AFTER: Final = struct.Struct(">iqi")  # times consumed again, prepared offset, the body's length
_SHORT: Final = struct.Struct(">h")
_PLAIN: Final = struct.Struct(">iiiiiqqiq8sq8siqi")  # all before the body, with IPv4 hosts
_FIXED: Final = HEAD_BYTES + _BETWEEN.size + _AFTER.size + _SHORT.size


@value_class(slots=True, frozen=True)
class BuiltPut:
    """One put's records. `first_offset`: of the first in its queue; 0 for what has no place in a queue."""

    records: list[bytes]
    first_offset: int
    store_timestamp_ms: int


class QueueOffsets:
    """See the module's docstring."""

    def __init__(self, stands_at: Callable[[str, int], int], last_time_ms: int = -1) -> None:
        """`stands_at`: a queue's next offset by what is dispatched; `last_time_ms`: of the log's last record."""
        self._stands_at = stands_at
        self._next: dict[tuple[str, int], int] = {}
        self._restarted: set[str] = set()
        self.last_time_ms = last_time_ms

    def next_offset(self, topic: str, queue_id: int) -> int:
        key = (topic, queue_id)
        found = self._next.get(key)
        if found is None:
            found = self._next[key] = 0 if topic in self._restarted else self._stands_at(topic, queue_id)
        return found

    def restart(self, topic: str) -> None:
        """It is deleted by what comes next in the log: its queues begin at 0 again."""
        self._restarted.add(topic)
        for queue in [one for one in self._next if one[0] == topic]:
            del self._next[queue]

    def time_ms(self, now_ms: int) -> int:
        """Of the record that comes next."""
        self.last_time_ms = max(now_ms, self.last_time_ms)
        return self.last_time_ms

    def build_one(self, topic: str, queue_id: int, now_ms: int, record_of: Callable[[int, int], P]) -> P:
        """What `record_of` makes of the next queue offset and the storing time; nothing is given out if it raises."""
        time_ms = max(now_ms, self.last_time_ms)
        offset = self.next_offset(topic, queue_id)
        made = record_of(offset, time_ms)
        self._next[topic, queue_id], self.last_time_ms = offset + 1, time_ms
        return made

    def build(self, messages: Sequence[NewMessage], now_ms: int) -> BuiltPut:
        """A put's messages, all of one queue and one kind, as records that follow each other."""
        first = messages[0]
        time_ms = self.time_ms(now_ms)
        if not first.takes_offset:
            return BuiltPut([encoded(one, 0, time_ms) for one in messages], 0, time_ms)
        offset = self.next_offset(first.topic, first.queue_id)
        self._next[first.topic, first.queue_id] = offset + len(messages)
        return BuiltPut(_records(messages, offset, time_ms), offset, time_ms)


def _records(messages: Sequence[NewMessage], offset: int, time_ms: int) -> list[bytes]:
    """Of messages of one queue; those of a batch share all but body, properties and flag."""
    first = messages[0]
    plain = len(first.born_host.ip) == len(first.store_host.ip) == 4 and not first.prepared_transaction_offset
    if len(messages) == 1 or not plain:
        return [encoded(one, offset + at, time_ms) for at, one in enumerate(messages)]
    form, born = PlainRecords(first.topic, first.queue_id, first.store_host), host_bytes(first.born_host)
    flags, born_ms, times = first.sys_flag & ~_HOST_FLAGS, first.born_timestamp_ms, first.reconsume_times
    return [
        form.encoded(offset + at, time_ms, born, one.body or b"", one.properties_data, one.flag, flags, born_ms, times)
        for at, one in enumerate(messages)
    ]


class PlainRecords:
    """Records of one topic, queue and storing host, both hosts IPv4: what they share is written once."""

    __slots__ = ("_magic", "_queue_id", "_store", "_topic", "fixed_bytes")

    def __init__(self, topic: str, queue_id: int, store_host: Host) -> None:
        self._magic, self._topic = _topic(topic)
        self._store, self._queue_id = host_bytes(store_host), queue_id
        self.fixed_bytes = _PLAIN.size + len(self._topic) + _SHORT.size

    def encoded(
        self, queue_offset: int, store_ms: int, born: bytes, body: bytes, properties: bytes, flag: int, sys_flag: int,
        born_ms: int, reconsume_times: int,
    ) -> bytes:  # fmt: skip
        """As `encoded` writes it. `born`: the host's 8 bytes."""
        head = _PLAIN.pack(
            self.fixed_bytes + len(body) + len(properties), self._magic, body_crc_of(body), self._queue_id, flag,
            queue_offset, 0, sys_flag, born_ms, born, store_ms, self._store, reconsume_times, 0, len(body),
        )  # fmt: skip
        return b"".join((head, body, self._topic, _SHORT.pack(len(properties)), properties))


def encoded(message: NewMessage, queue_offset: int, store_ms: int) -> bytes:
    """The record, but for its place. Whether a host is IPv6 its own bytes say, not the sender's flag."""
    magic, topic = _topic(message.topic)
    body = message.body or b""
    born, store = host_bytes(message.born_host), host_bytes(message.store_host)
    sys_flag = message.sys_flag & ~_HOST_FLAGS
    if len(born) > 8:
        sys_flag |= SysFlag.BORN_HOST_V6.value
    if len(store) > 8:
        sys_flag |= SysFlag.STORE_HOST_V6.value
    properties = message.properties_data
    size = _FIXED + len(born) + len(store) + len(body) + len(topic) + len(properties)
    return b"".join(
        (
            HEAD.pack(
                size, magic, body_crc_of(body), message.queue_id, message.flag, queue_offset, 0, sys_flag,
                message.born_timestamp_ms,
            ),
            born, _BETWEEN.pack(store_ms), store,
            _AFTER.pack(message.reconsume_times, message.prepared_transaction_offset, len(body)), body,
            topic, _SHORT.pack(len(properties)), properties,
        )
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _topic(name: str) -> tuple[int, bytes]:
    """The version that it asks for, and its field."""
    magic, data = magic_for(name), bytes_of(name)
    return magic, (_SHORT.pack(len(data)) if magic == MAGIC_V2 else bytes([len(data)])) + data


@lru_cache(maxsize=4096)
def host_bytes(host: Host) -> bytes:
    return host.ip + struct.pack(">i", host.port)
