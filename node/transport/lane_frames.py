"""The bodies of OPEN_LANE (52011, JSON) and of an append over a lane (52012, binary); docs/lanes.md: what a lane is.

OPEN_LANE asks with `group` and `remoteId` and is answered with `code, term, lane, endIndex, windowEntries, windowBytes,
lastTimeMs, leaderId, leaderAddress, detail`. An append over a lane is `u32 flags (bit 0: patch positions), i64 term,
lane, sequence, i32 channel, u32 patch_at`, and behind them the body of a fast append without flags and expected index;
it is answered as one.

Invariant: whatever the bytes, reading ends in a value or in BodyError.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from node.protocol.codes import ResponseCode
from node.protocol.entry import BODY_BYTES_MAX, TERM_MAX, BytesLike
from node.protocol.group_kind import NO_PATCH, Channel
from node.transport.json_fields import Fields
from node.transport.slab_frames import AppendRequest, BodyError, decode_append, encode_append

LANE_HEAD: Final = struct.Struct(">IqqqiI")
PATCH_POSITIONS: Final = 1
NUMBER_MAX: Final = (1 << 62) - 1
_CHANNELS: Final = frozenset(Channel)


class LaneAppend(NamedTuple):
    """Bodies for one lane, taken whole or not at all. `patch_at` NO_PATCH: they stay as they are."""

    term: int
    lane: int
    sequence: int  # of the first of them, counted from the lane's beginning
    bodies: Sequence[bytes]
    channel: int = Channel.MESSAGE
    patch_at: int = NO_PATCH


class LaneAnswer(NamedTuple):
    """The answer to OPEN_LANE; numbers are -1 where it was refused."""

    code: ResponseCode
    term: int = -1
    lane: int = -1
    end_index: int = -1
    window_entries: int = -1
    window_bytes: int = -1
    last_time_ms: int = -1
    leader_id: str | None = None
    leader_address: str | None = None
    detail: str = ""


def lane_fields(answer: LaneAnswer) -> dict[str, Any]:
    """The JSON body's fields, beside the base ones."""
    return {
        "code": int(answer.code), "term": answer.term, "lane": answer.lane, "endIndex": answer.end_index,
        "windowEntries": answer.window_entries, "windowBytes": answer.window_bytes, "lastTimeMs": answer.last_time_ms,
        "leaderId": answer.leader_id, "leaderAddress": answer.leader_address, "detail": answer.detail or None,
    }  # fmt: skip


def lane_answer(fields: Fields) -> LaneAnswer:
    """Raises BodyError."""
    code, term, lane, end_index = fields.code(), fields.number("term"), fields.number("lane"), fields.number("endIndex")
    window = fields.number("windowEntries"), fields.number("windowBytes")
    if code is ResponseCode.SUCCESS and min(term, lane, *window) < 0:
        raise BodyError(f"lane {lane} of term {term} with a window of {window}")
    return LaneAnswer(
        code, term, lane, end_index, *window, fields.number("lastTimeMs"), fields.optional_text("leaderId"),
        fields.optional_text("leaderAddress"), fields.optional_text("detail") or "",
    )  # fmt: skip


def encode_lane_append(request: LaneAppend) -> list[bytes]:
    """The body, for a frame's pieces."""
    patch = request.patch_at != NO_PATCH
    numbers = (request.term, request.lane, request.sequence, request.channel)
    head = LANE_HEAD.pack(PATCH_POSITIONS if patch else 0, *numbers, request.patch_at if patch else 0)
    first, *rest = encode_append(AppendRequest(request.bodies))
    return [head + first, *rest]


def decode_lane_append(body: BytesLike) -> LaneAppend:
    """Raises BodyError."""
    if len(body) < LANE_HEAD.size:
        raise BodyError(f"an append over a lane of {len(body)} bytes; its head alone takes {LANE_HEAD.size}")
    flags, term, lane, sequence, channel, patch_at = LANE_HEAD.unpack_from(body)
    if flags & ~PATCH_POSITIONS:
        raise BodyError(f"an append over a lane with flags {flags}")
    if not 0 <= term <= TERM_MAX or not 0 <= lane <= NUMBER_MAX or not 0 <= sequence <= NUMBER_MAX:
        raise BodyError(f"an append over lane {lane} of term {term}, from entry {sequence} on")
    if channel not in _CHANNELS:
        raise BodyError(f"channel {channel} is not known")
    if patch_at > BODY_BYTES_MAX or (patch_at and not flags):
        raise BodyError(f"positions at byte {patch_at} of each body")
    inner = decode_append(memoryview(body)[LANE_HEAD.size :])
    if inner.ordered or inner.expected_index != -1:
        raise BodyError("an append over a lane has its order by its sequence: no flag and no expected index")
    return LaneAppend(term, lane, sequence, inner.bodies, channel, patch_at if flags else NO_PATCH)
