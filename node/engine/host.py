"""The engine's host: the clock, randomness, disk threads and state machine that it runs on.

A process takes the defaults; the simulator (`tests/simulation/driver`) gives its own, so that the very same engine runs
in simulated time. Invariant: nothing in `node/engine` that decides anything asks a clock or a thread in another way.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from node.engine.applier import Applier
from node.engine.clock import now_ns
from node.engine.writer import Ended, Writer
from node.protocol.group_kind import PLAIN, GroupKind

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
    """One per engine; `writer` and `readers` are called once, on the engine's loop."""

    now_ns: Callable[[], int] = now_ns
    random: random.Random = field(default_factory=random.Random)
    writer: Callable[[], WritesInOrder] = Writer
    readers: Callable[[], Executor] = _readers
    applier: Applier | None = None  # None: a log alone
    kind: GroupKind = PLAIN  # what the group's log may hold
