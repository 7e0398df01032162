"""The engine's two clocks: CLOCK_BOOTTIME nanoseconds decide (SAFETY C6), wall time is only shown."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Final

# Integer nanoseconds of CLOCK_BOOTTIME: goes on during a suspend, never jumps.
now_ns: Final[Callable[[], int]] = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)


def wall_ms() -> int:
    """Milliseconds of wall time, as a leader stamps commands with them (`state_machine/kind.py`)."""
    return time.time_ns() // 1_000_000


def wall_text(at_ns: int | None = None) -> str:
    """RFC 3339 UTC of a CLOCK_BOOTTIME moment (default: now), as the wall clock says it today."""
    return text_of(time.time() - (0 if at_ns is None else (now_ns() - at_ns) / 1e9))


def wall_writer() -> Callable[[int], str]:
    """The same for the many moments of one answer: both clocks are read once, so that their distances are exact."""
    at_s, at_ns = time.time(), now_ns()
    return lambda moment_ns: text_of(at_s - (at_ns - moment_ns) / 1e9)


def text_of(seconds: float) -> str:
    """RFC 3339 UTC of seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
