"""DLedger 0.3.1.2: DLedgerMmapFileStore's load, recover and commit index. It knows magic 1 only and no CRC."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.unit.java_rocketmq.rows import Row, WillNotStart

HEAD = struct.Struct(">iiqqqiIIi")
UNIT = struct.Struct(">iqiqq")
HEADER_SIZE = 44
BLANK = -1


class DLedger:
    """`directory`: `dledger-nX`."""

    def __init__(self, directory: Path, data_file_bytes: int, index_file_bytes: int) -> None:
        self.directory = directory
        self.data = Row(directory / "data", data_file_bytes)
        self.index = Row(directory / "index", index_file_bytes)
        self.begin_index = self.end_index = self.end_term = -1
        self.committed_index = self.committed_pos = -1
        if self.data.files:
            self._recover()

    def _entry(self, position: int) -> tuple[int, int, int, int] | None:
        """Magic, size, index and term of a sound entry."""
        raw = self.data.read(position, HEAD.size)
        if len(raw) < HEAD.size:
            return None
        magic, size, index, term, pos, _channel, _chain, _crc, body = HEAD.unpack(raw)
        left = self.data.file_bytes - (position - self.data.starts[0]) % self.data.file_bytes
        if pos != position or body + HEAD.size != size or size > left or magic != 1 or size <= HEADER_SIZE:
            return None
        return magic, size, index, term

    def _unit(self, index: int) -> tuple[int, ...] | None:
        raw = self.index.read(index * UNIT.size, UNIT.size)
        return UNIT.unpack(raw) if len(raw) == UNIT.size else None

    def _recover(self) -> None:
        starts = self.data.starts
        number = max(len(starts) - 3, 0)
        while number > 0:
            entry = self._entry(starts[number])
            if entry is not None and self._unit(entry[2]) == (entry[0], starts[number], *entry[1:]):
                break
            number -= 1
        position, last, writes = starts[number], (-1, -1), False
        while True:
            magic = self.data.read(position, 4)
            if len(magic) == 4 and struct.unpack(">i", magic)[0] == BLANK:
                number += 1
                if number >= len(starts):
                    position = starts[-1] + self.data.file_bytes
                    break
                position = starts[number]
                continue
            entry = self._entry(position)
            if entry is None or (last[0] != -1 and entry[2] != last[0] + 1) or entry[3] < last[1]:
                break
            unit = (entry[0], position, *entry[1:])
            writes = writes or self._unit(entry[2]) != unit
            if writes:
                self.index.write(entry[2] * UNIT.size, UNIT.pack(*unit))
            last = entry[2], entry[3]
            position += entry[1]
        if starts[-1] - position > self.data.file_bytes:
            raise WillNotStart("the end found is more than a file before the last one")
        self.end_index, self.end_term = last
        self.data.truncate(position)
        self.index.truncate((self.end_index + 1) * UNIT.size)
        if self.end_index >= 0:
            self.begin_index = struct.unpack(">q", self.data.read(starts[0] + 8, 8))[0]
        path = self.directory / "checkpoint"
        said = (
            dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line) if path.exists() else {}
        )
        if said.get("committedIndex", "").strip():
            self.commit(int(said["committedIndex"]))

    def commit(self, index: int) -> None:
        """updateCommittedIndex, at the start and by a leader later."""
        if index == -1 or self.end_index == -1 or index < max(self.committed_index, self.begin_index):
            return
        unit = self._unit(min(index, self.end_index))
        assert unit is not None
        self.committed_index, self.committed_pos = unit[3], unit[1] + unit[2]
