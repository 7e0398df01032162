"""No more time for one answer than it may take in all, however it comes.

The time-outs of HTTP's libraries are for the next bytes: who sends one now and then, a head that never ends, holds a
command for ever. Here the connection is shut down when the time is up, so that whoever reads it gets its end.
"""

from __future__ import annotations

import contextlib
import os
import socket
from threading import Timer
from types import TracebackType
from typing import Any, Self

CONNECTED = frozenset({"connection.connect_tcp.complete", "connection.start_tls.complete"})


class AnswerTime:
    """Around one call. Raises TimeoutError at its end where the time was up before: what was read by then is no whole
    answer, whatever the library made of it."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._is_up = limit_s <= 0
        self.socket: socket.socket | None = None
        self._timer = Timer(max(0.0, limit_s), self._end)
        self._timer.daemon = True

    def see(self, event: str, info: dict[str, Any]) -> None:
        """For `extensions={"trace": ...}` of httpx2: the connection, once there is one."""
        if event in CONNECTED:
            self.socket = info["return_value"].get_extra_info("socket")

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._is_up and (error is None or isinstance(error, Exception)):
            raise TimeoutError(f"it did not end its answer within {self._limit_s:.0f} s") from error

    def _end(self) -> None:
        self._is_up = True
        if self.socket is None:
            return
        # A duplicate: the object itself may be in the middle of a TLS record, in the thread that reads.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.socket.fileno())) as same:
            same.shutdown(socket.SHUT_RDWR)
