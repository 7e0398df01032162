"""Rows of the node's trail (node.operator_trail) for what operators ask over the member port, written off the loop.

Invariants: `done` comes on the loop, once, when the row is on disk or cannot be; rows are written in their order; what
waits to be written is bounded, and beyond that nothing is begun.
"""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from node.operator_trail import NAME, OperatorTrail

WAITING_MAX: Final = 64
MEMBER_PORT: Final = "member port"
Begun = Callable[[int | None, str], None]
log = logging.getLogger(__name__)


class ActionTrail:
    """One engine's."""

    def __init__(self, directory: Path, loop: AbstractEventLoop) -> None:
        self._trail, self._loop = OperatorTrail(directory / NAME), loop
        self.keep_room = self._trail.keep_room
        self._thread = ThreadPoolExecutor(1, "trail")
        self._waiting = 0
        self._closed = False

    def begin(self, done: Begun, *, target: str, **who: str) -> None:
        """`done(row, "")`, or `done(None, why not)`."""
        if self._waiting >= WAITING_MAX:
            done(None, f"{self._waiting} requests of operators are being recorded; try again")
            return
        self._waiting += 1
        said: dict[str, Any] = {"role": "operate", "via": MEMBER_PORT, "action": target, "target": target, **who}

        def work() -> None:
            row, problem = None, ""
            try:
                row = self._trail.begin(**said)
            except OSError as error:
                problem = f"the trail cannot be written ({error.strerror or error}), so nothing was done"
            self._loop.call_soon_threadsafe(self._begun, done, row, problem)

        self._thread.submit(work)

    def _begun(self, done: Begun, row: int | None, problem: str) -> None:
        self._waiting -= 1
        if not self._closed:
            done(row, problem)

    def end(self, row: int, status: int, detail: dict[str, Any]) -> None:
        """After `close` nothing is written any more: that row has no end, like one that a crash cut off."""
        if not self._closed:
            self._thread.submit(self._end, row, status, detail)

    def _end(self, row: int, status: int, detail: dict[str, Any]) -> None:
        try:
            self._trail.end(row, status, detail)
        except OSError:
            log.exception("the answer %d could not be noted in row %d of the trail", status, row)

    def close(self) -> None:
        """Waits for what is being written."""
        self._closed = True
        self._thread.shutdown(wait=True, cancel_futures=False)
