"""Where entries go: the quick planning against the rule read out slowly (SAFETY S5)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.protocol.entry import BLANK_BYTES, HEAD_BYTES, SLAB_BYTES_MAX, EntryError
from node.protocol.packed_bodies import PackedBodies
from node.store.files.layout import Run, plan_bodies, plan_runs

FILE_BYTES = 4 * 1024 * 1024


def slowly(sizes: list[int], pos: int) -> list[Run]:
    """One entry after the other, each where there is room for it."""
    runs: list[Run] = []
    for number, size in enumerate(sizes):
        remaining = FILE_BYTES - pos % FILE_BYTES
        at = pos if size + BLANK_BYTES <= remaining else pos + remaining
        if runs and at == pos and at + size - runs[-1].pos <= SLAB_BYTES_MAX:
            runs[-1] = Run(runs[-1].first, number + 1, runs[-1].pos)
        else:
            runs.append(Run(number, number + 1, at))
        pos = at + size
    return runs


@given(
    st.lists(st.integers(HEAD_BYTES, 3000) | st.integers(HEAD_BYTES, 2 * 1024 * 1024), min_size=1, max_size=40),
    st.integers(0, 3 * FILE_BYTES),
)
def test_runs_fill_files_and_slabs_greedily(sizes: list[int], pos: int) -> None:
    assert plan_runs(sizes, pos, FILE_BYTES) == slowly(sizes, pos)
    assert plan_runs(np.array(sizes, dtype=np.int64), pos, FILE_BYTES) == slowly(sizes, pos)


@given(
    st.lists(st.integers(0, 3000) | st.integers(0, FILE_BYTES), min_size=1, max_size=9), st.integers(0, 3 * FILE_BYTES)
)
def test_bodies_are_planned_as_their_records_are(lengths: list[int], pos: int) -> None:
    listed = [bytes(length) for length in lengths]
    packed = PackedBodies(bytes(sum(lengths)), 0, np.array(lengths, dtype=np.int64))
    for bodies in (listed, packed):
        if max(lengths) + HEAD_BYTES + BLANK_BYTES > FILE_BYTES:
            with pytest.raises(EntryError, match=str(FILE_BYTES - HEAD_BYTES - BLANK_BYTES)):
                plan_bodies(bodies, pos, FILE_BYTES)
        else:
            assert plan_bodies(bodies, pos, FILE_BYTES) == slowly([HEAD_BYTES + length for length in lengths], pos)
