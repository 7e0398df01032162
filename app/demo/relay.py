"""Links between the demo's members: small TCP relays that can be told to cut or slow what passes.

Every ordered pair of members has one. A cut link behaves as a network that drops packets, not as a process that died:
connections stay open, nothing arrives, and what was on its way arrives when the link is mended.
Invariant: at most CHUNK_BYTES wait in each direction of a connection; everything else waits in the sender.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import Final

CHUNK_BYTES: Final = 64 * 1024
CONNECT_RETRY_S: Final = 0.05


class Relay:
    """One link, from one member to another."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.port = 0
        self.delay_s = 0.0
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listens on a free loopback port, `port` from then on."""
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Closes the listener and every connection."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """From now on nothing passes."""
        self._open.clear()

    def mend(self) -> None:
        """Everything passes again, at once."""
        self.delay_s = 0.0
        self._open.set()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._open.wait()
            far_reader, far_writer = await asyncio.open_connection(*self.target)
        except OSError:
            # Nobody listens there: the caller sees its connection close, as it would without us.
            writer.close()
            self._tasks.discard(task)
            return
        except asyncio.CancelledError:
            writer.close()
            self._tasks.discard(task)
            return
        ways = [
            asyncio.create_task(self._pump(reader, far_writer)),
            asyncio.create_task(self._pump(far_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in (writer, far_writer):
                end.close()
            self._tasks.discard(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(CHUNK_BYTES):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self._open.wait()
                writer.write(chunk)
                await writer.drain()


class Links:
    """All links of a group."""

    def __init__(self, addresses: Mapping[str, tuple[str, int]]) -> None:
        self.relays = {
            (source, target): Relay(addresses[target])
            for source in addresses
            for target in addresses
            if source != target
        }

    async def start(self) -> None:
        """Starts all relays."""
        await asyncio.gather(*(relay.start() for relay in self.relays.values()))

    async def stop(self) -> None:
        """Stops all relays."""
        await asyncio.gather(*(relay.stop() for relay in self.relays.values()))

    def peers_of(self, member_id: str, own_address: str) -> dict[str, str]:
        """How one member reaches the others: itself directly, each other one over its link."""
        peers = {
            target: f"127.0.0.1:{relay.port}" for (source, target), relay in self.relays.items() if source == member_id
        }
        peers[member_id] = own_address
        return dict(sorted(peers.items()))

    def of(self, member_id: str) -> Iterable[Relay]:
        """All links from and to a member."""
        return (relay for pair, relay in self.relays.items() if member_id in pair)

    def isolate(self, member_id: str) -> None:
        """Cuts a member off."""
        for relay in self.of(member_id):
            relay.cut()

    def slow(self, member_id: str, delay_s: float) -> None:
        """Delays everything from and to a member."""
        for relay in self.of(member_id):
            relay.delay_s = delay_s

    def mend(self, member_id: str) -> None:
        """Undoes both."""
        for relay in self.of(member_id):
            relay.mend()
