"""How fresh a read is to be: the words of `consistency` in REST, and what they are on the wire.

Invariant: all but `stale` are linearizable, at any member; they differ in what they cost and what they trust.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from node.transport.slab_frames import ReadMode

Consistency = Literal["linearizable", "lease", "read-index", "log", "stale"]
MODES: Final[Mapping[str, ReadMode]] = {
    "linearizable": ReadMode.LINEARIZABLE,
    "lease": ReadMode.LEASE,
    "read-index": ReadMode.READ_INDEX,
    "log": ReadMode.LOG,
    "stale": ReadMode.UNSAFE,
}
