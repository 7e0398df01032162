"""The one thread that writes to the disk: what it is given is done in order, and reported back on the loop.

Not an executor: its futures, conditions and locks cost more than the hand-over itself, and whatever the thread does in
Python, the loop waits for. Under a load of single appends there are some 66 group commits a second.

Invariants: one piece of work at a time; `done` runs on the loop, once for each piece, unless the writer was closed by
then; `close` returns when nothing is being written any more.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Ended(NamedTuple, Generic[T]):
    """How a piece of work ended: what it returned, or what it raised."""

    value: T | None
    error: BaseException | None


class Writer:
    """One per engine, made on its loop; the thread starts with the first piece of work."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._work: SimpleQueue[tuple[Callable[[], Any], Callable[[Ended[Any]], Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def run(self, work: Callable[[], T], done: Callable[[Ended[T]], Any]) -> None:
        """Does `work` after what was given before, then calls `done` on the loop; nothing after the close."""
        if self._closed:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="store-write", daemon=True)
            self._thread.start()
        self._work.put((work, done))

    def _serve(self) -> None:
        while (item := self._work.get()) is not None:
            work, done = item
            try:
                ended = Ended(work(), None)
            except BaseException as error:
                ended = Ended(None, error)
            if not self._closed:
                self._loop.call_soon_threadsafe(self._tell, done, ended)

    def _tell(self, done: Callable[[Ended[T]], Any], ended: Ended[T]) -> None:
        if not self._closed:
            done(ended)

    def close(self) -> None:
        """Waits for what was given; nothing is reported any more."""
        self._closed = True
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
