"""Samples packed by columns: delta, byte planes, zlib.

Columns are int64; NULL stands for unknown. A log's numbers grow evenly, so their deltas are small and repeat, and
laying the bytes out in planes (all first bytes, then all second ones) lets zlib see that: some 6 bytes a sample.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.int64]
NULL = np.iinfo(np.int64).min
MAGIC = b"QSH1"
HEAD = struct.Struct(">4sHI")
ROWS_MAX = 100_000


def pack(columns: Mapping[str, Column]) -> bytes:
    """All columns have one length. Raises ValueError."""
    lengths = {len(column) for column in columns.values()}
    if len(lengths) != 1:
        raise ValueError("columns of different lengths")
    names = ",".join(columns).encode()
    planes = []
    for column in columns.values():
        delta = np.diff(column.astype(np.int64), prepend=np.int64(0))  # wraps around, and back on the way out
        planes.append(delta.astype(">i8").view(np.uint8).reshape(-1, 8).T.tobytes())
    head = HEAD.pack(MAGIC, len(names), lengths.pop())
    return head + names + zlib.compress(b"".join(planes), 6)


def unpack(packed: bytes) -> dict[str, Column]:
    """ValueError for anything that `pack` did not write."""
    try:
        magic, names_bytes, rows = HEAD.unpack_from(packed)
        if magic != MAGIC or rows > ROWS_MAX:
            raise ValueError("not a packed hour")
        body = HEAD.size + names_bytes
        names = packed[HEAD.size : body].decode().split(",")
        wanted = len(names) * rows * 8
        reading = zlib.decompressobj()
        plain = reading.decompress(packed[body:], wanted + 1)
    except (struct.error, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"not a packed hour: {error}") from None
    if len(plain) != wanted or not reading.eof:
        raise ValueError("a packed hour of the wrong length")
    columns = {}
    for place, name in enumerate(names):
        plane = np.frombuffer(plain, np.uint8, rows * 8, place * rows * 8).reshape(8, rows).T
        delta = np.ascontiguousarray(plane).view(">i8").reshape(rows).astype(np.int64)
        with np.errstate(over="ignore"):
            columns[name] = np.cumsum(delta, dtype=np.int64)
    return columns
