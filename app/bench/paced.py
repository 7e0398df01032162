"""A load that arrives at its own pace, whatever the log does: what latency means to those who do not wait their turn.

Invariant: no append waits for another one's answer before it is sent, so that a stall is felt by all that arrive
meanwhile (no coordinated omission).
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from app.bench.common import Sample
from app.bench.load import BODIES_MIN, Appender, different_bodies, sample_of
from node.client import LedgerError

TURN_S: Final = 0.001
OPEN_MAX: Final = 20_000


async def paced(appender: Appender, rate_per_s: float, body_bytes: int, seconds: float) -> Sample:
    """Single appends, evenly spaced, for `seconds`; waits for all answers. Raises RuntimeError when far behind."""
    bodies = different_bodies(BODIES_MIN, body_bytes)
    latencies_s: list[float] = []
    tasks: set[asyncio.Task[None]] = set()
    failed: list[LedgerError] = []

    async def one(number: int) -> None:
        sent = time.perf_counter()
        try:
            await appender.append(bodies[number % BODIES_MIN])
        except LedgerError as error:
            failed.append(error)
        else:
            latencies_s.append(time.perf_counter() - sent)

    began = time.perf_counter()
    number, total = 0, int(rate_per_s * seconds)
    while number < total:
        due_by = min(total, int((time.perf_counter() - began) * rate_per_s) + 1)
        for this in range(number, due_by):
            task = asyncio.create_task(one(this))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        number = due_by
        if len(tasks) > OPEN_MAX:
            raise RuntimeError(f"{rate_per_s:g} appends a second are more than this group takes; give a lower --rate")
        await asyncio.sleep(max(TURN_S, began + number / rate_per_s - time.perf_counter()))
    await asyncio.gather(*tasks)
    if failed:
        raise RuntimeError(f"{len(failed)} of {total} appends failed, the first with: {failed[0]}")
    return sample_of(latencies_s, len(latencies_s), time.perf_counter() - began, None)
