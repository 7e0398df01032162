"""Serving the console: `python -m app.console.server`, and `serve(settings)` for the command line.

Invariants: the address is bound before anything starts, so that "in use" is one clear line; Ctrl-C ends open streams
first, so that it never waits for a browser.
"""

from __future__ import annotations

import argparse
import errno
import json
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from app.console.app import create_app
from app.console.settings import ConsoleSettings, Seed, SettingsError
from app.console.settings_reread import SettingsReread
from app.db.engine import DriverMissing, check_driver, normal_url
from node.config import Settings, read_token
from node.http_server import BoundedServer, Places, unreadable
from node.logs import Log
from node.printable import escaped
from node.priority import lower_priority
from node.private_files import keep_files_private
from node.rereading import Rereading
from node.tls_files import ServerTls

GRACE_S = 2
HEAD_BYTES_MAX: Final = 64 << 10
SHORT_CHUNK_BYTES: Final = 1024
SHORT_CHUNKS_MAX: Final = 1024  # of one body
EXIT_USAGE, EXIT_UNAVAILABLE = 64, 69


class CannotListen(RuntimeError):
    """The address cannot be bound; the message says why and what to do."""


class FewChunks(h11.Connection):
    """Each chunk of a body costs the same, however short it is: 43,000 of one byte, a single read, held the loop for
    four seconds. And where a body ends is said once, in a way that a proxy before this server reads as well."""

    short_chunks = 0

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.short_chunks = 0
            names = {name for name, _ in event.headers}
            if b"transfer-encoding" in names and (b"content-length" in names or event.http_version < b"1.1"):
                raise h11.RemoteProtocolError("where its body ends can be read in two ways")
        elif isinstance(event, h11.Data) and event.chunk_start and event.chunk_end:
            self.short_chunks += len(event.data) < SHORT_CHUNK_BYTES
            if self.short_chunks > SHORT_CHUNKS_MAX:
                raise h11.RemoteProtocolError("a body of too many short chunks")
        return event


class BoundedH11(Places, H11Protocol):
    """Slower than the C parser that is installed too, and strict."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.conn = FewChunks(h11.SERVER, HEAD_BYTES_MAX)

    def has_more(self) -> bool:
        return bool(self.conn.trailing_data[0])

    def send_400_response(self, msg: str) -> None:
        """Also while a request is answered: what is still sent of that answer goes nowhere, and behind its first byte
        there is no other one. uvicorn raises then, here or in the application: an error in the log for each stranger
        who sends such bytes."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(unreadable(msg))
        self.transport.close()


def bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(512)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise CannotListen(f"port {port} on {host} is in use; choose another with --listen HOST:PORT") from None
        raise CannotListen(f"cannot listen on {host}:{port}: {error.strerror}") from None
    listener.setblocking(False)
    return listener


def make_server(
    settings: ConsoleSettings, app: FastAPI, log: Log | None = None, configuration: SettingsReread | None = None,
    alone: bool = False,
) -> BoundedServer:  # fmt: skip
    tls: ServerTls | None = None
    if settings.tls_cert_file is not None and settings.tls_key_file is not None:
        tls = ServerTls(settings.tls_cert_file, settings.tls_key_file)
    config = uvicorn.Config(
        app,
        http=BoundedH11,  # the bound of its heads is below
        log_config=None,  # what uvicorn has to say comes out as our own lines do
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=True,
        timeout_graceful_shutdown=GRACE_S,
        ssl_context_factory=None if tls is None else lambda *_: tls.context,
        proxy_headers=False,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        # An idle keep-alive connection must not delay the end.
        timeout_keep_alive=15,
    )

    def end_streams() -> None:
        hub = getattr(app.state, "hub", None)
        if hub is not None:
            hub.stop()

    def again() -> None:
        rereading: Rereading = app.state.console.rereading
        if log is not None:
            rereading.note = lambda event, severity, fields: log.note(event, severity, **fields)
        if tls is not None:
            rereading.add("the console's certificate", tls.read, tls.use)
        if configuration is not None:
            configuration.follow(app.state.console)
        rereading.again()

    return BoundedServer(config, end_streams, again, alone)


def serve(
    settings: ConsoleSettings, loaded: Settings | None = None, reread: Callable[[], Settings] | None = None
) -> int:
    """Runs until SIGINT or SIGTERM; returns the exit code. `reread` gives the configuration anew, `loaded` is the one
    that these settings come from."""
    try:
        settings.check()
        listener = bind(settings.host, settings.port)
    except SettingsError as error:
        print(escaped(f"quorumscope console: {error}"), file=sys.stderr)
        return EXIT_USAGE
    except CannotListen as error:
        print(escaped(f"quorumscope console: {error}"), file=sys.stderr)
        return EXIT_UNAVAILABLE
    try:
        check_driver(normal_url(settings.db_url))
    except DriverMissing as error:
        listener.close()
        print(escaped(f"quorumscope console: {error}"), file=sys.stderr)
        return EXIT_USAGE
    log = Log("console", settings.log_level, settings.log_format)
    log.take_over()
    keep_files_private()
    lower_priority()  # engines on the same machine go first; audits started here inherit it
    settings = replace(settings, port=listener.getsockname()[1])
    app = create_app(settings)
    configuration = None if loaded is None or reread is None else SettingsReread(loaded, reread, log)
    server = make_server(settings, app, log, configuration, alone=True)
    print(json.dumps({"event": "listening", "url": settings.url}), flush=True)
    if sys.stderr.isatty():
        print(f"console: {settings.url} (Ctrl-C ends it)", file=sys.stderr, flush=True)
    else:
        log.note("listening", url=settings.url)
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        # uvicorn raises the signal again once everything has ended in order.
        return 0
    finally:
        log.note("stopped")
        log.close()
    return 0 if server.started else 1


def parse(argv: list[str] | None) -> ConsoleSettings:
    parser = argparse.ArgumentParser(prog="python -m app.console.server", description=__doc__.partition("\n")[0])
    parser.add_argument("--db", default=ConsoleSettings().db_url, help="SQLite file or database URL")
    parser.add_argument("--listen", default="127.0.0.1:8421", metavar="HOST:PORT")
    parser.add_argument(
        "--cluster", action="append", default=[], metavar="CONTROL_URL", help="a node of a group to watch"
    )
    parser.add_argument("--node-token-file", type=Path, default=None, help="bearer token for control planes")
    parser.add_argument("--allowed-host", action="append", default=[])
    parser.add_argument("--behind-proxy", action="store_true")
    parser.add_argument("--demo", action="store_true")
    given = parser.parse_args(argv)
    host, _, port = given.listen.rpartition(":")
    if not port.isdigit():
        parser.error(f"--listen {given.listen!r}: HOST:PORT is expected")
    return ConsoleSettings(
        db_url=given.db,
        host=host.strip("[]") or "127.0.0.1",
        port=int(port),
        seeds=tuple(Seed(url) for url in given.cluster),
        node_token=None if given.node_token_file is None else read_token(given.node_token_file),
        node_token_file=given.node_token_file,
        allowed_hosts=tuple(given.allowed_host),
        behind_proxy=given.behind_proxy,
        demo=given.demo,
    )


if __name__ == "__main__":
    sys.exit(serve(parse(None)))
