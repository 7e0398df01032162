"""Connections to hosts by their names, without a loop's own way to ask for these.

That takes a thread of an executor, and `asyncio.run` and Python's exit wait for it: a resolver that hangs held up the
end of a command, or of a client's program, for its half-minute. Here a thread asks that nobody waits for.

Invariants: of one name one question is under way, however many want it; an address is no name, and asks nobody.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future
from ipaddress import ip_address
from typing import Any, Final, TypeVar

P = TypeVar("P", bound=asyncio.BaseProtocol)
Found = list[tuple[Any, ...]]  # as `socket.getaddrinfo` has it
LOCK: Final = threading.Lock()
ASKED: Final[dict[tuple[str, int], Future[Found]]] = {}


def is_address(host: str) -> bool:
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


async def connect(
    protocol_of: Callable[[], P], host: str, port: int, tls: ssl.SSLContext | None = None
) -> tuple[asyncio.Transport, P]:
    """Opens a connection, to the first of the name's addresses that takes one. Raises OSError: socket.gaierror where
    the name has none."""
    loop = asyncio.get_running_loop()
    if is_address(host):
        return await loop.create_connection(protocol_of, host, port, ssl=tls)
    sock = await connected(await addresses_of(host, port))
    return await loop.create_connection(protocol_of, sock=sock, ssl=tls, server_hostname=host if tls else None)


async def open_streams(
    host: str, port: int, limit_bytes: int = 1 << 16
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """As `asyncio.open_connection`. Raises OSError."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=limit_bytes, loop=loop)
    transport, protocol = await connect(lambda: asyncio.StreamReaderProtocol(reader, loop=loop), host, port)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def connected(found: Found) -> socket.socket:
    """Raises OSError."""
    loop = asyncio.get_running_loop()
    failed: OSError | None = None
    for family, kind, protocol, _name, address in found:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, address)
            return sock
        except OSError as error:
            sock.close()
            failed = failed or error
        except BaseException:
            sock.close()
            raise
    raise failed or OSError("the name has no address")


async def addresses_of(host: str, port: int) -> Found:
    """Raises OSError."""
    with LOCK:
        asked = ASKED.get((host, port))
        if asked is None:
            asked = Future()
            asked.set_running_or_notify_cancel()  # whoever goes away leaves the answer to the others
            try:
                threading.Thread(target=_ask, args=(host, port, asked), name="resolver", daemon=True).start()
            except RuntimeError as error:
                raise OSError(f"nobody can be asked for the host name: {error}") from None
            ASKED[host, port] = asked
    return await asyncio.wrap_future(asked)


def _ask(host: str, port: int, asked: Future[Found]) -> None:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except Exception as error:
        _forget(host, port)
        asked.set_exception(error)
    else:
        _forget(host, port)
        asked.set_result(found)


def _forget(host: str, port: int) -> None:
    with LOCK:
        ASKED.pop((host, port), None)
