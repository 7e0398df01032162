"""Messages that reads met as something else than was written, where nothing heals them by itself.

An entry that our engine wrote has a checksum, and is healed from another member. What Java wrote, and an old commit
log, have the CRC of each body only: such a message is given to nobody, and whoever comes to it in its queue stops
there, until its file is put back.

Invariants: what is kept is bounded; each is looked at again, and goes when it can be read again, or has expired.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from node.message_store.errors import MessageFormatError
from node.message_store.live_reads import LiveReads
from node.message_store.record import decode_record
from node.protocol.entry import BytesLike

MAX: Final = 64


class RottenMessages:
    """`said`: a line of the log for each that is new."""

    def __init__(self, reads: LiveReads, said: Callable[[str, str, str], None]) -> None:
        self._reads, self._said = reads, said
        self._found: dict[int, tuple[int, str]] = {}  # by place: the size, and which message it is
        reads.on_rot = self._met

    def _met(self, place: int, record: BytesLike) -> None:
        if place in self._found or len(self._found) >= MAX:
            return
        which = _which(record)
        self._found[place] = len(record), which
        text = f"the message at offset {place:,}{which and f' ({which})'} is not what was written: nobody is given it"
        self._said("message_rotten", "error", text)

    def look_again(self) -> None:
        """Raises MessageStoreError, OSError."""
        for place, (size_bytes, _which) in list(self._found.items()):
            expired = place < self._reads.store.log.min_offset
            if expired or self._reads.record(place, size_bytes) is not None:
                del self._found[place]

    def as_said(self) -> list[dict[str, Any]]:
        return [{"offset": place, "message": which or None} for place, (_bytes, which) in sorted(self._found.items())]


def _which(record: BytesLike) -> str:
    """What it says itself, where it can be read: as likely as not, the damage is in its body."""
    try:
        found = decode_record(record)
    except MessageFormatError:
        return ""
    return f"{found.topic[:64]}, queue {found.queue_id}, offset {found.queue_offset:,}"
