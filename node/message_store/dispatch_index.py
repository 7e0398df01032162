"""Writes index files: keys' hashes to the places of messages.

Invariants: the newest file alone is written to, and the next begins when it is full; an entry's number is never used
twice; the slots lead to the entries that the head counts and to no other (what is cut is zeroed, and the slots are
made anew from the entries that are left). A file's times are those of its messages, so the same log gives the same
bytes; only its name is our choice: the time of its first message, in UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from node.message_store.dispatch_batch import FEW
from node.message_store.errors import MessageFormatError, MessageStoreError
from node.message_store.heads import Ints
from node.message_store.index_file import (
    ENTRY,
    ENTRY_BYTES,
    ENTRY_DTYPE,
    HEAD_BYTES,
    SLOT_BYTES,
    IndexFile,
    IndexHead,
    decode_head,
    encode_head,
    file_bytes,
)
from node.message_store.message_store import INDEX
from node.message_store.read_files import OS, Files
from node.message_store.write_files import Disk, Unsynced
from node.protocol.value_class import value_class

INDEX_SLOTS: Final = 5_000_000
INDEX_ENTRIES: Final = 20_000_000
_UNUSED: Final = IndexHead(0, 0, 0, 0, 0, 1)
_TIME_MS_MAX: Final = 253_402_300_799_999  # the last of the year 9999
_SECONDS_MAX: Final = 0x7FFFFFFF


@value_class(slots=True, frozen=True)
class IndexMark:
    """How far the index is sound: all files before `name`, and what `head` counts of that one. "": no file at all."""

    name: str = ""
    head: IndexHead = _UNUSED
    full_until_ms: int = 0  # the end of the last file that is full: the checkpoint's indexMsgTimestamp


class IndexWriter:
    """The index of one store. Raises OSError where the disk cannot, MessageStoreError where a file is not as it was."""

    def __init__(self, root: Path, slots: int, entries: int, disk: Disk, files: Files = OS) -> None:
        self._folder = root / INDEX
        self._slot_count, self._capacity = slots, entries
        self._begin = HEAD_BYTES + slots * SLOT_BYTES
        self._file_bytes = file_bytes(slots, entries)
        self._disk, self._files = disk, files
        self._mark = IndexMark()
        self._slots: npt.NDArray[Any] | None = None
        self._unsynced: set[Path] = set()
        self._is_name_new = False
        self.is_torn = False  # slots lead to entries that are not counted: only a start mends it
        self.written = 0

    @property
    def mark(self) -> IndexMark:
        return self._mark

    def open(self, mark: IndexMark, *, is_clean: bool) -> None:
        """Goes on behind `mark`; what is behind it is removed and zeroed. `is_clean`: nothing is."""
        for name in self._files.names(self._folder):
            if name > mark.name:
                self._disk.remove(self._folder / name)
        self._mark = mark
        if not mark.name:
            return
        path = self._folder / mark.name
        if self._files.size(path) != self._file_bytes:
            size = self._files.size(path)
            raise MessageStoreError(
                f"{path}: {'missing' if size is None else f'{size} bytes'}, where maxHashSlotNum {self._slot_count} and"
                f" maxIndexNum {self._capacity} make {self._file_bytes}; `store rebuild-queues` writes the index anew"
            )
        self._slots = self._disk.int32_table(path, HEAD_BYTES, self._slot_count)
        if not is_clean or decode_head(self._files.read(path, 0, HEAD_BYTES)) != mark.head:
            self._cut(path)

    def _cut(self, path: Path) -> None:
        """Nothing of the newest file but what the mark's head counts."""
        count = self._mark.head.index_count
        self._disk.zero_from(path, self._begin + count * ENTRY_BYTES)
        self._disk.write(path, 0, encode_head(self._mark.head))
        try:
            file = IndexFile(self._files.mapped(path), self._slot_count)
        except MessageFormatError as error:
            raise MessageStoreError(f"{path}: {error}") from error
        assert self._slots is not None
        slots = np.zeros(self._slot_count, ">i4")
        slots[file.entries["hash"] % self._slot_count] = np.arange(1, count)  # the last one of a slot stays
        self._slots[:] = slots
        self._unsynced.add(path)

    # --- writing --------------------------------------------------------------------------------------------------
    def append(self, rows: Ints) -> None:
        """Rows of KEYED, in the order of the log."""
        done = 0
        while done < len(rows):
            if not self._mark.name or self._mark.head.index_count >= self._capacity:
                self._begin_file(int(rows[done]["time_ms"]))
            room = self._capacity - self._mark.head.index_count
            self._put(rows[done : done + room])
            done += room

    def _begin_file(self, time_ms: int) -> None:
        before = self._mark
        name = _name_of(time_ms)
        if name <= before.name:
            name = f"{int(before.name) + 1:017d}"
        self._disk.make_folder(self._folder)
        self._disk.create(self._folder / name, self._file_bytes)
        try:
            self._slots = self._disk.int32_table(self._folder / name, HEAD_BYTES, self._slot_count)
        except OSError:
            self._disk.remove(self._folder / name)  # there is no room for it: it is made again
            raise
        self._is_name_new = True
        end_ms, end = before.head.end_timestamp_ms, before.head.end_offset
        self._mark = IndexMark(name, IndexHead(end_ms, end_ms, end, end, 0, 1), end_ms if before.name else 0)

    def _put(self, rows: Ints) -> None:
        """Both ways write the same."""
        if len(rows) <= FEW:
            self._put_one_by_one(rows.tolist())
        else:
            self._put_at_once(rows)

    def _put_one_by_one(self, rows: list[tuple[int, int, int]]) -> None:
        head, slots = self._mark.head, self._slots
        assert slots is not None
        first = head.index_count
        begin_ms = head.begin_timestamp_ms if first > 1 else rows[0][2]
        new_slots: dict[int, int] = {}
        slots_in_use = head.slots_in_use
        entries: list[bytes] = []
        for number, (hashed, offset, time_ms) in enumerate(rows, first):
            slot = hashed % self._slot_count
            previous = new_slots[slot] if slot in new_slots else int(slots[slot])
            # Its first entry is counted from the end of the file before.
            since_ms = head.begin_timestamp_ms if number == 1 else begin_ms
            seconds = min(max((time_ms - since_ms) // 1000, 0), _SECONDS_MAX) if since_ms > 0 else 0
            entries.append(ENTRY.pack(hashed, offset, seconds, previous))
            new_slots[slot] = number
            slots_in_use += previous == 0
        self._write(first, b"".join(entries))
        for slot, number in new_slots.items():
            slots[slot] = number
        begin = head.begin_offset if first > 1 else rows[0][1]
        count = first + len(rows)
        self._count(IndexHead(begin_ms, rows[-1][2], begin, rows[-1][1], slots_in_use, count), len(rows))

    def _put_at_once(self, rows: Ints) -> None:
        head, slots = self._mark.head, self._slots
        assert slots is not None
        first = head.index_count
        numbers = np.arange(first, first + len(rows), dtype="i4")
        slot_of = rows["hash"] % self._slot_count
        order = np.argsort(slot_of, kind="stable")
        follows = np.append(False, slot_of[order][1:] == slot_of[order][:-1])
        previous = slots[slot_of].astype("i4")
        previous[order[follows]] = numbers[order[np.flatnonzero(follows) - 1]]

        entries = np.zeros(len(rows), ENTRY_DTYPE)
        entries["hash"], entries["offset"], entries["previous"] = rows["hash"], rows["offset"], previous
        times = rows["time_ms"].astype("i8")
        begin_ms = head.begin_timestamp_ms if first > 1 else int(times[0])
        entries["seconds"] = _seconds(times, begin_ms)
        if first == 1:  # its first entry is counted from the end of the file before
            entries["seconds"][0] = _seconds(times[:1], head.begin_timestamp_ms)[0]
        self._write(first, entries.tobytes())
        slots[slot_of] = numbers
        last = rows[-1]
        head = IndexHead(
            begin_ms, int(times[-1]), head.begin_offset if first > 1 else int(rows[0]["offset"]), int(last["offset"]),
            head.slots_in_use + int(np.count_nonzero(previous == 0)), first + len(rows),
        )  # fmt: skip
        self._count(head, len(rows))

    def _write(self, first: int, entries: bytes) -> None:
        """From that entry on, before any slot leads to them."""
        path = self._folder / self._mark.name
        self._disk.write(path, self._begin + first * ENTRY_BYTES, entries)
        self._unsynced.add(path)

    def _count(self, head: IndexHead, more: int) -> None:
        """They are in it from now on."""
        self.is_torn = True
        self._disk.write(self._folder / self._mark.name, 0, encode_head(head))
        self.is_torn = False
        full_until_ms = head.end_timestamp_ms if head.index_count >= self._capacity else self._mark.full_until_ms
        self._mark = IndexMark(self._mark.name, head, full_until_ms)
        self.written += more

    def take_unsynced(self) -> Unsynced:
        """What was written since this was asked last: it is the caller's to sync."""
        folders = [self._folder, self._folder.parent] if self._is_name_new else []
        found = Unsynced(sorted(self._unsynced), folders)
        self._unsynced.clear()
        self._is_name_new = False
        return found


def _seconds(times: Ints, begin_ms: int) -> Ints:
    if begin_ms <= 0:
        return np.zeros(len(times), "i8")
    found: Ints = np.clip((times - begin_ms) // 1000, 0, _SECONDS_MAX)
    return found


def _name_of(time_ms: int) -> str:
    at = datetime.fromtimestamp(min(max(time_ms, 0), _TIME_MS_MAX) / 1000, UTC)
    return f"{at:%Y%m%d%H%M%S}{min(max(time_ms, 0), _TIME_MS_MAX) % 1000:03d}"
