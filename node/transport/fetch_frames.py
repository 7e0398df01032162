"""The binary bodies of FETCH (52007): a damaged member asks a peer for entries, and what it gets (SAFETY S6).

Request `>BBHqqI`: version, 0, flags 0, first and last index, most bytes. Answer `>BBHiqqIIqIII`: version, 0, flags
(bit 0: chain known), code, end index, first index, the chain before it, count, position, bytes of records, the chain
after them, their CRC; then `count` index records, then the records. Not SUCCESS: no entries.

Invariants: as in slab_frames: counts and lengths are checked before anything is taken apart, and a slab that leaves
`decode_fetch_answer` has as many index records as entries and matches its CRC. Whether its entries are the right ones
is the store's to prove.
"""

from __future__ import annotations

import struct
from typing import Final

from node.protocol.codes import ResponseCode
from node.protocol.entry import INDEX_UNIT_BYTES, SLAB_BYTES_MAX, TERM_MAX, BytesLike, crc32
from node.protocol.messages import FetchRequest, FetchResponse
from node.transport.slab_frames import (
    FLAG_CHAIN_KNOWN,
    VERSION,
    BodyError,
    response_code,
    slab_from_parts,
)

FETCH_HEAD: Final = struct.Struct(">BBHqqI")
FETCH_ANSWER: Final = struct.Struct(">BBHiqqIIqIII")


def encode_fetch(request: FetchRequest) -> bytes:
    return FETCH_HEAD.pack(VERSION, 0, 0, request.first_index, request.last_index, request.max_bytes)


def decode_fetch(body: BytesLike, seq: int) -> FetchRequest:
    """Raises BodyError. What is asked for in bytes is bounded here, whatever the frame says."""
    if len(body) != FETCH_HEAD.size:
        raise BodyError(f"a fetch of {len(body)} bytes; it takes {FETCH_HEAD.size}")
    version, _, _, first_index, last_index, max_bytes = FETCH_HEAD.unpack(body)
    if version != VERSION:
        raise BodyError(f"fetch version {version}; this node speaks {VERSION}")
    if not 0 <= first_index <= last_index or max_bytes < 1:
        raise BodyError(f"a fetch of entries {first_index}..{last_index} in {max_bytes} bytes")
    return FetchRequest(seq, first_index, last_index, min(max_bytes, SLAB_BYTES_MAX))


def encode_fetch_answer(answer: FetchResponse) -> list[BytesLike]:
    """The body in pieces, so that the slab is never copied."""
    slab = answer.slab
    if slab is None:
        return [FETCH_ANSWER.pack(VERSION, 0, 0, answer.code, answer.end_index, -1, 0, 0, -1, 0, 0, 0)]
    flags = FLAG_CHAIN_KNOWN if slab.prev_chain is not None else 0
    head = FETCH_ANSWER.pack(
        VERSION, 0, flags, answer.code, answer.end_index, slab.first_index, slab.prev_chain or 0, slab.count,
        slab.pos, len(slab.data), slab.last_chain or 0, crc32(slab.data),
    )  # fmt: skip
    return [head, slab.index_records, slab.data]


def decode_fetch_answer(body: BytesLike, seq: int) -> FetchResponse:
    """Raises BodyError."""
    if len(body) < FETCH_ANSWER.size:
        raise BodyError(f"a fetch answer of {len(body)} bytes; its head alone takes {FETCH_ANSWER.size}")
    version, _, flags, number, end_index, first, prev_chain, count, pos, size, last_chain, crc = (
        FETCH_ANSWER.unpack_from(body)
    )
    if version != VERSION:
        raise BodyError(f"fetch version {version}; this node speaks {VERSION}")
    units_end = FETCH_ANSWER.size + count * INDEX_UNIT_BYTES
    if len(body) != units_end + size:
        raise BodyError(f"a fetch answer of {len(body)} bytes says {units_end + size}")
    code = response_code(number)
    if code is not ResponseCode.SUCCESS:
        if count or size:
            raise BodyError(f"a fetch that was refused ({code.name}) carries {count} entries")
        return FetchResponse(seq, code, end_index)
    known = bool(flags & FLAG_CHAIN_KNOWN)
    units = bytes(body[FETCH_ANSWER.size : units_end])
    slab = slab_from_parts(units, body[units_end:], first, count, pos, prev_chain if known else None, last_chain, crc)
    if slab.last_term > TERM_MAX:
        raise BodyError(f"term {slab.last_term} exceeds TERM_MAX")
    return FetchResponse(seq, code, end_index, slab)
