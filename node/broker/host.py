"""What a broker takes from the machine under it: its disk, its wall clock, and the port that clients reach.

A process has the machine's own, which is what every field is by default; a simulated world gives others. The loop's
clock, its threads and its connections come with the loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from node.message_store.read_files import OS, Files
from node.message_store.write_files import Disk, OsDisk
from node.rocketmq.server import LISTEN, Listen


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class BrokerHost:
    """`disk` makes one set of open files; `listen` makes a listener, as `node.engine.listener.listen` does."""

    disk: Callable[[], Disk] = OsDisk
    files: Files = OS
    now_ms: Callable[[], int] = wall_ms
    listen: Listen = LISTEN


MACHINE: Final = BrokerHost()
