"""The commit rule: a voter's watermark from its answer, and which index may be committed. Pure functions.

Theory: what a majority of the voters holds (`Configuration.reached`) is lost with none of the minorities that may fail.
Raft 5.4.2 adds that counting decides only about entries of the leader's own term; earlier ones are committed by what
follows them (Raft's figure 8).
"""

from __future__ import annotations

from node.protocol.codes import FlushMode


def watermark(verified_index: int, durable_index: int, flush: FlushMode, faulty_from: int = -1) -> int:
    """How far one answer proves that a member holds the leader's log, as safely as the group promises (SAFETY R2).

    From `faulty_from` on (-1: nowhere) it holds nothing that counts, whatever is intact behind (S6).

    Only within one answer: a later `verified` must never meet an earlier `durable`, because a truncation between the
    two may have replaced what was durable.
    """
    mark = min(verified_index, durable_index) if flush is FlushMode.SYNC else verified_index
    return mark if faulty_from < 0 else min(mark, faulty_from - 1)


def committable(index: int, committed_index: int, own_term_from: int) -> bool:
    """Whether what a majority holds up to `index` is to be committed: past what is, and at an entry of the own term."""
    return index > committed_index and index >= own_term_from
