"""One question to another broker of a pair: what is it, and of which epoch? Asked by whoever is, or is to be, master.

It is the beginning of a slave's connection.
"""

from __future__ import annotations

import asyncio
from typing import Final

from node.ha.frames import ASK, FrameReader, HaError, encode_report, slave_says
from node.ha.handshake import Hello, parse_hello
from node.ha.settings import BrokerRole
from node.message_store.errors import MessageStoreError

WITHIN_S: Final = 1.0
READ_BYTES: Final = 1 << 16


class NoMaster(Exception):
    """It says nothing: it is not there, or none of ours. The text says which."""


def _is_older_master(found: Hello, own: Hello) -> bool:
    """It is to hear of the later epoch."""
    same = found.lineage.pair == own.lineage.pair
    return same and found.role != BrokerRole.SLAVE.value and found.lineage.epoch < own.lineage.epoch


async def ask(address: tuple[str, int], own: Hello | None = None, within_s: float = WITHIN_S) -> Hello:
    """What the broker there says. `own`: what is said to it in turn, which fences an older one. Raises NoMaster."""
    name = f"{address[0]}:{address[1]}"
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(within_s):
            reader, writer = await asyncio.open_connection(*address, limit=READ_BYTES)
            writer.write(encode_report(ASK))
            frames = FrameReader()
            while data := await reader.read(READ_BYTES):
                for frame in frames.feed(data):
                    if frame.said is not None:
                        found = parse_hello(frame.said)
                        if own is not None and _is_older_master(found, own):
                            writer.write(slave_says(own.to_json()))
                            await writer.drain()
                            await reader.read(1)  # its verdict: it has read it then
                        return found
        raise NoMaster(f"{name} closes the connection")
    except TimeoutError as error:
        raise NoMaster(f"{name} does not answer in {within_s:.0f} s") from error
    except (OSError, HaError, MessageStoreError) as error:
        raise NoMaster(f"{name}: {error}") from error
    finally:
        if writer is not None:
            writer.close()
