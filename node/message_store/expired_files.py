"""Files of queues and index all of whose messages have expired with the log's files: RocketMQ's rules for what goes.

Of a queue: its first files, while even the last unit of each lies below the log's beginning. Of the index: files whose
last entry does. The last file of a queue and the newest of the index always stay: they say where it goes on.

Invariants: files go from the front, never one behind a file that stays; what cannot be read stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from node.message_store.errors import MessageFormatError
from node.message_store.index_file import HEAD_BYTES, decode_head
from node.message_store.message_store import MessageStore
from node.message_store.queue_units import UNIT_BYTES, decode_units
from node.message_store.read_files import MappedFileQueue
from node.message_store.write_files import Disk


def expired_files(store: MessageStore) -> list[Path]:
    """Those that go now."""
    begin = store.log.min_offset
    if begin <= 0:
        return []
    found = [path for queue in store.queues() for path in _of_queue(queue.queue, begin)]
    return found + list(_of_index(store, begin))


def removed_expired(store: MessageStore, disk: Disk) -> list[Path]:
    """Removes them. Raises OSError."""
    found = expired_files(store)
    for path in found:
        disk.remove(path)
    disk.close()
    return found


def _of_queue(row: MappedFileQueue, begin: int) -> Iterator[Path]:
    for file in row.files[:-1]:
        units = decode_units(row.read(file.end - UNIT_BYTES, UNIT_BYTES))
        if not len(units) or int(units[0]["size"]) <= 0 or int(units[0]["offset"]) >= begin:
            return
        yield row.folder / file.name


def _of_index(store: MessageStore, begin: int) -> Iterator[Path]:
    for name in sorted(store.index_names())[:-1]:
        path = store.root / "index" / name
        try:
            head = decode_head(store.files.read(path, 0, HEAD_BYTES))
        except MessageFormatError:
            return
        if head.end_offset >= begin:
            return
        yield path
