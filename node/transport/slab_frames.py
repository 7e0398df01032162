"""The binary bodies between our own nodes and clients: slab push, its answer, fast append, fast read (SAFETY "Frames").

Invariants: counts and lengths are checked against the bytes that are there before anything is taken apart; a slab that
leaves `decode_push` has as many index records as entries and matches its CRC. What the records say is the store's to
check (`verify_slab`).
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from node.protocol.codes import RequestCode, ResponseCode
from node.protocol.entry import (
    BODY_BYTES_MAX,
    HEAD_BYTES,
    INDEX_UNIT,
    INDEX_UNIT_BYTES,
    POSITION_MAX,
    TERM_MAX,
    BytesLike,
    EntryError,
    Slab,
    crc32,
)
from node.protocol.messages import PushKind, PushRequest, PushResponse, ReadWay
from node.protocol.packed_bodies import PACKED_FROM, PackedBodies
from node.transport.remoting import plain_frame

VERSION: Final = 1
FLAG_CHAIN_KNOWN: Final = 1
SLAB_PUSH: Final = RequestCode.SLAB_PUSH
PUSH_HEAD: Final = struct.Struct(">BBHqqqqIqIqIqII")
PUSH_ANSWER: Final = struct.Struct(">iqqqqqqq")
FAULTY_FROM: Final = struct.Struct(">q")  # behind a push answer, where the member's log is damaged
APPEND_HEAD: Final = struct.Struct(">iqI")
APPEND_ANSWER: Final = struct.Struct(">iqqqB")
RETRY_AFTER: Final = struct.Struct(">I")
RETRY_AFTER_MS_MAX: Final = 60_000
NO_TEXTS: Final = bytes(6)  # three lengths of 0
READ_HEAD: Final = struct.Struct(">qiB")
READ_ANSWER: Final = struct.Struct(">iqqqI")

_RESPONSE_CODES: Final = {code.value: code for code in ResponseCode}  # quicker than asking the enumeration
_UNKNOWN: Final = ResponseCode.UNKNOWN
_PUSH_KINDS: Final = tuple(PushKind)  # by number
ENTRIES_PER_REQUEST_MAX: Final = 16_384  # of clients' appends: what is short in bytes may be long in work
_ORDERED: Final = 1  # AppendFlag.ORDERED


class BodyError(ValueError):
    """A body breaks its format; nothing of it was used."""


class AppendFlag(IntFlag):
    """The flags of a fast append."""

    ORDERED = 1


class ReadMode(IntEnum):
    """How fresh a read is, at any member. All but UNSAFE are linearizable, and differ in what they cost and trust.

    LEASE counts only where the group has lease reads on, else it is LOG_INDEX's round trip; LINEARIZABLE (and FOLLOWER,
    its older name at a follower) is the group's usual way, which is the same. UNSAFE asks nobody.
    """

    LINEARIZABLE = 0
    LEASE = 1
    FOLLOWER = 2
    UNSAFE = 3
    READ_INDEX = 4  # a round trip to a quorum, also where there are leases
    LOG = 5  # an entry through the log

    @property
    def way(self) -> ReadWay:
        """What the leader does; not for UNSAFE."""
        return _WAYS.get(self, ReadWay.USUAL)


_WAYS: Final = {ReadMode.LEASE: ReadWay.LEASE, ReadMode.READ_INDEX: ReadWay.INDEX, ReadMode.LOG: ReadWay.LOG}
READ_MODE_MAX: Final = max(ReadMode)


class AppendedByte(IntEnum):
    """What is known of an append's entries."""

    YES = 0
    NOT_APPENDED = 1
    UNKNOWN = 2


class AppendRequest(NamedTuple):
    """Bodies to append as one contiguous run. `expected_index` -1: any."""

    bodies: Sequence[bytes]
    expected_index: int = -1
    ordered: bool = False


class AppendAnswer(NamedTuple):
    """How a fast append ended."""

    code: int
    first_index: int
    last_index: int
    term: int
    appended: AppendedByte
    leader_id: str = ""
    leader_address: str = ""
    detail: str = ""
    retry_after_ms: int = 0  # of a refusal: when there will be room; 0: nobody can tell


_APPENDED: Final = tuple(AppendedByte)  # by number
_new_request: Callable[[tuple[Any, ...]], AppendRequest] = partial(tuple.__new__, AppendRequest)
_new_answer: Callable[[tuple[Any, ...]], AppendAnswer] = partial(tuple.__new__, AppendAnswer)  # all fields; no Python


@dataclass(slots=True, frozen=True)
class ReadRequest:
    """A range read of up to `limit_bytes`, at least one entry."""

    from_index: int
    limit_bytes: int
    mode: ReadMode = ReadMode.LINEARIZABLE


@dataclass(slots=True, frozen=True)
class ReadAnswer:
    """`records` holds `count` raw records from `first_index` on; `end_index` is the answering node's log end."""

    code: int
    committed_index: int
    first_index: int
    end_index: int
    count: int
    records: BytesLike = b""


class PushEncoder:
    """Writes pushes; remembers the last frame, which goes to every follower in step, and the CRC of its slab."""

    def __init__(self) -> None:
        self._slab: Slab | None = None
        self._crc = 0
        self._push: PushRequest | None = None
        self._frame: list[BytesLike] = []

    def frame(self, push: PushRequest, opaque: int) -> list[BytesLike]:
        """The whole frame of a request, in pieces where it is long; `opaque` is the same whenever `push` is."""
        if push is not self._push:
            self._push, self._frame = push, plain_frame(SLAB_PUSH, 0, opaque, self.encode(push))
        return self._frame

    def encode(self, push: PushRequest) -> list[BytesLike]:
        """The body in pieces, so that the slab is never copied: head, index records, records."""
        slab = push.slab
        flags = FLAG_CHAIN_KNOWN if push.prev_chain is not None else 0
        head = (VERSION, push.kind, flags, push.dispatch_epoch, push.term, push.prev_index, push.prev_term)
        chain = push.prev_chain or 0
        if slab is None:
            return [PUSH_HEAD.pack(*head, chain, push.first_index, 0, -1, 0, push.commit_index, 0, 0)]
        if slab is not self._slab:
            self._slab, self._crc = slab, crc32(slab.data)
        packed = PUSH_HEAD.pack(
            *head, chain, slab.first_index, slab.count, slab.pos, len(slab.data), push.commit_index,
            slab.last_chain or 0, self._crc,
        )  # fmt: skip
        return [packed, slab.index_records, slab.data]


def decode_push(body: BytesLike, leader_id: str, seq: int) -> PushRequest:
    """A slab push from `leader_id`, which the connection's HELLO named. Raises BodyError."""
    if len(body) < PUSH_HEAD.size:
        raise BodyError(f"a slab push of {len(body)} bytes; its head alone takes {PUSH_HEAD.size}")
    (
        version, kind, flags, dispatch_epoch, term, prev_index, prev_term, prev_chain,
        first_index, count, pos, slab_bytes, commit_index, last_chain, slab_crc,
    ) = PUSH_HEAD.unpack_from(body)  # fmt: skip
    if version != VERSION:
        raise BodyError(f"slab push version {version}; this node speaks {VERSION}")
    if kind > PushKind.TRUNCATE:
        raise BodyError(f"slab push kind {kind} is not known")
    units_end = PUSH_HEAD.size + count * INDEX_UNIT_BYTES
    if len(body) != units_end + slab_bytes:
        raise BodyError(f"a slab push of {len(body)} bytes says {units_end + slab_bytes}")
    if term > TERM_MAX:
        raise BodyError(f"term {term} exceeds TERM_MAX")
    known = bool(flags & FLAG_CHAIN_KNOWN)
    slab: Slab | None = None
    if kind == PushKind.APPEND:
        units, data = bytes(body[PUSH_HEAD.size : units_end]), body[units_end:]
        before = prev_chain if known else None
        slab = slab_from_parts(units, data, first_index, count, pos, before, last_chain, slab_crc)
        if slab.last_term > term:
            raise BodyError(f"an entry of term {slab.last_term} from a leader of term {term}")
    elif count or slab_bytes:
        raise BodyError(f"{PushKind(kind).name} carries {count} entries")
    chain = prev_chain if known else None
    numbers = (dispatch_epoch, commit_index, prev_index, prev_term)
    return PushRequest(seq, _PUSH_KINDS[kind], leader_id, term, *numbers, chain, first_index, slab)


def slab_from_parts(
    units: bytes, data: BytesLike, first: int, count: int, pos: int, prev_chain: int | None, last_chain: int, crc: int
) -> Slab:
    """A slab as a frame carries it; `units` are its `count` index records. Raises BodyError."""
    if count < 1 or not 0 <= first <= POSITION_MAX - count or not 0 <= pos <= POSITION_MAX - len(data):
        raise BodyError(f"a slab of {count} entries from index {first} at position {pos}")
    if crc32(data) != crc:
        raise BodyError(f"the slab at {first} does not match its CRC")
    first_term: int = INDEX_UNIT.unpack_from(units)[4]
    last_term: int = INDEX_UNIT.unpack_from(units, len(units) - INDEX_UNIT_BYTES)[4]
    known_last = None if prev_chain is None else last_chain
    return Slab(first, count, pos, data, units, first_term, last_term, prev_chain, known_last)


def encode_push_answer(answer: PushResponse) -> bytes:
    """A follower's answer, or what it says unasked after a sync; where its log is damaged, also from where on."""
    packed = PUSH_ANSWER.pack(
        answer.code, answer.dispatch_epoch, answer.term, answer.verified_index, answer.durable_index,
        answer.end_index, answer.x_term, answer.x_index,
    )  # fmt: skip
    return packed if answer.faulty_from < 0 else packed + FAULTY_FROM.pack(answer.faulty_from)


def decode_push_answer(body: BytesLike, seq: int) -> PushResponse:
    """Raises BodyError."""
    faulty_from = -1 if len(body) == PUSH_ANSWER.size else _faulty_from(body)
    code, epoch, term, verified, durable, end, x_term, x_index = PUSH_ANSWER.unpack_from(body)
    if term > TERM_MAX:
        raise BodyError(f"term {term} exceeds TERM_MAX")
    answered = _RESPONSE_CODES.get(code, _UNKNOWN)
    return PushResponse(seq, answered, epoch, term, verified, durable, end, x_term, x_index, faulty_from)


def _faulty_from(body: BytesLike) -> int:
    if len(body) != PUSH_ANSWER.size + FAULTY_FROM.size:
        raise BodyError(f"a push answer of {len(body)} bytes; it takes {PUSH_ANSWER.size}")
    (faulty_from,) = FAULTY_FROM.unpack_from(body, PUSH_ANSWER.size)
    if faulty_from < 0:
        raise BodyError(f"damage from entry {faulty_from} on")
    return int(faulty_from)


def response_code(number: int) -> ResponseCode:
    """The code of that number; UNKNOWN for one that is not listed."""
    return _RESPONSE_CODES.get(number, _UNKNOWN)


def encode_append(request: AppendRequest) -> list[bytes]:
    """The body, for a frame's pieces."""
    bodies = request.bodies
    head = APPEND_HEAD.pack(_ORDERED if request.ordered else 0, request.expected_index, len(bodies))
    lengths = array("I", [*map(len, bodies)])  # less work than packing them
    if sys.byteorder == "little":
        lengths.byteswap()
    # Two buffers: a thousand small ones cost the socket more than the copy, and a list with them in it its copy, too.
    return [head + lengths.tobytes(), b"".join(bodies)]


def check_count(count: int) -> None:
    """Raises BodyError."""
    if count > ENTRIES_PER_REQUEST_MAX:
        raise BodyError(f"{count} entries in one request; {ENTRIES_PER_REQUEST_MAX} at most")


def decode_append(body: BytesLike) -> AppendRequest:
    """Raises BodyError."""
    if len(body) < APPEND_HEAD.size:
        raise BodyError(f"an append of {len(body)} bytes; its head alone takes {APPEND_HEAD.size}")
    flags, expected_index, count = APPEND_HEAD.unpack_from(body)
    start = APPEND_HEAD.size + 4 * count
    if start > len(body):
        raise BodyError(f"{count} lengths do not fit an append of {len(body)} bytes")
    check_count(count)
    ordered = bool(flags & _ORDERED)
    if count >= PACKED_FROM:
        packed_lengths = np.frombuffer(body, ">u4", count, APPEND_HEAD.size).astype(np.int64)
        try:
            return _new_request((PackedBodies(body, start, packed_lengths), expected_index, ordered))
        except EntryError as error:
            raise BodyError(f"an append whose lengths contradict each other: {error}") from None
    bodies = []
    for length in struct.unpack_from(f">{count}I", body, APPEND_HEAD.size):
        bodies.append(bytes(body[start : start + length]))
        start += length
    if start != len(body):
        raise BodyError(f"an append of {len(body)} bytes says {start}")
    return _new_request((bodies, expected_index, ordered))


def encode_append_answer(answer: AppendAnswer) -> bytes:
    """Texts are cut at 64 KiB. When to come back stands behind them, if known: older clients do not look there."""
    packed = APPEND_ANSWER.pack(answer.code, answer.first_index, answer.last_index, answer.term, answer.appended)
    if not (answer.leader_id or answer.leader_address or answer.detail or answer.retry_after_ms):
        return packed + NO_TEXTS
    parts = [packed]
    for text in (answer.leader_id, answer.leader_address, answer.detail):
        raw = text.encode()[:0xFFFF]
        parts += (len(raw).to_bytes(2, "big"), raw)
    if answer.retry_after_ms > 0:
        parts.append(RETRY_AFTER.pack(min(answer.retry_after_ms, RETRY_AFTER_MS_MAX)))
    return b"".join(parts)


def decode_append_answer(body: BytesLike, entries: int | None = None) -> AppendAnswer:
    """`entries`: of the request; an answer that they are in the log says where each of them is. Raises BodyError."""
    answer = _append_answer_in(body)
    if entries is not None and answer.appended is AppendedByte.YES:
        _, first_index, last_index, term, *_ = answer
        if first_index < 0 or term < 0 or last_index - first_index + 1 != entries:
            raise BodyError(f"{entries} entries appended as {first_index}..{last_index} of term {term}")
    return answer


def _append_answer_in(body: BytesLike) -> AppendAnswer:
    try:
        code, first_index, last_index, term, appended = APPEND_ANSWER.unpack_from(body)
        offset = APPEND_ANSWER.size
        if body[offset:] == NO_TEXTS and appended < len(_APPENDED):
            return _new_answer((code, first_index, last_index, term, _APPENDED[appended], "", "", "", 0))
        texts: list[str] = []
        for _ in range(3):
            (size,) = struct.unpack_from(">H", body, offset)
            if offset + 2 + size > len(body):
                raise BodyError(f"a text of {size} bytes goes past the answer's end")
            texts.append(bytes(body[offset + 2 : offset + 2 + size]).decode(errors="replace"))
            offset += 2 + size
        retry_after_ms = 0
        if len(body) - offset >= RETRY_AFTER.size:
            retry_after_ms = min(RETRY_AFTER.unpack_from(body, offset)[0], RETRY_AFTER_MS_MAX)
        leader_id, leader_address, detail = texts
        known = AppendedByte(appended), leader_id, leader_address, detail, retry_after_ms
        return AppendAnswer(code, first_index, last_index, term, *known)
    except (struct.error, ValueError) as error:
        raise BodyError(f"a broken append answer: {error}") from None


def encode_read(request: ReadRequest) -> bytes:
    return READ_HEAD.pack(request.from_index, request.limit_bytes, request.mode)


def decode_read(body: BytesLike) -> ReadRequest:
    """Raises BodyError."""
    if len(body) != READ_HEAD.size:
        raise BodyError(f"a read of {len(body)} bytes; it takes {READ_HEAD.size}")
    from_index, limit_bytes, mode = READ_HEAD.unpack(body)
    if from_index < 0 or limit_bytes < 1 or mode > READ_MODE_MAX:
        raise BodyError(f"a read from {from_index} of {limit_bytes} bytes in mode {mode}")
    return ReadRequest(from_index, min(limit_bytes, BODY_BYTES_MAX), ReadMode(mode))


def encode_read_answer(answer: ReadAnswer) -> list[BytesLike]:
    numbers = (answer.code, answer.committed_index, answer.first_index, answer.end_index, answer.count)
    return [READ_ANSWER.pack(*numbers), answer.records]


def decode_read_answer(body: BytesLike) -> ReadAnswer:
    """Raises BodyError."""
    if len(body) < READ_ANSWER.size:
        raise BodyError(f"a read answer of {len(body)} bytes; its head alone takes {READ_ANSWER.size}")
    code, committed_index, first_index, end_index, count = READ_ANSWER.unpack_from(body)
    records = body[READ_ANSWER.size :]
    if count * HEAD_BYTES > len(records):
        raise BodyError(f"{count} records do not fit {len(records)} bytes")
    return ReadAnswer(code, committed_index, first_index, end_index, count, records)
