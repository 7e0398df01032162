"""GroupCommitService: puts that wait until what they wrote is on disk (SYNC_FLUSH), many for one flush.

The flush itself is in a thread of its owner's; this holds who waits for which place, and until when.

Invariants: each request ends once: PUT_OK when its place is flushed, FLUSH_DISK_TIMEOUT when its time is over or a
flush failed; a request that timed out stays in the log, and its message is stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from node.message_store.put_result import PutStatus
from node.protocol.value_class import value_class

SYNC_FLUSH_TIMEOUT_MS: Final = 5000  # syncFlushTimeout
FLUSH_EVERY_MS: Final = 500  # flushIntervalCommitLog
Done = Callable[[PutStatus], None]


class FlushMode(StrEnum):
    """flushDiskType."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


@value_class(slots=True, frozen=True)
class GroupCommitRequest:
    """Waits until everything below `next_offset` is on disk."""

    next_offset: int
    deadline_ms: int
    done: Done


class GroupCommitService:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._waiting: deque[GroupCommitRequest] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def next_deadline_ms(self) -> int | None:
        """When `expire` has something to do at the latest."""
        return min((one.deadline_ms for one in self._waiting), default=None)

    def put_request(self, request: GroupCommitRequest) -> None:
        self._waiting.append(request)

    def flushed(self, upto: int) -> None:
        """Everything below `upto` is on disk."""
        while self._waiting and self._waiting[0].next_offset <= upto:
            self._waiting.popleft().done(PutStatus.PUT_OK)

    def expire(self, now_ms: int) -> None:
        """Whoever waited long enough hears that it is not known."""
        late = [one for one in self._waiting if one.deadline_ms <= now_ms]
        if late:
            self._waiting = deque(one for one in self._waiting if one.deadline_ms > now_ms)
            for one in late:
                one.done(PutStatus.FLUSH_DISK_TIMEOUT)

    def failed(self) -> None:
        """A flush failed: what is on disk is not known, and nothing more will be flushed."""
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            one.done(PutStatus.FLUSH_DISK_TIMEOUT)
