"""HTTP as httptools (llhttp, in C) parses it, with the bounds that uvicorn's pure-Python parser has by itself.

Invariants: a head, chunk head or trailer that does not end costs HEAD_BYTES_MAX and one read at most, and its
connection; so do more requests than PIPELINED_MAX sent without waiting for answers. A target that names a host names
that of the header: what is judged by Host is what a proxy went by (RFC 9112, 3.2.2). The app bounds bodies.
"""

from __future__ import annotations

from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from node.http_server import Places, unreadable

HEAD_BYTES_MAX: Final = 64 << 10
PIPELINED_MAX: Final = 16


class TooManyPipelined(Exception):
    """Ends the parsing, and with it the connection."""


class AnotherHost(Exception):
    """Ends it as well: the target names one host, the header another."""


class UnclearEnd(Exception):
    """The same: HTTP/1.0 knows no chunks, and a proxy that speaks it took what follows for the next request."""


class BoundedHttp(Places, HttpToolsProtocol):
    """One connection. `unfinished_bytes`: received since the last head, piece of a body or end of a request."""

    unfinished_bytes = 0

    def data_received(self, data: bytes) -> None:
        self.unfinished_bytes += len(data)
        super().data_received(data)
        if self.flow is None:
            return  # there was no place for it
        if self.unfinished_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self.send_400_response("The request's head is too long.")

    def has_more(self) -> bool:
        return bool(self.pipeline)

    def send_400_response(self, msg: str) -> None:
        self.transport.write(unreadable(msg))
        self.transport.close()

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= PIPELINED_MAX:
            raise TooManyPipelined
        self.unfinished_bytes = 0
        if not self.url.startswith((b"/", b"*")):
            named = self.url.partition(b"://")[2].partition(b"/")[0].partition(b"?")[0]
            if [named] != [value for name, value in self.headers if name == b"host"]:
                raise AnotherHost
        chunked = any(name == b"transfer-encoding" for name, _ in self.headers)
        if chunked and self.parser.get_http_version() == "1.0":
            raise UnclearEnd
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.unfinished_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.unfinished_bytes = 0
        super().on_message_complete()
