"""What Java does with texts, where it decides bytes in a store's files: String.hashCode, and names in UTF-8.

Invariants: hashes are int32 with a sign, over UTF-16 units as Java counts them; `text_of` and `bytes_of` bring any
bytes back as they were, also those that are no UTF-8.
"""

from __future__ import annotations

from typing import Final

import numpy as np

_MASK: Final = (1 << 32) - 1
_SIGN: Final = 1 << 31
_SHORT: Final = 48  # up to so many units a loop is quicker than an array
KEY_SEPARATOR: Final = " "


def string_hash(text: str) -> int:
    """Java's String.hashCode()."""
    data = text.encode("utf-16-be", "surrogatepass")
    if len(data) <= 2 * _SHORT:
        found = 0
        for at in range(0, len(data), 2):
            found = (31 * found + (data[at] << 8 | data[at + 1])) & _MASK
    else:
        units = np.frombuffer(data, ">u2").astype(np.uint32)
        powers = np.full(len(units), 31, np.uint32)
        powers[0] = 1
        with np.errstate(over="ignore"):
            powers = np.cumprod(powers, dtype=np.uint32)[::-1]
            found = int((units * powers).sum(dtype=np.uint32))
    return found - (1 << 32) if found & _SIGN else found


def tags_code(tags: str | None) -> int:
    """What a consume queue holds of a message's tags: 0 without tags."""
    return string_hash(tags) if tags else 0


def key_hash(topic: str, key: str) -> int:
    """What an index file holds of a key: never negative."""
    found = abs(string_hash(f"{topic}#{key}"))
    return 0 if found >= _SIGN else found


def text_of(data: bytes | memoryview) -> str:
    """UTF-8, lossless: what is none comes back from `bytes_of` as it was."""
    return bytes(data).decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes:
    """The bytes that `text_of` was given."""
    return text.encode("utf-8", "surrogateescape")


def printable(text: str) -> str:
    """A name for JSON or a terminal: bytes that are no UTF-8 become the replacement character."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def units_of(text: str) -> int:
    """String.length(): UTF-16 units."""
    return len(text) + sum(1 for one in text if ord(one) > 0xFFFF)
