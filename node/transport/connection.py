"""One TCP connection that carries frames, either end of it.

Bytes go from the socket straight into the decoder's buffer (BufferedProtocol). Invariants: `on_frame` sees each whole
frame once, in order; after `on_closed` nothing more happens; what cannot be a frame is answered with an error frame and
ends the connection. Reading stops while the other side does not take its answers, or while someone asked for it (C5).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from node.protocol.codes import RemotingCode
from node.protocol.entry import BytesLike
from node.transport.remoting import (
    FLAG_RESPONSE,
    JOINED_BYTES_MAX,
    Frame,
    FrameDecoder,
    encode_frame,
    plain_frame,
    response_to,
)

WRITE_BUFFER_HIGH_BYTES: Final = 8 * 1024 * 1024


class Connection(asyncio.BufferedProtocol):
    """See the module's docstring. `peer_id` is the member that a HELLO proved it to be, else None."""

    def __init__(
        self,
        on_frame: Callable[[Connection, Frame], None],
        on_closed: Callable[[Connection], None],
        on_open: Callable[[Connection], None] | None = None,
        after_read: Callable[[], None] | None = None,
    ) -> None:
        """`after_read` runs once all frames of one read were handed to `on_frame`."""
        self._on_frame, self._on_closed, self._on_open = on_frame, on_closed, on_open
        self._after_read = after_read
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._stops: set[str] = set()  # why reading is stopped; empty: it is not
        self._held: list[BytesLike] = []  # frames that leave together at `release`
        self.peer_id: str | None = None
        self.proof: object | None = None  # the proof of membership under way (SAFETY C11) ...
        self.proven = False  # ... and whether it was given
        self.peer_host = ""
        self.order_broken = False  # an append that was to keep its order failed (SAFETY C4)
        self.closed = False

    # --- the transport's side -----------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are Transports by shape, not by class.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH_BYTES)
        name = transport.get_extra_info("peername")
        self.peer_host = str(name[0]) if name else ""
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._on_open is not None:
            self._on_open(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.writable()

    def buffer_updated(self, nbytes: int) -> None:
        decoder = self._decoder
        told = decoder.broken
        for frame in decoder.filled(nbytes):
            if self.closed:
                break
            self._on_frame(self, frame)
        if self._after_read is not None:
            self._after_read()
        if decoder.broken is not told and not self.closed:
            self.send_frame(Frame(RemotingCode.SYSTEM_ERROR, -1, b"", FLAG_RESPONSE, str(decoder.broken)))
            self.close()

    def pause_writing(self) -> None:
        self.stop_reading("writes")

    def resume_writing(self) -> None:
        self.resume_reading("writes")

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._on_closed(self)

    @property
    def broken(self) -> str | None:
        """Why what came in cannot be frames; None: it is."""
        return None if self._decoder.broken is None else str(self._decoder.broken)

    # --- our side -----------------------------------------------------------------------------------------------
    @property
    def backlog_bytes(self) -> int:
        """What was sent and the other side has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    @property
    def certificate_name(self) -> str | None:
        """The common name in the other side's certificate; None without TLS."""
        certificate: Any = self._transport.get_extra_info("peercert") if self._transport is not None else None
        for part in (certificate or {}).get("subject", ()):
            for key, value in part:
                if key == "commonName":
                    return str(value)
        return None

    def send(self, pieces: Sequence[BytesLike]) -> None:
        """Writes pieces as they are; nothing after the close."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(pieces)

    def send_frame(self, frame: Frame) -> None:
        self.send([encode_frame(frame)])

    def send_body(self, code: int, flag: int, opaque: int, pieces: Sequence[BytesLike]) -> None:
        """A frame without remark: the hot path."""
        transport, frame = self._transport, plain_frame(code, flag, opaque, pieces)
        if transport is not None and not transport.is_closing():
            transport.writelines(frame)

    def hold_body(self, code: int, flag: int, opaque: int, pieces: Sequence[BytesLike]) -> bool:
        """`send_body`, but it leaves at `release`, with whatever else is held until then; True: nothing else was yet.

        A system call costs more than a short frame. What is held overtakes nothing and is overtaken by what is sent.
        """
        first = not self._held
        self._held += plain_frame(code, flag, opaque, pieces)
        return first

    def release(self) -> None:
        """Sends what was held."""
        held, self._held = self._held, []
        if len(held) > 1 and sum(map(len, held)) <= JOINED_BYTES_MAX:
            held = [b"".join(held)]
        self.send(held)

    def answer(self, request: Frame, *pieces: BytesLike) -> None:
        """Sends the answer to a request, its body in pieces, unless it wants none."""
        if not request.is_one_way:
            self.send_body(RemotingCode.SUCCESS, FLAG_RESPONSE, request.opaque, pieces)

    def refuse(self, request: Frame, code: RemotingCode, remark: str) -> None:
        """Answers with a remoting error."""
        if not request.is_one_way:
            self.send_frame(response_to(request, b"", code, remark))

    def stop_reading(self, why: str) -> None:
        if not self._stops and self._transport is not None and not self.closed:
            self._transport.pause_reading()
        self._stops.add(why)

    def resume_reading(self, why: str) -> None:
        self._stops.discard(why)
        if not self._stops and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Sends what is queued, then closes."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes at once."""
        if self._transport is not None:
            self._transport.abort()


async def dial(connection: Connection, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
    """Opens `connection`. Raises OSError."""
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: connection, host, port, ssl=tls)
