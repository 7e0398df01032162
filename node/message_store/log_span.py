"""From where to where a commit log of RocketMQ's files goes, by the files alone: of a broker that does not run.

The end is behind the last message, or where the log's own mark says that it was flushed, whichever is further: what a
mark vouches for and the files do not hold is damage, no shorter log.
"""

from __future__ import annotations

from pathlib import Path

from node.message_store.commit_log import COMMIT_LOG, local_commit_log
from node.message_store.errors import MessageStoreError
from node.message_store.local_mark import read_log_mark
from node.protocol.value_class import value_class


@value_class(slots=True, frozen=True)
class LogSpan:
    """Offsets in bytes; `starts`: of the files that are there."""

    begin: int
    end: int
    file_bytes: int
    starts: tuple[int, ...]


def span_of(root: Path) -> LogSpan:
    """Blocking: the last file is walked. Raises MessageStoreError, OSError."""
    log = local_commit_log(root)
    if not log.queue.folder.is_dir():
        raise MessageStoreError(f"there is no commit log in {root} (no folder {COMMIT_LOG}/)")
    mark = read_log_mark(root)
    file_bytes = mark.file_bytes if mark is not None else log.queue.file_size_bytes
    end = max(log.find_end(), mark.flushed if mark is not None else 0)
    starts = tuple(one.start for one in log.queue.files if one.start < end)
    return LogSpan(starts[0] if starts else end, end, file_bytes, starts)
