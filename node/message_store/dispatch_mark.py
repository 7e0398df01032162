"""How far a store's derived files are sound: `quorumscope/dispatched`, written when what it says is on disk.

One line of JSON with a CRC over it, for it is small and read once. What it says: up to which entry of the log all
is in queues and index, the newest index file's head at that moment, and the sizes that the files were written with.

Invariants: a mark that is there is whole (it is replaced, never changed in place); none at all means that nothing can
be said of the files beside it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from node.message_store.dispatch_index import INDEX_ENTRIES, INDEX_SLOTS, IndexMark
from node.message_store.dispatch_queues import QUEUE_FILE_BYTES
from node.message_store.errors import MessageStoreError
from node.message_store.index_file import IndexHead
from node.message_store.read_files import OS, Files
from node.message_store.write_files import Disk
from node.protocol.entry import crc32
from node.protocol.value_class import value_class

OURS: Final = "quorumscope"
MARK: Final = "dispatched"
_BYTES_MAX: Final = 65_536
_VERSION: Final = 1


@value_class(slots=True, frozen=True)
class DerivedSizes:
    """RocketMQ's mappedFileSizeConsumeQueue (bytes), maxHashSlotNum, maxIndexNum."""

    queue_file_bytes: int = QUEUE_FILE_BYTES
    index_slots: int = INDEX_SLOTS
    index_entries: int = INDEX_ENTRIES


@value_class(slots=True, frozen=True)
class LogPoint:
    """A border between entries of a log: the position behind entry `index`, whose term and chain CRC these are.

    In a log of RocketMQ's own there are no entries: index and term are -1, chain is 0.
    """

    position: int
    index: int = -1
    term: int = -1
    chain: int = 0


@value_class(slots=True, frozen=True)
class Mark:
    """See the module's docstring. `is_clean`: nothing was written behind it. `dense_from`: messages that lie below were
    put by RocketMQ, which may give a queue offset twice; the second one is in no queue."""

    point: LogPoint
    sizes: DerivedSizes
    index: IndexMark
    last_time_ms: int = 0
    is_clean: bool = False
    dense_from: int = 0


def mark_path(root: Path) -> Path:
    return root / OURS / MARK


def write_mark(root: Path, mark: Mark, disk: Disk) -> None:
    point, sizes, index = mark.point, mark.sizes, mark.index
    head = index.head
    said = json.dumps(
        {
            "version": _VERSION,
            "point": [point.position, point.index, point.term, point.chain],
            "sizes": [sizes.queue_file_bytes, sizes.index_slots, sizes.index_entries],
            "index": [
                index.name, head.begin_timestamp_ms, head.end_timestamp_ms, head.begin_offset, head.end_offset,
                head.slots_in_use, head.index_count, index.full_until_ms,
            ],
            "last_time_ms": mark.last_time_ms,
            "is_clean": mark.is_clean,
            "dense_from": mark.dense_from,
        }
    )  # fmt: skip
    disk.replace(mark_path(root), f"{crc32(said.encode()):08x} {said}\n".encode())


def read_mark(root: Path, files: Files = OS) -> Mark | None:
    """None where there is none. Raises MessageStoreError."""
    return read_mark_at(mark_path(root), files)


def read_mark_at(path: Path, files: Files = OS) -> Mark | None:
    """The same of a mark that was put aside."""
    if files.size(path) is None:
        return None
    data = files.read(path, 0, _BYTES_MAX)
    crc, _space, said = data.partition(b" ")
    try:
        if int(crc, 16) != crc32(said.rstrip(b"\n")):
            raise ValueError("its CRC does not agree")
        found = json.loads(said)
        if found["version"] != _VERSION:
            raise ValueError(f"it has version {found['version']}, this release reads {_VERSION}")
        name, *head, full_until_ms = found["index"]
        index = IndexMark(name, IndexHead(*head), full_until_ms)
        return Mark(
            LogPoint(*found["point"]), DerivedSizes(*found["sizes"]), index, found["last_time_ms"], found["is_clean"],
            found.get("dense_from", 0),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MessageStoreError(
            f"{path} cannot be read ({error}): `quorumscope store rebuild-queues` writes queues and index anew"
        ) from error
