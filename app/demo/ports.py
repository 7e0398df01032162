"""The ports that a demo has for itself, from the moment it chose them until it ends.

A port is bound by a child process, some time after it was chosen, and again whenever that child is started anew.
Another demo that looks meanwhile finds it free. So whoever chooses a port also holds its name: an abstract Unix socket,
which is in the same network namespace as the port, for all users, and goes with the process however it ends.

Invariant: no two living demos hold one port.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Sequence
from typing import Final

LOOK_AT_MOST: Final = 2000  # ports, from the first one on


class Ports:
    """Of one demo; `release` when it ends."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def claim(self, first: int, count: int) -> list[int]:
        """`count` loopback ports that are free and nobody else's, the lowest ones from `first` up. Raises OSError."""
        found: list[int] = []
        for port in range(first, min(first + LOOK_AT_MOST, 65536)):
            if len(found) == count:
                break
            if self._hold(port):
                found.append(port)
        if len(found) < count:
            raise OSError(f"no {count} free ports from {first} on")
        return found

    def claim_apart(self, first: int, count: int, apart: int, around: Sequence[int]) -> list[int]:
        """`count` ports, each `apart` from the one before or a multiple of it, and all those `around` it free,
        too. Raises OSError."""
        found: list[int] = []
        for port in range(first, min(first + LOOK_AT_MOST, 65536 - max(around)), apart):
            if len(found) == count:
                break
            held = len(self._held)
            if all(self._hold(port + one) for one in around):
                found.append(port)
            else:
                self._let_go(held)
        if len(found) < count:
            raise OSError(f"no {count} free ports from {first} on, {apart} apart")
        return found

    def _let_go(self, down_to: int) -> None:
        for name in self._held[down_to:]:
            name.close()
        del self._held[down_to:]

    def _hold(self, port: int) -> bool:
        name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if sys.platform == "linux":  # elsewhere there are no such names, and demos had better not start together
                name.bind(f"\0quorumscope-port-{port}")
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
        except OSError:
            name.close()
            return False
        self._held.append(name)
        return True

    def release(self) -> None:
        """Others may have them. Idempotent."""
        for name in self._held:
            with contextlib.suppress(OSError):
                name.close()
        self._held.clear()
