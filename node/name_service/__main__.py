"""`python -m node.name_service --listen HOST:PORT`: a stand-alone name server, one process, all in memory.

Brokers register every 30 seconds, so nothing is stored: a name server that was restarted knows all that are there
within that time. Exit codes: 0 asked to stop; 64 a wrong command line; 69 the port cannot be had.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from typing import Final

import uvloop

from node.background import Background
from node.logs import LEVELS, Log
from node.name_service.registry import Registry
from node.name_service.requests import NameService
from node.printable import escaped
from node.protocol.peers import split_address
from node.rocketmq.connection import ClientConnection
from node.rocketmq.dispatch import Dispatcher
from node.rocketmq.server import RemotingServer

DEFAULT_LISTEN: Final = "127.0.0.1:9876"
EXPIRE_EVERY_S: Final = 10.0
EXIT_USAGE: Final = 64
EXIT_UNAVAILABLE: Final = 69


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def name_server(service: NameService) -> RemotingServer:
    """Answers for `service`; a broker whose connection ends is gone from it."""
    return RemotingServer(Dispatcher(service.handlers()), on_closed=service.registry.owner_gone)


async def _expire(registry: Registry) -> None:
    """Now and then closes the connections of brokers that were not heard of."""
    while True:
        await asyncio.sleep(EXPIRE_EVERY_S)
        for owner in registry.expire(_now_ms()):
            if isinstance(owner, ClientConnection):
                owner.close()


async def serve(host: str, port: int, log: Log) -> int:
    """Until a signal; returns the exit code."""
    service = NameService(Registry(), _now_ms)
    server = name_server(service)
    try:
        bound = await server.listen(host, port)
    except OSError as error:
        reason = f"cannot listen on {host}:{port}: {error.strerror or error}; choose another port with --listen"
        log.last_word(f"nameserver: {reason}", reason=reason, exit_code=EXIT_UNAVAILABLE)
        return EXIT_UNAVAILABLE
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # `quorumscope nameserver` lets it wait until here
    background = Background()
    background.keep("expiry of brokers", lambda: _expire(service.registry))
    log.note("started", reason=f"listening on {host}:{bound}")
    await stopping.wait()
    server.close()
    await background.stop()
    log.note("stopped", reason="asked to with a signal")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m node.name_service", allow_abbrev=False)
    parser.add_argument("--listen", default=DEFAULT_LISTEN)
    parser.add_argument("--log-level", choices=LEVELS, default="info")
    parser.add_argument("--log-format", choices=("console", "json"), default="console")
    try:
        said = parser.parse_args(arguments)
        host, port = split_address(said.listen)
    except ValueError as error:
        print(escaped(f"nameserver: {error}"), file=sys.stderr)
        return EXIT_USAGE
    except SystemExit as error:
        return EXIT_USAGE if error.code else 0
    log = Log("nameserver", said.log_level, said.log_format)
    log.take_over()
    try:
        code: int = uvloop.run(serve(host, port, log))
        return code
    finally:
        log.close()


if __name__ == "__main__":
    sys.exit(main())
