"""Reads of a store that is being written: messages by queue, place, id, key and time.

Beside the files there are the dispatcher's next offsets (where each queue ends) and the newest entries in memory. What
is answered is dispatched, so committed; a message that was removed with its file is passed over, one that cannot be
read for another reason never is: what lies before it is given, and then nothing.

Invariants: a read takes no longer than the units it looks at; statuses and next offsets are RocketMQ's; what is not
what was written is given to nobody (SAFETY S6): by the checksum of its entry, and by the CRC of the body where there is
none, as in what Java wrote, in old commit logs and in classic ones.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol

from node.message_store.commit_log import CommitLog, FileCommitLog, JoinedCommitLog
from node.message_store.consume_queue import ConsumeQueue, PullStatus
from node.message_store.dispatch import Dispatcher
from node.message_store.errors import MessageStoreError
from node.message_store.java_text import tags_code
from node.message_store.message_store import QUERY_MAX, MessageStore
from node.message_store.queue_units import UNIT_BYTES
from node.message_store.read_files import OS, Files
from node.message_store.recent_entries import RecentEntries
from node.message_store.record import (
    HEAD_BYTES,
    RECORD_BYTES_MIN,
    SIZE_AND_MAGIC,
    SYS_FLAG_AT,
    SysFlag,
    is_record_magic,
    parse_message_id,
)
from node.message_store.record_check import has_sound_body
from node.protocol.entry import HEAD as ENTRY_HEAD
from node.protocol.entry import BytesLike, crc32
from node.protocol.value_class import value_class

IN_MEMORY: Final = (262_144, 32)  # bytes and messages that one answer takes, where they are in memory ...
ON_DISK: Final = (65_536, 8)  # ... and where they are not
READ_BYTES_MAX: Final = 262_144  # one read of a file brings the records of an answer that lie within so much ...
GAP_BYTES_MAX: Final = 8_192  # ... with no more than this between two: what other queues have there is read in vain
TIME_BYTES: Final = HEAD_BYTES + 20 + 8  # of a record's beginning: up to its storeTimestamp, behind a host of IPv6
NOTHING: Final = memoryview(b"")
CHECKSUMS: Final = struct.Struct(">IIi")  # of the chain and of the body, in front of an entry's body with its length
UNITS_LOOKED_AT: Final = 800  # maxFilterMessageSize 16000: units that a filter may pass over in one answer


class Dispatched(Protocol):
    """How far the store can be read."""

    def queue_end(self, queue: tuple[str, int]) -> int: ...
    @property
    def end_position(self) -> int: ...
    @property
    def dispatcher(self) -> Dispatcher | None:
        """None: nothing is dispatched yet."""


@value_class(slots=True, frozen=True)
class Got:
    """What a consumer that asks for a queue from an offset on gets. `records`: whole ones, as the log has them."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    records: tuple[BytesLike, ...] = ()
    suggests_slave: bool = False


class LiveReads:
    """See the module's docstring. `memory_bytes`: within so much of the log's end a message counts as in memory."""

    def __init__(
        self, root: Path, dispatched: Dispatched, recent: RecentEntries, memory_bytes: int, files: Files = OS
    ) -> None:
        self._root, self._dispatched, self._recent, self._memory_bytes = root, dispatched, recent, memory_bytes
        self._files = files
        self._store: MessageStore | None = None
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._lows: dict[tuple[str, int], tuple[int, int]] = {}
        self.begins: Mapping[tuple[str, int], int] = {}  # of queues whose topic was deleted and made again
        self.begins_anew: Callable[[str], bool] = lambda _topic: False  # at 0: that topic was, in a replicated log
        self.on_damage: Callable[[int], None] = lambda _index: None  # an entry whose checksum is wrong
        # Where there is no such checksum: the place, and what is there instead of the record.
        self.on_rot: Callable[[int, BytesLike], None] = lambda _place, _record: None

    def refresh(self) -> None:
        """Looks again which files there are: now and then, for what expires."""
        self._store = MessageStore(self._root, self._files)

    def forget_all(self) -> None:
        """Queues and index are others now."""
        self._store = None
        self._queues.clear()
        self._lows.clear()

    def forget(self, topic: str) -> None:
        """Its queues are gone; they may come again, and begin at 0."""
        for known in (self._queues, self._lows):
            for key in [one for one in known if one[0] == topic]:
                del known[key]

    @property
    def store(self) -> MessageStore:
        if self._store is None:
            self.refresh()
        assert self._store is not None
        return self._store

    # --- queues ---------------------------------------------------------------------------------------------------
    def max_offset(self, topic: str, queue_id: int) -> int:
        return self._dispatched.queue_end((topic, queue_id))

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The first whose message is still there; `max_offset` where none is."""
        if not self.max_offset(topic, queue_id):  # nor need there be a log yet
            return 0
        key, log_min = (topic, queue_id), self.store.log.min_offset
        known = self._lows.get(key)
        if known is not None and known[0] == log_min:
            return known[1]
        queue = self._queue(key)
        if queue is not None:
            queue.queue.rescan()  # what is kept may begin in a file that was made since
        low = 0 if queue is None else max(queue.min_offset(log_min), self.begins.get(key, 0))
        low = min(low, self.max_offset(topic, queue_id))
        self._lows[key] = (log_min, low)
        return low

    def _queue(self, key: tuple[str, int]) -> ConsumeQueue | None:
        found = self._queues.get(key)
        if found is None:
            found = self.store.queue(*key)
            if found is not None:
                self._queues[key] = found
        return found

    def units(self, topic: str, queue_id: int, first: int, count: int) -> list[tuple[int, int, int]]:
        """Place, size and tags code of each, all of one file of the queue."""
        count = min(count, self.max_offset(topic, queue_id) - first)
        queue = self._queue((topic, queue_id)) if count > 0 else None
        if queue is None:
            return []
        found = queue.rows(first, count)
        if not found:
            queue.queue.rescan()
            found = queue.rows(first, count)
        return found

    def get(
        self, topic: str, queue_id: int, offset: int, count: int = 32, *, tags: frozenset[str] | None = None,
        bytes_max: int = IN_MEMORY[0], corrects: bool = True,
    ) -> Got:  # fmt: skip
        """`tags` None: all; they are compared by hash, the consumer compares the texts. `corrects`: False on a slave,
        which leaves a wrong offset as it is."""
        high = self.max_offset(topic, queue_id)
        if high == 0:
            return Got(PullStatus.NO_MESSAGE_IN_QUEUE, 0 if corrects else offset, 0, 0)
        low = self.min_offset(topic, queue_id)
        if offset < low:
            return Got(PullStatus.OFFSET_TOO_SMALL, low if corrects else offset, low, high)
        if offset == high:
            return Got(PullStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:
            # Of a topic that was made again, who asks for a place of the earlier one's has had nothing of this one.
            right = low if self.begins_anew(topic) else high
            return Got(PullStatus.OFFSET_OVERFLOW_BADLY, right if corrects else offset, low, high)
        looked_at = count if tags is None else max(UNITS_LOOKED_AT, count)
        units = self.units(topic, queue_id, offset, looked_at)
        if not units:
            return Got(PullStatus.OFFSET_FOUND_NULL, self._next_file(topic, queue_id, offset), low, high)
        return self._collected(units, offset, low, high, count, tags, bytes_max)

    def _collected(
        self, units: list[tuple[int, int, int]], offset: int, low: int, high: int, count: int,
        tags: frozenset[str] | None, bytes_max: int,
    ) -> Got:  # fmt: skip
        codes = None if tags is None else {tags_code(one) for one in tags}
        found: list[BytesLike] = []
        size, upto, place = 0, offset, units[0][0]
        missed = PullStatus.NO_MATCHED_MESSAGE
        recent, near = self._recent.read, _Near(self, units)
        far_below = self.end_offset() - self._memory_bytes
        of_memory, of_disk = ((min(bytes_max, most), min(count, many)) for most, many in (IN_MEMORY, ON_DISK))
        for number, (place, unit_bytes, code) in enumerate(units):
            room_bytes, room = of_memory if place >= far_below else of_disk
            left = room - len(found)
            if found and (left <= 0 or size + unit_bytes > room_bytes):
                break
            if codes is None or code in codes:
                kept = recent(place, unit_bytes)
                data = kept if kept is not None else near.read(number, left)
                if _is_record(data, unit_bytes):
                    found.append(data)
                    size += unit_bytes
                elif place < self.store.log.min_offset:
                    missed = PullStatus.MESSAGE_WAS_REMOVING
                else:  # it is there and cannot be read: not passed over
                    missed = PullStatus.OFFSET_FOUND_NULL if upto == offset else missed
                    break
            upto = offset + number + 1
        return Got(PullStatus.FOUND if found else missed, upto, low, high, tuple(found), place < far_below)

    def _next_file(self, topic: str, queue_id: int, offset: int) -> int:
        """Where the queue's next file begins."""
        queue = self._queue((topic, queue_id))
        units = 0 if queue is None else queue.queue.file_size_bytes // UNIT_BYTES
        return offset if not units else offset - offset % units + units

    # --- messages -------------------------------------------------------------------------------------------------
    def end_offset(self) -> int:
        """Behind what is dispatched."""
        return self._dispatched.end_position

    def record(self, offset: int, size_bytes: int) -> BytesLike | None:
        """The record that begins there, of which a queue's unit says the size; None where it cannot be read."""
        found = self._recent.read(offset, size_bytes)
        data: BytesLike = found if found is not None else _Near(self, [(offset, size_bytes, 0)]).read(0, 1)
        return data if _is_record(data, size_bytes) else None

    def _from_file(self, offset: int, least_bytes: int, most_bytes: int) -> bytes:
        """Fewer than `least_bytes` only where there are no more; never beyond the file's end."""
        data = _row(self.store.log, offset).queue.read(offset, most_bytes)
        if len(data) < least_bytes:
            self.refresh()
            data = _row(self.store.log, offset).queue.read(offset, most_bytes)
        return data

    def message_at(self, offset: int) -> BytesLike:
        """The record of the message that begins there. Raises MessageStoreError."""
        if offset < self.end_offset():
            recent = self._recent.record_at(offset)
            if recent is not None:
                return recent
            try:
                placed = self.store.log.message_at(offset)
            except MessageStoreError:
                self.refresh()
                placed = self.store.log.message_at(offset)
            if placed.channel == 0:
                record = self.record(offset, placed.size_bytes)
                if record is not None:
                    return record
                raise MessageStoreError(f"the message at offset {offset} cannot be read here: it is damaged")
        raise MessageStoreError(f"can not find message by the offset, {offset}")

    def by_id(self, text: str) -> BytesLike:
        """The host in it may be an old master's. Raises MessageFormatError, MessageStoreError."""
        return self.message_at(parse_message_id(text)[1])

    def query(
        self, topic: str, key: str, limit: int = QUERY_MAX, begin_ms: int | None = None, end_ms: int | None = None
    ) -> Iterator[BytesLike | None]:
        """Records whose key's hash is this one's, the newest `limit`, ascending: the caller compares keys, and ends
        when it has enough. There is a None wherever somebody else may have a turn."""
        offsets: list[int] = []
        if not self.end_offset():  # nor need there be a log yet
            return
        for offset in self._indexed().query_steps(topic, key, limit, begin_ms, end_ms):
            if offset is None:
                yield None
            else:
                offsets.append(offset)
        for offset in sorted(offsets):
            try:
                yield self.message_at(offset)
            except MessageStoreError:
                continue  # expired

    def _indexed(self) -> MessageStore:
        """The store, with the sizes by which its index is written: a file of few entries does not show its slots."""
        dispatcher = self._dispatched.dispatcher
        if dispatcher is not None:
            self.store.index_sizes = (dispatcher.sizes.index_slots, dispatcher.sizes.index_entries)
        return self.store

    def index_end(self) -> tuple[int, int]:
        """Time and place of the last message that has a key in the index; zeros where none has."""
        for _name, file in self._indexed().index_files(newest_first=True):
            return file.head.end_timestamp_ms, file.head.end_offset
        return 0, 0

    # --- time -----------------------------------------------------------------------------------------------------
    def stored_at_ms(self, topic: str, queue_id: int, offset: int) -> int:
        """When the message of that queue offset was stored; -1 where it cannot be read."""
        for place, size, _code in self.units(topic, queue_id, offset, 1):
            head: BytesLike | None = self._recent.read(place, size)
            if head is None:  # its beginning alone: a body may have megabytes
                try:
                    head = self._from_file(place, TIME_BYTES, TIME_BYTES)
                except OSError:  # of one place, and asked for by what a broker says of itself: it is no end of that
                    return -1
            if _begins_record(head, size):
                return store_time_of(head)
        return -1

    def offset_at(self, topic: str, queue_id: int, time_ms: int) -> int:
        """The first that was stored at that time or later; the last one where all are older, as RocketMQ answers."""
        low, high = self.min_offset(topic, queue_id), self.max_offset(topic, queue_id)
        if low >= high:
            return low
        begin, end = low, high
        while begin < end:
            middle = (begin + end) // 2
            if self.stored_at_ms(topic, queue_id, middle) < time_ms:
                begin = middle + 1
            else:
                end = middle
        return min(begin, high - 1)


class _Near:
    """What one answer takes from files. A file is opened for each read, so records that lie near come together, each
    with the head of its entry, which has its checksum."""

    def __init__(self, reads: LiveReads, units: list[tuple[int, int, int]]) -> None:
        self._reads, self._units = reads, units
        self._begin, self._data, self._head_bytes = 0, NOTHING, 0

    def read(self, number: int, count_max: int) -> memoryview:
        """The bytes that unit `number` names, fewer where there are no more, none where they are not what was written;
        up to `count_max` units are taken."""
        place, size, _code = self._units[number]
        begin = place - self._begin
        if not self._head_bytes <= begin <= len(self._data) - size:
            end = place + size
            for follows, its_bytes, _code in self._units[number + 1 : number + count_max]:
                if not end <= follows <= end + GAP_BYTES_MAX or follows + its_bytes - place > READ_BYTES_MAX:
                    break
                end = follows + its_bytes
            begin = self._head_bytes = _row(self._reads.store.log, place).framing.head_bytes
            self._begin = place - begin
            self._data = memoryview(self._reads._from_file(self._begin, begin + size, end - self._begin))
        record = self._data[begin : begin + size]
        if len(record) < size:
            return record
        if self._is_checked(begin):
            if CHECKSUMS.unpack_from(self._data, begin - CHECKSUMS.size)[1] == crc32(record):
                return record
            self._reads.on_damage(ENTRY_HEAD.unpack_from(self._data, begin - ENTRY_HEAD.size)[2])
        else:
            if _is_record(record, size) and has_sound_body(record):
                return record
            self._reads.on_rot(place, record)
        return NOTHING

    def _is_checked(self, begin: int) -> bool:
        """By the end of its entry's head: Java's entries have no checksums, and old commit logs no entries."""
        return self._head_bytes > 0 and CHECKSUMS.unpack_from(self._data, begin - CHECKSUMS.size)[:2] != (0, 0)


def _is_record(data: BytesLike, size_bytes: int) -> bool:
    """Whether it is one whole record of that length."""
    return len(data) == size_bytes and _begins_record(data, size_bytes)


def _begins_record(data: BytesLike, size_bytes: int) -> bool:
    """Whether it is the beginning of one of that length, at least up to its time."""
    if size_bytes < RECORD_BYTES_MIN or len(data) < TIME_BYTES:
        return False
    size, magic = SIZE_AND_MAGIC.unpack_from(data)
    return size == size_bytes and is_record_magic(magic)


def store_time_of(record: BytesLike) -> int:
    """storeTimestamp."""
    v6 = record[SYS_FLAG_AT + 3] & SysFlag.BORN_HOST_V6
    at = HEAD_BYTES + (20 if v6 else 8)
    return int.from_bytes(record[at : at + 8], "big", signed=True)


def _row(log: CommitLog, offset: int) -> FileCommitLog:
    """The files in which that place lies."""
    if isinstance(log, JoinedCommitLog):
        log = log.old if offset < log.divided_offset else log.ledger
    assert isinstance(log, FileCommitLog)
    return log
