"""LocalCommitLog: RocketMQ's own commit log, written. A master appends records to it, a slave its master's bytes.

Files of one size, each named by its first offset; a record lies in one file, and where the next does not fit, a blank
fills the rest. Bytes are RocketMQ's. It knows no thread and no clock: whoever owns it flushes in a thread of its own
with `begin_flush`, and goes on writing meanwhile.

Invariants: `max_offset` is a border between records and never goes back, but for `cut`; what `flushed_offset` says is
on disk, with the names of its files; a new file's length is on disk before it is written to; behind the end are zeros;
after a write that failed nothing more is written until the log is opened anew, which finds its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from node.message_store.blank import encode_blank, fits
from node.message_store.commit_log import COMMIT_LOG
from node.message_store.dispatch_mark import OURS
from node.message_store.errors import MessageStoreError, StoreMoved, is_no_space
from node.message_store.local_mark import LastRecord, LogMark, write_log_mark
from node.message_store.local_next import NextFile
from node.message_store.local_recent import RecentPieces
from node.message_store.local_records import Stop, border_flaw, walk
from node.message_store.local_recovery import PIECE_BYTES, Recovered, cut_behind, file_name, keep_aside, recover
from node.message_store.local_tail import Tail
from node.message_store.read_files import OS, Files
from node.message_store.record import PHYSICAL_OFFSET_AT, SIZE_AND_MAGIC
from node.message_store.record_check import store_timestamp_ms
from node.message_store.write_files import Disk, OsDisk, leads_to, sync_same
from node.protocol.entry import BytesLike, crc32
from node.protocol.value_class import value_class

FILE_BYTES: Final = 1 << 30  # mappedFileSizeCommitLog
_HEAD_LOOK_BYTES: Final = 128


@value_class(slots=True, frozen=True)
class Flush:
    """What `begin_flush` found to do: `sync` in any thread, then `LocalCommitLog.flushed(upto)` in the owner's."""

    upto: int
    last: LastRecord
    last_time_ms: int
    sync: Callable[[Disk], None]
    has_name: bool = False  # a new file's name is on disk, too


class BadBytes(MessageStoreError):
    """What was to be appended is not what this log can go on with; nothing was written."""


class LocalCommitLog:
    """See the module's docstring. Raises MessageStoreError where the files are no log that can be written on."""

    def __init__(
        self, root: Path, file_bytes: int = FILE_BYTES, *, disk: Disk | None = None, files: Files = OS
    ) -> None:  # fmt: skip
        self.root, self.file_bytes = root, file_bytes
        self._folder = root / COMMIT_LOG
        self._disk, self._files = disk if disk is not None else OsDisk(), files
        for folder in (self._folder, root / OURS):
            self._disk.make_folder(folder)
        # Or a power loss takes the folders with all that was flushed in them, or a name that no flush had synced yet
        # when the last process ended.
        for folder in (root, root.parent, self._folder):
            self._disk.sync_folder(folder)
        self.recovered: Recovered = recover(root, file_bytes, self._disk, files)
        self._starts = list(self.recovered.starts)
        self.max_offset = self.recovered.end
        self._last, self.last_time_ms = self.recovered.last, self.recovered.last_time_ms
        begin = self.recovered.begin  # from here on what the last process wrote may be in the page cache only
        self._dirty = {start for start in self._starts if start + file_bytes > begin}
        self._is_broken = ""
        self.lacked_room = False  # what a write failed for
        self.cuts = 0  # so far; raised before a byte goes
        self.next_file = NextFile(root, self._folder, file_bytes, self._disk, files)
        self.recent, self._tail = RecentPieces(), Tail(self.read, file_bytes)
        self.flushed_offset = self.min_offset
        self.save()

    # --- what is there --------------------------------------------------------------------------------------------
    @property
    def min_offset(self) -> int:
        """Where the oldest file begins."""
        return self._starts[0] if self._starts else self.max_offset

    @property
    def is_empty(self) -> bool:
        """Nothing was ever written, or all of it was cut."""
        return self.max_offset == self.min_offset

    @property
    def broken_by(self) -> str:
        """The write that failed; empty: none."""
        return self._is_broken

    @property
    def starts(self) -> list[int]:
        """Where each file begins."""
        return list(self._starts)

    @property
    def last_record(self) -> LastRecord:
        return self._last

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of one file, below `max_offset`: fewer where one of both ends, none where nothing is."""
        start = offset - offset % self.file_bytes
        length = min(length, self.max_offset - offset, start + self.file_bytes - offset)
        if length <= 0 or offset < self.min_offset:
            return b""
        return self._files.read(self._folder / file_name(start), offset - start, length)

    def border_flaw(self, offset: int) -> str:
        """Why no record or blank begins there, and the log does not end there; empty: one does."""
        if offset == self.max_offset or (offset == self.min_offset and not self.is_empty):
            return ""
        if not self.min_offset <= offset < self.max_offset:
            return f"{offset} is outside of {self.min_offset} to {self.max_offset}"
        data = self.read(offset, _HEAD_LOOK_BYTES)
        size = SIZE_AND_MAGIC.unpack_from(data)[0] if len(data) >= SIZE_AND_MAGIC.size else 0
        if size > len(data):
            data = self.read(offset, size)
        return border_flaw(data, offset, self.file_bytes)

    def last_records(self, count: int, end: int | None = None) -> list[LastRecord]:
        """The last ones that end at or before `end`, ascending."""
        return self._tail.last(count, self.max_offset if end is None else min(end, self.max_offset), self._starts)

    def crc_of(self, begin: int, end: int) -> int | None:
        """Of the bytes between; None where not all of them are here."""
        if not self.min_offset <= begin <= end <= self.max_offset:
            return None
        crc = 0
        while begin < end:
            data = self.read(begin, min(PIECE_BYTES, end - begin))
            if not data:
                return None
            crc = crc32(data, crc)
            begin += len(data)
        return crc

    # --- a master's ------------------------------------------------------------------------------------------------
    def make_room(self, size_bytes: int) -> None:
        """So much fits into the file that is written to next. OSError: nothing was written, it may be tried again."""
        if size_bytes + 8 > self.file_bytes:
            raise MessageStoreError(f"{size_bytes} bytes do not fit a file of {self.file_bytes}")
        self._check()
        left = self._left
        if left and fits(size_bytes, left):
            return
        self._begin_file(self.max_offset + left)
        if left:
            blank = encode_blank(left)
            self._write(self.max_offset, blank)
            self.recent.add(self.max_offset, blank.ljust(left, b"\0"))
            self.max_offset += left

    @property
    def _left(self) -> int:
        """Of the last file; 0 where it is full, or there is none."""
        return self._starts[-1] + self.file_bytes - self.max_offset if self._starts else 0

    def append(self, records: Sequence[bytes]) -> tuple[int, ...]:
        """Their offsets, which are written into them. `make_room` comes before. OSError: this log is at its end."""
        self._check()
        size = sum(map(len, records))
        if not fits(size, self._left):
            raise MessageStoreError(f"no room was made for {size} bytes")
        data = bytearray(b"".join(records))
        offsets: list[int] = []
        at = 0
        for one in records:
            data[at + PHYSICAL_OFFSET_AT : at + PHYSICAL_OFFSET_AT + 8] = (self.max_offset + at).to_bytes(8, "big")
            offsets.append(self.max_offset + at)
            at += len(one)
        whole = bytes(data)
        self._write(self.max_offset, whole)
        starts, sizes = [offset - self.max_offset for offset in offsets], [len(one) for one in records]
        self.recent.add(self.max_offset, whole, starts, sizes)
        self._took(whole, starts, sizes)
        return tuple(offsets)

    # --- a slave's -------------------------------------------------------------------------------------------------
    def append_data(self, offset: int, data: BytesLike) -> int:
        """What is whole of a master's log in `data`, which is of one file; how many bytes of it were taken.

        Raises BadBytes where something in it is no record or blank, or it does not go on here: nothing was written.
        """
        self._check()
        if self.is_empty and offset != self.max_offset and offset >= 0 and not offset % self.file_bytes:
            self._begin_at(offset)
        if offset != self.max_offset:
            raise BadBytes(f"bytes at {offset}, this log ends at {self.max_offset}")
        start = offset - offset % self.file_bytes
        if offset + len(data) > start + self.file_bytes:
            raise BadBytes(f"{len(data)} bytes at {offset} reach over the end of a file of {self.file_bytes}")
        found = walk(data, offset, self.file_bytes)
        if found.stop in (Stop.BAD, Stop.UNWRITTEN):
            raise BadBytes(found.why or f"nothing is written at {offset + found.at}")
        if not found.at:
            return 0
        if not self._left:
            self._begin_file(start)
        whole = data if found.at == len(data) else memoryview(data)[: found.at]
        self._write(offset, whole)
        self.recent.add(offset, whole, found.starts, found.sizes, found.heads)
        if found.starts:
            self._took(data, found.starts, found.sizes)
        self.max_offset = offset + found.at
        return found.at

    def _begin_at(self, offset: int) -> None:
        """An empty log begins where its master's does."""
        write_log_mark(self.root, LogMark(0, self.file_bytes), self._disk)
        while self._starts:
            self._disk.remove(self._folder / file_name(self._starts.pop()))
        self._disk.sync_folder(self._folder)
        self._dirty.clear()
        self._last = LastRecord()
        self.recent.clear()
        self._tail.clear()
        self.max_offset = self.flushed_offset = offset

    # --- the disk --------------------------------------------------------------------------------------------------
    def _took(self, data: BytesLike, starts: Sequence[int], sizes: Sequence[int]) -> None:
        """What was written at `max_offset`: its records, and the new end."""
        record = memoryview(data)[starts[-1] : starts[-1] + sizes[-1]]
        self._last = LastRecord(self.max_offset + starts[-1], sizes[-1], crc32(record))
        self._tail.took(self.max_offset, starts)
        self.last_time_ms = max(self.last_time_ms, store_timestamp_ms(record))
        self.max_offset += len(data)

    def _check(self) -> None:
        if self._is_broken:
            raise MessageStoreError(f"a write to the commit log failed ({self._is_broken}): open it anew")

    def _begin_file(self, start: int) -> None:
        path = self._folder / file_name(start)
        if not (self._files.size(path) is None and self.next_file.take(path)):
            try:
                self._disk.create(path, self.file_bytes)
                self._disk.sync(path)
                self._disk.sync_folder(self._folder)
            except OSError:
                if self._files.size(path) is not None:  # and not a directory of somebody's, with all that is in it
                    self._disk.remove(path)
                raise
        self._starts.append(start)

    def _write(self, offset: int, data: BytesLike) -> None:
        start = offset - offset % self.file_bytes
        try:
            self._disk.write(self._folder / file_name(start), offset - start, data)
        except OSError as error:
            self._is_broken, self.lacked_room = str(error), is_no_space(error)
            raise
        self._dirty.add(start)

    def begin_flush(self) -> Flush:
        """All that was written until now. A sync that fails leaves the pages unknown: the log is at its end then."""
        upto, dirty = self.max_offset, sorted(self._dirty)
        self._dirty = {start for start in self._dirty if start + self.file_bytes > upto}
        opened = [(path, self._disk.key_of(path)) for path in (self._folder / file_name(start) for start in dirty)]
        named = self.next_file.sync_name if self.next_file.is_named else None

        def sync(disk: Disk) -> None:
            if named is not None:
                named(disk)
            for path, key in opened:
                sync_same(disk, path, key)

        return Flush(upto, self._last, self.last_time_ms, sync, named is not None)

    def place_check(self) -> Callable[[], None]:
        """What looks, in any thread, whether the newest file's name still leads to it. Raises StoreMoved."""
        path = self._folder / file_name(self._starts[-1] if self._starts else 0)
        key = self._disk.key_of(path)

        def check() -> None:
            if key is not None and not leads_to(path, key):
                raise StoreMoved(f"{path} is not the file any more that was written to")

        return check

    def flushed(self, found: Flush) -> None:
        """That flush is done."""
        self.flushed_offset = max(self.flushed_offset, min(found.upto, self.max_offset))
        if found.has_name:
            self.next_file.is_named = False

    def flush_failed(self, why: str) -> None:
        """What was to be flushed may be lost, though it reads well: nothing more is written here."""
        self._is_broken = self._is_broken or why

    def flush(self) -> Flush:
        """In this thread. OSError."""
        found = self.begin_flush()
        try:
            found.sync(self._disk)
        except OSError as error:
            self.flush_failed(str(error))
            raise
        self.flushed(found)
        return found

    def mark_of(self, found: Flush) -> LogMark:
        """What may be written into the mark once that flush is done."""
        return LogMark(found.upto if self._starts else 0, self.file_bytes, found.last, found.last_time_ms)

    def save(self) -> None:
        """Flushed, and marked as flushed. OSError."""
        self._check()
        write_log_mark(self.root, self.mark_of(self.flush()), self._disk)

    def cut(self, end: int) -> int:
        """Everything from a border on goes, and is kept in `quorumscope/cut/`; how many bytes that were.

        OSError: nothing is gone, or this log is at its end."""
        self._check()
        flaw = self.border_flaw(end)
        if flaw:
            raise MessageStoreError(f"this log cannot be cut at {end}: {flaw}")
        self.cuts += 1
        last = self.last_records(1, end)
        kept = last[0] if last else LastRecord()
        found = Recovered(list(self._starts), end, kept, self.last_time_ms, was_clean=True)
        if self.flushed_offset > end:
            write_log_mark(self.root, LogMark(end, self.file_bytes, kept, self.last_time_ms), self._disk)
        keep_aside(self.root, self.file_bytes, found, self._disk, self._files)
        try:
            found = cut_behind(self.root, self.file_bytes, found, self._disk, self._files, keeps=False)
        except OSError as error:  # how much of it is gone is not known
            self._is_broken = str(error)
            raise
        self._starts, self._last = list(found.starts), kept
        self.recent.clear()
        self._tail.clear()
        self.max_offset, self.flushed_offset = end, min(end, self.flushed_offset)
        self._dirty &= set(self._starts)
        self.save()
        return found.cut_bytes

    def forget_below(self, offset: int) -> list[int]:
        """Whole files that end at or below `offset` are no part of it any more, the oldest first, never the last one;
        which they were. They go with `remove_forgotten`."""
        gone: list[int] = []
        while len(self._starts) > 1 and self._starts[1] <= min(offset, self.flushed_offset):
            gone.append(self._starts.pop(0))
            self._dirty.discard(gone[-1])
        return gone

    def remove_forgotten(self, starts: Sequence[int], disk: Disk | None = None) -> None:
        """In any thread, with a disk of its own."""
        using = disk if disk is not None else OsDisk()
        for start in starts:
            using.remove(self._folder / file_name(start))
        if starts:
            using.sync_folder(self._folder)
        if disk is None:
            using.close()

    def remove_below(self, offset: int) -> list[int]:
        """Both at once; which files they were."""
        gone = self.forget_below(offset)
        self.remove_forgotten(gone, self._disk)
        return gone

    def close(self) -> None:
        """Flushed and marked, unless a write failed; the files are let go."""
        try:
            if not self._is_broken:
                self.save()
                self.next_file.remove()
        finally:
            self._disk.close()
