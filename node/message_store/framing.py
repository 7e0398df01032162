"""How messages lie in a file: bare in RocketMQ's own commit log, each in an entry's body in the replicated one.

A framing looks at the first bytes of whatever is at a place and says what is there and how far it reaches.

Invariants: what it says reaches at least one byte and at most to the end of the file; it never judges a message's own
fields, which is `decode_record`'s.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Protocol

from node.message_store.blank import BLANK_MAGIC, UNWRITTEN
from node.message_store.record import RECORD_BYTES_MIN, SIZE_AND_MAGIC, is_record_magic
from node.protocol.entry import HEAD as ENTRY_HEAD
from node.protocol.entry import HEAD_BYTES as ENTRY_HEAD_BYTES
from node.protocol.entry import Magic
from node.protocol.value_class import value_class

MESSAGE_BYTES_MAX: Final = 64 << 20  # maxMessageSize is 4 MiB unless somebody raised it


class Kind(Enum):
    """What is at a place."""

    MESSAGE = "message"
    BLANK = "blank"
    OTHER = "other"  # an entry that holds no message and is none of RocketMQ's, such as a leader's first
    UNWRITTEN = "unwritten"
    BAD = "bad"


@value_class(slots=True, frozen=True)
class Frame:
    """`size_bytes` from its place on; a message is what is left behind `head_bytes`."""

    kind: Kind
    size_bytes: int
    head_bytes: int = 0
    why: str = ""
    entry_index: int | None = None
    channel: int = 0


class Framing(Protocol):
    """See the module's docstring."""

    head_bytes: int  # in front of each message
    look_bytes: int  # how many bytes `look` wants to see

    def look(self, data: bytes, at: int, left: int) -> Frame:
        """What is at `at` in `data`, where `left` bytes of the file are left."""


class PlainFraming:
    """RocketMQ's own commit log."""

    head_bytes = 0
    look_bytes = SIZE_AND_MAGIC.size

    def look(self, data: bytes, at: int, left: int) -> Frame:
        if len(data) - at < self.look_bytes:
            return Frame(Kind.UNWRITTEN, left)
        size, magic = SIZE_AND_MAGIC.unpack_from(data, at)
        if is_record_magic(magic):
            if RECORD_BYTES_MIN <= size <= min(left, MESSAGE_BYTES_MAX):
                return Frame(Kind.MESSAGE, size)
            return Frame(Kind.BAD, left, why=f"a message of {size} bytes, where {left} are left in the file")
        if magic == BLANK_MAGIC:
            if size == left:
                return Frame(Kind.BLANK, left)
            return Frame(Kind.BAD, left, why=f"a blank of {size} bytes, where {left} are left in the file")
        if not size and not magic:
            return Frame(Kind.UNWRITTEN, left)
        return Frame(Kind.BAD, left, why=f"neither message nor blank: magic {magic & 0xFFFFFFFF:#010x}")


class LedgerFraming:
    """The replicated log: DLedger's entry head, then the message."""

    head_bytes = ENTRY_HEAD_BYTES
    look_bytes = ENTRY_HEAD_BYTES

    def look(self, data: bytes, at: int, left: int) -> Frame:
        if len(data) - at < SIZE_AND_MAGIC.size:
            return Frame(Kind.UNWRITTEN, left)
        magic, size = SIZE_AND_MAGIC.unpack_from(data, at)
        if magic == Magic.BLANK:
            if size == left:
                return Frame(Kind.BLANK, left)
            return Frame(Kind.BAD, left, why=f"a blank of {size} bytes, where {left} are left in the file")
        if data[at : at + len(UNWRITTEN)] == UNWRITTEN or len(data) - at < self.look_bytes:
            return Frame(Kind.UNWRITTEN, left)
        if magic not in ENTRY_MAGICS:
            return Frame(Kind.BAD, left, why=f"no entry: magic {magic & 0xFFFFFFFF:#010x}")
        _magic, size, index, _term, _pos, channel, _chain, _crc, body_bytes = ENTRY_HEAD.unpack_from(data, at)
        if not ENTRY_HEAD_BYTES <= size <= min(left, MESSAGE_BYTES_MAX) or size != ENTRY_HEAD_BYTES + body_bytes:
            text = f"an entry of {size} bytes with a body of {body_bytes}, where {left} are left in the file"
            return Frame(Kind.BAD, left, why=text)
        kind = Kind.MESSAGE if magic == Magic.NORMAL and body_bytes else Kind.OTHER
        return Frame(kind, size, ENTRY_HEAD_BYTES, entry_index=index, channel=channel)


ENTRY_MAGICS: Final = (Magic.NORMAL, Magic.NOOP, Magic.CONFIG_CHANGE)
