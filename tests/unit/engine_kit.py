"""Real engines in the test's own loop: started, used, stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

from node.engine.engine import Engine


@asynccontextmanager
async def running(engines: Sequence[Engine]) -> AsyncGenerator[list[int], None]:
    """They listen from the beginning on; the list has their exit codes once they were stopped at the end."""
    codes: list[int] = []
    tasks: list[asyncio.Task[int]] = []
    for engine in engines:
        ready = asyncio.Event()
        tasks.append(asyncio.create_task(engine.run(lambda _port, ready=ready: ready.set())))  # type: ignore[misc]
        await ready.wait()
    try:
        yield codes
    finally:
        for engine in engines:
            engine.stop()
        codes += await asyncio.gather(*tasks)


async def until(holds: Callable[[], bool]) -> None:
    """Bounded by what a test may take at all, not by how fast this machine is."""
    for _ in range(6000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never became so")
