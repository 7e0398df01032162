"""A classic broker's delay offsets, which are kept once what was delivered before them is on disk.

Their file is synced by itself, and a log that is flushed every now and then lies behind it: a power loss in between
would take the delivered message, and leave the offset that passes it over.

Invariant: an offset is kept only behind a flush of everything that was in the log when it was reached.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Kept(Protocol):
    """Where they are kept: by level, from 1 on, the next message that is to be delivered."""

    def get(self, level: int) -> int | None: ...
    def commit(self, offsets: Mapping[int, int]) -> bool: ...


class Log(Protocol):
    """Into which messages are delivered."""

    @property
    def max_offset(self) -> int: ...
    @property
    def flushed_offset(self) -> int: ...
    @property
    def broken_by(self) -> str:
        """Why it cannot be written; empty: it can."""


class DelayOffsetsBehindFlush:
    """See the module's docstring. What `ScheduleService` asks, again and again while it is ahead of what is kept."""

    def __init__(self, kept: Kept, log: Log) -> None:
        self._kept, self._log = kept, log
        self._waiting: tuple[Mapping[int, int], int] | None = None  # some, and up to where the log has to be flushed

    def get(self, level: int) -> int | None:
        """A mastership begins: what an earlier one reached and did not keep is delivered again."""
        self._waiting = None
        return self._kept.get(level)

    def commit(self, offsets: Mapping[int, int]) -> bool:
        """False: not all of them yet."""
        log, waiting = self._log, self._waiting
        if log.broken_by:  # after a flush that failed its end may be lost
            return False
        if log.flushed_offset >= log.max_offset:
            self._waiting = None
            return self._kept.commit(offsets)
        if waiting is None:
            self._waiting = dict(offsets), log.max_offset
        elif log.flushed_offset >= waiting[1] and self._kept.commit(waiting[0]):
            self._waiting = None
        return False
