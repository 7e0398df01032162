"""The process of a classic broker: it opens the log, takes its place in the pair, and serves clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from typing import Final

from node.broker.classic.broker import ClassicBroker, open_files
from node.broker.client_port import ClientPort, listen, not_listening
from node.broker.java_conf import keep_conf
from node.collector import Collector
from node.config import Settings, split_address
from node.down_reason import clear_reason
from node.ha.sockets import CannotListen
from node.logs import Log
from node.message_store.errors import MessageStoreError, StoreMoved
from node.printable import print_line
from node.rereading import Rereading
from node.unwritable import why_gone

READY: Final = "broker"


async def serve(settings: Settings, log: Log, stopping: asyncio.Task[bool], rereading: Rereading) -> None:
    """`rereading`: gets what this broker reads again. Raises OSError (StoreMoved), MessageStoreError, PortTaken."""
    settings.node.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = await asyncio.to_thread(open_files, settings)
    broker = ClassicBroker(
        settings, files, lambda kind, severity, reason: log.note(kind, severity, reason=reason), rereading
    )
    clients: ClientPort | None = None
    running: asyncio.Task[None] | None = None
    moved: StoreMoved | None = None
    collector = Collector(asyncio.get_running_loop())
    collector.start()
    try:
        keep_conf(settings, log)
        clients = ClientPort(broker)
        running = asyncio.create_task(broker.run())
        try:
            await broker.open()
        except CannotListen as error:
            cause = error.__cause__
            raise not_listening(settings.ha.address, cause if isinstance(cause, OSError) else error, "--ha") from error
        port = await listen(clients, settings)
        log.note("listening", address=f"{split_address(settings.broker.address)[0]}:{port}", ha=settings.ha.address)
        clear_reason(settings.node.data)
        said = {"event": READY, "id": settings.node.id, "pid": os.getpid(), "role": broker.pair.role.value}
        print_line(json.dumps(said), sys.stdout)
        await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        if clients is not None:
            clients.close()
        if running is not None:
            running.cancel()
            await asyncio.wait([running])
        try:
            files.lock.check_place()
            files.store.log.place_check()()
        except StoreMoved as error:  # what stands there now, if anything does, is not of this log
            moved = error
            files.store.flush_failed(moved)
        if clients is not None and moved is None:
            with contextlib.suppress(OSError):  # a full disk: what consumers commit again is no loss
                clients.save()
        collector.stop()
        with contextlib.suppress(OSError, MessageStoreError):  # its next start finds out
            await asyncio.to_thread(broker.close)
        if moved is not None:  # whatever it met then: a start would make another, empty directory
            raise StoreMoved(f"{moved}: {why_gone(settings.node.data, in_a_pair=True)}")
    if running is not None and not running.cancelled():
        running.result()
