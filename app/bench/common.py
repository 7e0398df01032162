"""What both benches share: samples, percentiles, free ports, and the machine they ran on."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(slots=True, frozen=True)
class Sample:
    """One round of one case."""

    entries_per_s: float
    p50_ms: float
    p99_ms: float


def percentile(sorted_values: Sequence[float], share: float) -> float:
    """The value below which `share` of the sorted values lie (nearest rank); NaN of none."""
    if not sorted_values:
        return float("nan")
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


def free_ports(count: int) -> list[int]:
    """`count` different loopback ports that were free a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    model = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = (line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line)
        model = next(lines, "")
    return {"cpus": os.cpu_count(), "cpu": model, "python": platform.python_version(), "system": platform.platform()}
