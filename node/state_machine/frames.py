"""What an engine and its state machine's process say to each other, over a pair of sockets that nobody else has.

A frame is `u32 length, u8 kind` and a head of its own; `length` counts what is behind it. Invariant: a length is held
against FRAME_BYTES_MAX before anything is taken in; a frame that does not add up ends the process, never the engine.

An engine that runs while its files are replaced starts a process of another release. So LAYOUT goes up with each change
of a frame; FAILED, with which a process says that it cannot go on, never changes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from node.protocol.entry import BytesLike
from node.protocol.packed_bodies import PACKED_FROM, PackedBodies
from node.transport.machine_frames import PackedAnswers

LAYOUT: Final = 2
FRAME_BYTES_MAX: Final = 64 * 1024 * 1024  # a report's results and a frame's answers are bounded far below it
_HEAD: Final = struct.Struct(">IB")
_BATCH: Final = struct.Struct(">qqqB")
_QUESTION: Final = struct.Struct(">QqII")
_STANDS: Final = struct.Struct(">qqqqqq")
_APPLIED: Final = struct.Struct(">qqqqI")
_ANSWERS: Final = struct.Struct(">QI")
_SAVED: Final = struct.Struct(">q?")
_LIFE: Final = struct.Struct(">q")
_DAMAGED: Final = struct.Struct(">qI")
_KEPT: Final = struct.Struct(">qqB")
_LENGTH: Final = struct.Struct(">I")
_NONE: Final = -1
_NOT_KEPT: Final = 0xFFFFFFFF  # of a result's length


class FrameError(ValueError):
    """Bytes that are no frame."""


class Kind(IntEnum):
    """The first six go to the process, the others come from it."""

    BATCH = 1
    QUESTION = 2
    SAVE = 3  # a snapshot, now
    RELOAD = 4  # the newest snapshot, if it is newer than the state
    LIFE = 5  # that of what it said last of where it stands: batches of another one are not for that state
    DAMAGED = 6  # snapshots that are not what was written
    STANDS = 16
    APPLIED = 17
    ANSWER = 18
    SAVED = 19
    FAILED = 20  # why it ends
    KEPT = 21  # what is there in the place of those that are damaged


class BatchFrame(NamedTuple):
    """Entries to apply."""

    life: int
    first_index: int
    last_index: int
    results_wanted: bool
    records: BytesLike


class QuestionFrame(NamedTuple):
    """Questions that wait for the same entry. `number` is the asker's, and comes with the answers."""

    number: int
    min_index: int
    wait_ms: int
    contents: Sequence[bytes]


@dataclass(slots=True, frozen=True)
class StandsFrame:
    """Where it stands, and the newest snapshot; -1: none. `time_ms`: the log's, there."""

    index: int
    term: int | None
    chain: int | None
    saved_index: int
    time_ms: int
    wake_at_ms: int | None


class AppliedFrame(NamedTuple):
    """A batch's end. A result that was too long beside the others is None."""

    life: int
    upto_index: int
    time_ms: int
    wake_at_ms: int | None
    error: str
    results: Sequence[bytes | None]


class AnswerFrame(NamedTuple):
    """To all questions of a frame, in their order."""

    number: int
    answers: PackedAnswers


@dataclass(slots=True, frozen=True)
class SavedFrame:
    """The newest snapshot; `error`: why there is no newer one although there was to be; `is_tried_again`: by itself."""

    index: int
    error: str = ""
    is_tried_again: bool = False


class DamagedFrame(NamedTuple):
    """Snapshots by their last included index. `number` is the engine's, and comes with what became of them."""

    number: int
    indexes: Sequence[int]


class KeptFrame(NamedTuple):
    """The newest snapshot that is not known to be damaged (-1: none), and whether a state is yet to be saved again."""

    number: int
    newest_index: int
    is_owed: bool


def frame(kind: Kind, *pieces: BytesLike) -> list[BytesLike]:
    return [_HEAD.pack(1 + sum(map(len, pieces)), kind), *pieces]


def batch(one: BatchFrame) -> list[BytesLike]:
    return frame(Kind.BATCH, _BATCH.pack(one.life, one.first_index, one.last_index, one.results_wanted), one.records)


def read_batch(body: memoryview) -> BatchFrame:
    life, first_index, last_index, wanted = _BATCH.unpack_from(body)
    return BatchFrame(life, first_index, last_index, bool(wanted), body[_BATCH.size :])


def life(number: int) -> list[BytesLike]:
    return frame(Kind.LIFE, _LIFE.pack(number))


def read_life(body: memoryview) -> int:
    return int(_LIFE.unpack(body)[0])


def damaged(one: DamagedFrame) -> list[BytesLike]:
    count = len(one.indexes)
    return frame(Kind.DAMAGED, _DAMAGED.pack(one.number, count), struct.pack(f">{count}q", *one.indexes))


def read_damaged(body: memoryview) -> DamagedFrame:
    number, count = _DAMAGED.unpack_from(body)
    return DamagedFrame(number, struct.unpack_from(f">{count}q", body, _DAMAGED.size))


def kept(one: KeptFrame) -> list[BytesLike]:
    return frame(Kind.KEPT, _KEPT.pack(*one))


def read_kept(body: memoryview) -> KeptFrame:
    number, newest_index, is_owed = _KEPT.unpack(body)
    return KeptFrame(number, newest_index, bool(is_owed))


def question(one: QuestionFrame) -> list[BytesLike]:
    contents = one.contents
    head = _QUESTION.pack(one.number, one.min_index, one.wait_ms, len(contents))
    return frame(Kind.QUESTION, head, struct.pack(f">{len(contents)}I", *map(len, contents)), *contents)


def read_question(body: memoryview) -> QuestionFrame:
    number, min_index, wait_ms, count = _QUESTION.unpack_from(body)
    lengths = struct.unpack_from(f">{count}I", body, _QUESTION.size)
    return QuestionFrame(number, min_index, wait_ms, _cut(body, _QUESTION.size + 4 * count, lengths))


def _cut(body: memoryview, at: int, lengths: Sequence[int]) -> list[bytes]:
    found = []
    for length in lengths:
        found.append(bytes(body[at : at + length]))
        at += length
    return found


def _or_none(number: int) -> int | None:
    return None if number == _NONE else number


def _number(value: int | None) -> int:
    return _NONE if value is None else value


def stands(one: StandsFrame) -> list[BytesLike]:
    marks = one.index, _number(one.term), _number(one.chain)
    packed = _STANDS.pack(*marks, one.saved_index, one.time_ms, _number(one.wake_at_ms))
    return frame(Kind.STANDS, packed)


def read_stands(body: memoryview) -> StandsFrame:
    index, term, chain, saved_index, time_ms, wake_at_ms = _STANDS.unpack_from(body)
    return StandsFrame(index, _or_none(term), _or_none(chain), saved_index, time_ms, _or_none(wake_at_ms))


def applied(one: AppliedFrame) -> list[BytesLike]:
    error = one.error.encode()
    packed = _APPLIED.pack(one.life, one.upto_index, one.time_ms, _number(one.wake_at_ms), len(error))
    results = one.results
    if type(results) is PackedBodies:
        lengths = _LENGTH.pack(len(results)) + results.lengths.astype(">u4").tobytes()
        return frame(Kind.APPLIED, packed, error, lengths, memoryview(results.data)[results.start :])
    sizes = [_NOT_KEPT if result is None else len(result) for result in results]
    lengths = struct.pack(f">I{len(results)}I", len(results), *sizes)
    return frame(Kind.APPLIED, packed, error, lengths, b"".join(filter(None, results)))


def read_applied(body: memoryview) -> AppliedFrame:
    life, upto_index, time_ms, wake_at_ms, error_bytes = _APPLIED.unpack_from(body)
    at = _APPLIED.size + error_bytes
    error, wake = bytes(body[_APPLIED.size : at]).decode(errors="replace"), _or_none(wake_at_ms)
    (count,) = _LENGTH.unpack_from(body, at)
    lengths = np.frombuffer(body, ">u4", count, at + 4).astype(np.int64)
    at += 4 + 4 * count
    if count >= PACKED_FROM and int(lengths.max()) != _NOT_KEPT:
        return AppliedFrame(life, upto_index, time_ms, wake, error, PackedBodies(body, at, lengths))
    results: list[bytes | None] = []
    for length in lengths.tolist():
        kept = length if length != _NOT_KEPT else 0
        results.append(bytes(body[at : at + kept]) if length != _NOT_KEPT else None)
        at += kept
    return AppliedFrame(life, upto_index, time_ms, wake, error, results)


def answer(one: AnswerFrame) -> list[BytesLike]:
    return frame(Kind.ANSWER, _ANSWERS.pack(one.number, len(one.answers)), one.answers.packed)


def read_answer(body: memoryview) -> AnswerFrame:
    number, count = _ANSWERS.unpack_from(body)
    return AnswerFrame(number, PackedAnswers(count, bytes(body[_ANSWERS.size :])))


def saved(one: SavedFrame) -> list[BytesLike]:
    return frame(Kind.SAVED, _SAVED.pack(one.index, one.is_tried_again), one.error.encode())


def read_saved(body: memoryview) -> SavedFrame:
    index, is_tried_again = _SAVED.unpack_from(body)
    return SavedFrame(index, bytes(body[_SAVED.size :]).decode(errors="replace"), is_tried_again)


class FrameReader:
    """Takes bytes as they come; `frames` are the whole ones."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._wanted = 0  # so long has the rest to be to hold a whole frame

    def frames(self, data: bytes) -> Iterator[tuple[Kind, memoryview]]:
        """Nobody changes the bytes of one that was given out. Raises FrameError."""
        whole: bytes | bytearray = data
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:
                return
            whole, self._rest = self._rest, bytearray()
        view, at = memoryview(whole), 0
        self._wanted = 0
        while len(whole) - at >= _HEAD.size:
            length, kind = _HEAD.unpack_from(whole, at)
            if not 1 <= length <= FRAME_BYTES_MAX:
                raise FrameError(f"a frame of {length} bytes")
            if at + 4 + length > len(whole):
                self._wanted = 4 + length
                break
            try:
                known = Kind(kind)
            except ValueError:
                raise FrameError(f"a frame of kind {kind}") from None
            yield known, view[at + _HEAD.size : at + 4 + length]
            at += 4 + length
        self._rest += view[at:]
