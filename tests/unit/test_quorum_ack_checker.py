"""What an answer proves, and what may be committed (SAFETY R2, R3)."""

from __future__ import annotations

import pytest

from node.consensus.quorum_ack_checker import committable, watermark
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
    ("reached", "committed", "own_from", "expected"),
    [
        (5, 3, 4, True),
        (5, 5, 4, False),  # no news
        (5, 6, 4, False),  # never down
        (5, 3, 6, False),  # only entries of earlier terms (Raft's figure 8)
        (6, 3, 6, True),
        (-1, -1, 0, False),
    ],
)
def test_r3_only_entries_of_the_own_term(reached: int, committed: int, own_from: int, expected: bool) -> None:
    assert committable(reached, committed, own_from) is expected
