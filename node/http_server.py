"""A bounded HTTP server around uvicorn: what control plane and console put between themselves and slow or many callers.

Invariants: at most `connections_max` connections, and fewer where the process has few descriptors, of which some are
kept for its database and for what it asks others; where all places are taken a newcomer gets that of the one that has
gone without a whole request for longest (an address is no identity: nobody is refused for where they come from), and
only where every connection has one is it refused, with 503 as problem+json, and not even then where somebody takes
nothing of an answer for YIELDS_S, or has for that long been taking answers, or sending requests ahead of them, without
a pause. What all answers have that
nobody took yet is bounded: whoever has taken nothing for longest goes. A head that is not complete after HEAD_S, a body
after BODY_S, and an answer of which nothing more is taken for STALL_S cost their connection, however slowly bytes come.
TLS handshakes, which come before all that, are bounded in `node.tls_listener`.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
from abc import abstractmethod
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import uvicorn

from node.collector import Collector
from node.descriptors import DESCRIPTORS_KEPT, Descriptors
from node.rereading import HangUp
from node.tls_listener import HANDSHAKES_MAX, TlsListener
from node.tls_pieces import in_pieces

HEAD_S: Final = 15.0
BODY_S: Final = 60.0
STALL_S: Final = 30.0
CONNECTIONS_MAX: Final = 512
CONNECTIONS_MIN: Final = 16  # however few descriptors there are
UNTAKEN_BYTES_MAX: Final = 64 << 20  # of all answers; one of 16 MiB is the longest
YIELDS_S: Final = 2.0
COUNT_EVERY: Final = 16  # accepts: what the process has open beside connections
BACKLOG_MIN: Final = 32  # however few descriptors there are: the loop accepts all that wait before any is closed
TICKS_PER_LOOK: Final = 10  # uvicorn ticks ten times a second


def refusal(status: int, phrase: str, title: str, detail: str, *lines: bytes) -> bytes:
    """A whole answer as problem+json, for what no application gets to see; it ends the connection."""
    body = json.dumps({"type": "about:blank", "status": status, "title": title, "detail": detail}).encode()
    head = (
        f"HTTP/1.1 {status} {phrase}".encode(), b"content-type: application/problem+json", *lines, b"connection: close",
        b"content-length: %d" % len(body), b"", b"",
    )  # fmt: skip
    return b"\r\n".join(head) + body


REFUSAL: Final = refusal(
    503, "Service Unavailable", "Busy", "All connections are in use; try again.", b"retry-after: 1"
)


def unreadable(why: str) -> bytes:
    """The answer to bytes that are no HTTP request."""
    return refusal(400, "Bad Request", "Unreadable request", f"{why.rstrip('.')}: that is no HTTP/1.1 request.")


if TYPE_CHECKING:
    Base = asyncio.Protocol
else:
    Base = object


class Places(Base):
    """Mixed into one of uvicorn's HTTP protocols: a connection that knows for how long it has been in its state."""

    connections_max = CONNECTIONS_MAX
    untaken_bytes_max = UNTAKEN_BYTES_MAX
    limits_s: dict[str, float] = {"head": HEAD_S, "body": BODY_S, "stalled": STALL_S}  # noqa: RUF012 - set by tests
    state: tuple[str, int] = ("head", id(None))
    since_s = 0.0
    idle_s = 0.0  # when it was last seen without a request
    untaken_bytes = 0  # of its answers, as last looked ...
    taken_s = 0.0  # ... and when some of them was last seen to be taken
    # uvicorn's own
    server_state: Any
    connections: set[Any]
    transport: asyncio.Transport
    cycle: Any
    flow: Any

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.since_s = self.idle_s = time.monotonic()
        transport = in_pieces(transport, self)
        if self.all_taken() and not self.free_a_place():
            transport.write(REFUSAL)
            transport.close()
            self.transport, self.flow = transport, None
            return
        super().connection_made(transport)

    def all_taken(self) -> bool:
        here = len(self.connections)
        few = here >= CONNECTIONS_MIN and self.server_state.descriptors.left(here) <= 0
        return here >= self.connections_max or few

    def free_a_place(self) -> bool:
        """Of who idles, then of who has not said all of a request, the one that does so longest goes; then who takes
        nothing of an answer, and then who has gone longest without a pause: taking answers drop by drop, or with the
        next request there before the answer to the last one, so that it is never idle."""
        now_s = time.monotonic()
        ours = [one for one in self.connections if isinstance(one, Places)]
        states = {one: one.note_state(now_s) for one in ours}
        for waits_for in ("head", "body"):
            waiting = [one for one in ours if states[one] == waits_for]
            if waiting:
                min(waiting, key=lambda one: one.since_s).leave()
                return True
        goes = self.longest_stalled(ours)
        if goes is None or now_s - goes.taken_s < YIELDS_S:
            never_idle = [
                one for one in ours if now_s - one.idle_s >= YIELDS_S and (states[one] == "stalled" or one.has_more())
            ]
            goes = min(never_idle, key=lambda one: one.idle_s, default=None)
        if goes is not None:
            goes.leave()
        return goes is not None

    @abstractmethod
    def has_more(self) -> bool:
        """Whether a request waits behind the one that is answered. No browser sends one, and no client of ours."""

    def longest_stalled(self, among: list[Places]) -> Places | None:
        """Who has taken nothing of an answer for longest; None: nobody has one waiting."""
        waiting = [one for one in among if one.look_at_untaken(time.monotonic())]
        return min(waiting, key=lambda one: one.taken_s, default=None)

    def leave(self) -> None:
        self.connections.discard(self)
        self.untaken_bytes = 0
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.flow is not None:  # not one that was refused
            super().data_received(data)
            self.note_state(time.monotonic())

    def pause_writing(self) -> None:
        if self.flow is None:
            return
        super().pause_writing()
        self.taken_s, self.untaken_bytes = time.monotonic(), self.transport.get_write_buffer_size()
        ours = [one for one in self.connections if isinstance(one, Places)]
        while sum(one.transport.get_write_buffer_size() for one in ours) > self.untaken_bytes_max:
            longest = self.longest_stalled(ours)
            if longest is None:
                break
            longest.leave()
            ours.remove(longest)

    def resume_writing(self) -> None:
        self.untaken_bytes = 0
        if self.flow is not None:
            super().resume_writing()

    def look_at_untaken(self, now_s: float) -> bool:
        """Whether an answer waits to be taken."""
        if self.flow is None or not self.flow.write_paused:
            return False
        now_bytes = self.transport.get_write_buffer_size()
        if now_bytes < self.untaken_bytes:
            self.taken_s = now_s
        self.untaken_bytes = now_bytes
        return True

    def state_now(self) -> tuple[str, int]:
        """What it waits for; by the number each request, and each progress of a slow reader, is a state of its own."""
        cycle = self.cycle
        if self.flow is not None and self.flow.write_paused:
            return "stalled", self.transport.get_write_buffer_size()
        if cycle is None or cycle.response_complete:
            return "head", id(cycle)
        return ("body" if cycle.more_body else "answer"), id(cycle)

    def note_state(self, now_s: float) -> str:
        """What it waits for now, and since when, if that is news."""
        state = self.state_now()
        if state != self.state:
            self.state, self.since_s = state, now_s
        if state[0] == "head":
            self.idle_s = now_s
        return state[0]

    def look(self, now_s: float) -> None:
        """Ends the connection where it has been in one state for too long."""
        self.look_at_untaken(now_s)
        waits_for = self.note_state(now_s)
        if now_s - self.since_s > self.limits_s.get(waits_for, float("inf")):
            self.transport.abort()


class BoundedServer(uvicorn.Server):
    """Looks at all connections once a second. `on_exit`: called as soon as it is asked to stop, to end open streams;
    `again`: on SIGHUP; `alone`: this process serves nothing else, so its garbage is collected in short steps (one
    collection of all that a console holds takes longer than a page)."""

    def __init__(
        self, config: uvicorn.Config, on_exit: Callable[[], None] = lambda: None,
        again: Callable[[], None] = lambda: None, alone: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(config)
        descriptors = Descriptors(COUNT_EVERY)
        self.server_state.descriptors = descriptors  # type: ignore[attr-defined]
        self._handshakes_max = min(HANDSHAKES_MAX, descriptors.limit // 8)
        spare = descriptors.limit - DESCRIPTORS_KEPT - CONNECTIONS_MAX
        config.backlog = min(config.backlog, max(BACKLOG_MIN, spare // 2))
        self._on_exit = on_exit
        self._alone = alone
        self._collector: Collector | None = None
        self._hang_up = HangUp(again, lambda: self.handle_exit(signal.SIGTERM, None))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        tls = self.config.ssl
        if tls is None:
            await super().startup(sockets)
        else:
            assert sockets is not None, "TLS is served on open sockets only"
            await super().startup([])  # all but the listening
            # It closes and awaits them, and knows no more of a server.
            most = self._handshakes_max
            made = [TlsListener(one, tls, self._make_connection, handshakes_max=most) for one in sockets]
            self.servers = made  # type: ignore[assignment]
        self._hang_up.listen()
        if self._alone:
            self._collector = Collector(asyncio.get_running_loop())
            self._collector.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._collector is not None:
            self._collector.stop()
        await super().shutdown(sockets)

    def _make_connection(self) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._on_exit()
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS_PER_LOOK == 0:
            now_s = time.monotonic()
            for one in list(self.server_state.connections):
                if isinstance(one, Places):
                    one.look(now_s)
        return await super().on_tick(counter)
