"""One connection to a broker or name server: requests by number, answers in any order.

Invariants: every request ends, with its answer, at its deadline, or with the connection; an error says whether the
request may have arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from node.background import Background
from node.message_client.errors import Unavailable
from node.protocol.peers import split_address
from node.rocketmq.codes import FLAG_ONE_WAY
from node.rocketmq.command import Command, CommandError, encode
from node.rocketmq.command_stream import CommandStream

DIAL_WITHIN_S: Final = 3.0
READ_BYTES: Final = 64 * 1024


class Link:
    """See the module's docstring. `on_request` gets what the other side asks (40)."""

    def __init__(self, address: str, on_request: Callable[[Command], None] | None = None) -> None:
        self.address, self._on_request = address, on_request
        self._writer: asyncio.StreamWriter | None = None
        self._open: dict[int, asyncio.Future[Command]] = {}
        self._opaque = 0
        self._dialling = asyncio.Lock()
        self._background = Background()

    async def _connected(self) -> asyncio.StreamWriter:
        async with self._dialling:
            if self._writer is None or self._writer.is_closing():
                host, port = split_address(self.address)
                try:
                    reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), DIAL_WITHIN_S)
                except (OSError, TimeoutError) as error:
                    raise Unavailable(f"{self.address}: {error or 'no connection in time'}") from error
                self._writer = writer
                self._background.run(f"answers of {self.address}", self._read(reader, writer))
            return self._writer

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream, why = CommandStream(), "the connection ended"
        try:
            while data := await reader.read(READ_BYTES):
                for command in _cut(stream, data):
                    if not command.is_response:
                        if self._on_request is not None:
                            self._on_request(command)
                        continue
                    waiting = self._open.pop(command.opaque, None)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(command)
                if stream.broken is not None:
                    why = str(stream.broken)
                    break
        except OSError as error:
            why = str(error)
        finally:
            writer.close()
            if self._writer is writer:
                self._writer = None
                waiting_for, self._open = self._open, {}
                for one in waiting_for.values():
                    if not one.done():
                        one.set_exception(Unavailable(f"{self.address}: {why}", sent=True))

    async def ask(self, code: int, fields: dict[str, str] | None, body: bytes, within_s: float) -> Command:
        """Raises Unavailable."""
        writer = await self._connected()
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        opaque = self._opaque
        done: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        try:
            data = encode(Command(code, opaque, 0, fields, None, body))
        except CommandError as error:
            raise Unavailable(f"{self.address}: {error}") from error
        self._open[opaque] = done
        try:
            writer.write(data)
            async with asyncio.timeout(within_s):
                await writer.drain()
                return await done
        except (OSError, TimeoutError) as error:
            raise Unavailable(f"{self.address}: {error or 'no answer in time'}", sent=True) from error
        finally:
            self._open.pop(opaque, None)

    async def say(self, code: int, fields: dict[str, str] | None, body: bytes = b"") -> None:
        """Without an answer. Raises Unavailable."""
        writer = await self._connected()
        try:
            writer.write(encode(Command(code, 0, FLAG_ONE_WAY, fields, None, body)))
            await writer.drain()
        except OSError as error:
            raise Unavailable(f"{self.address}: {error}", sent=True) from error

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        await self._background.stop()


def _cut(stream: CommandStream, data: bytes) -> list[Command]:
    found: list[Command] = []
    at = 0
    while at < len(data):
        room = stream.writable()
        taken = min(len(room), len(data) - at)
        room[:taken] = data[at : at + taken]
        found += stream.filled(taken)
        at += taken
    return found
