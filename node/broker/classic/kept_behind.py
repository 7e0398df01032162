"""How far a classic broker has come in its own log: with delayed messages by level, with transactions. Such a place
passes over messages because of others that were stored for them, so it is kept once those are on this broker's disk.

Places have files of their own, which are synced at once. A log that is flushed now and then lies behind them, and so
does a slave's behind its master's: a power loss, or a promotion of that slave, would take the message that was
delivered, and leave the place that passes over it.

Invariants: at a master a place is kept only behind a flush of everything that was in the log when it was reached; a
slave goes on to a place of its master's only once its own flushed log holds what the master's held then. A lower place
is always safe: messages behind it are delivered, or asked for, again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

T = TypeVar("T")
Places = Mapping[int | str, int]  # delay levels, and the topics that transactions are kept in


class Kept(Protocol):
    """Where delay offsets are kept: by level, from 1 on, the next message that is to be delivered."""

    def get(self, level: int) -> int | None: ...
    def commit(self, offsets: Mapping[int, int]) -> bool: ...


class Log(Protocol):
    """The broker's own."""

    @property
    def max_offset(self) -> int: ...
    @property
    def flushed_offset(self) -> int: ...
    @property
    def broken_by(self) -> str:
        """Why it cannot be written; empty: it can."""


class FollowedLog(Protocol):
    """A slave's. `cuts`: how often its end was cut off."""

    @property
    def flushed_offset(self) -> int: ...
    @property
    def cuts(self) -> int: ...


class BehindFlush(Generic[T]):
    """At a master: what is reached, again and again, and what of it may be kept."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._waiting: tuple[T, int] | None = None  # what was reached, and up to where the log has to be flushed

    def forget(self) -> None:
        """A mastership begins: what an earlier one reached and did not keep is done again."""
        self._waiting = None

    def reached(self, place: T) -> T | None:
        """What may be kept now: `place`, or one that was reached before; None: nothing new."""
        log, waiting = self._log, self._waiting
        if log.broken_by:  # after a flush that failed its end may be lost
            return None
        if log.flushed_offset >= log.max_offset:
            self._waiting = None
            return place
        if waiting is None or log.flushed_offset >= waiting[1]:
            self._waiting = place, log.max_offset
            return None if waiting is None else waiting[0]
        return None


class DelayOffsetsBehindFlush:
    """What `ScheduleService` asks, again and again while it is ahead of what is kept."""

    def __init__(self, kept: Kept, log: Log) -> None:
        self._kept, self._behind = kept, BehindFlush[dict[int, int]](log)

    def get(self, level: int) -> int | None:
        self._behind.forget()
        return self._kept.get(level)

    def commit(self, offsets: Mapping[int, int]) -> bool:
        """Keeps the offsets that the log has reached; False where some of these wait for it."""
        due = self._behind.reached(dict(offsets))
        return due is not None and self._kept.commit(due) and due == offsets


class _Said(NamedTuple):
    """`end`: of the master's log when it said its places; `cuts`: of the slave's own."""

    places: Places
    end: int
    cuts: int


class BehindMaster:
    """At a slave: what its master says, now and then, and what of it counts here."""

    def __init__(self, log: FollowedLog) -> None:
        self._log = log
        self._waiting: _Said | None = None

    def forget(self) -> None:
        """Another master is followed."""
        self._waiting = None

    def take(self, own: Places, theirs: Places, end: int | None) -> Places:
        """What counts from now on. `end` None: the master is RocketMQ's, which does not say it, and is believed."""
        if end is None:
            return theirs
        flushed, waiting = self._log.flushed_offset, self._waiting
        if flushed >= end:
            self._waiting = None
            return theirs
        if waiting is not None and (waiting.cuts != self._log.cuts or flushed >= waiting.end):
            if waiting.cuts == self._log.cuts:
                own = waiting.places
            waiting = None
        self._waiting = waiting or _Said(theirs, end, self._log.cuts)
        return {key: min(place, theirs[key]) for key, place in own.items() if key in theirs}
