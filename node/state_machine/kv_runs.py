"""A run of commands to the key-value store that are plain puts, as columns: keys and items without a loop over them.

Most commands are puts without a condition and without a time to live, and many come together with keys and values of
the same length. Invariant: what is found is what `decode_command` finds in each command; anything else is no such run.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from node.protocol.kv import COMMAND, KEY_BYTES_MAX, NEVER, VALUE_BYTES_MAX, If, Op
from node.state_machine.interface import Run


class Puts(NamedTuple):
    """In the order of the log; `items` as the store keeps them: key, value, the entry that wrote it, until when."""

    keys: list[bytes]
    items: list[tuple[bytes, bytes, int, int]]
    size_bytes: int


def puts_in(run: Run) -> Puts | None:
    """None: some of them are something else, or not alike."""
    if run.body_bytes <= COMMAND.size:
        return None
    op, condition, ttl_ms, _, key_bytes, expected_bytes = COMMAND.unpack_from(run.data, run.begin)
    value_bytes = run.body_bytes - COMMAND.size - key_bytes
    is_plain_put = op == Op.PUT and condition == If.ALWAYS and not ttl_ms and not expected_bytes
    if not (is_plain_put and 0 < key_bytes <= KEY_BYTES_MAX and 0 < value_bytes <= VALUE_BYTES_MAX):
        return None
    rows = np.frombuffer(run.data, _row_of(run.stride, run.begin, key_bytes, value_bytes))
    heads = rows["head"].tobytes()
    if heads != heads[: COMMAND.size] * run.count:
        return None
    keys: list[bytes] = rows["key"].tolist()
    values: list[bytes] = rows["value"].tolist()
    indexes = range(run.first_index, run.first_index + run.count)
    items = list(zip(keys, values, indexes, repeat(NEVER), strict=False))
    return Puts(keys, items, run.count * (key_bytes + value_bytes))


@lru_cache(maxsize=64)
def _row_of(stride: int, begin: int, key_bytes: int, value_bytes: int) -> np.dtype[Any]:
    """Of a record that holds such a put; made once for a length: it costs more than what is read with it."""
    at = begin + COMMAND.size
    row: Any = {
        "names": ["head", "key", "value"], "formats": [f"V{COMMAND.size}", f"V{key_bytes}", f"V{value_bytes}"],
        "offsets": [begin, at, at + key_bytes], "itemsize": stride,
    }  # fmt: skip
    made: np.dtype[Any] = np.dtype(row)
    return made
