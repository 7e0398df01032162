"""Links between members on one machine: small TCP relays that cut, slow or reset what passes, on request.

Every ordered pair of members has one. A cut link behaves as a network that drops packets, not as a process that died:
connections stay open, nothing arrives, and what was on its way arrives when the link is mended. `forward` is the way
from who dialled to the target, `backward` the way of the answers; each can be cut alone.
Invariant: at most CHUNK_BYTES wait in each direction of a connection; everything else waits in the sender.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Iterable, Mapping
from typing import Final

CHUNK_BYTES: Final = 64 * 1024
LATE_S_MAX: Final = 1.0
_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)  # SO_LINGER: closed with a RST, nothing flushed


class Pace:
    """When what passes one way of a link has passed it.

    A timer of a busy machine fires late, and a link of that rate would have carried more meanwhile: that is made up
    for, by LATE_S_MAX at most. A link that lay idle makes up for nothing, but for what the work on one chunk took.
    """

    def __init__(self) -> None:
        self._free_at = 0.0  # when all that came so far has passed
        self._late_s = 0.0  # of the last pause's end, and not made up for yet

    def pause_s(self, size_bytes: int, bytes_per_s: float, now: float) -> float:
        """For how long these bytes, which came just now, are on their way."""
        took_s = size_bytes / bytes_per_s
        self._free_at = max(self._free_at, now - self._late_s - CHUNK_BYTES / bytes_per_s) + took_s
        self._late_s = max(0.0, self._late_s - took_s)
        return max(0.0, self._free_at - now)

    def woke(self, now: float) -> None:
        """The pause is over."""
        self._late_s = min(LATE_S_MAX, max(0.0, now - self._free_at))


class Relay:
    """One link, from one member to another."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.port = 0
        self.delay_s = 0.0
        self.bytes_per_s = 0.0
        """What passes each way of a connection at most; 0 is no limit."""
        self._forward, self._backward = asyncio.Event(), asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ends: set[asyncio.StreamWriter] = set()
        self.mend()

    @property
    def passes(self) -> bool:
        """Whether both ways are open."""
        return self._forward.is_set() and self._backward.is_set()

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

    def cut(self, *, forward: bool = True, backward: bool = True) -> None:
        """From now on nothing passes on these ways; the other one is left as it is."""
        if forward:
            self._forward.clear()
        if backward:
            self._backward.clear()

    def mend(self) -> None:
        """Everything passes again, at once."""
        self.delay_s = self.bytes_per_s = 0.0
        self._forward.set()
        self._backward.set()

    def reset(self) -> None:
        """Ends every connection with a RST, in the middle of whatever passes; new ones are welcome."""
        for end in self._ends:
            raw = end.get_extra_info("socket")
            if raw is not None:
                with contextlib.suppress(OSError):
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
            end.transport.abort()

    def lose(self) -> None:
        """Nothing passes on the connections that there are, which stay open; new ones are whole. So it is once a router
        has forgotten them, or a laptop has come to another network."""
        for way in (self._forward, self._backward):
            way.clear()
        self._forward, self._backward = asyncio.Event(), asyncio.Event()
        self.mend()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            # A connection needs a packet each way before either side hears that it is established.
            await self._forward.wait()
            await self._backward.wait()
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
            asyncio.create_task(self._pump(reader, far_writer, self._forward)),
            asyncio.create_task(self._pump(far_reader, writer, self._backward)),
        ]
        self._ends |= {writer, far_writer}
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in (writer, far_writer):
                self._ends.discard(end)
                end.close()
            self._tasks.discard(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: asyncio.Event) -> None:
        clock, pace = asyncio.get_running_loop().time, Pace()
        with contextlib.suppress(OSError):
            while chunk := await reader.read(CHUNK_BYTES):
                if self.bytes_per_s:
                    pause_s = pace.pause_s(len(chunk), self.bytes_per_s, clock())
                    if pause_s:
                        await asyncio.sleep(pause_s)
                        pace.woke(clock())
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await way.wait()
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

    def cut_way(self, member_id: str, *, inward: bool) -> None:
        """Cuts one way: nothing reaches a member (`inward`), or nothing of it reaches the others."""
        for (source, target), relay in self.relays.items():
            if member_id in (source, target):
                to_it = target == member_id
                relay.cut(forward=to_it is inward, backward=to_it is not inward)

    def slow(self, member_id: str, delay_s: float) -> None:
        """Delays everything from and to a member."""
        for relay in self.of(member_id):
            relay.delay_s = delay_s

    def mend(self, member_id: str) -> None:
        """Undoes all of that."""
        for relay in self.of(member_id):
            relay.mend()
