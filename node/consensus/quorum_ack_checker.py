"""Quorum arithmetic: from the voters' watermarks to the index that may be committed. Pure functions.

Theory: sort the watermarks of n voters in descending order. At least n//2 + 1 of them are >= the element n//2, so a
quorum holds everything up to it. Raft 5.4.2 adds that counting decides only about entries of the leader's own term;
earlier ones are committed by what follows them (Raft's figure 8).
"""

from __future__ import annotations

from collections.abc import Iterable

from node.protocol.codes import FlushMode


def watermark(verified_index: int, durable_index: int, flush: FlushMode, faulty_from: int = -1) -> int:
    """How far one answer proves that a member holds the leader's log, as safely as the group promises (SAFETY R2).

    From `faulty_from` on (-1: nowhere) it holds nothing that counts, whatever is intact behind (S6).

    Only within one answer: a later `verified` must never meet an earlier `durable`, because a truncation between the
    two may have replaced what was durable.
    """
    mark = min(verified_index, durable_index) if flush is FlushMode.SYNC else verified_index
    return mark if faulty_from < 0 else min(mark, faulty_from - 1)


def quorum_value(values: Iterable[int]) -> int:
    """The highest value that a majority reaches: the element n//2 in descending order (SAFETY R3)."""
    ordered = sorted(values, reverse=True)
    return ordered[len(ordered) // 2]


def committable(watermarks: Iterable[int], committed_index: int, own_term_from: int) -> int | None:
    """The new committed index, or None: only past the old one, and only at an entry of the leader's own term."""
    index = quorum_value(watermarks)
    return index if index > committed_index and index >= own_term_from else None
