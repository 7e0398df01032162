"""Quorum arithmetic (SAFETY R2, R3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.consensus.quorum_ack_checker import committable, quorum_value, watermark
from node.protocol.codes import FlushMode


@pytest.mark.parametrize(
    ("verified", "durable", "flush", "expected"),
    [
        (9, 5, FlushMode.SYNC, 5),  # in page caches only: does not count
        (5, 9, FlushMode.SYNC, 5),  # durable, but not the leader's entries
        (9, 5, FlushMode.ASYNC, 9),
        (-1, 9, FlushMode.SYNC, -1),
        (-1, -1, FlushMode.ASYNC, -1),
    ],
)
def test_r2_watermark(verified: int, durable: int, flush: FlushMode, expected: int) -> None:
    assert watermark(verified, durable, flush) == expected


@pytest.mark.parametrize(
    ("marks", "expected"),
    [([7], 7), ([7, 3], 3), ([7, 3, 5], 5), ([7, -1, -1], -1), ([9, 7, 5, 3], 5), ([1, 9, 9, 9, 1], 9), ([4, 4, 4], 4)],
)
def test_r3_element_n_half_in_descending_order(marks: list[int], expected: int) -> None:
    assert quorum_value(marks) == expected


@given(st.lists(st.integers(-1, 50), min_size=1, max_size=9))
def test_r3_a_majority_reaches_it_and_no_more(marks: list[int]) -> None:
    index = quorum_value(marks)
    needed = len(marks) // 2 + 1
    assert sum(mark >= index for mark in marks) >= needed
    assert sum(mark > index for mark in marks) < needed


@pytest.mark.parametrize(
    ("marks", "committed", "own_from", "expected"),
    [
        ([5, 5, 2], 3, 4, 5),
        ([5, 5, 2], 5, 4, None),  # no news
        ([5, 5, 2], 6, 4, None),  # never down
        ([5, 5, 2], 3, 6, None),  # only entries of earlier terms (Raft's figure 8)
        ([6, 6, 2], 3, 6, 6),
        ([9, -1, -1], -1, 0, None),
    ],
)
def test_r3_only_entries_of_the_own_term(marks: list[int], committed: int, own_from: int, expected: int | None) -> None:
    assert committable(marks, committed, own_from) == expected
