"""The bodies of the stream of committed positions (COMMITTED_STREAM, 52010); docs/committed-stream.md has the words.

A client's frame is `>BBHI`: version, kind, shortest interval and keep-alive in milliseconds (both 0 in TAKEN and
CANCEL). What a member pushes is `>BBHiqqqqqq` and the leader's id behind it: version, flags (bit 0: this member leads),
length of that id, code, number, committed index, end index, term, lease and waited in nanoseconds.

Invariant: what leaves a decoder is within the bounds that are written here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from node.protocol.codes import ResponseCode
from node.protocol.entry import TERM_MAX, BytesLike
from node.transport.slab_frames import VERSION, BodyError, response_code

ASK: Final = struct.Struct(">BBHI")
POSITION: Final = struct.Struct(">BBHiqqqqqq")
LEADS: Final = 1
INTERVAL_MS_MIN: Final = 1
KEEP_ALIVE_MS_MIN: Final = 10
KEEP_ALIVE_MS_MAX: Final = 60_000
LEADER_ID_BYTES_MAX: Final = 256


class StreamKind(IntEnum):
    """What a client says of its stream, which its frame's opaque names."""

    SUBSCRIBE = 0
    TAKEN = 1  # it has taken what was pushed last, and wants the next one
    CANCEL = 2


@dataclass(slots=True, frozen=True)
class StreamRequest:
    """One frame of a client's."""

    kind: StreamKind
    interval_ms: int = 0
    keep_alive_ms: int = 0


@dataclass(slots=True, frozen=True)
class PushedPosition:
    """What a member knows to be committed; with another code than SUCCESS the stream is over.

    `lease_ns`: so long nobody else can have been elected, counted from the push (0: no promise). `waited_ns`: so long
    before the push the SUBSCRIBE or TAKEN arrived that it answers.
    """

    code: ResponseCode
    number: int = 0
    committed_index: int = -1
    end_index: int = -1
    term: int = -1
    leads: bool = False
    leader_id: str | None = None
    lease_ns: int = 0
    waited_ns: int = 0


def encode_stream_request(request: StreamRequest) -> bytes:
    return ASK.pack(VERSION, request.kind, request.interval_ms, request.keep_alive_ms)


def decode_stream_request(body: BytesLike) -> StreamRequest:
    """Raises BodyError."""
    if len(body) != ASK.size:
        raise BodyError(f"a stream's request of {len(body)} bytes; it takes {ASK.size}")
    version, kind, interval_ms, keep_alive_ms = ASK.unpack(body)
    if version != VERSION:
        raise BodyError(f"stream version {version}; this member speaks {VERSION}")
    if kind not in StreamKind.__members__.values():
        raise BodyError(f"a stream's request of kind {kind}")
    request = StreamRequest(StreamKind(kind), interval_ms, keep_alive_ms)
    if request.kind is StreamKind.SUBSCRIBE:
        if not interval_ms >= INTERVAL_MS_MIN:
            raise BodyError(f"an interval of {interval_ms} ms; {INTERVAL_MS_MIN} or more is allowed")
        if not KEEP_ALIVE_MS_MIN <= keep_alive_ms <= KEEP_ALIVE_MS_MAX or keep_alive_ms < interval_ms:
            text = f"{KEEP_ALIVE_MS_MIN} to {KEEP_ALIVE_MS_MAX} are allowed, and no less than the interval"
            raise BodyError(f"a keep-alive of {keep_alive_ms} ms; {text}")
    return request


def encode_position(position: PushedPosition) -> bytes:
    leader = (position.leader_id or "").encode()[:LEADER_ID_BYTES_MAX]
    head = POSITION.pack(
        VERSION, LEADS if position.leads else 0, len(leader), position.code, position.number, position.committed_index,
        position.end_index, position.term, position.lease_ns, position.waited_ns,
    )  # fmt: skip
    return head + leader


def decode_position(body: BytesLike) -> PushedPosition:
    """Raises BodyError."""
    if len(body) < POSITION.size:
        raise BodyError(f"a position of {len(body)} bytes; its head alone takes {POSITION.size}")
    version, flags, length, code, number, committed, end, term, lease_ns, waited_ns = POSITION.unpack_from(body)
    if version != VERSION:
        raise BodyError(f"stream version {version}; this client speaks {VERSION}")
    if length > LEADER_ID_BYTES_MAX or len(body) != POSITION.size + length:
        raise BodyError(f"a position of {len(body)} bytes says {POSITION.size + length}")
    if not -1 <= committed <= end or not -1 <= term <= TERM_MAX or lease_ns < 0 or waited_ns < 0:
        raise BodyError(f"a position of committed {committed}, end {end}, term {term}, lease {lease_ns} ns")
    leader_id = bytes(body[POSITION.size :]).decode(errors="replace") or None
    leads = bool(flags & LEADS)
    return PushedPosition(response_code(code), number, committed, end, term, leads, leader_id, lease_ns, waited_ns)
