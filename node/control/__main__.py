"""`python -m node.control <the node's flags>`: the control plane as a process of its own beside the engine.

Invariants: a port in use and a wrong configuration are one line and their own exit code; SIGTERM ends open
streams first; where cores are short, the engine goes before those who look at it.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":  # modules bring next to no garbage, and it was looked for 240 times
    gc.disable()

import errno
import shlex
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from node.config import ConfigError, Settings, parse_node_arguments, read_again, split_address
from node.control.app import create_app
from node.control.common import Parts
from node.control.http_protocol import BoundedHttp
from node.control_tokens import TokensError
from node.http_server import BoundedServer
from node.logs import Log
from node.own_addresses import why_not_listening
from node.printable import escaped, print_line
from node.priority import lower_priority
from node.private_files import keep_files_private
from node.tls_files import ServerTls

EXIT_USAGE, EXIT_UNAVAILABLE = 64, 69
CONFIGURATION = "the configuration"


def bind(address: str) -> socket.socket:
    host, port = split_address(address)
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(512)
    except OSError:
        listener.close()
        raise
    return listener


def start_command(arguments: Sequence[str], settings: Settings, directory: Path) -> str:
    """How to start this node again: without what belongs to a first start, `--init`, `--join` and the group's token;
    in `directory`, where a path that was given is none from the root on."""
    kept: list[str] = []
    rest = iter(arguments)
    for one in rest:
        if one == "--group-token":
            next(rest, None)
        elif one not in ("--init", "--join", "--make-secret") and not one.startswith("--group-token="):
            kept.append(one)
    command = shlex.join(["quorumscope", "node", *kept])
    if not all(path.is_absolute() for path in paths_of(settings)):
        command = f"cd {shlex.quote(str(directory))} && {command}"
    return command.encode(errors="replace").decode()


def paths_of(settings: Settings) -> list[Path]:
    """Of the configuration's file, and all that this node's tables name."""
    files = {one.removeprefix("file ") for one in settings.origin.values() if one.startswith("file ")}
    tables = (settings.node, settings.store, settings.control, settings.broker, settings.ha)
    return [*map(Path, files), *(value for table in tables for _, value in table if isinstance(value, Path))]


def follow(settings: Settings, parts: Parts, log: Log) -> None:
    """The configuration was read again; what else changes, and what needs a restart, the engine says."""
    parts.reread(settings)
    log.set_level(settings.node.log_level)


def serve(settings: Settings, arguments: Sequence[str] = ()) -> int:
    control, node = settings.control, settings.node
    log = Log("control", node.log_level, node.log_format, member=node.id, group=node.group)
    log.take_over()
    try:
        listener = bind(control.address)
    except OSError as error:
        text = why_not_listening(control.address, error, "--control")
        code = EXIT_UNAVAILABLE if error.errno == errno.EADDRINUSE else 1
        log.last_word(f"node.control: {text}", reason=text, exit_code=code)
        return code
    app = create_app(settings)
    parts: Parts = app.state.parts
    parts.started_with = start_command(arguments, settings, Path.cwd()) if arguments else None
    parts.rereading.note = lambda event, severity, fields: log.note(event, severity, **fields)
    tls: ServerTls | None = None
    if arguments:
        parts.rereading.add(CONFIGURATION, lambda: read_again(arguments), lambda new: follow(new, parts, log))
    if control.tls_cert_file is not None and control.tls_key_file is not None:
        tls = ServerTls(control.tls_cert_file, control.tls_key_file)
        parts.rereading.add("the control plane's certificate", tls.read, tls.use)
    config = uvicorn.Config(
        app,
        http=BoundedHttp,
        log_config=None,  # what uvicorn has to say comes out as our own lines do
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        proxy_headers=False,
        ssl_context_factory=None if tls is None else lambda *_: tls.context,
    )
    server = BoundedServer(
        config,
        lambda: parts.stopping.set(),  # ends event streams
        parts.rereading.again,
    )
    log.note("listening", url=f"{'https' if control.tls_cert_file else 'http'}://{control.address}")
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        return 0
    finally:
        log.note("stopped")
        log.close()
    return 0 if server.started else 1


def main(arguments: Sequence[str]) -> int:
    keep_files_private()
    lower_priority()  # reading segments or answering a console must not cost appends their latency
    try:
        settings = parse_node_arguments(arguments)
        return serve(settings, arguments)
    except (ConfigError, TokensError) as error:
        print_line(escaped(f"node.control: {error}"), sys.stderr)
        return EXIT_USAGE


if __name__ == "__main__":
    gc.freeze()
    gc.enable()
    sys.exit(main(sys.argv[1:]))
