"""Entries of the log that are no messages, among those that the broker follows.

Invariant: what metadata says (a topic was deleted) comes between the messages before it and those behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from node.message_store.dispatch_mark import LogPoint
from node.message_store.metadata_state import OwnEntry, own_entry
from node.message_store.recent_entries import Piece
from node.protocol.entry import HEAD, HEAD_BYTES
from node.protocol.group_kind import Channel

_CHANGES = int(Channel.METADATA)


def split_behind_metadata(piece: Piece) -> Iterator[Piece]:
    """The same entries; one of metadata is the last of its piece."""
    begin = 0
    while _CHANGES in piece.channels[begin:-1]:
        after = piece.channels.index(_CHANGES, begin) + 1
        yield _part(piece, begin, after)
        begin = after
    yield _part(piece, begin, len(piece.starts)) if begin else piece


def _part(piece: Piece, begin: int, after: int) -> Piece:
    """Its entries from number `begin` up to `after`."""
    start = piece.starts[begin]
    is_last = after == len(piece.starts)
    upto = len(piece.data) if is_last else piece.starts[after]
    end = piece.end
    if not is_last:
        _magic, _size, index, term, *_rest, chain, _crc, _bytes = HEAD.unpack_from(piece.data, piece.starts[after - 1])
        end = LogPoint(piece.position + upto, index, term, chain)
    return replace(
        piece, first_index=piece.first_index + begin, position=piece.position + start, data=piece.data[start:upto],
        starts=[one - start for one in piece.starts[begin:after]], channels=piece.channels[begin:after], end=end,
    )  # fmt: skip


def own_entries(piece: Piece) -> list[OwnEntry]:
    """Those of it that are no messages. Raises MessageFormatError where one cannot be understood."""
    if not any(piece.channels):
        return []
    found: list[OwnEntry] = []
    ends = [*piece.starts[1:], len(piece.data)]
    for at, channel in enumerate(piece.channels):
        if channel:
            record = piece.data[piece.starts[at] + HEAD_BYTES : ends[at]]
            found.append(own_entry(piece.first_index + at, channel, record))
    return found
