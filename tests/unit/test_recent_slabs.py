"""The ring of recent slabs: bounded in memory, whatever the slabs' size."""

from __future__ import annotations

import pytest

from node.protocol.slab_encode import encode_slab
from node.store.recent_slabs import RecentSlabs

LIMIT_BYTES = 256 * 1024


@pytest.mark.parametrize("body_bytes", [0, 300, 40_000, 400_000])
def test_memory_is_bounded_for_small_and_for_large_slabs(body_bytes: int) -> None:
    ring = RecentSlabs(LIMIT_BYTES)
    pos, largest = 0, 0
    for index in range(1500 if body_bytes < 1000 else 60):
        slab = encode_slab([bytes(body_bytes)], index, 1, pos, 0)
        pos, largest = slab.end_pos, max(largest, len(slab.data) + 1024)
        ring.add(slab)
        assert ring.size_bytes <= LIMIT_BYTES + LIMIT_BYTES // 16 + 2 * largest
        assert ring.holding(index) is slab


def test_what_was_dropped_is_not_found_and_the_rest_is() -> None:
    ring = RecentSlabs(LIMIT_BYTES)
    pos = 0
    for index in range(2000):
        slab = encode_slab([b"x" * 300], index, 1, pos, 0)
        pos = slab.end_pos
        ring.add(slab)
    held = [index for index in range(2000) if ring.holding(index) is not None]
    assert 100 < len(held) < 2000
    assert held == list(range(held[0], 2000))
    assert ring.piece_of(held[0] - 1, 1024) is None
