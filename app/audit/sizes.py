"""Estimates the bytes that an audit will read, from the positions of each replica's first and last entry."""

from __future__ import annotations

from collections.abc import Sequence

from app.audit.fence import Fence
from app.audit.records import plausible_sizes, read_units
from app.audit.replicas import ReplicaSpec, open_replica
from app.audit.segments import ReadFailed
from app.audit.tasks import Piece
from node.protocol.entry import INDEX_UNIT_BYTES


def estimate_bytes(fence: Fence, specs: Sequence[ReplicaSpec], pieces: Sequence[Piece]) -> int | None:
    """Data and index bytes of all pieces over all replicas; None where a replica's index does not tell."""
    if not pieces:
        return 0
    total = 0
    for spec, one in zip(specs, fence.holders, strict=True):
        low, high = max(pieces[0].from_index, one.begin_index), min(pieces[-1].to_index, one.end_index)
        if low > high:
            continue
        files = open_replica(spec, one).files
        try:
            first, last = read_units(files, low, low), read_units(files, high, high)
        except ReadFailed:
            return None
        size = int(last["pos"][0]) + int(plausible_sizes(last)[0]) - int(first["pos"][0])
        if size <= 0:
            return None
        total += size + (high - low + 1) * INDEX_UNIT_BYTES
    return total
