"""What Java does with texts, where it decides bytes in a store's files: String.hashCode, and names in UTF-8.

Invariants: hashes are int32 with a sign, over UTF-16 units as Java counts them; `text_of` and `bytes_of` bring any
bytes back as they were, also those that are no UTF-8.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

_MASK: Final = (1 << 32) - 1
_SIGN: Final = 1 << 31
_SHORT: Final = 48  # up to so many units a loop is quicker than an array
_KNOWN: Final = 256  # hashes of longer texts are not kept
KEY_SEPARATOR: Final = " "


def string_hash(text: str) -> int:
    """Java's String.hashCode()."""
    found = 0
    if len(text) <= _SHORT and text.isascii():
        for unit in text.encode():
            found = 31 * found + unit
        found &= _MASK
    else:
        data = text.encode("utf-16-be", "surrogatepass")
        units = np.frombuffer(data, ">u2").astype(np.uint32)
        powers = np.full(len(units), 31, np.uint32)
        powers[0] = 1
        with np.errstate(over="ignore"):
            powers = np.cumprod(powers, dtype=np.uint32)[::-1]
            found = int((units * powers).sum(dtype=np.uint32))
    return found - (1 << 32) if found & _SIGN else found


def tags_code(tags: str | None) -> int:
    """What a consume queue holds of a message's tags: 0 without tags."""
    return _hash_of_name(tags) if tags else 0


def _hash_of_name(text: str) -> int:
    """Of what occurs again and again: tags, topics. A long one, which whoever asks or sends makes up, is not kept."""
    return _known_hash(text) if len(text) <= _KNOWN else string_hash(text)


_known_hash = lru_cache(maxsize=4096)(string_hash)


def key_hash(topic: str, key: str) -> int:
    """What an index file holds of a key: never negative."""
    joined = _hash_of_name(f"{topic}#") * pow(31, units_of(key), 1 << 32) + string_hash(key) & _MASK
    found = abs(joined - (1 << 32) if joined & _SIGN else joined)
    return 0 if found >= _SIGN else found


def text_of(data: bytes | memoryview) -> str:
    """UTF-8, lossless: what is none comes back from `bytes_of` as it was."""
    return bytes(data).decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes:
    """The bytes that `text_of` was given."""
    return text.encode("utf-8", "surrogateescape")


def printable(text: str) -> str:
    """A name for JSON or a terminal: bytes that are no UTF-8 become the replacement character."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    except UnicodeEncodeError:  # a half of a character, from JSON
        return "".join("\ufffd" if "\ud800" <= one <= "\udfff" else one for one in text)


def units_of(text: str) -> int:
    """String.length(): UTF-16 units."""
    return len(text) if text.isascii() else len(text) + sum(1 for one in text if ord(one) > 0xFFFF)
