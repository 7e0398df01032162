"""The one thread that writes to the disk: what it is given is done in order, and reported back on the loop.

Not an executor: its futures, conditions and locks cost more than the hand-over itself, and whatever the thread does in
Python, the loop waits for. Each side wakes the other with a byte in a pipe, because a wait or a write there holds no
interpreter lock: who is woken finds it free. A queue and `call_soon_threadsafe` woke each side twice, once to find the
lock taken (there and back without work 17 to 30 us, so 8; an append with its syncs 19 context switches, now 13).

Invariants: one piece of work at a time; `done` runs on the loop, once for each piece, unless the writer was closed by
then; `close` returns when nothing is being written any more.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar

T = TypeVar("T")
BYTES_AT_ONCE: Final = 4096  # taken out of a pipe: who is woken looks for everything anyway


class Ended(NamedTuple, Generic[T]):
    """How a piece of work ended: what it returned, or what it raised."""

    value: T | None
    error: BaseException | None


class Bell:
    """Wakes whoever waits at the other end of a pipe. Ringing never waits: a full pipe wakes as well."""

    def __init__(self, *, waits: bool) -> None:
        """`waits`: whether `answer` waits for a ring."""
        self.fd, self._rings = os.pipe()
        os.set_blocking(self.fd, waits)
        os.set_blocking(self._rings, False)

    def ring(self) -> None:
        try:  # noqa: SIM105 (three calls more, each time)
            os.write(self._rings, b"\0")
        except BlockingIOError:
            pass

    def answer(self) -> None:
        """Takes the rings so far."""
        try:  # noqa: SIM105
            os.read(self.fd, BYTES_AT_ONCE)
        except BlockingIOError:
            pass

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._rings)


class Writer:
    """One per process, made on its loop; the thread starts with the first piece of work."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        # Both are filled on one side and emptied on the other; a deque's own steps need no lock.
        self._work: deque[tuple[Callable[[], Any], Callable[[Ended[Any]], Any]] | None] = deque()
        self._ended: deque[tuple[Callable[[Ended[Any]], Any], Ended[Any]]] = deque()
        self._to_thread: Bell | None = None
        self._to_loop: Bell | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def run(self, work: Callable[[], T], done: Callable[[Ended[T]], Any]) -> None:
        """Does `work` after what was given before, then calls `done` on the loop; nothing after the close."""
        if self._closed:
            return
        self._work.append((work, done))
        if self._to_thread is None:
            to_thread, to_loop = self._to_thread, self._to_loop = Bell(waits=True), Bell(waits=False)
            self._loop.add_reader(to_loop.fd, self._report, to_loop)
            self._thread = threading.Thread(
                target=self._serve, args=(to_thread, to_loop), name="store-write", daemon=True
            )
            self._thread.start()
        self._to_thread.ring()

    def _serve(self, to_thread: Bell, to_loop: Bell) -> None:
        while True:
            to_thread.answer()
            while self._work:
                item = self._work.popleft()
                if item is None:
                    return
                work, done = item
                try:
                    ended = Ended(work(), None)
                except BaseException as error:
                    ended = Ended(None, error)
                self._ended.append((done, ended))
                to_loop.ring()

    def _report(self, to_loop: Bell) -> None:
        to_loop.answer()
        while self._ended and not self._closed:
            done, ended = self._ended.popleft()
            try:
                done(ended)
            except BaseException:
                to_loop.ring()  # what is behind it is reported all the same
                raise

    def close(self) -> None:
        """Waits for what was given; nothing is reported any more."""
        if self._closed:
            return
        self._closed = True
        if self._thread is None or self._to_thread is None or self._to_loop is None:
            return
        if not self._loop.is_closed():
            self._loop.remove_reader(self._to_loop.fd)
        self._work.append(None)
        self._to_thread.ring()
        self._thread.join()
        self._to_thread.close()
        self._to_loop.close()
