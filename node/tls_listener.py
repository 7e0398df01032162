"""Accepts the TLS connections of a web server, with a bound on handshakes in number and time.

The event loop's own server keeps whoever never speaks for 60 s, however many they are, and before anything counts them.
Invariants: at most HANDSHAKES_MAX handshakes are under way, each for HANDSHAKE_WITHIN_S; where all places are taken a
newcomer gets that of the one begun first (an address is no identity); no error of `accept` ends the listening.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Final

from node.background import Background

HANDSHAKES_MAX: Final = 128
HANDSHAKE_WITHIN_S: Final = 10.0
ACCEPTS_MAX: Final = 16  # before others have their turn
AFTER_ERROR_S: Final = 0.1
RECEIVED_BYTES: Final = 32 << 10  # in the kernel, which takes twice as much: no more is carried out in one go


class TlsListener:
    """What uvicorn knows of a server: it can be closed. Whose socket it is closes that."""

    def __init__(
        self, listening: socket.socket, tls: ssl.SSLContext, make: Callable[[], asyncio.Protocol], *,
        handshakes_max: int = HANDSHAKES_MAX, within_s: float = HANDSHAKE_WITHIN_S,
    ) -> None:  # fmt: skip
        self._listening, self._tls, self._make = listening, tls, make
        self._handshakes_max, self._within_s = handshakes_max, within_s
        self._loop = asyncio.get_running_loop()
        self._background = Background()
        self._shaking: dict[asyncio.Task[None], None] = {}  # in the order of their beginning
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVED_BYTES)  # and so of each connection
        self._watch()

    @property
    def handshakes(self) -> int:
        """How many are under way."""
        return len(self._shaking)

    def _watch(self) -> None:
        self._timer = None
        self._loop.add_reader(self._listening.fileno(), self._ready)

    def _ready(self) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                accepted, _address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no descriptor, no memory: somebody who earned nothing goes, and we come back
                self._end_first()
                self._loop.remove_reader(self._listening.fileno())
                self._timer = self._loop.call_later(AFTER_ERROR_S, self._watch)
                return
            if len(self._shaking) >= self._handshakes_max:
                self._end_first()
            self._begin(accepted)

    def _end_first(self) -> None:
        first = next(iter(self._shaking), None)
        if first is not None:
            del self._shaking[first]
            first.cancel()

    def _begin(self, accepted: socket.socket) -> None:
        taken: list[asyncio.Protocol] = []

        def make() -> asyncio.Protocol:
            taken.append(self._make())
            return taken[0]

        def ended(_task: asyncio.Task[None]) -> None:
            self._shaking.pop(task, None)
            if not taken:  # no transport has the socket, so none closes it
                accepted.close()

        accepted.setblocking(False)
        task = self._background.run("a TLS handshake", self._shake(accepted, make))
        self._shaking[task] = None
        task.add_done_callback(ended)

    async def _shake(self, accepted: socket.socket, make: Callable[[], asyncio.Protocol]) -> None:
        with contextlib.suppress(OSError):  # no TLS, or not in time
            await self._loop.connect_accepted_socket(
                make, accepted, ssl=self._tls, ssl_handshake_timeout=self._within_s
            )

    def close(self) -> None:
        """Accepts no more, and ends handshakes."""
        if not self._closed:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()
            self._loop.remove_reader(self._listening.fileno())
            for task in self._shaking:
                task.cancel()

    async def wait_closed(self) -> None:
        await self._background.stop()
