"""How much memory this process may have, and which part of it clients and strangers may make it hold.

What they hold here (frames that are not whole, answers that they do not take, requests that are not answered) is
bounded in sums, and these stay below half of what is left beside KEPT_BYTES, which are the store's, the members' and
the interpreter's. On a large machine the sums are MOST; a process that is given little memory has smaller ones, and
members, whose frames count in none of them, and the store have theirs all the same.

Invariant: a frame as long as any may be still gets through, one at a time (LEAST).
"""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path
from typing import Final, NamedTuple

MIB: Final = 1024 * 1024
KEPT_BYTES: Final = 160 * MIB
OURS: Final = Path("/proc/self/cgroup")
CGROUPS: Final = Path("/sys/fs/cgroup")
MEMINFO: Final = Path("/proc/meminfo")


class MemoryShare(NamedTuple):
    """Bounds of sums, in bytes."""

    unproven: int  # unfinished frames of connections that have earned nothing ...
    unfinished: int  # ... and of clients as well
    untaken: int  # answers of all clients that wait to be taken
    requests: int  # of all clients, not answered

    @property
    def whole(self) -> int:
        """`unproven` is a part of `unfinished`."""
        return self.unfinished + self.untaken + self.requests


MOST: Final = MemoryShare(16 * MIB, 48 * MIB, 32 * MIB, 256 * MIB)
LEAST: Final = MemoryShare(9 * MIB, 20 * MIB, 10 * MIB, 20 * MIB)


def share_of(limit_bytes: int | None) -> MemoryShare:
    """Of a process that may have so much; None: nothing is known of a limit."""
    if limit_bytes is None:
        return MOST
    part = max(0.0, (limit_bytes - KEPT_BYTES) / 2 / MOST.whole)
    return MemoryShare(*(min(most, max(least, round(most * part))) for most, least in zip(MOST, LEAST, strict=True)))


def limit_bytes() -> int | None:
    """The least of what holds for this process: its own limits, its control groups', the machine's memory."""
    found = [_meminfo(), *_cgroups()]
    for which in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        soft, _hard = resource.getrlimit(which)
        found.append(None if soft == resource.RLIM_INFINITY else soft)
    return min((one for one in found if one is not None), default=None)


def _meminfo() -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
    return None


def _cgroups() -> list[int]:
    """Of this process's group and those that it lies in, in both versions of control groups."""
    limits: list[int] = []
    with contextlib.suppress(OSError):
        for line in OURS.read_text().splitlines():
            _number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if controllers and "memory" not in controllers.split(","):
                continue
            root, name = (CGROUPS / "memory", "memory.limit_in_bytes") if controllers else (CGROUPS, "memory.max")
            inner = Path(path.lstrip("/"))
            for folder in (root / inner, *(root / one for one in inner.parents)):
                with contextlib.suppress(OSError, ValueError):  # none there, or "max"
                    limits.append(int((folder / name).read_text()))
    return limits
