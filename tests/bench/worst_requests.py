"""`python -m tests.bench.worst_requests`: for how long the costliest request of each code holds a member's loop.

Each case is sent over a connection of its own to an engine in this process; printed is the longest time of the loop's
thread (in CPU time) between two turns. The target is 50 ms on a quiet core.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import struct
import tempfile
import time
from threading import Thread
from typing import Final

import uvloop

from node.config import load
from node.engine.engine import Engine
from node.protocol.codes import RequestCode
from node.server import open_store
from node.transport.remoting import Frame, encode_frame
from node.transport.slab_frames import (
    ENTRIES_PER_REQUEST_MAX,
    AppendRequest,
    ReadMode,
    ReadRequest,
    encode_append,
    encode_read,
)
from tests.ports import free_ports

MAX: Final = ENTRIES_PER_REQUEST_MAX
TARGET_MS: Final = 50


def in_json(**fields: object) -> bytes:
    return json.dumps({"group": "default"} | fields).encode()


def packed(count: int, body_bytes: int) -> bytes:
    return b"".join(encode_append(AppendRequest([bytes(body_bytes)] * count)))


def text(size_bytes: int) -> str:
    return base64.b64encode(bytes(size_bytes)).decode()


CASES: Final = {  # name: code, body, how many at once
    "APPEND, all entries empty": (RequestCode.APPEND, in_json(batchMsgs=[""] * MAX), 1),
    "APPEND, one of 4 MiB": (RequestCode.APPEND, in_json(body=text((4 << 20) - 1024)), 1),
    "APPEND, 16,000 of 300 bytes": (RequestCode.APPEND, in_json(batchMsgs=[text(300)] * 16_000), 1),
    "fast append, all entries empty": (RequestCode.FAST_APPEND, packed(MAX, 0), 1),
    "fast append, 16,384 of 900 bytes": (RequestCode.FAST_APPEND, packed(MAX, 900), 1),
    "fast append, refused": (RequestCode.FAST_APPEND, packed(1_000_000, 0), 1),
    "METADATA, 500 at once": (RequestCode.METADATA, in_json(), 500),
    "INTROSPECT state, 300 at once": (RequestCode.INTROSPECT, in_json(what="state"), 300),
    "INTROSPECT events, 300 at once": (RequestCode.INTROSPECT, in_json(what="events"), 300),
    "GET, 500 at once": (RequestCode.GET, in_json(beginIndex=3), 500),
    "fast read of 1 MiB, 300 at once": (
        RequestCode.FAST_READ, encode_read(ReadRequest(0, 1 << 20, ReadMode.UNSAFE)), 300,
    ),
}  # fmt: skip


def ask(port: int, first: bytes, rest: bytes, count: int) -> None:
    """From a thread: a first request that earns a place, then the case."""
    with socket.create_connection(("127.0.0.1", port)) as one, one.makefile("rb") as answers:

        def answered(wanted: int) -> None:
            for _ in range(wanted):
                answers.read(struct.unpack(">i", answers.read(4))[0])

        one.sendall(first)
        answered(1)
        sender = Thread(target=one.sendall, args=(rest,))
        sender.start()
        answered(count)
        sender.join()


async def longest_turn_s(until: asyncio.Future[None]) -> float:
    longest = 0.0
    while not until.done():
        began = time.thread_time()
        await asyncio.sleep(0)
        longest = max(longest, time.thread_time() - began)
    return longest


async def main() -> None:
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as directory:
        given = {"node.id": "n0", "peers": f"n0-127.0.0.1:{port}", "node.data": directory, "node.init": True}
        settings = load(given, None, {})
        engine, ready = Engine(settings, open_store(settings)), asyncio.Event()
        running = asyncio.create_task(engine.run(lambda _port: ready.set()))
        await ready.wait()
        first = encode_frame(Frame(RequestCode.METADATA, 1, in_json()))
        for name, (code, body, count) in CASES.items():
            rest = encode_frame(Frame(code, 2, body)) * count
            asked = asyncio.get_running_loop().run_in_executor(None, ask, port, first, rest, count)
            print(f"{name:36} {await longest_turn_s(asked) * 1000:6.1f} ms of {TARGET_MS}", flush=True)
            await asked
        engine.stop()
        await running


if __name__ == "__main__":
    uvloop.run(main())
