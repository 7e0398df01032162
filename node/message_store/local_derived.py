"""Queues and index of a log of RocketMQ's own, brought to where the log ends when it is opened.

Usually the dispatcher's mark says how far they are sound, and that is at or below the log's end, for the log is flushed
before them. Where they are ahead of it (a slave cut its log back) or say nothing (RocketMQ wrote them), both are
written anew from the log.

Invariants: written beside and put in place when whole, so that it can be ended at any moment and done again; a queue
none of whose messages is left in the log goes on with the offset that it had at the log's end, not with a later one.
"""

from __future__ import annotations

from pathlib import Path

from node.message_store.consume_queue import ConsumeQueue
from node.message_store.dispatch import Dispatcher
from node.message_store.dispatch_mark import OURS, DerivedSizes, LogPoint, read_mark
from node.message_store.log_pieces import old_records
from node.message_store.message_store import CONSUME_QUEUE, INDEX
from node.message_store.queue_units import UNIT_BYTES
from node.message_store.read_files import OS, Files
from node.message_store.rebuild import REBUILT, REPLACED, take_place
from node.message_store.write_files import Disk


def open_dispatcher(
    root: Path, begin: int, end: int, sizes: DerivedSizes | None, levels_ms: tuple[int, ...], disk: Disk,
    files: Files = OS,
) -> Dispatcher:  # fmt: skip
    """A dispatcher that is at or below the log's end. `levels_ms`: of delayed messages.

    Raises MessageStoreError, MessageFormatError, OSError."""
    mark = read_mark(root, files)
    has_files = bool(files.names(root / CONSUME_QUEUE) or files.names(root / INDEX))
    if (mark is None and has_files) or (mark is not None and not begin <= mark.point.position <= end):
        wanted = sizes or (mark.sizes if mark is not None else DerivedSizes())
        rebuild_derived(root, begin, end, wanted, levels_ms, disk, files)
        sizes = wanted
    return Dispatcher(root, sizes, begin=LogPoint(begin), delay_levels_ms=levels_ms, disk=disk, files=files)


def rebuild_derived(
    root: Path, begin: int, end: int, sizes: DerivedSizes, levels_ms: tuple[int, ...], disk: Disk, files: Files = OS
) -> None:  # fmt: skip
    """See the module's docstring."""
    beside = root / OURS / REBUILT
    ends = queue_ends(root, end, files)
    disk.remove(beside)
    disk.make_folder(beside)
    dispatcher = Dispatcher(
        beside, sizes, begin=LogPoint(begin), delay_levels_ms=levels_ms, dense_from=end, disk=disk, files=files
    )
    for piece in old_records(root, begin, files) if end > begin else ():
        dispatcher.dispatch(piece.batch, piece.end)
    for queue, next_offset in sorted(ends.items()):
        if begin and next_offset > 0 and queue not in dispatcher.next_offsets:
            dispatcher.keep_place(queue, next_offset, begin)
    dispatcher.save(is_clean=True)
    take_place(root, disk, files)


def queue_ends(root: Path, end: int, files: Files = OS) -> dict[tuple[str, int], int]:
    """The next offset of each queue that is there, as of the log's `end`."""
    found: dict[tuple[str, int], int] = {}
    for folder in (root / CONSUME_QUEUE, root / OURS / REPLACED / CONSUME_QUEUE):  # the latter: ended while it rebuilt
        for topic in files.names(folder):
            for name in files.names(folder / topic):
                if name.isascii() and name.isdigit():
                    queue = ConsumeQueue(folder / topic / name, topic, int(name), files)
                    found[topic, int(name)] = max(_end_of(queue, end), found.get((topic, int(name)), 0))
    return found


def _end_of(queue: ConsumeQueue, end: int) -> int:
    low, high = queue.queue.min_offset // UNIT_BYTES, queue.max_offset()
    while low < high:
        middle = (low + high) // 2
        units = queue.units(middle, 1)
        if len(units) and int(units[0]["offset"]) >= end:
            high = middle
        else:
            low = middle + 1
    return low
