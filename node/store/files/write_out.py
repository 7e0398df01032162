"""Has written bytes of a file go to the disk, without what a sync adds: no commit of the file system's journal, which
every other sync of the disk would wait for, and no flush of the disk's own cache.

So nothing is durable by it. It is for long files that are synced once, at their end: they never lie in memory as a
whole, and no other sync has to wait for all of them.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any, Final

_WAIT_BEFORE, _WRITE, _WAIT_AFTER = 1, 2, 4  # linux/fs.h, SYNC_FILE_RANGE_*
_NOT_HERE: Final = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ESPIPE, errno.EINVAL)
_CALL: Final[Any] = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)  # Linux alone has it
if _CALL is not None:
    _CALL.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    _CALL.restype = ctypes.c_int


def write_out(fd: int, offset: int, length: int) -> None:
    """Returns when that range has been written; where the system cannot do that, when the file is synced. Raises
    OSError: what could not be written is said once, so it is final (SAFETY S1)."""
    if _CALL is not None:
        if _CALL(fd, offset, length, _WAIT_BEFORE | _WRITE | _WAIT_AFTER) == 0:
            return
        code = ctypes.get_errno()
        if code not in _NOT_HERE:
            raise OSError(code, os.strerror(code))
    os.fsync(fd)
