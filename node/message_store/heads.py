"""The fixed fields of many records, each a column: read once by who judges them, for whoever dispatches them.

Invariant: rows are in the order of the log; places are those of the buffer that the records lie in.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from node.protocol.entry import BytesLike
from node.protocol.value_class import value_class

Ints = npt.NDArray[Any]


@value_class(slots=True, frozen=True)
class Heads:
    """Row n: the record from `starts[n]` to `ends[n]`; its topic is the bytes `topic_at[n]` to `topic_end[n]`."""

    starts: Ints
    ends: Ints
    queue_id: Ints
    queue_offset: Ints
    sys_flag: Ints
    store_ms: Ints
    topic_at: Ints
    topic_end: Ints


def everywhere(data: BytesLike, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """What of that kind begins at each byte; nothing is copied."""
    return np.ndarray((max(0, len(data) - kind.itemsize + 1),), kind, data, 0, (1,))
