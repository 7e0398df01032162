"""A message store in memory, for tests of what is in front of one: `node/broker/requests/store.py` says what it can do.

Records are built by the product's own code and lie in one byte string; a put is answered at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from node.message_store.consume_queue import PullStatus
from node.message_store.errors import MessageStoreError
from node.message_store.java_text import tags_code
from node.message_store.live_reads import Got, store_time_of
from node.message_store.new_message import NewMessage, PutLimits, Refused
from node.message_store.put_result import PutResult, PutStatus, refused
from node.message_store.record import PHYSICAL_OFFSET_AT, Host, MessageRecord, decode_record
from node.message_store.record_building import QueueOffsets
from node.protocol.entry import BytesLike


class MemoryMessages:
    """`lane` and `reads` are itself. `answers_with`: what the next puts end as, instead of being stored."""

    def __init__(self, limits: PutLimits | None = None, now_ms: Callable[[], int] = lambda: 1000) -> None:
        self.is_master = True
        self.has_lease = True
        self.confirming: list[asyncio.Future[bool]] = []  # who waits, where there is no lease
        self.lane = self.reads = self
        self.limits = limits or PutLimits()
        self.answers_with: PutStatus | None = None
        self.patient: list[bool] = []  # whether each put was
        self.step = 1 << 20
        self.on_disk = False  # whether old messages count as no longer in memory
        self.waiting: list[tuple[asyncio.Future[PutResult], list[NewMessage]]] | None = None
        self.on_dispatched: list[Callable[[list[tuple[str, int]]], None]] = []
        self._now_ms = now_ms
        self.log = bytearray()
        self.queues: dict[tuple[str, int], list[bytes]] = {}
        self._offsets = QueueOffsets(lambda topic, queue_id: len(self.queues.get((topic, queue_id), ())))

    def may_answer(self) -> bool:
        return self.has_lease

    def confirm(self) -> asyncio.Future[bool]:
        self.confirming.append(asyncio.get_running_loop().create_future())
        return self.confirming[-1]

    # --- puts ---------------------------------------------------------------------------------------------------
    def put(self, message: NewMessage, *, patient: bool = False) -> asyncio.Future[PutResult]:
        self.patient.append(patient)
        return self._put(lambda: [self.limits.judged(message)])

    def put_own(self, message: NewMessage, *, spare_bytes: int = 0, patient: bool = False) -> asyncio.Future[PutResult]:
        self.patient.append(patient)
        return self._put(lambda: [self.limits.judged(message, moves=False, spare_bytes=spare_bytes)])

    def put_batch(self, batch: NewMessage) -> asyncio.Future[PutResult]:
        return self._put(lambda: self.limits.judged_batch(batch))

    def _put(self, judged: Callable[[], list[NewMessage]]) -> asyncio.Future[PutResult]:
        done: asyncio.Future[PutResult] = asyncio.get_running_loop().create_future()
        if self.answers_with is not None:
            done.set_result(refused(self.answers_with, "as the test says"))
            return done
        try:
            messages = judged()
        except Refused as error:
            done.set_result(refused(error.status, error.reason))
            return done
        if self.waiting is not None:
            self.waiting.append((done, messages))
        else:
            done.set_result(self._store(messages))
        return done

    def commit(self) -> None:
        """Those that wait are stored, and answered."""
        waiting, self.waiting = self.waiting or [], None
        for done, messages in waiting:
            done.set_result(self._store(messages))

    def _store(self, messages: list[NewMessage]) -> PutResult:
        built, first = self._offsets.build(messages, self._now_ms()), messages[0]
        places = []
        for message, record in zip(messages, built.records, strict=True):
            places.append(len(self.log))
            data = bytearray(record)
            data[PHYSICAL_OFFSET_AT : PHYSICAL_OFFSET_AT + 8] = len(self.log).to_bytes(8, "big")
            self.log += data
            if message.takes_offset:
                self.queues.setdefault((message.topic, message.queue_id), []).append(bytes(data))
        for hear in self.on_dispatched:
            hear([(first.topic, first.queue_id)])
        return PutResult(
            PutStatus.PUT_OK, "", first.topic, first.queue_id, built.first_offset, tuple(places),
            built.store_timestamp_ms, first.store_host,
        )  # fmt: skip

    # --- reads --------------------------------------------------------------------------------------------------
    def max_offset(self, topic: str, queue_id: int) -> int:
        return len(self.queues.get((topic, queue_id), ()))

    def min_offset(self, topic: str, queue_id: int) -> int:
        return 0

    def stored_at_ms(self, topic: str, queue_id: int, offset: int) -> int:
        records = self.queues.get((topic, queue_id), [])
        return store_time_of(records[offset]) if offset < len(records) else -1

    def units(self, topic: str, queue_id: int, first: int, count: int) -> list[tuple[int, int, int]]:
        records = self.queues.get((topic, queue_id), [])[first : first + count]
        return [
            (
                int.from_bytes(one[PHYSICAL_OFFSET_AT : PHYSICAL_OFFSET_AT + 8], "big"),
                len(one),
                tags_code(decode_record(one).properties.get("TAGS")),
            )
            for one in records
        ]

    def offset_at(self, topic: str, queue_id: int, time_ms: int) -> int:
        records = self.queues.get((topic, queue_id), [])
        later = [at for at, one in enumerate(records) if store_time_of(one) >= time_ms]
        return later[0] if later else max(0, len(records) - 1)

    def message_at(self, offset: int) -> BytesLike:
        for records in self.queues.values():
            for one in records:
                if int.from_bytes(one[PHYSICAL_OFFSET_AT : PHYSICAL_OFFSET_AT + 8], "big") == offset:
                    return one
        raise MessageStoreError(f"nothing at {offset}")

    def get(
        self, topic: str, queue_id: int, offset: int, count: int = 32, *, tags: frozenset[str] | None = None,
        bytes_max: int = 262_144, corrects: bool = True,
    ) -> Got:  # fmt: skip
        records = self.queues.get((topic, queue_id), [])
        high = len(records)
        if not high:
            return Got(PullStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        if offset < 0:
            return Got(PullStatus.OFFSET_TOO_SMALL, 0, 0, high)
        if offset == high:
            return Got(PullStatus.OFFSET_OVERFLOW_ONE, offset, 0, high)
        if offset > high:
            return Got(PullStatus.OFFSET_OVERFLOW_BADLY, high, 0, high)
        codes = None if tags is None else {tags_code(one) for one in tags}
        found: list[BytesLike] = []
        upto = offset
        for record in records[offset:]:
            if len(found) >= count or (found and sum(map(len, found)) + len(record) > bytes_max):
                break
            upto += 1
            if codes is None or decode_record(record).tags_code in codes:
                found.append(record)
        status = PullStatus.FOUND if found else PullStatus.NO_MATCHED_MESSAGE
        return Got(status, upto, 0, high, tuple(found), suggests_slave=self.on_disk)

    def index_end(self) -> tuple[int, int]:
        return self._offsets.last_time_ms, len(self.log)

    def query(
        self, topic: str, key: str, limit: int = 64, begin_ms: int | None = None, end_ms: int | None = None
    ) -> Iterator[BytesLike | None]:
        """It walks over all messages, newest first, and lets others in behind each `step` of them."""
        found: list[BytesLike] = []
        every = [(name, one) for (name, _queue_id), records in self.queues.items() for one in records]
        for number, (name, one) in enumerate(reversed(every), 1):
            is_then = (begin_ms or 0) <= store_time_of(one) <= (end_ms if end_ms is not None else 1 << 62)
            if len(found) < limit and name == topic and key in decode_record(one).index_keys and is_then:
                found.append(one)
            if number % self.step == 0:
                yield None
        yield from reversed(found)


def without_place(record: bytes) -> tuple[MessageRecord, Mapping[str, str]]:
    """A record but for what differs from broker to broker: place, times, hosts, and the order of its properties."""
    one = decode_record(record)
    nobody = Host(bytes(4), 0)
    cleared = replace(
        one, physical_offset=0, store_timestamp_ms=0, store_host=nobody, born_host=nobody, properties_data=b""
    )
    return cleared, one.properties
