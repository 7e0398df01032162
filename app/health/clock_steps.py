"""Steps of this machine's wall clock: what was remembered by it is moved along, so that an age stays an age.

Problems begin, last and end by wall time, which people read. Where somebody sets the clock, each remembered moment is
moved by as much: without that, after an hour back no new problem would be shown for an hour, and after an hour forward
each would be "for 1 h". A step is what wall time did beyond CLOCK_BOOTTIME, which goes on during a suspend.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final, overload

from app.times import shifted

STEP_S: Final = 1.0  # less is an adjustment, or two clocks that were not read at one instant
boot_s: Final = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
boot_ns: Final = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class ClockStep:
    """The clock was set by `by`, between `fresh_from` (on the clock as it is now) and `now`."""

    by: timedelta
    fresh_from: datetime
    now: datetime

    @overload
    def moved(self, at: datetime) -> datetime: ...
    @overload
    def moved(self, at: None) -> None: ...
    def moved(self, at: datetime | None) -> datetime | None:
        """On the clock as it is now; what was noticed since the step is on it already."""
        return at if at is None or self.is_fresh(at) else shifted(at, self.by.total_seconds())

    def moved_past(self, at: datetime) -> datetime:
        """The same of something that is over. What lies ahead of the clock as it was, an earlier process wrote by a
        clock that was right: a machine without a battery starts in 1970, and is set once it has a network."""
        return at if at > self.now - self.by + timedelta(seconds=STEP_S) else self.moved(at)

    def moved_text(self, at: str) -> str:
        """The same of an RFC 3339 time in UTC."""
        moved = self.moved_past(datetime.fromisoformat(at))
        return moved.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def is_fresh(self, at: datetime) -> bool:
        return self.fresh_from <= at <= self.now

    def each(self, moments: dict[str, datetime]) -> dict[str, datetime]:
        return {key: self.moved(at) for key, at in moments.items()}


@dataclass(slots=True)
class WallClock:
    """Watches it: `look` is asked at every look at the group."""

    last: tuple[datetime, float] | None = None

    def look(self, now: datetime, at_s: float) -> ClockStep | None:
        """`at_s`: of CLOCK_BOOTTIME, read at the same instant as `now`. None: the clock was not set since last time."""
        last, self.last = self.last, (now, at_s)
        if last is None:
            return None
        passed = timedelta(seconds=at_s - last[1])
        by = now - last[0] - passed
        return ClockStep(by, now - passed, now) if abs(by.total_seconds()) >= STEP_S else None
