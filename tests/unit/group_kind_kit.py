"""A kind of group for tests: every body is `K`, the time in ms (8 bytes), its own place (8 bytes), and a content.

Like the records of a message store it holds times that never go back and the absolute place of each body.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from node.protocol.entry import BytesLike, Entry
from node.protocol.group_kind import Channel, GroupKind

HEAD = struct.Struct(">cqq")
FIRST_MS = 1_000_000


def body_of(content: bytes, time_ms: int, place: int = 0) -> bytes:
    return HEAD.pack(b"K", time_ms, place) + content


def place_in(entry: Entry) -> int:
    """Where an entry's body says that it lies."""
    return int(HEAD.unpack_from(entry.body)[2])


class StampedKind(GroupKind):
    """See the module's docstring."""

    name = "stamped"
    position_at = 9

    def first_of_term(self, last_time_ms: int) -> bytes:
        return body_of(b"", FIRST_MS if last_time_ms < 0 else last_time_ms)

    def config_change(self, content: bytes, last_time_ms: int) -> bytes:
        return body_of(content, FIRST_MS if last_time_ms < 0 else last_time_ms)

    def content_of(self, body: bytes) -> bytes:
        return body[HEAD.size :]

    def time_ms(self, body: BytesLike) -> int:
        return int(HEAD.unpack_from(body)[1])

    def refusal(self, bodies: Sequence[bytes], channel: int, patch_at: int, last_time_ms: int) -> str | None:
        if channel not in (Channel.MESSAGE, Channel.METADATA, Channel.SNAPSHOT_PART):
            return f"channel {channel} is the engine's own"
        if patch_at != self.position_at:
            return f"every body's place is written at {self.position_at}, not at {patch_at}"
        if any(len(body) < HEAD.size or body[:1] != b"K" for body in bodies):
            return "a body is no stamped record"
        return None


STAMPED = StampedKind()
