"""What reading a message store may raise.

Invariants: a decoder raises MessageFormatError and nothing else, whatever the bytes; the other is about a directory or
a question, and its text says what to do.
"""

from __future__ import annotations

import errno
from typing import Final

_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class MessageFormatError(ValueError):
    """Bytes break a format of RocketMQ's; the message says which rule."""


class MessageStoreError(Exception):
    """A directory is no message store that can be read here, or it does not hold what was asked for."""


class NoSpaceToSave(OSError):
    """What says how far files are sound could not be written for lack of space: what it said before is still true."""


class StoreMoved(OSError):
    """The path does not lead to the directory any more that was opened: nothing written from now on counts as stored,
    since the next process would not find it."""


class NoSpaceToWrite(OSError):
    """Queues or index have no room for what is dispatched: all is as it was before, and it may be tried again."""


def is_no_space(error: OSError) -> bool:
    """Whether the disk, or a quota, has no room: that passes when there is some again."""
    return error.errno in _NO_SPACE


def save_error(error: OSError) -> OSError:
    """What a save whose files are all on disk already raises."""
    return NoSpaceToSave(error.errno, error.strerror, error.filename) if is_no_space(error) else error
