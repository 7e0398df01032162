"""`python -m node.broker <the node's flags>`: a member's broker as a process of its own beside the engine.

With `[ha] role` it is the whole broker, in place of an engine (`classic/process.py`).

It needs `[broker]`; without it there is nothing to do, and it ends with 0. It waits for its engine to have made the
store, holds a lock on the derived files, and derives again what a crash cost.

Exit codes: 0 a clean end, or no broker is configured; 1 an error that a restart may get past; 3 derived files of
another log, or another broker that holds them: an operator must settle it; 64 a wrong command line; 69 the
port cannot be had.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":  # modules bring next to no garbage, and it was looked for 240 times
    gc.disable()

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import uvloop

from node.broker.broker import Broker
from node.broker.classic.process import serve as serve_classic
from node.broker.client_port import ClientPort, PortTaken, listen
from node.broker.dispatched_log import AnotherLog
from node.broker.java_conf import keep_conf
from node.collector import Collector
from node.config import ConfigError, Settings, parse_node_arguments, read_again, split_address
from node.down_reason import leave_reason
from node.logs import Log
from node.message_store.dispatch_mark import OURS
from node.message_store.errors import MessageStoreError, StoreMoved
from node.printable import escaped, print_line
from node.private_files import keep_files_private
from node.rereading import HangUp, Rereading

EXIT_CRASHED: Final = 1
EXIT_REFUSED: Final = 3
EXIT_USAGE: Final = 64
EXIT_UNAVAILABLE: Final = 69
LOCK: Final = "broker.lock"
LOOK_AGAIN_S: Final = 0.05


class LockHeld(MessageStoreError):
    """Another broker writes these files."""


def take_lock(data: Path) -> int:
    """A descriptor that holds the lock while it is open. Raises LockHeld, OSError."""
    folder = data / OURS
    folder.mkdir(mode=0o700, exist_ok=True)
    fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise LockHeld(f"{folder / LOCK} is held by another broker: end that one first") from error
    return fd


async def serve(settings: Settings, log: Log, arguments: Sequence[str]) -> None:
    """Until a signal. Raises OSError, MessageStoreError, ConfigError."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    rereading = Rereading(lambda kind, severity, fields: log.note(kind, severity, **fields))
    HangUp(lambda: reread(log, arguments, rereading), asked.set).listen()
    waiting = asyncio.create_task(asked.wait())
    while not settings.ha.is_classic and not settings.store_directory.is_dir() and not asked.is_set():
        await asyncio.wait([waiting], timeout=LOOK_AGAIN_S)
    if asked.is_set():
        return
    if settings.ha.is_classic:
        await serve_classic(settings, log, waiting, rereading)
        return
    lock = take_lock(settings.node.data)
    keep_conf(settings, log)
    clients: ClientPort | None = None
    collector = Collector(loop)
    collector.start()
    try:
        broker = Broker(settings, lambda kind, severity, fields: log.note(kind, severity, **fields))
        clients = ClientPort(broker)
        port = await listen(clients, settings)
        running = asyncio.create_task(broker.run())
        log.note("listening", address=f"{split_address(settings.broker.address)[0]}:{port}")
        print_line(json.dumps({"event": "broker", "id": settings.node.id, "pid": os.getpid()}), sys.stdout)
        await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            running.cancel()
            await asyncio.wait([running])
        if not running.cancelled():
            running.result()
    finally:
        if clients is not None:
            clients.close()
            with contextlib.suppress(OSError):  # a full disk: what consumers commit again is no loss
                clients.save()
        collector.stop()
        os.close(lock)


def reread(log: Log, arguments: Sequence[str], rereading: Rereading) -> None:
    """The level of what is said, and files; all else needs a restart."""
    if rereading.parts:
        rereading.again()
    try:
        log.set_level(read_again(arguments).node.log_level)
    except ConfigError as error:
        log.note("not_reread", "error", reason=str(error))


def last_word(log: Log, code: int, error: BaseException, settings: Settings) -> int:
    text, data = " ".join(str(error).split()) or type(error).__name__, settings.node.data
    if settings.ha.is_classic and data.is_dir():
        with contextlib.suppress(OSError):  # its log has it
            leave_reason(data, f"the broker ended with exit code {code}: {text}", code)
    fields: dict[str, Any] = {"reason": text, "exit_code": code}
    log.last_word(f"node.broker: {text}", **fields)
    return code


def main(arguments: Sequence[str]) -> int:
    keep_files_private()
    try:
        settings = parse_node_arguments(arguments)
    except ConfigError as error:
        print_line(escaped(f"node.broker: {error}"), sys.stderr)
        return EXIT_USAGE
    if not settings.broker.has_broker:
        return 0
    node = settings.node
    log = Log("broker", node.log_level, node.log_format, member=node.id, group=node.group)
    log.take_over()
    try:
        uvloop.run(serve(settings, log, arguments))
    except (AnotherLog, LockHeld, StoreMoved, ConfigError) as error:
        return last_word(log, EXIT_REFUSED, error, settings)
    except PortTaken as error:
        return last_word(log, EXIT_UNAVAILABLE, error, settings)
    except (OSError, ValueError, MessageStoreError) as error:
        return last_word(log, EXIT_CRASHED, error, settings)
    else:
        log.note("stopped")
        return 0
    finally:
        log.close()


if __name__ == "__main__":
    gc.freeze()
    gc.enable()
    sys.exit(main(sys.argv[1:]))
