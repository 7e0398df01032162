"""CPU time and private memory of processes, read from /proc.

CPU time comes in ticks of the kernel's clock (10 ms as a rule), so that a share of a second or more is needed for a
figure worth printing. Private memory is RssAnon: mapped log files are page cache, which the kernel takes back.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pids: Iterable[int], *, with_own: bool = True) -> float | None:
    """Seconds of CPU, user and system, all threads, of these processes and this one; None without /proc."""
    total = sum(os.times()[:2]) if with_own else 0.0
    for pid in pids:
        try:
            # The command's name, in parentheses, may hold anything.
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            return None
        total += (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return total


def rss_anon_mb(pid: int) -> float | None:
    """Private memory in megabytes; None when the process is gone, or without /proc."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("RssAnon:"):
            return round(int(line.split()[1]) * 1024 / 1e6, 1)
    return None


def children_of(pid: int) -> list[int]:
    """Of all its threads; none without /proc."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, path.read_text().split())
        except OSError:
            continue
    return found
