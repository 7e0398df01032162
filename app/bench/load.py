"""The load of the benches: workers that keep a number of appends in flight, and what came of it.

Bodies are all different within a request, so that no pickle or cache saves work that real messages would cost. They
compress well: it makes no difference to us, and spares a rival that compresses (PySyncObj) what random bytes would cost
it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from app.bench.common import Sample, percentile

BODIES_MIN: Final = 64


class Appender(Protocol):
    """A way into the log; a call returns when the group has promised to keep what it was given."""

    async def append(self, body: bytes) -> object: ...

    async def append_many(self, bodies: Sequence[bytes]) -> object: ...


@dataclass(slots=True, frozen=True)
class Case:
    """One way of appending: `in_flight` requests at once, `batch` entries in each."""

    in_flight: int
    batch: int

    @property
    def words(self) -> str:
        """For people: "one at a time", "2048 in flight", "40 x 100"."""
        if self.batch > 1:
            return f"{self.in_flight} batches of {self.batch} in flight"
        return "one at a time" if self.in_flight == 1 else f"{self.in_flight} in flight"


def different_bodies(count: int, body_bytes: int) -> list[bytes]:
    """`count` bodies of `body_bytes` each, different as far as that many bytes allow."""
    return [(str(number) + " " * body_bytes)[:body_bytes].encode() for number in range(count)]


async def measure(
    appender: Appender, case: Case, body_bytes: int, seconds: float, cpu_s: Callable[[], float | None] = lambda: None
) -> Sample:
    """Runs `case` for `seconds` with as many workers as requests in flight. `cpu_s` tells all CPU seconds so far."""
    bodies = different_bodies(max(BODIES_MIN, case.batch), body_bytes)
    latencies_s = array("d")  # no objects for the garbage collector to walk
    began = time.perf_counter()
    stop_at = began + seconds
    cpu_before_s = cpu_s()

    async def one_by_one(first: int) -> None:
        append, clock, took = appender.append, time.perf_counter, latencies_s.append
        for body in itertools.islice(itertools.cycle(bodies), first % len(bodies), None):
            sent = clock()
            if sent >= stop_at:
                return
            await append(body)
            took(clock() - sent)

    async def in_batches(_first: int) -> None:
        while (sent := time.perf_counter()) < stop_at:
            await appender.append_many(bodies)
            latencies_s.append(time.perf_counter() - sent)

    bodies = bodies if case.batch == 1 else bodies[: case.batch]
    worker: Callable[[int], Awaitable[None]] = one_by_one if case.batch == 1 else in_batches
    await asyncio.gather(*(worker(number) for number in range(case.in_flight)))
    elapsed_s = time.perf_counter() - began
    cpu_after_s = cpu_s()
    entries = len(latencies_s) * case.batch
    cpu_us = None
    if cpu_before_s is not None and cpu_after_s is not None and entries:
        cpu_us = (cpu_after_s - cpu_before_s) / entries * 1e6
    return sample_of(latencies_s, entries, elapsed_s, cpu_us)


def sample_of(latencies_s: Sequence[float], entries: int, elapsed_s: float, cpu_us: float | None) -> Sample:
    """From what was measured to a sample."""
    sorted_s = sorted(latencies_s)
    p50_ms, p99_ms = percentile(sorted_s, 0.50) * 1000, percentile(sorted_s, 0.99) * 1000
    return Sample(entries / elapsed_s, p50_ms, p99_ms, cpu_us)
