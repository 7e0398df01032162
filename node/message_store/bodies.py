"""A message's body as its sender wrote it: what a client compressed is opened, within a bound.

Invariant: never more than `bytes_max` comes out of it, however small the input.
"""

from __future__ import annotations

import zlib
from typing import Final

from node.message_store.errors import MessageFormatError
from node.message_store.record import Compression, MessageRecord

OPENED_BYTES_MAX: Final = 64 << 20
ZLIB_KINDS: Final = (Compression.OLD_ZLIB, Compression.ZLIB)


class OpensTooLong(MessageFormatError):
    """A compressed body is longer than it may be here."""


def opened_body(record: MessageRecord, bytes_max: int = OPENED_BYTES_MAX) -> bytes:
    """Raises MessageFormatError where it cannot be opened; the record's own body is there all the same."""
    kind = record.compression
    if kind is Compression.NONE:
        return record.body
    if kind not in ZLIB_KINDS:
        name = kind.name if kind is not None else f"compression {record.sys_flag & 0x700:#x}"
        raise MessageFormatError(f"the body is compressed with {name}, which is not opened here")
    opener = zlib.decompressobj()
    try:
        found = opener.decompress(record.body, bytes_max + 1)
    except zlib.error as error:
        raise MessageFormatError(f"the body is no zlib stream: {error}") from error
    if len(found) > bytes_max:
        raise OpensTooLong(f"the body opens to more than {bytes_max} bytes")
    if not opener.eof:
        raise MessageFormatError("the body's zlib stream ends in its middle")
    return found
