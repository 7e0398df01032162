"""Cuts a byte stream into commands, in a buffer that a BufferedProtocol reads straight into.

Invariants: memory grows only with bytes that have arrived, never by what a length claims; what came whole before a
broken command is returned all the same, and `broken` says why none can be found behind it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar, overload

from node.rocketmq.command import (
    COMMAND_BYTES_MAX,
    HEADER_BYTES_MAX,
    PREFIX_BYTES,
    Command,
    CommandError,
    check_prefix,
    decode_parts,
)
from node.transport.receive_buffer import ReceiveBuffer

BUFFER_BYTES_KEPT: Final = 64 * 1024
_PREFIX: Final = struct.Struct(">iI")
T = TypeVar("T")
Read = Callable[[bytes, bytes, bool], T]


def _as_command(header: bytes, body: bytes, binary: bool) -> Command:
    return decode_parts(header, body, binary=binary)


class CommandStream(Generic[T]):
    """Fill (part of) `writable()`, then `filled(n)` returns the commands that are complete.

    `read` makes what is returned of a command's header, its body, and whether the header is binary; it may raise
    CommandError.
    """

    @overload
    def __init__(self: CommandStream[Command]) -> None: ...
    @overload
    def __init__(self, read: Read[T]) -> None: ...
    def __init__(self, read: Read[Any] = _as_command) -> None:
        self._read = read
        self._buffer = ReceiveBuffer(BUFFER_BYTES_KEPT, COMMAND_BYTES_MAX)
        self.broken: CommandError | None = None

    @property
    def unfinished_bytes(self) -> int:
        """What has come of a command that is not whole."""
        return self._buffer.end - self._buffer.start

    @property
    def memory_bytes(self) -> int:
        """What is held for such a command."""
        return len(self._buffer.data) if self._buffer.end else 0

    def spare_memory(self) -> None:
        """Frees the buffer, where nothing is in it, until more comes."""
        self._buffer.spare()

    def end(self) -> None:
        """Nothing more comes."""
        self._buffer.drop()

    def writable(self) -> memoryview:
        """Room for the next bytes; never empty."""
        return self._buffer.room()

    def filled(self, count: int) -> list[T]:
        """`count` bytes were put into the last `writable()`: the whole commands up to the first broken one."""
        held = self._buffer
        end = held.filled(count)
        view, start = held.view, held.start
        commands: list[T] = []
        read, prefix = self._read, _PREFIX.unpack_from
        try:
            while end - start >= PREFIX_BYTES and self.broken is None:
                rest_bytes, kind = prefix(view, start)
                header_bytes = kind & 0xFFFFFF
                if not header_bytes + 4 <= rest_bytes < COMMAND_BYTES_MAX - 4 or header_bytes > HEADER_BYTES_MAX:
                    check_prefix(rest_bytes, kind)
                binary = kind >> 24
                if binary > 1:
                    check_prefix(rest_bytes, kind)
                stop = start + 4 + rest_bytes
                if end < stop:
                    break
                body_at = start + PREFIX_BYTES + header_bytes
                commands.append(
                    read(bytes(view[start + PREFIX_BYTES : body_at]), bytes(view[body_at:stop]), binary == 1)
                )
                start = stop
        except CommandError as error:
            self.broken = error
        held.left(start, start if self.broken is not None else end)  # behind a broken command nothing takes memory
        return commands
