"""Whether a connection is read from, where several have reasons to stop that: it is while none of them has one.

Invariant: the transport is paused exactly while there is a reason, as far as it is open.
"""

from __future__ import annotations

import asyncio


class ReadingStops:
    """Of one connection."""

    __slots__ = ("_transport", "_why")

    def __init__(self) -> None:
        self._why: set[str] = set()
        self._transport: asyncio.Transport | None = None

    def __bool__(self) -> bool:
        """Whether there is a reason."""
        return bool(self._why)

    def made(self, transport: asyncio.Transport) -> None:
        """The connection is there."""
        self._transport = transport

    def stop(self, why: str) -> None:
        if not self._why and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._why.add(why)

    def resume(self, why: str) -> None:
        if why not in self._why:
            return
        self._why.discard(why)
        if not self._why and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
