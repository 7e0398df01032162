"""Parts that the benches share: samples, percentiles, free ports, and progress messages."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Sample:
    """One round of one case. `cpu_us_per_entry`: of all processes together; None where it cannot be measured."""

    entries_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us_per_entry: float | None = None


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


def say(text: str) -> None:
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)
