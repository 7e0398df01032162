"""The key-value store's commands, results, questions and answers as bytes: what clients send and members apply.

Keys are 1 to 1024 bytes, values up to 1 MiB. A command may name a condition (compare-and-set): what the key must hold
now, or which entry wrote it. Times are log time in milliseconds; an index of -1 is that of a key that is not there.

Invariant: every length is held against the bytes that are there; a broken body is a KvError, and nothing of it is used.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from functools import partial
from itertools import repeat
from typing import Final, NamedTuple

import numpy as np

from node.protocol.entry import BytesLike
from node.protocol.packed_bodies import PackedBodies

KEY_BYTES_MAX: Final = 1024
VALUE_BYTES_MAX: Final = 1024 * 1024
_INDEX_MAX: Final = 2**63 - 1
TTL_MS_MAX: Final = 10 * 365 * 24 * 3600 * 1000
ITEMS_MAX: Final = 1000
ABSENT: Final = -1
NEVER: Final = -1  # of `expires_ms`
COMMAND: Final = struct.Struct(">BBqqHI")
_pack: Final = COMMAND.pack
_RESULT: Final = struct.Struct(">BBq")
_RESULT_ROW: Final = np.dtype([("status", "u1"), ("found", "u1"), ("index", ">i8")])
_ITEM: Final = struct.Struct(">HqqI")
_EVENT: Final = struct.Struct(">BHqI")
_RANGE: Final = struct.Struct(">IHH")
_WATCH: Final = struct.Struct(">qI")
_COUNT: Final = struct.Struct(">IB")
_WATCHED: Final = struct.Struct(">BqI")
_GOT: Final = struct.Struct(">Bqq")


class KvError(ValueError):
    """What is wrong with a command, a question or an answer; the text says what is allowed."""


class Op(IntEnum):
    """What a command does."""

    PUT = 1
    DELETE = 2


class If(IntEnum):
    """A command's condition."""

    ALWAYS = 0
    VALUE_IS = 1
    INDEX_IS = 2  # ABSENT: there is no such key


class Status(IntEnum):
    """How a command went."""

    DONE = 0
    CONDITION_FAILED = 1
    NOT_FOUND = 2  # of a delete
    BAD_COMMAND = 3


class Ask(IntEnum):
    """What a question asks for."""

    GET = 1
    RANGE = 2
    WATCH = 3


GET: Final = bytes([Ask.GET])  # before the key that is asked for


class EventType(IntEnum):
    """What happened to a key."""

    PUT = 1
    DELETE = 2
    EXPIRE = 3


_DONE: Final = int(Status.DONE)
_PUT, _ALWAYS = int(Op.PUT), int(If.ALWAYS)
_STATUS: Final = tuple(Status)  # by number
_PUT_HEADS: Final = [_pack(_PUT, _ALWAYS, 0, ABSENT, key_bytes, 0) for key_bytes in range(KEY_BYTES_MAX + 1)]


class KvCommand(NamedTuple):
    """`ttl_ms` 0: for ever."""

    op: Op
    key: bytes
    value: bytes = b""
    ttl_ms: int = 0
    condition: If = If.ALWAYS
    expected_value: bytes = b""
    expected_index: int = ABSENT


class KvResult(NamedTuple):
    """`index`: the entry that wrote what the key holds now; `value`: that, where a condition failed; else empty."""

    status: Status
    found: bool  # whether the key is there now
    index: int  # type: ignore[assignment]  # not tuple.index
    value: bytes = b""


_new_result: Final = partial(tuple.__new__, KvResult)


class KvItem(NamedTuple):
    """A key, what it holds, the entry that wrote that, and until when it stays."""

    key: bytes
    value: bytes
    index: int  # type: ignore[assignment]  # not tuple.index
    expires_ms: int = NEVER


_new_item: Final = partial(tuple.__new__, KvItem)


class KvEvent(NamedTuple):
    """What entry `index` did to a key."""

    type: EventType
    key: bytes
    index: int  # type: ignore[assignment]  # not tuple.index
    value: bytes = b""


class KvWatched(NamedTuple):
    """Events, and from where to watch on. `is_gone`: events from there on are not kept any more: read, then watch."""

    is_gone: bool
    next_index: int
    events: Sequence[KvEvent]


def check_key(key: bytes) -> bytes:
    """Raises KvError."""
    if not 0 < len(key) <= KEY_BYTES_MAX:
        raise KvError(f"a key of {len(key)} bytes: 1 to {KEY_BYTES_MAX} are allowed")
    return key


def check_value(value: bytes) -> bytes:
    """Raises KvError."""
    if len(value) > VALUE_BYTES_MAX:
        raise KvError(f"a value of {len(value)} bytes: up to {VALUE_BYTES_MAX} are allowed")
    return value


# --- commands -----------------------------------------------------------------------------------------------------
def encode_command(command: KvCommand) -> bytes:
    """Raises KvError."""
    op, key, value, ttl_ms, condition, expected, expected_index = command
    check_key(key), check_value(expected), check_value(value)
    if not 0 <= ttl_ms <= TTL_MS_MAX:
        raise KvError(f"a time to live of {ttl_ms} ms: 0 (for ever) to {TTL_MS_MAX} are allowed")
    if not ABSENT <= expected_index <= _INDEX_MAX:
        raise KvError(f"an expected_index of {expected_index}: {ABSENT} (not there) to {_INDEX_MAX} are allowed")
    return _pack(op, condition, ttl_ms, expected_index, len(key), len(expected)) + key + expected + value


def encode_put(key: bytes, value: bytes) -> bytes:
    """That of a put without a condition that stays; the most common one, in a quarter of the time. Raises KvError."""
    key_bytes = len(key)
    if not (0 < key_bytes <= KEY_BYTES_MAX and len(value) <= VALUE_BYTES_MAX):
        check_key(key), check_value(value)
    return b"".join((_PUT_HEADS[key_bytes], key, value))


def decode_command(body: BytesLike) -> KvCommand:
    """Raises KvError."""
    try:
        op, condition, ttl_ms, expected_index, key_bytes, expected_bytes = COMMAND.unpack_from(body)
        at = COMMAND.size
        if at + key_bytes + expected_bytes > len(body):
            raise KvError(f"a command of {len(body)} bytes says that it is longer")
        key, expected = bytes(body[at : at + key_bytes]), bytes(body[at + key_bytes : at + key_bytes + expected_bytes])
        value = bytes(body[at + key_bytes + expected_bytes :])
        if not 0 <= ttl_ms <= TTL_MS_MAX:
            raise KvError(f"a time to live of {ttl_ms} ms")
        check_key(key), check_value(value)
        return KvCommand(Op(op), key, value, ttl_ms, If(condition), expected, expected_index)
    except (struct.error, ValueError) as error:
        raise KvError(f"no command: {error}") from None


def encode_result(result: KvResult) -> bytes:
    return _RESULT.pack(result.status, result.found, result.index) + result.value


done_at: Final = partial(_RESULT.pack, _DONE, 1)  # the result of a put that the entry of that index did


def done_all(first_index: int, count: int) -> PackedBodies:
    """The same of so many puts in a row."""
    results = np.zeros(count, _RESULT_ROW)
    results["found"], results["index"] = 1, np.arange(first_index, first_index + count)
    return PackedBodies(results.tobytes(), 0, np.full(count, _RESULT.size, np.int64))


def decode_result(body: BytesLike) -> KvResult:
    """Raises KvError."""
    try:
        status, found, index = _RESULT.unpack_from(body)
        return KvResult(Status(status), bool(found), index, bytes(body[_RESULT.size :]))
    except (struct.error, ValueError) as error:
        raise KvError(f"no result: {error}") from None


def results_in(results: Sequence[bytes]) -> Iterator[KvResult]:
    """Of many commands: where none says what a key holds, they are made one by one out of columns. Raises KvError,
    before the first."""
    if type(results) is PackedBodies and results.even_bytes == _RESULT.size:
        rows = np.frombuffer(results.data, _RESULT_ROW, offset=results.start)
        if not rows["status"].any() and rows["found"].all():  # puts
            return map(_new_result, zip(repeat(Status.DONE), repeat(True), rows["index"].tolist(), repeat(b"")))
        if not bool((rows["status"] >= len(_STATUS)).any()):  # otherwise each by itself: which of them, and why
            statuses, found = map(_STATUS.__getitem__, rows["status"].tolist()), (rows["found"] != 0).tolist()
            return map(_new_result, zip(statuses, found, rows["index"].tolist(), repeat(b""), strict=False))
    return iter([decode_result(one) for one in results])


def decode_results(results: Sequence[bytes]) -> list[KvResult]:
    """The same as a list. Raises KvError."""
    return list(results_in(results))


# --- questions ----------------------------------------------------------------------------------------------------
def ask_get(key: bytes) -> bytes:
    """Raises KvError."""
    return GET + check_key(key)


def ask_range(from_key: bytes, to_key: bytes, limit: int) -> bytes:
    """Keys from `from_key` on, up to and without `to_key`; b"": from the first, to the last. Raises KvError."""
    if not 1 <= limit <= ITEMS_MAX:
        raise KvError(f"a limit of {limit}: 1 to {ITEMS_MAX} are allowed")
    if max(len(from_key), len(to_key)) > KEY_BYTES_MAX + 1:
        raise KvError(f"keys have up to {KEY_BYTES_MAX} bytes")
    return bytes([Ask.RANGE]) + _RANGE.pack(limit, len(from_key), len(to_key)) + from_key + to_key


def ask_watch(prefix: bytes, from_index: int, limit: int = ITEMS_MAX) -> bytes:
    """What entries from `from_index` on did to keys that begin so. Raises KvError."""
    if len(prefix) > KEY_BYTES_MAX:
        raise KvError(f"a prefix of {len(prefix)} bytes: keys have up to {KEY_BYTES_MAX}")
    if from_index < 0 or not 1 <= limit <= ITEMS_MAX:
        raise KvError(f"a watch from entry {from_index} on, of {limit} events: 0 and 1 to {ITEMS_MAX} are allowed")
    return bytes([Ask.WATCH]) + _WATCH.pack(from_index, limit) + prefix


def decode_range(body: BytesLike) -> tuple[bytes, bytes, int]:
    """From, to, limit, of what stands behind the first byte. Raises KvError."""
    try:
        limit, from_bytes, to_bytes = _RANGE.unpack_from(body)
    except struct.error as error:
        raise KvError(f"no range: {error}") from None
    at = _RANGE.size
    if at + from_bytes + to_bytes != len(body) or not 1 <= limit <= ITEMS_MAX:
        raise KvError("a range whose lengths or limit are out of bounds")
    return bytes(body[at : at + from_bytes]), bytes(body[at + from_bytes :]), limit


def decode_watch(body: BytesLike) -> tuple[bytes, int, int]:
    """Prefix, from_index, limit, of what stands behind the first byte. Raises KvError."""
    try:
        from_index, limit = _WATCH.unpack_from(body)
    except struct.error as error:
        raise KvError(f"no watch: {error}") from None
    if from_index < 0 or not 1 <= limit <= ITEMS_MAX:
        raise KvError(f"a watch from entry {from_index} on, of {limit} events")
    return bytes(body[_WATCH.size :]), from_index, limit


# --- answers ------------------------------------------------------------------------------------------------------
NOTHING: Final = _GOT.pack(0, ABSENT, NEVER)  # to a get of a key that is not there


def got(value: bytes, index: int, expires_ms: int) -> bytes:
    """The answer to a get."""
    return _GOT.pack(1, index, expires_ms) + value


def decode_got(key: bytes, body: BytesLike) -> KvItem | None:
    """None: there is no such key. Raises KvError."""
    try:
        found, index, expires_ms = _GOT.unpack_from(body)
    except struct.error as error:
        raise KvError(f"no answer to a get: {error}") from None
    return _new_item((key, bytes(body[_GOT.size :]), index, expires_ms)) if found else None


def encode_item(key: bytes, value: bytes, index: int, expires_ms: int) -> bytes:
    return _ITEM.pack(len(key), index, expires_ms, len(value)) + key + value


def item_at(body: BytesLike, offset: int) -> tuple[KvItem, int] | None:
    """The item there, and where the next one begins; None: it is not all there."""
    if len(body) - offset < _ITEM.size:
        return None
    key_bytes, index, expires_ms, value_bytes = _ITEM.unpack_from(body, offset)
    key_at = offset + _ITEM.size
    end = key_at + key_bytes + value_bytes
    if end > len(body):
        return None
    value_at = key_at + key_bytes
    return KvItem(bytes(body[key_at:value_at]), bytes(body[value_at:end]), index, expires_ms), end


def encode_items(items: Iterable[bytes], has_more: bool) -> bytes:
    """Of items that were encoded already."""
    pieces = list(items)
    return _COUNT.pack(len(pieces), has_more) + b"".join(pieces)


def decode_items(body: BytesLike) -> tuple[list[KvItem], bool]:
    """The items, and whether there are more. Raises KvError."""
    try:
        count, has_more = _COUNT.unpack_from(body)
    except struct.error as error:
        raise KvError(f"no answer to a range: {error}") from None
    items: list[KvItem] = []
    offset = _COUNT.size
    for _ in range(count):
        found = item_at(body, offset)
        if found is None:
            raise KvError(f"an answer that ends in the middle of item {len(items)}")
        item, offset = found
        items.append(item)
    return items, bool(has_more)


def encode_watched(watched: KvWatched) -> bytes:
    head = _WATCHED.pack(watched.is_gone, watched.next_index, len(watched.events))
    return head + b"".join(
        _EVENT.pack(one.type, len(one.key), one.index, len(one.value)) + one.key + one.value for one in watched.events
    )


def decode_watched(body: BytesLike) -> KvWatched:
    """Raises KvError."""
    try:
        is_gone, next_index, count = _WATCHED.unpack_from(body)
        return KvWatched(bool(is_gone), next_index, list(_events(body, count)))
    except (struct.error, ValueError) as error:
        raise KvError(f"no answer to a watch: {error}") from None


def _events(body: BytesLike, count: int) -> Iterator[KvEvent]:
    offset = _WATCHED.size
    for _ in range(count):
        type_, key_bytes, index, value_bytes = _EVENT.unpack_from(body, offset)
        key_at = offset + _EVENT.size
        offset = key_at + key_bytes + value_bytes
        if offset > len(body):
            raise KvError("it ends in the middle of an event")
        yield KvEvent(
            EventType(type_), bytes(body[key_at : key_at + key_bytes]), index, bytes(body[key_at + key_bytes : offset])
        )
