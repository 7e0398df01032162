"""Where a process gets its clock, its randomness, its disk threads and its port from.

A process takes the defaults; the simulator (`tests/simulation/driver`) gives its own, so that the very same engine runs
in simulated time. Invariant: nothing in `node/engine` that decides anything asks a clock or a thread in another way.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from node.engine.clock import now_ns
from node.engine.listener import Listen, listen
from node.engine.writer import Ended, Writer

T = TypeVar("T")
READER_THREADS: Final = 2


class WritesInOrder(Protocol):
    """The one thread that writes, as `Writer` does it."""

    def run(self, work: Callable[[], T], done: Callable[[Ended[T]], Any]) -> None: ...
    def close(self) -> None: ...


def _readers() -> Executor:
    return ThreadPoolExecutor(READER_THREADS, "store-read")


@dataclass(slots=True, frozen=True)
class Host:
    """`writer` and `readers` are called once for each process, on its loop."""

    now_ns: Callable[[], int] = now_ns
    random: random.Random = field(default_factory=random.Random)
    writer: Callable[[], WritesInOrder] = Writer
    readers: Callable[[], Executor] = _readers
    listen: Listen = listen
