"""What a store raises; apart from the store itself, so that whoever only handles them loads nothing of it (no numpy).

Invariant: no error of the operating system leaves a store unwrapped: no space is StoreFull, all else StoreIOError.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from node.store.faults.results import Fault

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DENIED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


class StoreError(Exception):
    """Base of everything a store raises; the message says what was being attempted and what to do."""


class StoreRefused(StoreError):
    """The directory may not be opened as it is: an operator must settle it (lock held, wrong node, lost hard state)."""


class StoreCorrupt(StoreError):
    """Bytes at or below the durable index are not what was written; `faults` names the entries, where it can."""

    def __init__(self, message: str, faults: Sequence[Fault] = ()) -> None:
        super().__init__(message)
        self.faults = tuple(faults)


class ColdEntry(Exception):
    """What was asked for is not in memory: a thread has to read it (SAFETY S9)."""

    def __init__(self, index: int) -> None:
        super().__init__(f"entry {index} is not in memory")
        self.index = index


class StoreFull(StoreError):
    """No space: nothing was written, or what was written short has been zeroed (SAFETY S8).

    `leaves_bytes`: but for a file system that copies what is overwritten, and had no space for the zeros either.
    """

    leaves_bytes = False


class StoreIOError(StoreError):
    """A write or fsync failed: the engine must end; it is never retried (SAFETY S1)."""


class StoreMoved(StoreIOError):
    """The path does not lead to the directory any more that was opened: nothing written from now on counts as durable,
    since the next process would not find it."""


def wrap(error: OSError, attempt: str) -> StoreError:
    """The store's own exception for an operating system error, with what was being attempted."""
    if error.errno in _NO_SPACE:
        limit = "; this process may write no file that large: see `ulimit -f`" if error.errno == errno.EFBIG else ""
        return StoreFull(f"{attempt}: no space left ({error.strerror}{limit})")
    return StoreIOError(f"{attempt}: {error.strerror or error}")


def is_denied(error: BaseException) -> bool:
    """Whether the system lets this process write nothing there: that does not pass by itself."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in _DENIED


def is_unreadable(error: BaseException) -> bool:
    """Whether the disk could not read what was there (EIO); a part of a page is written only once that was read."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno == errno.EIO
