"""The load of the benches: a number of appends that are kept in flight, and what came of it.

Single appends at once go through callbacks where the way into the log has them (`Submitter`), as a producer would send
them: each completion starts the next. Everything else is workers that await one append after the other.

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
from typing import Any, Final, Protocol, runtime_checkable

from app.bench.common import Sample, percentile

BODIES_MIN: Final = 64


class Appender(Protocol):
    """A way into the log; a call returns when the group has promised to keep what it was given."""

    async def append(self, body: bytes) -> object: ...

    async def append_many(self, bodies: Sequence[bytes]) -> object: ...


@runtime_checkable
class Submitter(Protocol):
    """An appender that starts an append at once and tells of its end through a future."""

    def submit(self, body: bytes) -> asyncio.Future[Any]: ...


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
    """Runs `case` for `seconds` with that many requests in flight. `cpu_s` tells all CPU seconds so far."""
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
    if case.batch == 1 and case.in_flight > 1 and isinstance(appender, Submitter):
        await keep_in_flight(appender, case.in_flight, bodies, stop_at, latencies_s)
    else:
        worker: Callable[[int], Awaitable[None]] = one_by_one if case.batch == 1 else in_batches
        await asyncio.gather(*(worker(number) for number in range(case.in_flight)))
    elapsed_s = time.perf_counter() - began
    cpu_after_s = cpu_s()
    entries = len(latencies_s) * case.batch
    cpu_us = None
    if cpu_before_s is not None and cpu_after_s is not None and entries:
        cpu_us = (cpu_after_s - cpu_before_s) / entries * 1e6
    return sample_of(latencies_s, entries, elapsed_s, cpu_us)


async def keep_in_flight(
    appender: Submitter, in_flight: int, bodies: Sequence[bytes], stop_at: float, latencies_s: array[float]
) -> None:
    """Submits until `stop_at` on the clock of `perf_counter`, the next as soon as one ends; returns when all have.

    Raises what the first append that fails raises.
    """
    submit, next_body, clock = appender.submit, itertools.cycle(bodies).__next__, time.perf_counter
    took = latencies_s.append
    all_landed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    class Flight:
        """One place in the air; its callback is made once and not for every append."""

        __slots__ = ("landed", "sent")

        def __init__(self) -> None:
            self.landed: Callable[[asyncio.Future[Any]], None] = self.land
            self.sent = clock()
            submit(next_body()).add_done_callback(self.landed)

        def land(self, answer: asyncio.Future[Any]) -> None:
            nonlocal in_flight
            now = clock()
            try:
                answer.result()
            except BaseException as error:
                if not all_landed.done():
                    all_landed.set_exception(error)
                return
            took(now - self.sent)
            if now < stop_at:
                self.sent = now
                submit(next_body()).add_done_callback(self.landed)
                return
            in_flight -= 1
            if not in_flight and not all_landed.done():
                all_landed.set_result(None)

    for _ in range(in_flight):
        Flight()
    await all_landed


def sample_of(latencies_s: Sequence[float], entries: int, elapsed_s: float, cpu_us: float | None) -> Sample:
    """From what was measured to a sample."""
    sorted_s = sorted(latencies_s)
    p50_ms, p99_ms = percentile(sorted_s, 0.50) * 1000, percentile(sorted_s, 0.99) * 1000
    return Sample(entries / elapsed_s, p50_ms, p99_ms, cpu_us)
