"""The body of SNAPSHOT_PART (52014): a piece of a state machine's snapshot, and behind what the log is to begin (M6).

`>BBHqqqqqIqQIQIII`: version, 0, flags (0), dispatch epoch, term, committed index; the base's index, term and chain, the
position behind it; bytes and CRC of the whole snapshot; offset of the piece, its bytes and its CRC; bytes of JSON. The
JSON follows, `{"group_id", "members": [index, body], "more"}`, and then the piece. It is answered like a slab push.

Invariants: counts and lengths are checked before anything is taken apart; a piece whose CRC differs is never handed on.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Final

from node.protocol.entry import POSITION_MAX, SLAB_BYTES_MAX, TERM_MAX, BytesLike, crc32
from node.protocol.group_members import BODY_BYTES_MAX
from node.protocol.messages import SnapshotPart
from node.transport.install_frames import group_in
from node.transport.slab_frames import VERSION, BodyError

PART_HEAD: Final = struct.Struct(">BBHqqqqqIqQIQIII")
MORE_BYTES_MAX: Final = 64 * 1024
PART_BYTES_MAX: Final = SLAB_BYTES_MAX
JSON_BYTES_MAX: Final = 2 * (BODY_BYTES_MAX + MORE_BYTES_MAX)  # texts inside a JSON text


def encode_part(part: SnapshotPart) -> list[BytesLike]:
    fields: dict[str, Any] = {"group_id": part.group_id, "members": part.members, "more": part.more}
    text = json.dumps(fields).encode()
    head = PART_HEAD.pack(
        VERSION, 0, 0, part.dispatch_epoch, part.term, part.commit_index, part.base_index, part.base_term,
        part.base_chain or 0, part.base_pos, part.total_bytes, part.data_crc, part.offset, len(part.data),
        crc32(part.data), len(text),
    )  # fmt: skip
    return [head + text, part.data]


def decode_part(body: BytesLike, leader_id: str, seq: int) -> SnapshotPart:
    """From `leader_id`, which the connection's HELLO named. Raises BodyError."""
    if len(body) < PART_HEAD.size:
        raise BodyError(f"a snapshot's part of {len(body)} bytes; its head alone takes {PART_HEAD.size}")
    (
        version, _, _, epoch, term, commit_index, index, base_term, chain, pos, total_bytes, data_crc, offset,
        piece_bytes, piece_crc, text_bytes,
    ) = PART_HEAD.unpack_from(body)  # fmt: skip
    if version != VERSION:
        raise BodyError(f"snapshot part version {version}; this node speaks {VERSION}")
    data_at = PART_HEAD.size + text_bytes
    if text_bytes > JSON_BYTES_MAX or piece_bytes > PART_BYTES_MAX or len(body) != data_at + piece_bytes:
        raise BodyError(f"a snapshot's part of {len(body)} bytes says {data_at + piece_bytes}")
    if term > TERM_MAX or not 0 <= base_term <= term or not 0 <= index <= POSITION_MAX or not 0 <= pos <= POSITION_MAX:
        raise BodyError(f"a snapshot up to entry {index} of term {base_term} and position {pos}, in term {term}")
    if total_bytes > POSITION_MAX or offset + piece_bytes > total_bytes:
        raise BodyError(f"bytes {offset} to {offset + piece_bytes} of a snapshot of {total_bytes}")
    text, data = bytes(body[PART_HEAD.size : data_at]), bytes(body[data_at:])
    if crc32(data) != piece_crc:
        raise BodyError(f"the piece at {offset} of the snapshot up to entry {index} does not match its checksum")
    group_id, members = group_in(text, index)
    return SnapshotPart(
        seq, leader_id, term, epoch, commit_index, index, base_term, chain, pos, group_id, members, total_bytes,
        data_crc, _more_in(text), offset, data,
    )  # fmt: skip


def _more_in(text: bytes) -> str:
    """What else is kept with a snapshot: an object, as JSON. Raises BodyError."""
    try:
        more = json.loads(text)["more"]
        if isinstance(more, str) and len(more) <= MORE_BYTES_MAX and isinstance(json.loads(more), dict):
            return more
    except (ValueError, RecursionError, LookupError, TypeError):
        pass
    raise BodyError("a snapshot's part says nothing that can be read of what is kept with it")
