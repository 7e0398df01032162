"""The process's own parts, which its groups share: loop, clock, randomness, the disk's threads, the member port.

One process may hold several groups, each with its own driver (`engine`), store and state machine; they share what is
here. `node/server.py` makes it, hands it to the driver, and closes it after the driver has ended and before the store.
Invariants: one thread writes, whichever group's disk it is; the port is opened by the first group and closed behind the
last one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from node.engine.host import Host
from node.engine.member_port import MemberPort
from node.engine.memory_share import MOST, MemoryShare


class Process:
    """Made on the loop."""

    def __init__(self, host: Host | None = None, share: MemoryShare = MOST) -> None:
        """`share`: what clients and strangers may make it hold."""
        host, self.share = host or Host(), share
        self.loop = asyncio.get_running_loop()
        self.now_ns, self.random = host.now_ns, host.random
        self.writer, self.readers = host.writer(), host.readers()
        self.port = MemberPort(self.loop, host.listen, share)
        self.when_ticked: list[Callable[[], None]] = []

    def ticked(self) -> None:
        """A group's timer has woken the loop (`metronome.py`), as it does many times a second."""
        for each in self.when_ticked:
            each()

    def close(self) -> None:
        """Waits for what the threads were given; nothing is reported any more."""
        self.port.close()
        self.writer.close()
        self.readers.shutdown(wait=True, cancel_futures=True)
