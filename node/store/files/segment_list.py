"""A row of segments that covers a range of absolute positions: `data/` or `index/`.

Invariants: names are 20 digits and a multiple of the file size apart from the first; every file has exactly the
configured size; `dirty` holds what was written since the last sync took it, and the folder where a file came into it
(a record is durable only once its file's name is). The file that comes next is made ahead (`next_file`). One that is
missing in the middle is damage like any other (SAFETY S6): it reads as nothing, and a repair creates it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from node.store.errors import StoreIOError, StoreRefused, wrap
from node.store.files.next_file import NextFile
from node.store.files.os_files import make_directory, sync_directory
from node.store.files.platform import FILE, LINK, OS, Platform
from node.store.files.segment import NAME_DIGITS, Segment

UNREADABLE_KEPT = 16


class Names:
    """A folder that files came into: to sync it makes their names durable (SAFETY S4)."""

    __slots__ = ("_directory", "_platform")

    def __init__(self, directory: Path, platform: Platform) -> None:
        self._directory, self._platform = directory, platform

    def sync(self) -> None:
        sync_directory(self._directory, self._platform)


class SegmentList:
    """Segments by position. `kind` is the folder's name."""

    def __init__(
        self,
        root: Path,
        kind: str,
        file_bytes: int,
        *,
        ahead_bytes: int = 0,
        writable: bool = True,
        platform: Platform = OS,
    ) -> None:
        self.kind = kind
        self.directory = root / kind
        self.file_bytes = file_bytes
        self._ahead_bytes = min(ahead_bytes, file_bytes)
        self._writable = writable
        self._platform = platform
        self._segments: dict[int, Segment] = {}
        self._first = 0
        self._last: Segment | None = None
        self.dirty: dict[Segment | Names, None] = {}  # in the order in which they were written
        self._names = Names(self.directory, platform)
        self.next_file = NextFile(root / f"next-{kind}", file_bytes, platform)
        self.made_late = 0  # files for which an append had to wait, as none was made ahead
        self.unreadable: deque[str] = deque(maxlen=UNREADABLE_KEPT)  # what the disk could not read, the newest last
        self._reads_around = False
        self.odd: list[tuple[Path, int]] = []  # files of another length, and that length: see `open`

    # --- in the order of life ------------------------------------------------------------------------------------

    def open(self, *, sizes_known: bool = False) -> None:
        """Opens what is in the folder. Raises StoreRefused on a wrong size.

        `sizes_known`: the store itself says that the size is right, so a file of another length is damaged. It goes
        into `odd`, and is one of ours after `take`.
        """
        if self._writable:
            make_directory(self.directory, self._platform)
            self.next_file.discard()
        for path in self._paths():
            size = self._platform.path_size(path)
            if size == 0 and self._writable:  # created, and the crash came before it got its length
                self._platform.unlink(path)
                continue
            if size != self.file_bytes and sizes_known:
                self.odd.append((path, size))
                continue
            if size != self.file_bytes:
                raise StoreRefused(f"{path} has {size} bytes, configured are {self.file_bytes}: set the size it has")
            self._add(self._segment(path))
        if self._writable:  # a name that a process created or removed just before it ended may not be durable yet
            sync_directory(self.directory, self._platform)

    def take(self, path: Path) -> None:
        """A file that has its length now."""
        self._add(self._segment(path))

    def first_gap(self, pos: int, end: int) -> int | None:
        """The first position in [pos, end) that no file holds."""
        at = self._key(pos)
        while at < end:
            if at not in self._segments:
                return max(at, pos)
            at += self.file_bytes
        return None

    def crosses(self, pos: int, length: int) -> bool:
        """Whether these bytes, which are not none, lie in more than one file."""
        return self._key(pos) != self._key(pos + length - 1)

    def name_at(self, pos: int) -> str:
        """What the file that holds `pos` is called, or would be: "data/0000…"."""
        return f"{self.kind}/{self._key(pos):0{NAME_DIGITS}d}"

    @property
    def is_gapless(self) -> bool:
        """Whether no file is missing between the first and the last one."""
        return all(after == before + self.file_bytes for before, after in pairwise(self.starts))

    def _paths(self) -> list[Path]:
        """The folder's files in the order of their positions."""
        names = [name for name in self._platform.names(self.directory) if len(name) == NAME_DIGITS and name.isdigit()]
        return [self.directory / name for name in names]

    def _segment(self, path: Path) -> Segment:
        segment = Segment(
            path, int(path.name), self.file_bytes, ahead_bytes=self._ahead_bytes, writable=self._writable,
            platform=self._platform,
        )  # fmt: skip
        return self._seen(segment)

    def read_around(self) -> None:
        """From now on what the disk cannot read (EIO) is damage of the entries there, and no error of the whole log:
        it reads as bytes that are no record, and is in `unreadable`."""
        self._reads_around = True
        for segment in self:
            self._seen(segment)

    def _seen(self, segment: Segment) -> Segment:
        segment.on_unreadable = self._note_unreadable if self._reads_around else None
        return segment

    def _note_unreadable(self, text: str) -> None:
        if text not in self.unreadable:
            self.unreadable.append(text)

    def rescan(self) -> None:
        """Follows what a running engine does to the folder: new files appear, cut and expired ones are forgotten.

        Nothing is closed here: another thread may be reading, and the descriptor goes with its last user.
        """
        names = {int(path.name): path for path in self._paths()}
        segments = {start: segment for start, segment in self._segments.items() if segment.is_at(names.get(start))}
        for start in sorted(names.keys() - segments.keys()):
            with suppress(OSError, StoreIOError):  # gone again, or not at its full length yet
                if self._platform.file_kind(names[start]) not in (FILE, LINK):
                    continue  # to open a FIFO would never end
                if self._platform.path_size(names[start]) == self.file_bytes:
                    segments[start] = self._segment(names[start])
        self._segments = segments
        self._first = min(segments, default=0)
        self._last = segments[max(segments)] if segments else None

    def close(self) -> None:
        """Closes every file."""
        for segment in self._segments.values():
            segment.close()
        self._segments.clear()
        self.dirty.clear()
        self._last = None
        if self.next_file.is_there:
            with suppress(StoreIOError):  # the next open removes it
                self.next_file.discard()

    @property
    def ahead_bytes(self) -> int:
        """How much is allocated at a time."""
        return self._ahead_bytes

    # --- looking -------------------------------------------------------------------------------------------------

    @property
    def starts(self) -> list[int]:
        """The files' first positions, ascending."""
        return sorted(self._segments)

    @property
    def is_in_place(self) -> bool:
        """Whether the name of the file that is written to still leads to it. For any thread."""
        last = self._last
        return last is None or last.is_in_place or last is not self._last  # cut away meanwhile

    def __iter__(self) -> Iterator[Segment]:
        segments = self._segments
        # A cut may take files away meanwhile, in its thread.
        return iter([segment for start in sorted(segments) if (segment := segments.get(start)) is not None])

    def find(self, pos: int) -> Segment | None:
        """The file that holds `pos`."""
        last = self._last
        if last is not None and last.start <= pos < last.start + last.size_bytes:
            return last
        return self._segments.get(pos - pos % self.file_bytes if self._first % self.file_bytes == 0 else self._key(pos))

    def _key(self, pos: int) -> int:
        return pos - (pos - self._first) % self.file_bytes

    def read(self, pos: int, length: int) -> bytes:
        """Up to `length` bytes inside one file; empty where there is no file."""
        segment = self.find(pos)
        return segment.read(pos, length) if segment is not None else b""

    def read_across(self, pos: int, length: int) -> bytes:
        """Exactly `length` bytes, over file borders; what no file holds reads as zeros."""
        parts: list[bytes] = []
        while length > 0:
            step = min(length, self.file_bytes - (pos - self._first) % self.file_bytes)
            part = self.read(pos, step)
            parts.append(part + bytes(step - len(part)))
            pos, length = pos + step, length - step
        return b"".join(parts)

    def chunks(self, pos: int, end: int, chunk_bytes: int) -> Iterator[bytes]:
        """The bytes of [pos, end) in the files that are there, in pieces."""
        for segment in self:
            low, high = max(pos, segment.start), min(end, segment.end)
            while low < high:
                chunk = segment.read(low, min(chunk_bytes, high - low))
                yield chunk
                low += len(chunk)

    def used_span(self, pos: int) -> tuple[int, int] | None:
        """First and last position with a byte that is not zero, from `pos` on, over all files."""
        spans = [segment.used_span(max(pos, segment.start)) for segment in self if segment.end > pos]
        used = [span for span in spans if span is not None]
        return (used[0][0], used[-1][1]) if used else None

    def has_bytes(self, pos: int) -> bool:
        """Whether any byte from `pos` on, in any file, is not zero; cheap where one is near."""
        return any(segment.has_bytes(max(pos, segment.start)) for segment in self if segment.end > pos)

    def drop_cache(self, pos: int, length: int) -> None:
        """Asks that the next read of this range comes from the disk itself."""
        for segment in self:
            if segment.start < pos + length and pos < segment.end:
                segment.drop_cache(pos, length)

    # --- changing ------------------------------------------------------------------------------------------------

    def _add(self, segment: Segment) -> None:
        self._first = min(self._first, segment.start) if self._segments else segment.start
        self._segments[segment.start] = segment
        if self._last is None or segment.start > self._last.start:
            self._last = segment

    def ensure(self, pos: int) -> Segment:
        """The file that holds `pos`, created (and its name made durable) if it is not there."""
        segment = self.find(pos)
        if segment is None:
            start = self._key(pos) if self._segments else pos - pos % self.file_bytes
            segment = Segment.create(
                self.directory, start, self.file_bytes, ahead_bytes=self._ahead_bytes, platform=self._platform
            )
            self._add(self._seen(segment))
            sync_directory(self.directory, self._platform)
        return segment

    def needs_next(self, pos: int) -> bool:
        """Whether a log that ends at `pos` soon needs another file, and none is made."""
        last = self._last
        return (last is None or pos - last.start >= self.file_bytes // 2) and not self.next_file.is_there

    def grow(self, pos: int) -> Segment:
        """The file that holds `pos`: the one made ahead, if that is not in the row yet."""
        segment = self.find(pos)
        if segment is not None:
            return segment
        start = self._key(pos) if self._segments else pos - pos % self.file_bytes
        path = self.directory / f"{start:0{NAME_DIGITS}d}"
        if not self.next_file.take(path):
            self.made_late += 1
            return self.ensure(pos)
        segment = self._segment(path)
        self._add(segment)
        self.dirty[self._names] = None
        return segment

    def write(self, pos: int, data: bytes | memoryview, *, takes_ahead: bool = True) -> None:
        """Writes over file borders, creating files as needed; usually one pwrite. `takes_ahead`: see Segment.write."""
        last = self._last
        segment = last if last is not None and last.start <= pos < last.end else self.grow(pos)
        room = segment.end - pos
        if len(data) > room:
            self.write(pos, data[:room], takes_ahead=takes_ahead)
            self.write(pos + room, data[room:], takes_ahead=takes_ahead)
            return
        segment.write(pos, data, takes_ahead=takes_ahead)
        self.dirty[segment] = None

    def zero(self, pos: int, end: int, *, zeros_too: bool = False, unread: bool = False) -> None:
        """Zeroes [pos, end) in the files that are there. `zeros_too`, `unread`: see Segment.zero."""
        for segment in reversed(list(self)):
            low, high = max(pos, segment.start), min(end, segment.end)
            if low < high:
                segment.zero(low, high - low, zeros_too=zeros_too, unread=unread)
                self.dirty[segment] = None

    def zero_from(self, pos: int) -> None:
        """Zeroes all from `pos` on, what reads as zeros but was written included."""
        self.zero(pos, max((segment.end for segment in self), default=pos), zeros_too=True)

    def drop_from(self, pos: int, *, sync_later: bool = False) -> None:
        """Removes whole files that start at or after `pos`, the last one first.

        `sync_later`: their names' end becomes durable with the next sync, for a caller that may not wait (S9).
        """
        self._drop([start for start in reversed(self.starts) if start >= pos], sync_later=sync_later)

    def drop_before(self, pos: int) -> None:
        """Removes whole files that end at or before `pos`, the first one first."""
        self._drop([start for start in self.starts if start + self.file_bytes <= pos])

    def _drop(self, starts: list[int], *, sync_later: bool = False) -> None:
        for start in starts:
            # Out of the row first, for who looks at where the last one is. Not closed here: a thread may be reading
            # from it; the descriptor goes with its last user.
            segment = self._segments.pop(start)
            self._first = min(self._segments, default=0)
            self._last = self._segments[max(self._segments)] if self._segments else None
            try:
                self._platform.remove_large(segment.path)
            except OSError as error:  # it stays in the row: what is in it is still to go
                self._add(segment)
                raise wrap(error, f"removing {segment.path}") from error
            self.dirty.pop(segment, None)
        if starts:
            if sync_later:
                self.dirty[self._names] = None
            else:
                sync_directory(self.directory, self._platform)

    def forget_all(self) -> None:
        """Its files are somebody else's to remove; whoever reads one of them has it open."""
        self._segments, self._first, self._last, self.dirty = {}, 0, None, {}

    def take_dirty(self) -> list[Segment | Names]:
        """What the next group commit has to sync, in the order in which it was written."""
        taken, self.dirty = list(self.dirty), {}
        return taken

    def sync(self) -> None:
        """Syncs everything that is dirty."""
        for segment in self.take_dirty():
            segment.sync()
