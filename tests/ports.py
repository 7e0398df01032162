"""Loopback ports for what tests start.

A port that the kernel may give to an outgoing connection can be gone whenever the process that listens on it is down:
members dial each other all the time, and a connection to a port of that range may even be given the same port and
connect to itself. So these lie below that range, and below the demo's. Blocks of them are held by name (an abstract
Unix socket, as app/demo/ports.py does), so that two test runs on one machine never share one.

Invariant: no port is given twice in one process while there are others.
"""

from __future__ import annotations

import os
import socket
import sys
from collections import deque
from typing import Final

FIRST: Final = 10_000
END: Final = 20_000
BLOCK: Final = 100
_BLOCKS: Final = (END - FIRST) // BLOCK
_STRIDE: Final = 37  # processes that start together begin far from each other

_held: list[socket.socket] = []
_next: deque[int] = deque()
_looked_at = 0


def _another_block() -> None:
    """The next block that nobody holds; where all are taken, any."""
    global _looked_at
    while True:
        number = (os.getpid() * _STRIDE + _looked_at) % _BLOCKS
        _looked_at += 1
        name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if sys.platform == "linux" and _looked_at <= _BLOCKS:
                name.bind(f"\0quorumscope-test-ports-{number}")
        except OSError:
            name.close()
            continue
        _held.append(name)
        _next.extend(range(FIRST + number * BLOCK, FIRST + (number + 1) * BLOCK))
        return


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def free_ports(count: int) -> list[int]:
    """`count` different loopback ports on which nobody listens, and which nobody else is given."""
    found: list[int] = []
    while len(found) < count:
        if not _next:
            _another_block()
        if _is_free(port := _next.popleft()):
            found.append(port)
    return found
