"""Messages that are due in consume queues and index: the batch that a dispatcher is given, and what it takes of it.

A batch is one buffer and where in it each record lies; nothing is copied per record. What the queues and the index
need of it comes out as columns. Many records are read by numpy all at once; a few one by one, for an array
operation costs as much for one record as for hundreds.

Invariants: both ways give the same columns (the tests compare them); a record whose lengths do not agree raises
MessageFormatError and says where it lies; memory is a small multiple of the batch's own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from node.message_store.dispatch_text import Spans, gathered, hashes_of, pieces_between_spaces, texts_at, values_of
from node.message_store.errors import MessageFormatError
from node.message_store.heads import Heads, Ints, everywhere
from node.message_store.java_text import key_hash, string_hash, text_of
from node.message_store.properties import DELAY, KEYS, TAGS, UNIQ_KEY, index_keys
from node.message_store.queue_units import SCHEDULE_TOPIC, is_indexed, is_queued, unit_tags_code
from node.message_store.record import (
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    TRANSACTION_BITS,
    V1_TOPIC_UNITS_MAX,
    SysFlag,
    TransactionType,
    decode_record,
)
from node.protocol.entry import HEAD_BYTES as ENTRY_HEAD_BYTES
from node.protocol.entry import BytesLike
from node.protocol.value_class import value_class

FEW: Final = 30  # up to so many records are read one by one
TOPICS_AT_ONCE: Final = 16
QUEUED: Final = np.dtype([("queue", "i4"), ("number", "i8"), ("offset", "i8"), ("size", "i4"), ("tags_code", "i8")])
KEYED: Final = np.dtype([("hash", "i4"), ("offset", "i8"), ("time_ms", "i8")])
_ENTRY_SIZE_AND_CHANNEL: Final = struct.Struct(">4xi24xi")


@value_class(slots=True, frozen=True)
class Batch:
    """Record n: `sizes[n]` bytes from `starts[n]` on in `data`; in the commit log it begins at `offsets[n]`.

    `heads`: their fields, where somebody has judged them already.
    """

    data: BytesLike
    starts: Ints
    sizes: Ints
    offsets: Ints
    heads: Heads | None = None

    def __len__(self) -> int:
        return len(self.starts)


@value_class(slots=True, frozen=True)
class Columns:
    """`queues[n]` names the topic and queue of rows whose `queue` is n. Both tables are in the order of the log."""

    queues: list[tuple[str, int]]
    queued: Ints
    keyed: Ints
    last_time_ms: int
    """The storeTimestamp of the last message that goes into a queue; 0 where none does."""


def batch_of_records(records: Iterable[tuple[int, int, BytesLike]]) -> Batch:
    """Of (physical offset, size, bytes of the record)."""
    rows = list(records)
    sizes = np.array([size for _offset, size, _data in rows], "i8")
    starts = np.concatenate([np.zeros(1, "i8"), np.cumsum(sizes)[:-1]]) if rows else np.zeros(0, "i8")
    data = b"".join(bytes(data[:size]) for _offset, size, data in rows)
    return Batch(data, starts, sizes, np.array([offset for offset, _size, _data in rows], "i8"))


def batch_of_entries(data: BytesLike, position: int, begin: int = 0, end: int | None = None) -> Batch:
    """Of whole entries of the replicated log, from `begin` to `end` in `data`, whose byte 0 lies at `position`.

    Entries that hold no message of a client's (`channel` is not 0, or an empty body) are left out. Raises
    MessageFormatError where an entry does not end where the next begins.
    """
    stop = len(data) if end is None else end
    starts: list[int] = []
    sizes: list[int] = []
    at = begin
    while at < stop:
        if stop - at < ENTRY_HEAD_BYTES:
            raise MessageFormatError(f"{stop - at} bytes at position {position + at} are no whole entry")
        size, channel = _ENTRY_SIZE_AND_CHANNEL.unpack_from(data, at)
        if not ENTRY_HEAD_BYTES <= size <= stop - at:
            raise MessageFormatError(f"an entry of {size} bytes at position {position + at}, {stop - at} are there")
        if not channel and size > ENTRY_HEAD_BYTES:
            starts.append(at + ENTRY_HEAD_BYTES)
            sizes.append(size - ENTRY_HEAD_BYTES)
        at += size
    found = np.array(starts, "i8")
    return Batch(data, found, np.array(sizes, "i8"), found + position)


def columns_of(batch: Batch, delay_levels_ms: tuple[int, ...]) -> Columns:
    """What consume queues and index get of a batch. Raises MessageFormatError."""
    return columns_one_by_one(batch, delay_levels_ms) if len(batch) <= FEW else columns_at_once(batch, delay_levels_ms)


def columns_one_by_one(batch: Batch, delay_levels_ms: tuple[int, ...]) -> Columns:
    """See `columns_of`."""
    numbers: dict[tuple[str, int], int] = {}
    queued: list[tuple[int, int, int, int, int]] = []
    keyed: list[tuple[int, int, int]] = []
    last_ms = 0
    view = memoryview(batch.data)
    for start, size, offset in zip(batch.starts.tolist(), batch.sizes.tolist(), batch.offsets.tolist(), strict=True):
        try:
            record = decode_record(view[start : start + size])
            if record.total_size != size:
                raise MessageFormatError(f"a record of {record.total_size} bytes in {size}")
        except MessageFormatError as error:
            raise MessageFormatError(f"no message at offset {offset}: {error}") from error
        properties = record.properties
        if is_queued(record):
            last_ms = record.store_timestamp_ms
            queue = numbers.setdefault((record.topic, record.queue_id), len(numbers))
            code = unit_tags_code(record, delay_levels_ms, properties)
            queued.append((queue, record.queue_offset, offset, size, code))
        if is_indexed(record):
            times = record.store_timestamp_ms
            keyed += [(key_hash(record.topic, key), offset, times) for key in index_keys(properties)]
    return Columns(list(numbers), np.array(queued, QUEUED), np.array(keyed, KEYED), last_ms)


def columns_at_once(batch: Batch, delay_levels_ms: tuple[int, ...]) -> Columns:
    """See `columns_of`."""
    raw = np.frombuffer(batch.data, np.uint8)
    fields = batch.heads if batch.heads is not None else _heads_of(raw, batch)
    kinds = fields.sys_flag & TRANSACTION_BITS
    queued_rows = np.flatnonzero((kinds == TransactionType.NONE) | (kinds == TransactionType.COMMIT))
    indexed_rows = np.flatnonzero(kinds != TransactionType.ROLLBACK)
    topics, topic_of = _topics_of(raw, fields)
    # What is looked for in properties is not looked for in bodies.
    texts, properties = gathered(raw, Spans(np.arange(len(batch)), fields.topic_end + 2, fields.ends))
    values = values_of(texts, properties)
    first_rows, queue_of = _queues_of(topic_of[queued_rows], fields.queue_id[queued_rows])

    codes = np.zeros(len(batch), "i8")
    tags = values[TAGS]
    codes[tags.rows] = hashes_of(texts, tags)
    _set_due_times(codes, texts, fields, topics, topic_of, values[DELAY], delay_levels_ms)
    queued = np.zeros(len(queued_rows), QUEUED)
    queued["queue"] = queue_of
    queued["number"] = fields.queue_offset[queued_rows]
    queued["offset"] = batch.offsets[queued_rows]
    queued["size"] = batch.sizes[queued_rows]
    queued["tags_code"] = codes[queued_rows]

    keyed = _keyed(texts, batch, fields, topics, topic_of, values, indexed_rows)
    last_ms = int(fields.store_ms[queued_rows[-1]]) if len(queued_rows) else 0
    named = zip(
        topic_of[queued_rows[first_rows]].tolist(), fields.queue_id[queued_rows[first_rows]].tolist(), strict=True
    )
    return Columns([(topics[topic], queue_id) for topic, queue_id in named], queued, keyed, last_ms)


def _heads_of(raw: npt.NDArray[np.uint8], batch: Batch) -> Heads:
    """The fields of all records of a batch. Raises MessageFormatError where a record's lengths do not agree."""

    def check(fine: npt.NDArray[np.bool_], why: str) -> None:
        if not fine.all():
            raise MessageFormatError(f"no message at offset {int(batch.offsets[int(np.argmin(fine))])}: {why}")

    def at(places: Ints, kind: str) -> Ints:
        """Numbers that lie anywhere: of those that begin at each byte of the buffer, these."""
        dtype = np.dtype(kind)
        return everywhere(batch.data, dtype)[places].astype(dtype.newbyteorder("="))

    starts, sizes = batch.starts, batch.sizes
    ends = starts + sizes
    check((sizes >= RECORD_BYTES_MIN) & (starts >= 0) & (ends <= len(raw)), "it is not whole")
    check(at(starts, ">i4") == sizes, "it says another size")
    magic = at(starts + 4, ">i4")
    check((magic == MAGIC_V1) | (magic == MAGIC_V2), "its magic is no message's")
    wide = magic == MAGIC_V2
    sys_flag = at(starts + 36, ">i4")
    born = np.where(sys_flag & SysFlag.BORN_HOST_V6, 20, 8)
    store = np.where(sys_flag & SysFlag.STORE_HOST_V6, 20, 8)
    body_length_at = starts + 48 + born + 8 + store + 12
    check(body_length_at + 4 + 1 + wide + 2 <= ends, "it ends within its fields")
    body_bytes = at(body_length_at, ">i4").astype("i8")
    topic_length_at = body_length_at + 4 + body_bytes
    check((body_bytes >= 0) & (topic_length_at + 1 + wide + 2 <= ends), "its body is longer than the record")
    topic_bytes = raw[topic_length_at].astype("i8")
    if wide.any():
        topic_bytes[wide] = at(topic_length_at[wide], ">i2")
    topic_at = topic_length_at + 1 + wide
    topic_end = topic_at + topic_bytes
    fine = (topic_bytes >= 0) & (topic_end + 2 <= ends) & (wide | (topic_bytes <= V1_TOPIC_UNITS_MAX))
    check(fine, "its topic is longer than the record or its version allow")
    check(topic_end + 2 + at(topic_end, ">i2") == ends, "its properties do not end where it does")
    return Heads(
        starts, ends, at(starts + 12, ">i4"), at(starts + 20, ">i8"), sys_flag, at(starts + 48 + born, ">i8"), topic_at,
        topic_end,
    )  # fmt: skip


def _topics_of(raw: npt.NDArray[np.uint8], heads: Heads) -> tuple[list[str], Ints]:
    """The topics, and for each record which of them is its own: all records of one at once, while there are few."""
    begins, lengths = heads.topic_at, heads.topic_end - heads.topic_at
    found: dict[bytes, int] = {}
    of_record = np.full(len(begins), -1, "i8")
    left = np.arange(len(begins))
    while len(left) and len(found) < TOPICS_AT_ONCE:
        begin, length = int(begins[left[0]]), int(lengths[left[0]])
        topic = raw[begin : begin + length]
        rows = left[lengths[left] == length]
        if length:
            rows = rows[(texts_at(raw, begins[rows], length) == topic).all(axis=1)]
        of_record[rows] = len(found)
        found[topic.tobytes()] = len(found)
        left = left[of_record[left] < 0]
    for row in left.tolist():
        topic = raw[begins[row] : begins[row] + lengths[row]]
        of_record[row] = found.setdefault(topic.tobytes(), len(found))
    return [text_of(one) for one in found], of_record


def _queues_of(topic_of: Ints, queue_ids: Ints) -> tuple[Ints, Ints]:
    """The first row of each queue, in the order of the log, and for each row the number of its queue."""
    both = topic_of * (1 << 32) + queue_ids
    _found, first, of_row = np.unique(both, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number_of = np.empty(len(order), "i8")
    number_of[order] = np.arange(len(order))
    return first[order], number_of[of_row]


def _set_due_times(
    codes: Ints, texts: npt.NDArray[np.uint8], fields: Heads, topics: list[str], topic_of: Ints, delays: Spans,
    levels: tuple[int, ...],
) -> None:  # fmt: skip
    """A message that waits for its time has that in the place of its tags' hash."""
    if SCHEDULE_TOPIC not in topics:
        return
    waiting = topic_of == topics.index(SCHEDULE_TOPIC)
    for row, begin, end in zip(delays.rows.tolist(), delays.begins.tolist(), delays.ends.tolist(), strict=True):
        if waiting[row]:
            level = texts[begin:end].tobytes()
            if level.isdigit() and len(level) < 10 and int(level) > 0 and levels:
                codes[row] = fields.store_ms[row] + levels[min(int(level), len(levels)) - 1]


def _keyed(
    texts: npt.NDArray[np.uint8], batch: Batch, fields: Heads, topics: list[str], topic_of: Ints,
    values: dict[str, Spans], indexed_rows: Ints,
) -> Ints:  # fmt: skip
    """A row for each key of each message that is indexed: its unique key first."""
    if not len(texts):
        return np.zeros(0, KEYED)
    unique, listed = values[UNIQ_KEY], pieces_between_spaces(texts, values[KEYS])
    spans = Spans(*(np.concatenate([one, other]) for one, other in zip(unique.parts, listed.parts, strict=True)))
    order = np.argsort(spans.rows, kind="stable")
    spans = Spans(*(one[order] for one in spans.parts))
    is_indexed_row = np.zeros(len(batch), np.bool_)
    is_indexed_row[indexed_rows] = True
    spans = spans.chosen(is_indexed_row[spans.rows])
    starts = np.array([string_hash(f"{one}#") for one in topics] or [0], "i8")
    found = np.zeros(len(spans.rows), KEYED)
    found["hash"] = _absolute(hashes_of(texts, spans, starts[topic_of[spans.rows]]))
    found["offset"] = batch.offsets[spans.rows]
    found["time_ms"] = fields.store_ms[spans.rows]
    return found


def _absolute(hashes: Ints) -> Ints:
    """Never negative; 0 for the one number that has no counterpart."""
    found = np.abs(hashes)
    found[found > 0x7FFFFFFF] = 0
    return found
