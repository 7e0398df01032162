"""Walking along the records of the data files: recovery, the reader and `store verify` see them through this alone.

Invariants: a walk yields only records that are well formed, continue the index, never go back in term, match their own
CRCs and continue the chain; where one does not, the walk ends and `stop` says where and why. It reads only, and a file
that changes or vanishes under it ends it like any other bad record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from node.protocol.entry import (
    BLANK_BYTES,
    HEAD,
    HEAD_BYTES,
    INDEX_UNIT,
    Magic,
    Slab,
    chain_next,
    crc32,
)
from node.protocol.value_class import value_class
from node.store.files.segment import Segment
from node.store.files.segment_list import SegmentList

_CHUNK_BYTES = 1024 * 1024
SEALED_NEVER = 2**63 - 1  # the chain has no anchor (a Java node trimmed the log): entries stay unsealed


@value_class(slots=True, frozen=True)
class Cursor:
    """Where the next record is expected, and what it has to continue. `chain` None: no anchor yet."""

    pos: int
    index: int
    term: int
    chain: int | None
    sealed_from: int = SEALED_NEVER


@value_class(slots=True, frozen=True)
class Stop:
    """Why a walk ended. `problem` is a class of DESIGN 8, or "" where nothing is wrong with what is there.

    `is_alien`: the record is whole but not sealed where all are: a Java node wrote it, which no repair may judge.
    """

    cursor: Cursor
    problem: str
    detail: str
    is_alien: bool = False


@dataclass(slots=True)
class _Chunk:
    pos: int
    first_index: int
    first_term: int
    prev_chain: int | None
    units: list[bytes]


class Walk:
    """One walk from a cursor on. Iterate `slabs()` to its end, then look at `stop`."""

    def __init__(
        self, segments: SegmentList, start: Cursor, *, bodies: bool = True, last_index: int | None = None
    ) -> None:
        self._segments = segments
        self._bodies = bodies
        self._last_index = last_index
        self.cursor = start
        self.stop = Stop(start, "", "not walked yet")
        self.sealed_count = 0
        self._needed = 0  # bytes the next record needs
        self._rolled_from = 0  # where the file's filler began

    def slabs(self) -> Iterator[Slab]:
        """Runs of sound records, each inside one file and about 1 MiB long at most."""
        wanted = _CHUNK_BYTES
        while True:
            segment = self._segments.find(self.cursor.pos)
            if segment is None:
                return self._end("", "no file here")
            remaining = segment.end - self.cursor.pos
            buffer = segment.read(self.cursor.pos, min(wanted, remaining))
            chunk = _Chunk(self.cursor.pos, self.cursor.index, -1, self.cursor.chain, [])
            outcome = self._take(buffer, remaining, chunk)
            if chunk.units:
                size = self.cursor.pos - chunk.pos if outcome != "roll" else self._rolled_from - chunk.pos
                yield Slab(
                    chunk.first_index, len(chunk.units), chunk.pos, buffer[:size], b"".join(chunk.units),
                    chunk.first_term, self.cursor.term, chunk.prev_chain, self.cursor.chain,
                )  # fmt: skip
            if outcome == "stop":
                return None
            wanted = _CHUNK_BYTES
            if outcome == "more" and not chunk.units:
                wanted = max(_CHUNK_BYTES, self._needed)
                if wanted <= len(buffer):
                    return self._end("record_invalid", "the file ends inside the record")

    def _end(self, problem: str, detail: str, *, is_alien: bool = False) -> None:
        self.stop = Stop(self.cursor, problem, detail, is_alien)

    def _take(self, buffer: bytes, remaining: int, chunk: _Chunk) -> str:
        """Moves the cursor over the records in `buffer`: "more" to read on, "roll" for the next file, or "stop"."""
        cursor = self.cursor
        pos, index, term, chain = cursor.pos, cursor.index, cursor.term, cursor.chain
        offset, verdict = 0, "stop"
        problem, detail, is_alien = "", "", False
        while True:
            left = len(buffer) - offset
            in_file = remaining - offset
            if self._last_index is not None and index > self._last_index:
                detail = "as far as asked"
                break
            if left >= BLANK_BYTES and buffer[offset : offset + 4] == b"\xff\xff\xff\xff":
                size = int.from_bytes(buffer[offset + 4 : offset + 8], "big", signed=True)
                if size == in_file:
                    self._rolled_from, verdict = pos, "roll"
                    pos += in_file
                else:
                    problem, detail = "record_invalid", f"a blank of {size} bytes where {in_file} are left in the file"
                break
            if left < HEAD_BYTES or in_file < HEAD_BYTES:
                verdict, self._needed = ("more", HEAD_BYTES) if in_file >= HEAD_BYTES else ("stop", 0)
                if verdict == "stop":
                    problem = "record_invalid" if any(buffer[offset:]) else ""
                    detail = "too few bytes left in the file for a record"
                break
            magic, size, at, at_term, _, channel, chain_crc, body_crc, body_len = HEAD.unpack_from(buffer, offset)
            wrong = self._head_problem(magic, size, at, at_term, body_len, in_file, index, term)
            if wrong:
                problem, detail = ("", wrong) if magic == 0 and size == 0 else ("record_invalid", wrong)
                break
            if left < size:
                verdict, self._needed = "more", size
                break
            true_crc = crc32(buffer[offset + HEAD_BYTES : offset + size]) if self._bodies or not body_crc else body_crc
            following = None if chain is None else chain_next(chain, magic, size, at, at_term, channel, true_crc)
            if body_crc == true_crc and chain_crc and chain_crc == (chain_crc if following is None else following):
                following = chain_crc
                self.sealed_count += 1
            elif body_crc == true_crc and chain_crc == following:
                self.sealed_count += 1
            elif body_crc or chain_crc:
                problem = "crc_invalid"
                detail = "its body does not match its CRC" if body_crc != true_crc else "its chain does not continue"
                break
            elif at >= cursor.sealed_from:
                problem, is_alien = "crc_invalid", True
                detail = "it is unsealed: a Java node wrote here (`quorumscope store adopt DIR`)"
                break
            chunk.units.append(INDEX_UNIT.pack(magic, pos, size, at, at_term))
            if chunk.first_term < 0:
                chunk.first_term = at_term
            index, term, chain = at + 1, at_term, following
            pos, offset = pos + size, offset + size
        self.cursor = replace(cursor, pos=pos, index=index, term=term, chain=chain)
        if verdict == "stop":
            self._end(problem, detail, is_alien=is_alien)
        return verdict

    @staticmethod
    def _head_problem(
        magic: int, size: int, at: int, at_term: int, body_len: int, in_file: int, index: int, term: int
    ) -> str:
        """What is wrong with a head, "" for nothing."""
        if magic not in (Magic.NORMAL, Magic.NOOP, Magic.CONFIG_CHANGE):
            return "nothing is written here" if magic == 0 else f"magic {magic} is not an entry's"
        if body_len < 0 or size != HEAD_BYTES + body_len:
            return f"size {size} does not fit body length {body_len}"
        if size + BLANK_BYTES > in_file:
            return f"size {size} does not fit the {in_file} bytes left in the file"
        if at != index:
            return f"its head says index {at}, expected {index}"
        if at_term < term:
            return f"its head says term {at_term} after term {term}"
        return ""


def find_begin(segments: SegmentList) -> tuple[int, int | None]:
    """Position and index of the first record held; the index is None where there is none.

    A first file may open with a blank over a removed prefix, or be wholly blank.
    """
    pos = 0
    for segment in segments:
        pos = segment.start
        while segment.end - pos >= BLANK_BYTES:
            raw = segment.read(pos, HEAD_BYTES)
            if len(raw) < BLANK_BYTES or raw[:4] != b"\xff\xff\xff\xff":
                break
            size = int.from_bytes(raw[4:8], "big", signed=True)
            if not BLANK_BYTES <= size <= segment.end - pos:
                break
            pos += size
        if pos >= segment.end:
            continue
        return pos, _index_at(segment, pos)
    return pos, None


def first_index_in(segment: Segment) -> int | None:
    """The index of the record at a file's very start; None where there is none."""
    return _index_at(segment, segment.start)


def _index_at(segment: Segment, pos: int) -> int | None:
    raw = segment.read(pos, HEAD_BYTES)
    if len(raw) == HEAD_BYTES:
        magic, size, index, *_ = HEAD.unpack(raw)
        if magic in (Magic.NORMAL, Magic.NOOP, Magic.CONFIG_CHANGE) and size >= HEAD_BYTES and index >= 0:
            return int(index)
    return None
