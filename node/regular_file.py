"""A file that a configuration or a command names (a token, a secret, a certificate), opened for reading.

Invariant: nobody waits for what is no file: a FIFO without a writer would hold up whoever opens it, at a SIGHUP a whole
member, and some devices give bytes without end. What the shell hands over (`<(...)`, /dev/stdin) is open already, and
/dev/null is empty: they are read. And nobody reads more than such a file can have: `whole`.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

CONFIG_BYTES_MAX: Final = 1 << 20
_PIECE_BYTES: Final = 64 << 10
HANDED_OVER: Final = ("/dev/fd/", "/proc/self/fd/", "/dev/stdin", os.devnull)


def open_regular(path: Path, *, follows_link: bool = True) -> BinaryIO:
    """Raises OSError, also for what is no regular file."""
    opener = _without_waiting if follows_link else _no_link
    file = open(path, "rb", opener=opener)  # noqa: SIM115 (the caller closes it)
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    if str(path).startswith(HANDED_OVER):
        os.set_blocking(file.fileno(), True)
        return file
    file.close()
    raise OSError(errno.EINVAL, "this is no regular file", str(path))


def whole(file: BinaryIO, bytes_max: int) -> bytes:
    """All of it. Raises OSError, also where it has more bytes than that."""
    data = bytearray()
    while piece := file.read(_PIECE_BYTES):
        data += piece
        if len(data) > bytes_max:
            raise OSError(errno.EFBIG, f"it has more than {bytes_max} bytes", str(file.name))
    return bytes(data)


def read_regular(path: Path, bytes_max: int) -> bytes:
    """Both at once. Raises OSError."""
    with open_regular(path) as file:
        return whole(file, bytes_max)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _no_link(path: str, flags: int) -> int:
    return _without_waiting(path, flags | os.O_NOFOLLOW)
