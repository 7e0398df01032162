"""ConsumeQueue and IndexService of Java: load, recover, truncate, put."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from tests.unit.java_rocketmq.records import Request
from tests.unit.java_rocketmq.rows import Row
from tests.unit.message_broker import java_hash

UNIT = struct.Struct(">qiq")
INDEX_HEAD = struct.Struct(">qqqqii")
PREFILL = (0, 0x7FFFFFFF, 0)


class Queue:
    """One queue of one topic."""

    def __init__(self, folder: Path, file_bytes: int) -> None:
        self.row = Row(folder, file_bytes)
        self.max_physic = -1

    def _units_of(self, start: int) -> Iterator[tuple[int, int, int]]:
        return UNIT.iter_unpack(bytes(self.row.files[start]))

    def recover(self) -> None:
        if not self.row.files:
            return
        starts = self.row.starts[max(len(self.row.files) - 3, 0) :]
        end = starts[0]
        for start in starts:
            end = start
            for offset, size, _code in self._units_of(start):
                if offset < 0 or size <= 0:
                    break
                self.max_physic = offset + size
                end += UNIT.size
            if end < start + self.row.file_bytes:
                break
        self.row.truncate(end)

    def truncate(self, physical: int) -> None:
        self.max_physic = physical
        while self.row.files:
            start = self.row.starts[-1]
            self.row.written = start
            for at, (offset, size, _code) in enumerate(self._units_of(start)):
                if at == 0:
                    if offset >= physical:
                        del self.row.files[start]
                        self.row.written = start
                        break
                elif offset < 0 or size <= 0 or offset >= physical:
                    return
                self.row.written = start + (at + 1) * UNIT.size
                self.max_physic = offset + size
            else:
                return

    def put(self, one: Request) -> None:
        if one.offset + one.size <= self.max_physic:
            return
        place = one.queue_offset * UNIT.size
        full = not self.row.files or self.row.written % self.row.file_bytes == 0
        if full and not self.row.files:
            start = place // self.row.file_bytes * self.row.file_bytes
            self.row.files[start] = bytearray(self.row.file_bytes)
            self.row.written = start
            while self.row.written < place:
                self.row.write(self.row.written, UNIT.pack(*PREFILL))
                self.row.written += UNIT.size
        if one.queue_offset and place < self.row.written:
            return
        self.max_physic = one.offset + one.size
        self.row.write(self.row.written, UNIT.pack(one.offset, one.size, one.tags_code))
        self.row.written += UNIT.size

    def units(self) -> dict[int, tuple[int, int, int]]:
        """What consumers see: by queue offset, without pre-fill."""
        found = {}
        for start in self.row.starts:
            for at, unit in enumerate(self._units_of(start)):
                if start + at * UNIT.size < self.row.written and unit != PREFILL:
                    found[start // UNIT.size + at] = unit
        return found


class Index:
    """All index files: heads as lists, entries as (hash, physical offset)."""

    def __init__(self, folder: Path, slots: int, capacity: int, unsafe_after_ms: int | None) -> None:
        self.capacity = capacity
        self.files: list[tuple[list[int], list[tuple[int, int]]]] = []
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            data = path.read_bytes()
            head = list(INDEX_HEAD.unpack_from(data))
            if unsafe_after_ms is not None and head[1] > unsafe_after_ms:
                continue  # after a crash: made anew by the dispatch
            begin = INDEX_HEAD.size + slots * 4
            rows = [struct.unpack_from(">iq", data, begin + at * 20) for at in range(1, max(head[5], 1))]
            self.files.append((head, rows))

    def put(self, one: Request) -> None:
        if not self.files or len(self.files[-1][1]) + 1 >= self.capacity:
            last = self.files[-1][0] if self.files else [0] * 6
            self.files.append(([last[1], last[1], last[3], last[3], 0, 1], []))
        head, _rows = self.files[-1]
        if one.offset < head[3] or one.is_rolled_back:
            return
        for key in one.keys:
            head, rows = self.files[-1]
            if len(rows) + 1 >= self.capacity:
                head = [head[1], head[1], head[3], head[3], 0, 1]
                rows = []
                self.files.append((head, rows))
            rows.append((abs(java_hash(f"{one.topic}#{key}")), one.offset))
            head[1], head[3] = one.store_ms, one.offset

    def offsets(self, topic: str, key: str) -> set[int]:
        hashed = abs(java_hash(f"{topic}#{key}"))
        return {offset for _head, rows in self.files for found, offset in rows if found == hashed}

    @property
    def entries(self) -> list[int]:
        return [len(rows) for _head, rows in self.files]
