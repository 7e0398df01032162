"""An event loop in a thread of its own, for clients whose callers block.

Invariants: what is given to it ends, with its result, or with `closed` where the loop is stopped meanwhile or was
before; nothing is given to it once it is stopped, where nobody would answer. `stop` may be called from any other
thread, and again.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from typing import TypeVar

T = TypeVar("T")


class LoopThread:
    """`closed` makes the error for whoever comes too late."""

    def __init__(self, name: str, closed: Callable[[str], Exception]) -> None:
        self._closed, self._pid = closed, os.getpid()
        self._giving, self._stopped = threading.Lock(), False  # the lock is held while work is given to the loop
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def wait(self, work: Awaitable[T]) -> T:
        """What the work returns or raises. Raises `closed` where the loop is stopped, or is being stopped meanwhile;
        in a process that was forked, which has no such thread; and in that thread, which would wait for itself."""

        async def done() -> T:
            return await work

        if (elsewhere := self._not_here()) is not None:
            _never_begun(work)
            raise elsewhere
        with self._giving:
            if self._stopped:
                _never_begun(work)
                raise self._closed("the client is closed")
            waiting = asyncio.run_coroutine_threadsafe(done(), self._loop)
        try:
            return waiting.result()
        except CancelledError:
            raise self._closed("the client is closed") from None

    def _not_here(self) -> Exception | None:
        if os.getpid() != self._pid:
            return self._closed("the client is of the process that this one was forked from: make another one here")
        if threading.current_thread() is self._thread:
            return self._closed("a blocking client is not asked in its own callbacks: do it in another thread")
        return None

    def stop(self) -> None:
        """Whatever was given to the loop before ends here. Raises `closed` in the loop's own thread."""

        async def end_the_rest() -> None:
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

        if os.getpid() != self._pid:
            return  # it is that process's to stop
        if (elsewhere := self._not_here()) is not None:
            raise elsewhere
        with self._giving:
            if self._stopped:
                return
            self._stopped = True
            ending = asyncio.run_coroutine_threadsafe(end_the_rest(), self._loop)
        ending.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _never_begun(work: Awaitable[T]) -> None:
    if asyncio.iscoroutine(work):
        work.close()
