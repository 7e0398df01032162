"""The part of a broker group's log that is RocketMQ's old commit log: dispatched before the replicated one.

Invariant: what was dispatched of it already is not dispatched again; all of it is before an entry is.
"""

from __future__ import annotations

from pathlib import Path

from node.message_store.adopted import read_adopted
from node.message_store.commit_log import local_commit_log
from node.message_store.dispatch import Dispatcher
from node.message_store.dispatch_mark import LogPoint
from node.message_store.log_pieces import old_records
from node.message_store.read_files import OS, Files

SAVE_EVERY = 64  # pieces


def old_begin(root: Path, files: Files = OS) -> LogPoint | None:
    """Where a dispatch of all begins; None where there is no old commit log."""
    queue = local_commit_log(root, files).queue
    return LogPoint(queue.min_offset) if queue.files else None


def border(root: Path, files: Files = OS) -> int:
    """From where on queue offsets are dense: below it RocketMQ gave them."""
    adopted = read_adopted(root, files)
    return 0 if adopted is None else adopted.border


def dispatch_old_log(dispatcher: Dispatcher, root: Path, files: Files = OS) -> None:
    """What is left of it. Raises MessageStoreError, MessageFormatError, OSError."""
    queue = local_commit_log(root, files).queue
    if dispatcher.point.position >= queue.end_offset:
        return
    for number, piece in enumerate(old_records(root, dispatcher.point.position, files), start=1):
        dispatcher.dispatch(piece.batch, piece.end)
        if number % SAVE_EVERY == 0:
            dispatcher.save()
