"""Mutations that know what a format is made of: bits, borders, length fields, pieces of other valid encodings.

All choices come from the Random that is passed in, so a run is its seed.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

ODD_NUMBERS = (
    0, 1, -1, 7, 8, 31, 32, 47, 48, 49, 255, 256, 4095, 65535, 1 << 20, (1 << 24) - 1, 1 << 24,
    (1 << 31) - 1, 1 << 31, -(1 << 31), (1 << 32) - 1, (1 << 62), (1 << 63) - 1, -(1 << 63), (1 << 63) - 48,
)  # fmt: skip
ODD_TEXTS = (
    b"null", b"true", b"-1", b"0", b"1e400", b"NaN", b"-Infinity", b'""', b"[]", b"{}", b"9223372036854775807",
    b"9223372036854775808", b"-9223372036854775809", b'"\\ud800"', b'"\\u0000"', b"1.5", b"\xff", b"[[[[[[[[",
    b'{"a":{"a":{"a":1}}}', b"\xc2\xb2", b"9" * 5000, b'"' + b"A" * 300 + b'"', b"1" + b"0" * 30,
)  # fmt: skip
_TOKEN = re.compile(rb'-?\d+|"(?:[^"\\]|\\.)*"|true|false|null')

Mutation = Callable[[bytearray, random.Random, Sequence[bytes]], None]


def _place(data: bytearray, rng: random.Random) -> int:
    """Mostly at the front, where heads and lengths lie."""
    reach = len(data) if rng.random() < 0.5 else min(len(data), 96)
    return rng.randrange(reach) if reach else 0


def flip_bit(data: bytearray, rng: random.Random, _others: Sequence[bytes]) -> None:
    if data:
        data[_place(data, rng)] ^= 1 << rng.randrange(8)


def set_byte(data: bytearray, rng: random.Random, _others: Sequence[bytes]) -> None:
    if data:
        data[_place(data, rng)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def set_number(data: bytearray, rng: random.Random, _others: Sequence[bytes]) -> None:
    """A length or an index becomes one of the numbers at which arithmetic breaks."""
    width = rng.choice((2, 4, 4, 8, 8))
    if len(data) < width:
        return
    at = rng.randrange(len(data) - width + 1)
    if rng.random() < 0.5:
        at = min(at, 96) // 4 * 4
    number = rng.choice(ODD_NUMBERS)
    if rng.random() < 0.3:
        number = int.from_bytes(data[at : at + width], "big") + rng.choice((-1, 1, 8, -8, 48))
    data[at : at + width] = (number & ((1 << 8 * width) - 1)).to_bytes(width, "big")


def truncate(data: bytearray, rng: random.Random, _others: Sequence[bytes]) -> None:
    del data[rng.randrange(len(data) + 1) :]


def cut_out(data: bytearray, rng: random.Random, _others: Sequence[bytes]) -> None:
    at = _place(data, rng)
    del data[at : at + rng.choice((1, 4, 8, 32, 48))]


def insert(data: bytearray, rng: random.Random, _others: Sequence[bytes]) -> None:
    at = _place(data, rng)
    data[at:at] = rng.choice((b"\0", b"\xff", bytes(8), b"\xff" * 8, rng.randbytes(rng.randrange(1, 40))))


def append(data: bytearray, rng: random.Random, _others: Sequence[bytes]) -> None:
    data += rng.choice((b"\0", bytes(48), rng.randbytes(rng.randrange(1, 40))))


def splice(data: bytearray, rng: random.Random, others: Sequence[bytes]) -> None:
    """The tail of another valid encoding behind this one's head."""
    other = rng.choice(others)
    data[rng.randrange(len(data) + 1) :] = other[rng.randrange(len(other) + 1) :]


def repeat(data: bytearray, rng: random.Random, _others: Sequence[bytes]) -> None:
    at = _place(data, rng)
    piece = bytes(data[at : at + rng.choice((1, 8, 32, 48, 200))])
    data[at:at] = piece * rng.choice((1, 2, 30))


def swap_token(data: bytearray, rng: random.Random, _others: Sequence[bytes]) -> None:
    """In a text, one value becomes another kind of value."""
    tokens = list(_TOKEN.finditer(bytes(data[:20_000])))
    if tokens:
        chosen = rng.choice(tokens)
        data[chosen.start() : chosen.end()] = rng.choice(ODD_TEXTS)


MUTATIONS: tuple[Mutation, ...] = (
    flip_bit, flip_bit, set_byte, set_number, set_number, set_number, truncate, cut_out, insert, append, splice, repeat,
    swap_token, swap_token,
)  # fmt: skip
INPUT_BYTES_MAX = 64 * 1024


def mutate(seeds: Sequence[bytes], rng: random.Random, repair: Callable[[bytes], bytes] | None) -> bytes:
    """A valid encoding with one to a few things wrong; half of the time with its outer checks made right again."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 6))):
        rng.choice(MUTATIONS)(data, rng, seeds)
    raw = bytes(data[:INPUT_BYTES_MAX])
    return repair(raw) if repair is not None and rng.random() < 0.7 else raw
