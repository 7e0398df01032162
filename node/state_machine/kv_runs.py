"""A run of commands to the key-value store that are plain puts, as columns: keys and items without a loop over them.

Most commands are puts without a condition and without a time to live, and many come together with keys and values of
the same length. Invariant: what is found is what `decode_command` finds in each command; anything else is no such run.
"""

from __future__ import annotations

from itertools import repeat
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from node.protocol.kv import COMMAND, KEY_BYTES_MAX, NEVER, VALUE_BYTES_MAX, If, Op
from node.state_machine.interface import Run

_FIELDS: Final = {"op": (">u1", 0), "condition": (">u1", 1), "ttl_ms": (">i8", 2), "key_bytes": (">u2", 18),
                  "expected_bytes": (">u4", 20)}  # fmt: skip


class Puts(NamedTuple):
    """In the order of the log; `items` as the store keeps them: key, value, the entry that wrote it, until when."""

    keys: list[bytes]
    items: list[tuple[bytes, bytes, int, int]]
    size_bytes: int


def puts_in(run: Run) -> Puts | None:
    """None: some of them are something else, or not alike."""
    if run.body_bytes <= COMMAND.size:
        return None
    heads = _column(run, {name: kind for name, (kind, _) in _FIELDS.items()}, [at for _, at in _FIELDS.values()])
    key_bytes = int(heads["key_bytes"][0])
    value_bytes = run.body_bytes - COMMAND.size - key_bytes
    alike = (
        (heads["op"] == Op.PUT) & (heads["condition"] == If.ALWAYS) & (heads["ttl_ms"] == 0)
        & (heads["expected_bytes"] == 0) & (heads["key_bytes"] == key_bytes)
    )  # fmt: skip
    if not (0 < key_bytes <= KEY_BYTES_MAX and 0 < value_bytes <= VALUE_BYTES_MAX and bool(alike.all())):
        return None
    both = _column(run, {"key": f"V{key_bytes}", "value": f"V{value_bytes}"}, [COMMAND.size, COMMAND.size + key_bytes])
    keys: list[bytes] = both["key"].tolist()
    values: list[bytes] = both["value"].tolist()
    indexes = range(run.first_index, run.first_index + run.count)
    items = list(zip(keys, values, indexes, repeat(NEVER), strict=False))
    return Puts(keys, items, run.count * (key_bytes + value_bytes))


def _column(run: Run, formats: dict[str, str], offsets: list[int]) -> npt.NDArray[Any]:
    """Those fields of every body."""
    places = [run.begin + at for at in offsets]
    row: Any = {
        "names": list(formats), "formats": list(formats.values()), "offsets": places, "itemsize": run.stride,
    }  # fmt: skip
    return np.frombuffer(run.data, np.dtype(row))
