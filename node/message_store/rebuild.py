"""Consume queues and index written anew from the commit log: `store rebuild-queues`, and the first part of others.

Everything is written beside the old files, in `quorumscope/rebuilt/`, and takes their place once it is on disk. What a
queue's next offset is where none of its messages is left, the old queues say, and the newest snapshot in the log.

Invariants: a log that cannot be read whole, or whose queue offsets have a gap, changes nothing; ended at any moment it
can be given again with the same result (what is known of the old queues stays until the new ones are in place); a dry
run does all of it but the writing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from node.message_store.adopted import read_adopted
from node.message_store.consume_queue import ConsumeQueue
from node.message_store.dispatch import CHECKPOINT, Dispatcher
from node.message_store.dispatch_mark import OURS, DerivedSizes, LogPoint, mark_path
from node.message_store.index_file import IndexFile
from node.message_store.kept_conf import delay_levels_of
from node.message_store.local_mark import log_mark_path
from node.message_store.log_pieces import LogPiece, begin_of, entries_in, old_records
from node.message_store.message_store import CONSUME_QUEUE, INDEX, MessageStore, StoreKind
from node.message_store.metadata_state import MetadataState, own_entry, state_at_begin
from node.message_store.read_files import OS, OWNER_FILE, Files
from node.message_store.write_files import Disk, OsDisk
from node.protocol.entry import BytesLike
from node.protocol.value_class import value_class

REBUILT: Final = "rebuilt"
REPLACED: Final = "replaced"
NOWHERE: Final = (1 << 63) - 1
SAVE_EVERY: Final = 64  # pieces
Progress = Callable[[int], None]


@value_class(slots=True, frozen=True)
class Rebuilt:
    """What was written, or would be."""

    messages: int
    queues: int
    next_offsets: dict[tuple[str, int], int]
    index_entries: int
    repeats: int
    kept_places: int
    end: LogPoint
    seconds: float
    has_version_2: bool


class NoDisk:
    """Takes everything and keeps nothing: a dry run."""

    def create(self, path: Path, size_bytes: int) -> None: ...

    def write(self, path: Path, offset: int, data: BytesLike) -> None: ...

    def zero_from(self, path: Path, offset: int) -> None: ...

    def replace(self, path: Path, data: bytes) -> None: ...

    def make_folder(self, path: Path) -> None: ...

    def rename(self, path: Path, to: Path) -> None: ...

    def remove(self, path: Path) -> None: ...

    def int32_table(self, path: Path, offset: int, count: int) -> npt.NDArray[Any]:
        return np.zeros(count, ">i4")

    def sync(self, path: Path) -> None: ...

    def sync_folder(self, path: Path) -> None: ...

    def key_of(self, path: Path) -> tuple[int, int] | None:
        return None

    def close(self) -> None: ...


def is_ours(store: MessageStore) -> bool:
    """Whether a file of ours keeps Java out of it."""
    return store.ledger is not None and store.files.size(store.ledger / "data" / OWNER_FILE) == 1


def sizes_in(store: MessageStore) -> DerivedSizes:
    """Those of the files that are there, else RocketMQ's defaults."""
    default = DerivedSizes()
    queue_bytes = next((one.queue.file_size_bytes for one in store.queues() if one.queue.files), None)
    index: IndexFile | None = next((file for _name, file in store.index_files()), None)
    return DerivedSizes(
        queue_bytes or default.queue_file_bytes,
        index.slot_count if index is not None else default.index_slots,
        index.capacity if index is not None else default.index_entries,
    )


def pieces_of_store(store: MessageStore, upto_index: int, begin: LogPoint | None = None) -> Iterator[LogPiece]:
    """All of a store's log behind `begin`; of a replicated log up to `upto_index`."""
    has_old = store.kind is not StoreKind.LEDGER
    point = begin or LogPoint(store.log.min_offset)
    divided = store.divided_offset
    if has_old and (divided is None or point.position < divided):
        yield from old_records(store.root, point.position, store.files)
    if store.ledger is not None and upto_index >= 0:
        queue = store.log.files[-1][0]
        first = begin_of(queue)
        if begin is not None and begin.position >= first.position:
            first = begin
        yield from entries_in(store.ledger, first, upto_index, store.files)


def follow(
    dispatcher: Dispatcher, pieces: Iterator[LogPiece], state: MetadataState, progress: Progress | None = None
) -> tuple[int, bool]:
    """Dispatches and applies them. How many messages there were, and whether one has version 2."""
    messages, has_version_2 = 0, False
    for number, piece in enumerate(pieces):
        dispatcher.dispatch(piece.batch, piece.end)
        for one in piece.own:
            entry = own_entry(one.index, one.channel, one.record)
            state.take(entry)
            for topic in entry.dropped:
                dispatcher.drop_topic(topic)
        messages += len(piece.batch)
        has_version_2 |= piece.has_version_2
        if progress is not None:
            progress(messages)
        if number % SAVE_EVERY == SAVE_EVERY - 1:
            dispatcher.save()
    return messages, has_version_2


def _known_border(store: MessageStore) -> int:
    """From where on queue offsets are dense."""
    if not is_ours(store):
        return NOWHERE
    adopted = read_adopted(store.root, store.files)
    return 0 if adopted is None else adopted.border


def known_next_offsets(root: Path, files: Files = OS) -> dict[tuple[str, int], int]:
    """What the queues that are there, or were when a rebuild was ended, give their next messages."""
    found: dict[tuple[str, int], int] = {}
    for folder in (root, root / OURS / REPLACED):
        if not files.is_folder(folder / CONSUME_QUEUE):
            continue
        for topic in files.names(folder / CONSUME_QUEUE):
            for name in files.names(folder / CONSUME_QUEUE / topic):
                if name.isascii() and name.isdigit():
                    queue = ConsumeQueue(folder / CONSUME_QUEUE / topic / name, topic, int(name), files)
                    found[topic, int(name)] = max(queue.max_offset(), found.get((topic, int(name)), 0))
    return found


def rebuild(
    store: MessageStore, upto_index: int, *, dry_run: bool, sizes: DerivedSizes | None = None,
    progress: Progress | None = None, disk: Disk | None = None, dense_from: int | None = None,
) -> Rebuilt:  # fmt: skip
    """`dense_from`: below it queue offsets may come twice; None: as is known of the store, anywhere in RocketMQ's.

    Raises MessageStoreError, MessageFormatError: then the old files are as they were. OSError."""
    started = time.monotonic()
    root = store.root
    wanted = sizes or sizes_in(store)
    beside = root / OURS / REBUILT
    border = _known_border(store) if dense_from is None else dense_from
    known = known_next_offsets(root, store.files)
    real = disk if disk is not None else OsDisk()
    target: Disk = NoDisk() if dry_run else real
    target.remove(beside)
    begin = LogPoint(store.log.min_offset)
    dispatcher = Dispatcher(
        beside if not dry_run else beside / "never",
        wanted,
        begin=begin,
        dense_from=border,
        disk=target,
        delay_levels_ms=delay_levels_of(root, store.files),
    )
    adopted = read_adopted(root, store.files) if is_ours(store) else None
    state = state_at_begin(_first_index(store), None if adopted is None else adopted.state)
    messages, has_version_2 = follow(dispatcher, pieces_of_store(store, upto_index), state, progress)
    kept = keep_places(dispatcher, known | _greater(state.places, known), begin.position)
    dispatcher.save(is_clean=True)
    found = Rebuilt(
        messages, len(dispatcher.next_offsets), dispatcher.next_offsets, dispatcher.index_entries, dispatcher.repeats,
        kept, dispatcher.point, time.monotonic() - started, has_version_2,
    )  # fmt: skip
    dispatcher.close()
    if not dry_run:
        take_place(root, real, store.files)
        if not is_ours(store) and store.files.size(log_mark_path(root)) is None:
            real.remove(mark_path(root))  # RocketMQ goes on there, and nobody keeps it true
            if not store.files.names(root / OURS):
                real.remove(root / OURS)
    return found


def _first_index(store: MessageStore) -> int:
    if store.kind is not StoreKind.LEDGER:
        return 0  # behind an old commit log nothing is missing
    return begin_of(store.log.files[-1][0]).index + 1


def _greater(said: dict[tuple[str, int], int], known: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
    return {name: max(offset, known.get(name, 0)) for name, offset in said.items()}


def keep_places(dispatcher: Dispatcher, said: dict[tuple[str, int], int], begin: int) -> int:
    """Queues none of whose messages is left go on where they were."""
    has = dispatcher.next_offsets
    gone = {name for name in said if name not in has and said[name] > 0}
    for name in sorted(gone) if begin > 0 else ():
        dispatcher.keep_place(name, said[name], begin)
    return len(gone) if begin > 0 else 0


def take_place(root: Path, disk: Disk, files: Files = OS) -> None:
    """What was written beside takes the place of the old files; the mark comes last."""
    beside, old = root / OURS / REBUILT, root / OURS / REPLACED
    disk.remove(mark_path(root))
    for name in (CONSUME_QUEUE, INDEX):
        if files.is_folder(root / name):
            disk.remove(old / name)
            disk.make_folder(old)
            disk.rename(root / name, old / name)
        if files.is_folder(beside / name):
            disk.rename(beside / name, root / name)
    disk.rename(beside / CHECKPOINT, root / CHECKPOINT)
    disk.sync_folder(root)
    disk.rename(mark_path(beside), mark_path(root))
    disk.sync_folder(mark_path(root).parent)
    disk.remove(beside)
    disk.remove(old)
