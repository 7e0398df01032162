"""Writing to a TLS connection so that what waits to be taken is counted, and costs no more than it is.

The event loop's TLS transport encrypts whatever it is given and hands all of it to the socket's transport at once,
whose buffer `get_write_buffer_size` does not count: an answer of 8 MiB that nobody took counted as none, and what it
does count it has encrypted, in memory that is freed late. So what is written waits here, and the TLS transport gets it
in pieces, while it takes them: 100 answers that nobody took had a control plane take 2.3 GiB.

Invariants: bytes leave in the order in which they were written; `pause_writing` and `resume_writing` of the protocol go
by all that was written and is not taken; what waits is dropped with its connection; `close` sends it first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, cast

PIECE_BYTES: Final = 64 * 1024
HIGH_BYTES: Final = 64 * 1024  # as the loop's own transports have it
Piece = bytes | bytearray | memoryview


class _Relay(asyncio.Protocol):
    """What the TLS transport speaks to: it reads for the protocol, and writes from what waits."""

    def __init__(self, out: InPieces, protocol: Any) -> None:
        self._out, self._protocol = out, protocol
        self.data_received = protocol.data_received  # type: ignore[method-assign]
        self.eof_received = protocol.eof_received  # type: ignore[method-assign]

    def pause_writing(self) -> None:
        self._out.full()

    def resume_writing(self) -> None:
        self._out.room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._out.drop()
        self._protocol.connection_lost(exc)


class _BufferedRelay(asyncio.BufferedProtocol):
    """The same for one that reads into its own buffer."""

    def __init__(self, out: InPieces, protocol: Any) -> None:
        self.get_buffer = protocol.get_buffer  # type: ignore[method-assign]
        self.buffer_updated = protocol.buffer_updated  # type: ignore[method-assign]
        self.eof_received = protocol.eof_received  # type: ignore[method-assign]
        self.pause_writing, self.resume_writing = out.full, out.room  # type: ignore[method-assign]
        self._out, self._protocol = out, protocol

    def connection_lost(self, exc: Exception | None) -> None:
        self._out.drop()
        self._protocol.connection_lost(exc)


class InPieces:
    """A TLS transport that is written to in pieces; what is not named here is the transport's own."""

    def __init__(self, transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
        self._transport = transport
        self._waiting: deque[Piece] = deque()
        self._waiting_bytes = 0
        self._high, self._low = HIGH_BYTES, HIGH_BYTES // 4
        self._full = self._protocol_paused = self._closing = False
        transport.set_write_buffer_limits(high=PIECE_BYTES)
        self.set_protocol(protocol)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol: Any = protocol
        buffered = isinstance(protocol, asyncio.BufferedProtocol)
        self._transport.set_protocol((_BufferedRelay if buffered else _Relay)(self, protocol))

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    # --- what the protocol does ---------------------------------------------------------------------------------
    def write(self, data: Piece) -> None:
        self.writelines((data,))

    def writelines(self, pieces: Sequence[Piece]) -> None:
        if self.is_closing():
            return
        if not self._waiting and not self._full and sum(map(len, pieces)) <= PIECE_BYTES:
            self._transport.writelines(pieces)
        else:
            for piece in pieces:
                self._wait(piece)
            self._feed()
        self._judge()

    def get_write_buffer_size(self) -> int:
        return self._waiting_bytes + self._transport.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low
        self._judge()

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def resume_reading(self) -> None:
        if not self._closing:
            self._transport.resume_reading()

    def close(self) -> None:
        if self.is_closing():
            return
        if self._waiting:
            self._closing = True
            self._transport.pause_reading()
        else:
            self._transport.close()

    def abort(self) -> None:
        self.drop()
        self._transport.abort()

    # --- what the TLS transport says ----------------------------------------------------------------------------
    def full(self) -> None:
        """It takes no more just now."""
        self._full = True

    def room(self) -> None:
        """It takes more."""
        self._full = False
        self._feed()
        self._judge()

    def drop(self) -> None:
        """Nothing is sent any more."""
        self._waiting.clear()
        self._waiting_bytes = 0

    # --- between them -------------------------------------------------------------------------------------------
    def _wait(self, data: Piece) -> None:
        self._waiting_bytes += len(data)
        if len(data) <= PIECE_BYTES:
            self._waiting.append(data)
            return
        view = memoryview(data)
        self._waiting.extend(view[begin : begin + PIECE_BYTES] for begin in range(0, len(view), PIECE_BYTES))

    def _feed(self) -> None:
        while self._waiting and not self._full:
            piece = self._waiting.popleft()
            self._waiting_bytes -= len(piece)
            self._transport.write(piece)
        if self._closing and not self._waiting:
            self._transport.close()

    def _judge(self) -> None:
        """Whether the protocol is to write on."""
        waits_bytes = self.get_write_buffer_size()
        if waits_bytes > self._high and not self._protocol_paused:
            self._protocol_paused = True
            self._protocol.pause_writing()
        elif waits_bytes <= self._low and self._protocol_paused:
            self._protocol_paused = False
            self._protocol.resume_writing()


def in_pieces(transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> asyncio.Transport:
    """The transport for that protocol to write to: itself without TLS."""
    if transport.get_extra_info("sslcontext") is None:
        return transport
    return cast(asyncio.Transport, InPieces(transport, protocol))
