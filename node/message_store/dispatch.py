"""The dispatcher: takes committed messages in the order of the log and writes what readers need of them.

Consume queues, the index, RocketMQ's `checkpoint`, and our own mark of how far all that is sound. It is given batches
by whoever reads the log: online by the broker, offline by a rebuild or a hand-over. It knows no socket and no clock.

    dispatcher = Dispatcher(root, begin=LogPoint(first_position))
    dispatcher.point                      # from where in the log to go on
    dispatcher.dispatch(batch_of_entries(slab, position), LogPoint(end, index, term, chain))
    dispatcher.save()                     # now and then: on disk, and marked
    dispatcher.close()                    # saved, and marked as clean

Invariants: `dispatch` does all or raises; after an OSError only a new dispatcher goes on, unless it is NoSpaceToWrite,
which leaves all as it was. What `save` vouches for is on
disk before its mark is; a start takes what the mark vouches for, zeroes what lies behind it, and gives the point from
which the same batches make the same bytes. Memory: a small multiple of one batch, the slots of the newest index file,
and a few numbers per queue.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from node.message_store.delay_levels import parse_delay_levels
from node.message_store.dispatch_batch import Batch, columns_of
from node.message_store.dispatch_index import IndexMark, IndexWriter
from node.message_store.dispatch_mark import DerivedSizes, LogPoint, Mark, read_mark, write_mark
from node.message_store.dispatch_queues import QueueName, QueueWriter
from node.message_store.errors import MessageStoreError, NoSpaceToWrite, is_no_space, save_error
from node.message_store.message_store import CONSUME_QUEUE, INDEX
from node.message_store.read_files import OS, Files
from node.message_store.store_files import StoreCheckpoint, encode_checkpoint
from node.message_store.write_files import Disk, OsDisk

CHECKPOINT = "checkpoint"


class Dispatcher:
    """See the module's docstring. `begin` counts where nothing was dispatched yet, `sizes` None: as the mark says.

    Raises MessageStoreError where the files are not what the mark says, and where there are some without a mark.
    """

    def __init__(
        self, root: Path, sizes: DerivedSizes | None = None, *, begin: LogPoint | None = None,
        delay_levels_ms: tuple[int, ...] | None = None, dense_from: int = 0,
        disk: Disk | None = None, files: Files = OS,
    ) -> None:  # fmt: skip
        mark = read_mark(root, files)
        self._root, self._disk = root, disk if disk is not None else OsDisk()
        self._levels = parse_delay_levels() if delay_levels_ms is None else delay_levels_ms
        self._is_broken = False
        self._sync_failed = False  # apart from the other: a thread sets it, perhaps while something is dispatched
        if mark is None and (files.names(root / CONSUME_QUEUE) or files.names(root / INDEX)):
            raise MessageStoreError(
                f"{root} has queues or an index, and nothing says how far they are sound: `quorumscope store adopt`"
                " takes over those of RocketMQ, `quorumscope store rebuild-queues` writes them anew"
            )
        if mark is None:
            mark = Mark(
                begin or LogPoint(0), sizes or DerivedSizes(), IndexMark(), is_clean=True, dense_from=dense_from
            )
        elif sizes is not None and sizes != mark.sizes:
            raise MessageStoreError(
                f"{root}: queues and index were written with {mark.sizes}, now {sizes} are asked for;"
                " `quorumscope store rebuild-queues` writes them with other sizes"
            )
        self.sizes = mark.sizes
        self._point, self._last_time_ms = mark.point, mark.last_time_ms
        self._queues = QueueWriter(root, self.sizes.queue_file_bytes, self._disk, files)
        self._index = IndexWriter(root, self.sizes.index_slots, self.sizes.index_entries, self._disk, files)
        self._queues.open(mark.point.position, is_clean=mark.is_clean)
        self._index.open(mark.index, is_clean=mark.is_clean)
        self._is_marked_clean = mark.is_clean
        self.dense_from = mark.dense_from  # what lies below was put by RocketMQ, which may give a queue offset twice

    @property
    def is_broken(self) -> bool:
        """A write or a sync failed: nothing is vouched for any more, until a new dispatcher begins at the mark."""
        return self._is_broken or self._sync_failed

    @property
    def point(self) -> LogPoint:
        """Everything before it is in the queues and the index; not necessarily on disk (`save`)."""
        return self._point

    @property
    def next_offsets(self) -> dict[QueueName, int]:
        """The queue offset that comes next, of each queue."""
        return self._queues.next_offsets

    def queue_end(self, queue: QueueName) -> int:
        """Of one queue, 0 where it has none."""
        return self._queues.queue_end(queue)

    @property
    def last_time_ms(self) -> int:
        """The storeTimestamp of the last message in a queue."""
        return self._last_time_ms

    @property
    def index_entries(self) -> int:
        """How many were written since this dispatcher was opened."""
        return self._index.written

    @property
    def repeats(self) -> int:
        """How many messages had a queue offset that was given before."""
        return self._queues.repeats

    def dispatch(self, batch: Batch, upto: LogPoint) -> dict[QueueName, int]:
        """The messages between `point` and `upto`; the next offset of each queue that got some.

        Raises MessageFormatError and MessageStoreError where a message is not sound or no queue can take it: nothing
        was written then. NoSpaceToWrite: it may be tried again. Another OSError: this dispatcher is at its end.
        """
        if self._is_broken:
            raise MessageStoreError("an earlier write failed: open the dispatcher anew")
        if upto.position < self._point.position or (len(batch) and int(batch.offsets[0]) < self._point.position):
            raise MessageStoreError(f"dispatched up to position {self._point.position}, not to be dispatched again")
        columns = columns_of(batch, self._levels)
        for queue in columns.queues:
            self._queues.check_name(queue)
        self._mark_as_open()
        self._is_broken = True
        indexed = self._index.written
        try:
            touched = self._queues.append(columns.queues, columns.queued, dense_from=self.dense_from)
            self._index.append(columns.keyed)
        except MessageStoreError:
            self._is_broken = False
            raise
        except OSError as error:
            if not is_no_space(error) or self._index.is_torn or self._index.written > indexed:
                raise
            self._queues.take_back()
            self._is_broken = False
            raise self._no_space(error) from error
        self._is_broken = False
        self._point = upto
        self._last_time_ms = columns.last_time_ms or self._last_time_ms
        return touched

    def _mark_as_open(self) -> None:
        """Before the first write behind a mark that says that there is none. Raises OSError (NoSpaceToWrite)."""
        if self._is_marked_clean:
            try:
                write_mark(self._root, self._mark_now(is_clean=False), self._disk)
            except OSError as error:
                if not is_no_space(error):
                    raise
                raise self._no_space(error) from error
            self._is_marked_clean = False

    def _no_space(self, error: OSError) -> NoSpaceToWrite:
        return NoSpaceToWrite(error.errno, error.strerror, str(self._root))

    def keep_place(self, queue: QueueName, next_offset: int, begin: int) -> None:
        """A queue whose messages have all expired goes on with `next_offset`; `begin`: where the log begins."""
        self._mark_as_open()
        self._queues.keep_place(queue, next_offset, begin)

    def drop_topic(self, topic: str) -> None:
        """The topic was deleted."""
        self._mark_as_open()
        self._queues.drop_topic(topic)

    def save(self, *, is_clean: bool = False) -> None:
        """What was dispatched is on disk, then the checkpoint and the mark say so."""
        self.begin_save(is_clean=is_clean)(self._disk)

    def begin_save(self, *, is_clean: bool = False) -> Callable[[Disk], None]:
        """What does the rest of `save`, for what was dispatched until now: also in another thread, with a disk of its
        own, while dispatch goes on. What is written behind the mark meanwhile counts for nothing until the next one.
        It raises OSError, and NoSpaceToSave: then what was dispatched is on disk, and only a later save says so.
        """
        if self.is_broken:
            raise MessageStoreError("an earlier write or sync failed: open the dispatcher anew")
        unsynced = [self._queues.take_unsynced(), self._index.take_unsynced()]
        mark, last_ms = self._mark_now(is_clean=is_clean), self._last_time_ms
        checkpoint = encode_checkpoint(StoreCheckpoint(last_ms, last_ms, mark.index.full_until_ms, 0, 0))
        self._is_marked_clean = is_clean

        def finish(disk: Disk) -> None:
            try:
                for one in unsynced:
                    one.sync(disk)
            except OSError:  # the pages may be gone, and the next sync of them would say that all is well
                self._sync_failed = True
                raise
            try:
                disk.replace(self._root / CHECKPOINT, checkpoint)
                write_mark(self._root, mark, disk)
            except OSError as error:
                raise save_error(error) from error

        return finish

    def _mark_now(self, *, is_clean: bool) -> Mark:
        return Mark(self._point, self.sizes, self._index.mark, self._last_time_ms, is_clean, self.dense_from)

    def removed(self, path: Path) -> None:
        """A file of what has expired was removed: no descriptor keeps its space."""
        self._disk.remove(path)

    def abandon(self) -> None:
        """Lets go of the files, which are of no use any more."""
        self._is_broken = True
        self._disk.close()

    def close(self) -> None:
        """Saves, unless a write or a sync failed, and lets go of the files."""
        try:
            if not self.is_broken:
                self.save(is_clean=True)
        finally:
            self._disk.close()
