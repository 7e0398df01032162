"""One question to another broker of a pair: what is it, and of which epoch? Asked by whoever is, or is to be, master.

It is the beginning of a slave's connection. Who is asked keeps the newest epoch that the one who asks heard of, before
it answers: from then on it follows no older master, and the end that it says is the last one of theirs.
"""

from __future__ import annotations

import asyncio
from typing import Final

from node.ha.client import check_verdict, proved_hello
from node.ha.frames import ASK, FrameReader, HaError, encode_report, slave_says
from node.ha.handshake import Hello, parse_hello
from node.ha.proof import Proof, Said
from node.host_names import open_streams
from node.message_store.errors import MessageStoreError

WITHIN_S: Final = 1.0
READ_BYTES: Final = 1 << 16


class NoMaster(Exception):
    """It says nothing: it is not there, or none of ours. The text says which."""


class EpochTooFar(NoMaster):
    """It says an epoch so far above the own one that it is not believed."""


async def ask(address: tuple[str, int], own: Hello, proof: Proof | None, within_s: float = WITHIN_S) -> Hello:
    """What the broker there says. `own`: without an id; it is fenced where it is an older master. Raises NoMaster."""
    name = f"{address[0]}:{address[1]}"
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(within_s):
            reader, writer = await open_streams(*address, READ_BYTES)
            writer.write(encode_report(ASK))
            frames = FrameReader()
            hellos: tuple[Said, Said] | None = None
            while data := await reader.read(READ_BYTES):
                for said in [frame.said for frame in frames.feed(data) if frame.said is not None]:
                    if hellos is not None:
                        check_verdict(proof, hellos, said)
                        found = parse_hello(dict(hellos[0]) | ({"end": said["end"]} if "end" in said else {}))
                        if far := own.lineage.too_far(found.lineage):
                            raise EpochTooFar(f"{name}: {far}")
                        return found
                    hellos = proved_hello(proof, said, own.to_json())
                    if not writer.is_closing():  # uvloop raises where the connection ended behind what it said
                        writer.write(slave_says(dict(hellos[1])))
        raise NoMaster(f"{name} closes the connection")
    except TimeoutError as error:
        raise NoMaster(f"{name} does not answer in {within_s:.0f} s") from error
    except (OSError, HaError, MessageStoreError) as error:
        raise NoMaster(f"{name}: {error}") from error
    finally:
        if writer is not None:
            writer.close()
