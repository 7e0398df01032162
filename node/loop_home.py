"""Where a client belongs: the event loop and the process of its first call.

Its connections, timers and futures are that loop's. Used from another thread, they would be changed while that one
runs; used in a process that was forked, both would read from one connection, and each would get answers that are the
other's. An epoll is shared by such processes, too: what the child closes, the parent hears of no more.

Invariant: a check that passes changes nothing for whoever passed one before.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from threading import get_ident


class LoopHome:
    """`wrong` makes the error for whoever comes from elsewhere."""

    def __init__(self, wrong: Callable[[str], Exception]) -> None:
        self._wrong = wrong
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self.thread = 0  # that of the last check that passed: a call from the same one may go without

    def check(self) -> asyncio.AbstractEventLoop:
        """The loop, from the first call on. Raises `wrong` in another loop, in none, and in another process."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            raise self._wrong("a client is called from its event loop, and none runs here") from None
        if self._loop is None:
            self._loop, self._pid = running, os.getpid()
        elif self._loop is not running or self._pid != os.getpid():
            raise self._wrong(
                "a client belongs to the event loop and the process of its first call: make another one here"
            )
        self.thread = get_ident()
        return running
