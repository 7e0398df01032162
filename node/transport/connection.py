"""One TCP connection that carries frames, either end of it.

Bytes go from the socket straight into the decoder's buffer (BufferedProtocol). Invariants: `on_frame` sees each whole
frame once, in order; after `on_closed` nothing more happens; what cannot be a frame is answered with an error frame and
ends the connection. A client that does not take its answers is not read from, nor where someone asked for it (C5).

Between members an answer is always read, however much waits to be sent: a leader that stopped would fail what its
followers acknowledged long ago. There long frames wait here and not in the transport, so that short ones (heartbeats,
votes, answers) pass them; those that have begun to leave go first, whole. How much may be ahead of a short frame
depends on how fast the other side takes it: what is right for 5 MB/s costs a fast link a tenth of its batches.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from node.host_names import connect
from node.protocol.codes import RemotingCode
from node.protocol.entry import BytesLike
from node.tls_pieces import in_pieces
from node.transport.reading_stops import ReadingStops
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
# Between members: with less than this in the transport the next long frame follows, and behind it and what the kernel
# has not sent yet a heartbeat waits. Together some 80 ms at 5 MB/s, and enough for a loop that is late by 1 ms.
MEMBER_BUFFER_BYTES: Final = 256 * 1024
UNSENT_BYTES_MAX: Final = 128 * 1024  # in the kernel, beside what is on its way
# A buffer that empties as quickly as this does so at 20 MB/s or more. Where it did so often enough that no buffers on
# the way can have swallowed it all (12 MiB), it may be larger; that one empties at 75 MB/s, or it shrinks again. A link
# that turns slow then has 0.4 s of this ahead of a heartbeat once, at 5 MB/s.
QUICK_WITHIN_S: Final = 0.01
QUICK_TIMES: Final = 64
QUICK_BUFFER_BYTES: Final = 1024 * 1024
QUICK_UNSENT_BYTES_MAX: Final = 1024 * 1024
# Followers have nothing to say to each other, and so no frame of theirs shows a link that is cut, one way or both: the
# kernel asks, after 3 s without a packet, and ends the connection after five questions that nobody answered.
KEEPALIVE: Final = (("TCP_KEEPIDLE", 3), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 5))


class HostUnknown(ConnectionError):
    """A host's name has no address: it is written wrong, or the resolver is away."""


class Connection(asyncio.BufferedProtocol):
    """See the module's docstring. `peer_id` is the member that a HELLO proved it to be, else None."""

    def __init__(
        self,
        on_frame: Callable[[Connection, Frame], None],
        on_closed: Callable[[Connection], None],
        on_open: Callable[[Connection], None] | None = None,
        after_read: Callable[[], None] | None = None,
        on_part: Callable[[Connection], None] | None = None,
    ) -> None:
        """`after_read` runs once all frames of one read were handed to `on_frame`; `on_part` for a read that brought
        bytes of a frame and ended none: a long one is under way (SAFETY E6)."""
        self._on_frame, self._on_closed, self._on_open = on_frame, on_closed, on_open
        self._after_read, self._on_part = after_read, on_part
        self._decoder = FrameDecoder()
        self.get_buffer = self._decoder.writable  # type: ignore[method-assign] # each read asks
        self._transport: asyncio.Transport | None = None
        self._stops = ReadingStops()
        self._held: list[BytesLike] = []  # frames that leave together at `release`
        self._between_members = False
        self._transport_full = False
        self._full_since_s = 0.0  # by the loop's clock
        self._quick_times = 0  # between members: how often in a row the other side took much in little time
        self._waiting: deque[Sequence[BytesLike]] = deque()  # long frames that have not begun to leave
        self.waiting_bytes = 0
        """What those long frames take."""
        self.peer_id: str | None = None
        self.proof: object | None = None  # the proof of membership under way (SAFETY C11) ...
        self.proven = False  # ... and whether it was given
        self.peer_host = ""
        self.on_earned: Callable[[Connection], None] | None = (
            None  # it becomes a member's, or has its first valid request
        )
        self.shown_as = ""  # by whose token a client is known ...
        self.rights = 0  # ... what it may do, as far as it has shown ...
        self.served: dict[int, Callable[[Connection, Frame], None]] | None = None  # ... and what is served to it
        self.whole_reads = 0  # reads that completed a frame
        self.order_broken = False  # an append that was to keep its order failed (SAFETY C4)
        self.closed = False
        self.end_reason = ""  # why it ended, once it did

    # --- the transport's side -----------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are Transports by shape, not by class.
        self._transport = in_pieces(cast(asyncio.Transport, transport), self)
        self._stops.made(self._transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH_BYTES)
        name = transport.get_extra_info("peername")
        self.peer_host = str(name[0]) if name else ""
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._on_open is not None:
            self._on_open(self)

    def buffer_updated(self, nbytes: int) -> None:
        decoder = self._decoder
        before = decoder.broken
        frames = decoder.filled(nbytes)
        for frame in frames:
            if self.closed:
                break
            self._on_frame(self, frame)
        if frames:
            self.whole_reads += 1
        elif self._on_part is not None:
            self._on_part(self)
        if self._after_read is not None:
            self._after_read()
        if decoder.broken is not before and not self.closed:
            self.send_frame(Frame(RemotingCode.SYSTEM_ERROR, -1, b"", FLAG_RESPONSE, str(decoder.broken)))
            self.close()

    def pause_writing(self) -> None:
        self._transport_full = True
        if self._between_members:
            self._full_since_s = asyncio.get_running_loop().time()
        else:
            self.stop_reading("writes")

    def resume_writing(self) -> None:
        self._transport_full = False
        self.resume_reading("writes")
        if self._between_members:
            self._allow_ahead(quick=asyncio.get_running_loop().time() - self._full_since_s <= QUICK_WITHIN_S)
        while self._waiting and not self._transport_full:
            frame = self._waiting.popleft()
            self.waiting_bytes -= sum(map(len, frame))
            self.send(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if not self.end_reason:
            text = "closed by the other side" if exc is None else getattr(exc, "strerror", None) or str(exc)
            self.end_reason = self.broken or text or type(exc).__name__
        self.withdraw_long()
        self._decoder.end()  # this object is in a cycle, and may wait long for its collection
        self._on_closed(self)

    @property
    def broken(self) -> str | None:
        """Why what came in cannot be frames; None: it is."""
        return None if self._decoder.broken is None else str(self._decoder.broken)

    @property
    def unfinished_bytes(self) -> int:
        """What has come of a frame that is not whole."""
        return self._decoder.unfinished_bytes

    @property
    def frame_memory_bytes(self) -> int:
        """The memory that was taken for such a frame."""
        return self._decoder.frame_memory_bytes

    @property
    def reading_stopped(self) -> bool:
        return bool(self._stops)

    def spare_memory(self) -> None:
        """It is idle: the memory that it reads into is freed."""
        self._decoder.spare_memory()

    def read_little(self) -> None:
        """What comes next costs more than its bytes say: the next reads are small again."""
        self._decoder.read_little()

    def earn(self) -> None:
        """It has proven that it may be here (SAFETY C10)."""
        on_earned, self.on_earned = self.on_earned, None
        if on_earned is not None:
            on_earned(self)

    def hand_over(
        self,
        on_frame: Callable[[Connection, Frame], None],
        after_read: Callable[[], None],
        on_part: Callable[[Connection], None],
    ) -> None:
        """Its next frames, and the end of this read, are others' business."""
        self._on_frame, self._after_read, self._on_part = on_frame, after_read, on_part

    # --- our side -----------------------------------------------------------------------------------------------
    def carry_members(self) -> None:
        """From now on this is between members; see the module's docstring. Once it is open."""
        assert self._transport is not None
        self._between_members = True
        self.resume_reading("writes")
        self._set_ahead(MEMBER_BUFFER_BYTES, UNSENT_BYTES_MAX)
        for name, value in KEEPALIVE:
            self._set_option(name, value)

    def _allow_ahead(self, *, quick: bool) -> None:
        """The buffer has emptied: how full it may get next."""
        times, self._quick_times = self._quick_times, self._quick_times + 1 if quick else 0
        if self._quick_times == QUICK_TIMES:
            self._set_ahead(QUICK_BUFFER_BYTES, QUICK_UNSENT_BYTES_MAX)
        elif not quick and times >= QUICK_TIMES:
            self._set_ahead(MEMBER_BUFFER_BYTES, UNSENT_BYTES_MAX)

    def _set_ahead(self, buffer_bytes: int, unsent_bytes: int) -> None:
        assert self._transport is not None
        self._transport.set_write_buffer_limits(high=buffer_bytes)
        self._set_option("TCP_NOTSENT_LOWAT", unsent_bytes)

    def _set_option(self, name: str, value: int) -> None:
        assert self._transport is not None
        sock = self._transport.get_extra_info("socket")
        with contextlib.suppress(OSError, AttributeError):  # not every system has it
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    @property
    def backlog_bytes(self) -> int:
        """What was sent and the other side has not taken yet, without what waits here."""
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

    @property
    def certificate_ends_s(self) -> float | None:
        """Until when the other side's certificate is valid, in seconds since 1970; None without TLS."""
        certificate: Any = self._transport.get_extra_info("peercert") if self._transport is not None else None
        ends = (certificate or {}).get("notAfter")
        try:
            return None if ends is None else float(ssl.cert_time_to_seconds(ends))
        except ValueError:
            return None

    def send(self, pieces: Sequence[BytesLike]) -> None:
        """Writes pieces as they are; nothing after the close."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(pieces)

    def send_long(self, frame: Sequence[BytesLike]) -> None:
        """A frame that keeps its place among those sent so, and lets those sent otherwise pass."""
        if self._transport_full or self._waiting:
            self._waiting.append(frame)
            self.waiting_bytes += sum(map(len, frame))
        elif self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(frame)  # as `send` does: one call less for each append

    def withdraw_long(self) -> None:
        """What was sent so and has not begun to leave is not wanted any more."""
        self._waiting.clear()
        self.waiting_bytes = 0

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
        self._stops.stop(why)

    def resume_reading(self, why: str) -> None:
        self._stops.resume(why)

    def _ended_here(self) -> None:
        if not self.closed:
            self.end_reason = self.end_reason or self.broken or "closed by this member"

    def close(self) -> None:
        """Sends what is queued but for long frames, then closes."""
        self._ended_here()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes at once."""
        self._ended_here()
        if self._transport is not None:
            self._transport.abort()


async def dial(connection: Connection, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
    """Opens `connection`. Raises HostUnknown, OSError."""
    try:
        await connect(lambda: connection, host, port, tls)
    except socket.gaierror as error:
        raise HostUnknown(f"the host name {host} cannot be resolved ({error.strerror})") from error
