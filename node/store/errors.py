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
    """No space: nothing was written, or what was written short has been zeroed (SAFETY S8)."""


class StoreIOError(StoreError):
    """A write or fsync failed: the engine must end; it is never retried (SAFETY S1)."""


def wrap(error: OSError, attempt: str) -> StoreError:
    """The store's own exception for an operating system error, with what was being attempted."""
    if error.errno in _NO_SPACE:
        return StoreFull(f"{attempt}: no space left ({error.strerror})")
    return StoreIOError(f"{attempt}: {error.strerror or error}")
