"""The end of a commit log file: what fills it where the next record did not fit.

Invariant: a blank reaches to the end of its file; of the bytes behind its eight nothing is known (zero in a fresh
file).
"""

from __future__ import annotations

from typing import Final

from node.message_store.record import SIZE_AND_MAGIC

BLANK_MAGIC: Final = 0xCBD43194 - (1 << 32)
BLANK_BYTES: Final = SIZE_AND_MAGIC.size  # 8
UNWRITTEN: Final = bytes(BLANK_BYTES)


def encode_blank(size_bytes: int) -> bytes:
    """The eight bytes of a blank that covers `size_bytes`."""
    return SIZE_AND_MAGIC.pack(size_bytes, BLANK_MAGIC)


def fits(record_bytes: int, bytes_left: int) -> bool:
    """Whether a record goes into what is left of a file: eight bytes for the blank have to remain."""
    return record_bytes + BLANK_BYTES <= bytes_left
