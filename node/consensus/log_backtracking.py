"""Log backtracking (Raft 5.3): the next index to compare after a mismatch, by whole terms. Pure functions.

Invariant: every step goes strictly below the index that was asked for, so a search ends; the follower in its turn never
names an index at or below what it knows to be committed (SAFETY R6).
"""

from __future__ import annotations

from node.protocol.codes import ResponseCode
from node.protocol.messages import PushResponse
from node.store.errors import ColdEntry
from node.store.log_store import LogStore

# Of an answer: the peer would have to lose what it knows to be committed, or is of another group.
FOR_GOOD = (ResponseCode.INCONSISTENT_INDEX, ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN, ResponseCode.UNKNOWN_GROUP)


def next_to_compare(store: LogStore, answer: PushResponse, asked: int) -> int:
    """The next index to compare, below `asked`: our last entry of the peer's term, or what is before that term.

    The entry before our first one is still known (`base`), so it is tried before a snapshot is thought necessary.
    """
    lowest = store.base.index if answer.end_index >= store.base.index and asked > store.base.index else -1
    if answer.x_term == -1:
        return max(lowest, min(asked - 1, answer.end_index))
    ours = min(store.last_index_of_term(answer.x_term), asked - 1)
    if _term_of(store, ours) == answer.x_term and ours >= answer.x_index:
        return ours
    return max(lowest, min(asked - 1, answer.x_index - 1))


def is_fork(store: LogStore, answer: PushResponse, asked: int) -> bool:
    """A mismatch at an entry of equal index and term: another chain, which no truncation mends (SAFETY R7)."""
    return answer.x_index == asked and answer.x_term != -1 and answer.x_term == _term_of(store, asked)


def _term_of(store: LogStore, index: int) -> int | None:
    """From memory: where an entry is cold, what the table of terms says is enough to know where to look."""
    try:
        meta = store.meta_at_hand(index)
    except ColdEntry:
        return store.term_at(index)
    return None if meta is None else meta.term
