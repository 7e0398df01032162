"""Commit logs for reading: RocketMQ's own files, the replicated log, and both where one was upgraded to the other.

All offsets are physical ones, as ids, consume queues and indexes have them: the first byte of a message's record. In
the replicated log that is the first byte of an entry's body. Old files and the replicated log are one space: below
`divided_offset` (where the first file of the replicated log begins) lie the old ones.

Invariants: nothing is written; a scan gives what is there in order, whole messages, blanks and damage, and goes on
behind damage where a message vouches for its own place (its physicalOffset and its CRC are right); a log that somebody
writes to meanwhile ends where it ended when the scan came there.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from node.message_store.errors import MessageFormatError, MessageStoreError
from node.message_store.framing import Framing, Kind, LedgerFraming, PlainFraming
from node.message_store.read_files import OS, Files, MappedFile, MappedFileQueue, Window
from node.message_store.record import PHYSICAL_OFFSET_AT, MessageRecord, decode_record
from node.protocol.value_class import value_class

_MAGIC_BEGINS: Final = b"\xda\xa3\x20"  # both versions' magics
_SEARCH_BYTES: Final = 1 << 20
COMMIT_LOG: Final = "commitlog"
LEDGER_PREFIX: Final = "dledger-"


@value_class(slots=True, frozen=True)
class Placed:
    """A message where it lies. In the replicated log `entry_index` and `channel` are its entry's."""

    offset: int
    size_bytes: int
    record: MessageRecord
    entry_index: int | None = None
    channel: int = 0

    @property
    def end(self) -> int:
        return self.offset + self.size_bytes

    @property
    def is_in_place(self) -> bool:
        """Whether the record says itself that it lies here. RocketMQ does not look."""
        return self.record.physical_offset == self.offset


@value_class(slots=True, frozen=True)
class BlankSpace:
    """The rest of a file, which the next message did not fit into."""

    offset: int
    size_bytes: int


@value_class(slots=True, frozen=True)
class Damage:
    """Bytes that say nothing. `is_last`: no sound message lies behind them."""

    offset: int
    size_bytes: int
    why: str
    is_last: bool = False


Item = Placed | BlankSpace | Damage


class CommitLog(Protocol):
    """What both kinds have in common."""

    @property
    def min_offset(self) -> int:
        """Where the oldest file begins."""

    @property
    def files(self) -> list[tuple[MappedFileQueue, MappedFile]]:
        """All files in order, each with its row."""

    def scan(self, begin: int | None = None, end: int | None = None) -> Iterator[Item]:
        """What begins in `begin`..`end`, which are borders: of a file, a message, a blank."""

    def message_at(self, offset: int) -> Placed:
        """Raises MessageStoreError where none begins there."""

    def find_end(self, near: int | None = None) -> int:
        """Behind the last message; `near`: the offset of one that is not far from the end."""


class FileCommitLog:
    """One row of files in one framing: `local_commit_log` and `ledger_commit_log` make one."""

    def __init__(self, queue: MappedFileQueue, framing: Framing) -> None:
        self.queue = queue
        self.framing = framing

    @property
    def min_offset(self) -> int:
        return self.queue.min_offset

    @property
    def files(self) -> list[tuple[MappedFileQueue, MappedFile]]:
        return [(self.queue, one) for one in self.queue.files]

    def message_at(self, offset: int) -> Placed:
        place = offset - self.framing.head_bytes
        file = self.queue.find(place) if place >= 0 else None
        if file is None and self.queue.find(offset) is not None:
            raise MessageStoreError(f"no message begins at offset {offset}: an entry's head is there")
        if file is None:
            raise MessageStoreError(f"no file holds offset {offset}: {_span_of(self.queue)}")
        frame = self.framing.look(self.queue.read(place, self.framing.look_bytes), 0, file.end - place)
        if frame.kind is not Kind.MESSAGE:
            what = frame.why or {Kind.UNWRITTEN: "nothing is written there"}.get(
                frame.kind, f"there is {frame.kind.value}"
            )
            raise MessageStoreError(f"no message begins at offset {offset}: {what}")
        data = self.queue.read(offset, frame.size_bytes - frame.head_bytes)
        try:
            record = _decoded(data)
        except MessageFormatError as error:
            raise MessageStoreError(f"no message begins at offset {offset}: {error}") from error
        return Placed(offset, len(data), record, frame.entry_index, frame.channel)

    def scan(self, begin: int | None = None, end: int | None = None) -> Iterator[Item]:
        offset = self.min_offset if begin is None else begin
        for number, file in enumerate(self.queue.files):
            if file.end <= offset:
                continue
            if end is not None and file.start >= end:
                return
            if file.start > offset:
                yield Damage(offset, file.start - offset, "the file is missing")
                offset = file.start
            written = yield from self._scan_file(file, offset, end, self.queue.files[number + 1 :])
            if not written:
                return
            offset = file.end

    def _scan_file(
        self, file: MappedFile, offset: int, end: int | None, later: list[MappedFile]
    ) -> Generator[Item, None, bool]:
        """Up to the end of one file; returns whether the log may go on in the next."""
        window = Window(self.queue)
        while offset < file.end and (end is None or offset < end):
            data, at = window.read(offset, self.framing.look_bytes)
            frame = self.framing.look(data, at, file.end - offset)
            if frame.kind is Kind.UNWRITTEN:
                if at == len(data) and self.queue.is_gone(file):
                    return True
                if any(self._is_written(one) for one in later):
                    yield Damage(offset, file.end - offset, "nothing is written here, but the log goes on behind it")
                    return True
                return False
            if frame.kind is Kind.BLANK:
                yield BlankSpace(offset, frame.size_bytes)
                return True
            why = frame.why
            if frame.kind is Kind.MESSAGE:
                place, size = offset + frame.head_bytes, frame.size_bytes - frame.head_bytes
                data, at = window.read(place, size)
                try:
                    record = _decoded(data[at : at + size])
                except MessageFormatError as error:
                    why = str(error)
                else:
                    yield Placed(place, size, record, frame.entry_index, frame.channel)
            if why:
                behind = self._next_sound(offset + 1, file)
                is_last = behind is None and not any(self._is_written(one) for one in later)
                yield Damage(offset, (behind or file.end) - offset, why, is_last)
                if behind is None:
                    return not is_last
                offset = behind
            else:
                offset += frame.size_bytes
        return True

    def _is_written(self, file: MappedFile) -> bool:
        frame = self.framing.look(self.queue.read(file.start, self.framing.look_bytes), 0, file.size_bytes)
        return frame.kind is not Kind.UNWRITTEN

    def _next_sound(self, offset: int, file: MappedFile) -> int | None:
        """Where the next message begins that says itself that it lies there, and whose body is sound."""
        while offset < file.end:
            piece = self.queue.read(offset, _SEARCH_BYTES)
            found = piece.find(_MAGIC_BEGINS)
            while found >= 0:
                place = offset + found - 4
                if place - self.framing.head_bytes >= file.start and self._vouches(place):
                    return place - self.framing.head_bytes
                found = piece.find(_MAGIC_BEGINS, found + 1)
            if len(piece) < len(_MAGIC_BEGINS):
                return None
            offset += len(piece) - len(_MAGIC_BEGINS) + 1
        return None

    def _vouches(self, place: int) -> bool:
        head = self.queue.read(place, PHYSICAL_OFFSET_AT + 8)
        if int.from_bytes(head[PHYSICAL_OFFSET_AT:], "big", signed=True) != place:
            return False
        try:
            found = self.message_at(place)
        except MessageStoreError:
            return False
        return found.record.is_body_sound

    def find_end(self, near: int | None = None) -> int:
        file = next((one for one in reversed(self.queue.files) if self._is_written(one)), None)
        if file is None:
            return self.min_offset
        begin = file.start
        if near is not None and begin <= near < file.end and self._vouches(near):
            begin = near - self.framing.head_bytes
        end, offset = begin, begin
        window = Window(self.queue)
        while offset < file.end:
            data, at = window.read(offset, self.framing.look_bytes)
            frame = self.framing.look(data, at, file.end - offset)
            if frame.kind is Kind.BAD:
                behind = self._next_sound(offset + 1, file)
                if behind is None:
                    break
                offset = behind
            elif frame.kind in (Kind.MESSAGE, Kind.OTHER):
                offset += frame.size_bytes
                end = offset
            elif frame.kind is Kind.BLANK:
                return file.end
            else:
                break
        return end


def local_commit_log(root: Path, files: Files = OS) -> FileCommitLog:
    """RocketMQ's own: `commitlog/` below a broker's store."""
    return FileCommitLog(MappedFileQueue(root / COMMIT_LOG, files), PlainFraming())


def ledger_commit_log(ledger: Path, files: Files = OS) -> FileCommitLog:
    """The replicated log in `dledger-<id>/`."""
    return FileCommitLog(MappedFileQueue(ledger / "data", files), LedgerFraming())


class JoinedCommitLog:
    """Old files, then the replicated log: what a broker reads after the upgrade."""

    def __init__(self, old: FileCommitLog, ledger: FileCommitLog) -> None:
        self.old = old
        self.ledger = ledger

    @property
    def divided_offset(self) -> int:
        """Below it the old files, from it on the replicated log (dividedCommitlogOffset)."""
        return self.ledger.min_offset

    @property
    def min_offset(self) -> int:
        return self.old.min_offset

    @property
    def files(self) -> list[tuple[MappedFileQueue, MappedFile]]:
        return self.old.files + self.ledger.files

    def message_at(self, offset: int) -> Placed:
        return (self.old if offset < self.divided_offset else self.ledger).message_at(offset)

    def scan(self, begin: int | None = None, end: int | None = None) -> Iterator[Item]:
        divided = self.divided_offset
        if begin is None or begin < divided:
            stop = divided if end is None else min(divided, end)
            reached = self.min_offset if begin is None else begin
            for item in self.old.scan(begin, stop):
                reached = item.end if isinstance(item, Placed) else item.offset + item.size_bytes
                yield replace(item, is_last=False) if isinstance(item, Damage) else item
            if reached < stop:
                why = "the old files end before the replicated log begins, and no blank fills the rest"
                yield Damage(reached, stop - reached, why)
            begin = divided
        if end is None or end > begin:
            yield from self.ledger.scan(begin, end)

    def find_end(self, near: int | None = None) -> int:
        return self.ledger.find_end(near)


def _decoded(data: bytes) -> MessageRecord:
    """A record that fills `data`. Raises MessageFormatError."""
    record = decode_record(data)
    size = int.from_bytes(data[:4], "big")
    if size != len(data):
        raise MessageFormatError(f"a message of {size} bytes in an entry's body of {len(data)}")
    return record


def _span_of(queue: MappedFileQueue) -> str:
    if not queue.files:
        return f"there is no file in {queue.folder}"
    return f"the files in {queue.folder} span {queue.min_offset} to {queue.end_offset}"
