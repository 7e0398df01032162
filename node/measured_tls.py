"""Contexts that end a TLS connection whose bytes bring nothing: whoever shook hands may send updates of the key without
end (TLS 1.3), at 27 bytes and 7 us each.

OpenSSL carries out all that lies before it within one read, and the event loop reads on as long as more has come: one
connection that nobody knew kept a control plane and a console from answering anybody for as long as it went on. Whoever
is dialled can do the same: a member to the console that asks it, a webhook's receiver, one member to another.

Invariant: of what a connection has sent, WASTED_BYTES_MAX at most, and FORGIVEN_BYTES a second more, are beyond
PER_BYTE times what was in it. What is forgiven is for those who are connected for days, and fill their records up to
one length.
"""

from __future__ import annotations

import ssl
import time
from pathlib import Path
from typing import Any, Final

WASTED_BYTES_MAX: Final = 32 << 10
FORGIVEN_BYTES: Final = 1 << 10
PER_BYTE: Final = 4  # a record takes 22 bytes beside what it carries, and heads and frames come in whole ones


class Measured(ssl.SSLObject):
    """What reads count."""

    incoming: ssl.MemoryBIO
    _wasted_bytes, _counted_s = 0.0, 0.0

    def read(self, size: int = 1024, buffer: Any = None) -> Any:
        """Raises SSLError, as for a connection that is broken."""
        before = self.incoming.pending
        try:
            got = super().read(size, buffer)
        except ssl.SSLWantReadError:
            self._count(before - self.incoming.pending, 0)
            raise
        self._count(before - self.incoming.pending, got if isinstance(got, int) else len(got))
        return got

    def _count(self, sent_bytes: int, brought_bytes: int) -> None:
        now_s = time.monotonic()
        left_bytes = max(0.0, self._wasted_bytes - FORGIVEN_BYTES * (now_s - self._counted_s))
        self._wasted_bytes = max(0.0, left_bytes + sent_bytes - PER_BYTE * brought_bytes)
        self._counted_s = now_s
        if self._wasted_bytes > WASTED_BYTES_MAX:
            raise ssl.SSLError("too many bytes that bring nothing")


class MeasuredContext(ssl.SSLContext):
    """Its connections are measured; those of sockets (`wrap_socket`) are not."""

    sslobject_class = Measured

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *given: Any, **named: Any) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, *given, **named)
        assert isinstance(made, Measured)
        made.incoming = incoming
        return made


def server_context() -> ssl.SSLContext:
    """Of a server, without its certificate yet."""
    context = MeasuredContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def client_context(authority: Path | None = None) -> ssl.SSLContext:
    """Of a client that checks who answers, by that authority or by those that this machine knows. Raises OSError."""
    usual = ssl.create_default_context(cafile=None if authority is None else str(authority))
    context = MeasuredContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags = usual.verify_flags  # what this Python holds for right
    if authority is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(str(authority))
    return context
