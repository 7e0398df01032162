"""Writes consume queues: which unit comes next in each, and where it stands.

Invariants: unit n of a queue stands at byte n * 20 over its files; a queue whose first unit is not its unit 0 begins
with pre-fill in that unit's file, as RocketMQ writes it; units of one queue ascend in the commit log; a unit is
written once, and one that is cut is zeroed (what RocketMQ only forgets comes back at its next start).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from node.message_store.dispatch_batch import FEW
from node.message_store.errors import MessageStoreError
from node.message_store.heads import Ints
from node.message_store.java_text import bytes_of
from node.message_store.message_store import CONSUME_QUEUE
from node.message_store.queue_units import PREFILL_SIZE, UNIT, UNIT_BYTES, UNIT_DTYPE, decode_units
from node.message_store.read_files import OS, Files, MappedFileQueue
from node.message_store.write_files import Disk, Unsynced

QUEUE_FILE_BYTES: Final = 6_000_000
NAME_BYTES_MAX: Final = 255
_PREFILL: Final = (0, PREFILL_SIZE, 0)
QueueName = tuple[str, int]


class _Tail:
    """Where a queue goes on. `path` and `first_unit`: of the file that is written to; None: no file is there yet."""

    __slots__ = ("first_unit", "folder", "next_offset", "path")

    def __init__(self, folder: Path, next_offset: int) -> None:
        self.folder = folder
        self.next_offset = next_offset
        self.path: Path | None = None
        self.first_unit = 0


class QueueWriter:
    """All queues of one store. Raises MessageStoreError where a queue cannot go on, OSError where the disk cannot."""

    def __init__(self, root: Path, file_bytes: int, disk: Disk, files: Files = OS) -> None:
        self._folder = root / CONSUME_QUEUE
        self._file_bytes = -(-file_bytes // UNIT_BYTES) * UNIT_BYTES
        self._file_units = self._file_bytes // UNIT_BYTES
        self._disk, self._files = disk, files
        self._tails: dict[QueueName, _Tail] = {}
        self._unsynced: set[Path] = set()
        self._new_names: set[Path] = set()
        self._before: dict[QueueName, tuple[int, Path | None, int] | None] = {}  # the last `append`
        self.repeats = 0

    @property
    def next_offsets(self) -> dict[QueueName, int]:
        """The number that the next message of each queue gets."""
        return {queue: tail.next_offset for queue, tail in self._tails.items()}

    def queue_end(self, queue: QueueName) -> int:
        """The number that its next message gets; 0 where it has none."""
        tail = self._tails.get(queue)
        return 0 if tail is None else tail.next_offset

    # --- opening --------------------------------------------------------------------------------------------------
    def open(self, position: int, *, is_clean: bool) -> None:
        """Takes what lies below `position` in the commit log and zeroes the rest; `is_clean`: there is no rest."""
        for topic in self._files.names(self._folder):
            for name in self._files.names(self._folder / topic):
                if name.isascii() and name.isdigit():
                    self._open_queue((topic, int(name)), self._folder / topic / name, position, is_clean)

    def _open_queue(self, queue: QueueName, folder: Path, position: int, is_clean: bool) -> None:
        for name in reversed(self._files.names(folder)):  # a process that ended while it made a file left an empty one
            is_empty = self._files.size(folder / name) == 0
            if not is_empty:
                break
            self._disk.remove(folder / name)
        row = MappedFileQueue(folder, self._files)
        if row.odd_files or (row.files and row.file_size_bytes != self._file_bytes):
            what = f"{row.odd_files[0][0]} {row.odd_files[0][1]}" if row.odd_files else (
                f"files of {row.file_size_bytes} bytes where mappedFileSizeConsumeQueue says {self._file_bytes}"
            )  # fmt: skip
            raise MessageStoreError(f"{folder}: {what}; `store rebuild-queues` writes the queues anew")
        for file in reversed(row.files):
            first = file.start // UNIT_BYTES

            def is_sound(number: int, first: int = first) -> bool:
                unit = decode_units(row.read((first + number) * UNIT_BYTES, UNIT_BYTES))[0]
                offset, size = int(unit["offset"]), int(unit["size"])
                return size > 0 <= offset and (size == PREFILL_SIZE or offset + size <= position)

            count = _border(is_sound, self._file_units)
            if count:
                last = decode_units(row.read((first + count - 1) * UNIT_BYTES, UNIT_BYTES))[0]
                count = 0 if last["size"] == PREFILL_SIZE else count
            path = folder / file.name
            if count:
                if not is_clean and count < self._file_units:
                    self._disk.zero_from(path, count * UNIT_BYTES)
                    self._unsynced.add(path)
                tail = self._tails[queue] = _Tail(folder, first + count)
                tail.path, tail.first_unit = path, first
                return
            self._disk.remove(path)

    # --- writing --------------------------------------------------------------------------------------------------
    def append(self, queues: list[QueueName], rows: Ints, *, dense_from: int = 0) -> dict[QueueName, int]:
        """Writes the units of `rows` (QUEUED, in the order of the log); the next offset of each queue that it touched.

        Of messages that lie below `dense_from` a queue offset that was given before is passed over and counted, as
        RocketMQ does; else, and for a gap always, MessageStoreError, and nothing is written.
        """
        self._before = {}
        if not len(rows):
            return {}
        planned = [
            (queues[number], self._in_order(queues[number], part, dense_from)) for number, part in _by_queue(rows)
        ]
        self._before = {queue: self._place_of(queue) for queue, _part in planned}
        touched: dict[QueueName, int] = {}
        for queue, part in planned:
            if len(part):
                touched[queue] = self._write(queue, part)
        return touched

    def _place_of(self, queue: QueueName) -> tuple[int, Path | None, int] | None:
        tail = self._tails.get(queue)
        return None if tail is None else (tail.next_offset, tail.path, tail.first_unit)

    def take_back(self) -> None:
        """The last `append` counts for nothing: what it wrote stands behind the ends, and the next one writes there."""
        for queue, before in self._before.items():
            if before is None:
                self._tails.pop(queue, None)
            else:
                tail = self._tails[queue]
                tail.next_offset, tail.path, tail.first_unit = before
        self._before = {}

    def check_name(self, queue: QueueName) -> None:
        """Raises MessageStoreError for a topic that can be no directory."""
        if queue not in self._tails:
            self._folder_of(queue)

    def _in_order(self, queue: QueueName, part: Ints, dense_from: int) -> Ints:
        """The rows that continue the queue."""
        numbers = part["number"].tolist()
        tail = self._tails.get(queue)
        due = tail.next_offset if tail is not None else numbers[0]
        if due >= 0 and numbers == list(range(due, due + len(numbers))):
            return part
        kept: list[int] = []
        for at, number in enumerate(numbers):
            if number == due and number >= 0:
                kept.append(at)
                due += 1
            elif number > due or number < 0 or int(part[at]["offset"]) >= dense_from:
                raise MessageStoreError(
                    f"queue {queue[1]} of topic {queue[0]!r} goes on with queue offset {due}, but the message at offset"
                    f" {int(part[at]['offset'])} says {number}"
                )
            else:
                self.repeats += 1
        return part[kept]

    def _write(self, queue: QueueName, part: Ints) -> int:
        """The next offset of the queue."""
        tail = self._tails.get(queue)
        number, done = int(part["number"][0]), 0
        if tail is None:
            tail = self._tails[queue] = _Tail(self._folder_of(queue), number)
        data = _units_of(part)
        while done < len(part):
            path = tail.path
            if path is None or number >= tail.first_unit + self._file_units:
                path = self._begin_file(tail, number)
            upto = min(len(part), done + tail.first_unit + self._file_units - number)
            self._disk.write(path, (number - tail.first_unit) * UNIT_BYTES, data[done * UNIT_BYTES : upto * UNIT_BYTES])
            self._unsynced.add(path)
            number, done = number + upto - done, upto
        tail.next_offset = number
        return number

    def _begin_file(self, tail: _Tail, number: int) -> Path:
        """The file of unit `number`, with pre-fill before it."""
        tail.first_unit = number // self._file_units * self._file_units
        path = tail.path = tail.folder / f"{tail.first_unit * UNIT_BYTES:020d}"
        self._disk.make_folder(tail.folder)
        self._disk.create(path, self._file_bytes)
        self._new_names |= {tail.folder, tail.folder.parent, self._folder, self._folder.parent}
        if number > tail.first_unit:
            prefill = np.full(number - tail.first_unit, np.array(_PREFILL, UNIT_DTYPE))
            self._disk.write(path, 0, prefill.tobytes())
        return path

    def keep_place(self, queue: QueueName, next_offset: int, begin: int) -> None:
        """A queue none of whose messages is left, and whose next offset is `next_offset`; the log begins at `begin`.

        Its last unit points just before the log: a queue that holds nothing but pre-fill makes RocketMQ take what
        lies in the first two gigabytes for repeats.
        """
        if next_offset <= 0 or begin <= 0:
            return
        number = next_offset - 1
        tail = _Tail(self._folder_of(queue), next_offset)
        path = self._begin_file(tail, number)
        unit = np.array([(begin - 1, 1, 0)], UNIT_DTYPE)
        self._disk.write(path, (number - tail.first_unit) * UNIT_BYTES, unit.tobytes())
        self._unsynced.add(path)
        self._tails[queue] = tail

    def drop_topic(self, topic: str) -> None:
        """The topic was deleted: its queues go, and begin at 0 if it comes again."""
        self._disk.remove(self._folder_of((topic, 0)).parent)
        for queue in [one for one in self._tails if one[0] == topic]:
            del self._tails[queue]
        gone = self._folder / topic
        self._unsynced = {one for one in self._unsynced if gone not in one.parents}
        self._new_names = {one for one in self._new_names if one != gone and gone not in one.parents} | {self._folder}

    def _folder_of(self, queue: QueueName) -> Path:
        """Raises MessageStoreError for a topic that can be no directory."""
        topic, queue_id = queue
        if topic in ("", ".", "..") or "/" in topic or "\0" in topic or len(bytes_of(topic)) > NAME_BYTES_MAX:
            raise MessageStoreError(f"topic {topic[:80]!r} can be no directory's name, so it has no queues")
        if queue_id < 0:
            raise MessageStoreError(f"topic {topic[:80]!r} has no queue {queue_id}: queues are numbered from 0")
        return self._folder / topic / str(queue_id)

    def take_unsynced(self) -> Unsynced:
        """What was written since this was asked last: it is the caller's to sync."""
        found = Unsynced(sorted(self._unsynced), sorted(self._new_names))
        self._unsynced.clear()
        self._new_names.clear()
        return found


def _by_queue(rows: Ints) -> list[tuple[int, Ints]]:
    """The number of each queue, ascending, and its rows."""
    if len(rows) <= FEW:
        rows_of: dict[int, list[int]] = {}
        for at, number in enumerate(rows["queue"].tolist()):
            rows_of.setdefault(number, []).append(at)
        if len(rows_of) == 1:
            return [(number, rows)]
        return [(number, rows[rows_of[number]]) for number in sorted(rows_of)]
    numbers = rows["queue"].astype("u2" if len(rows) <= 1 << 16 else "i4")  # two bytes are sorted at once
    rows = rows[np.argsort(numbers, kind="stable")]
    borders = np.flatnonzero(np.diff(rows["queue"])) + 1
    named = rows["queue"][np.append(0, borders)].tolist()
    return list(zip(named, np.split(rows, borders), strict=True))


def _units_of(part: Ints) -> bytes:
    """Of rows of QUEUED."""
    if len(part) <= FEW:
        return b"".join([UNIT.pack(offset, size, code) for _queue, _number, offset, size, code in part.tolist()])
    units = np.zeros(len(part), UNIT_DTYPE)
    units["offset"], units["size"], units["tags_code"] = part["offset"], part["size"], part["tags_code"]
    return units.tobytes()


def _border(is_sound: Callable[[int], bool], count: int) -> int:
    """How many of `count` are sound: the sound ones come first."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if is_sound(middle):
            low = middle + 1
        else:
            high = middle
    return low
