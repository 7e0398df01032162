"""Commands to a group's state machine and questions to it, as clients send them (COMMAND, QUESTION).

A command's body is an append's (`slab_frames.encode_append`); its answer has the results in front of an append's
answer. Invariant: counts and lengths are checked against the bytes that are there before anything is taken apart.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple, overload

import numpy as np

from node.protocol.codes import ResponseCode
from node.protocol.entry import BytesLike
from node.protocol.packed_bodies import PACKED_FROM, PackedBodies
from node.transport.slab_frames import (
    READ_MODE_MAX,
    AppendAnswer,
    BodyError,
    ReadMode,
    decode_append_answer,
    encode_append_answer,
    response_code,
)

QUESTION_BYTES_MAX: Final = 1024 * 1024
WAIT_MS_MAX: Final = 60_000
_RESULTS: Final = struct.Struct(">BI")
_QUESTION: Final = struct.Struct(">BII")
_ANSWER: Final = struct.Struct(">iqI")
QUESTIONS_MAX: Final = 1024  # in one frame


class PackedAnswers(Sequence["QuestionAnswer"]):
    """Answers as they travel, from the state machine's process to the client: taken apart only where somebody looks."""

    __slots__ = ("_count", "packed")

    def __init__(self, count: int, packed: bytes) -> None:
        self._count, self.packed = count, packed

    @classmethod
    def of(cls, answers: Sequence[tuple[ResponseCode, int, bytes]]) -> PackedAnswers:
        pieces: list[bytes] = []
        for code, applied_index, content in answers:
            pieces += (_ANSWER.pack(code, applied_index, len(content)), content)
        return cls(len(answers), b"".join(pieces))

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> QuestionAnswer: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[QuestionAnswer]: ...
    def __getitem__(self, at: int | slice) -> QuestionAnswer | Sequence[QuestionAnswer]:
        return decode_question_answer(self.packed, self._count)[at]


class CommandAnswer(NamedTuple):
    """`is_applied` False although the entries are there: what applying them answered is not known."""

    append: AppendAnswer
    is_applied: bool
    results: Sequence[bytes] = ()


class QuestionRequest(NamedTuple):
    """`wait_ms`: for how long they may wait for their state, and for answers to be there at all."""

    contents: Sequence[bytes]
    mode: ReadMode = ReadMode.LINEARIZABLE
    wait_ms: int = 5000


class QuestionAnswer(NamedTuple):
    """With another code than SUCCESS `content` is a text that says why there is no answer."""

    code: ResponseCode
    applied_index: int
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode(errors="replace")


_new_answer: Final = partial(tuple.__new__, QuestionAnswer)


def encode_command_answer(answer: CommandAnswer) -> bytes:
    results = answer.results
    head = _RESULTS.pack(answer.is_applied, len(results))
    if type(results) is PackedBodies:
        lengths = results.lengths.astype(">u4").tobytes()
        content = memoryview(results.data)[results.start :]
        return b"".join((head, lengths, content, encode_append_answer(answer.append)))
    head += struct.pack(f">{len(results)}I", *map(len, results))
    return b"".join((head, *results, encode_append_answer(answer.append)))


def decode_command_answer(body: BytesLike, commands: int | None = None) -> CommandAnswer:
    """`commands`: of the request; an answer that they are applied has a result of each. Raises BodyError."""
    try:
        is_applied, count = _RESULTS.unpack_from(body)
        if _RESULTS.size + count * 4 > len(body):
            raise BodyError(f"{count} results in {len(body)} bytes")
        lengths = np.frombuffer(body, ">u4", count, _RESULTS.size).astype(np.int64)
    except struct.error as error:
        raise BodyError(f"a broken answer to a command: {error}") from None
    at = _RESULTS.size + 4 * count
    end = at + int(lengths.sum())
    if end > len(body):
        raise BodyError("the results go past the answer's end")
    if commands is not None and is_applied and count != commands:
        raise BodyError(f"{count} results of {commands} commands")
    results: Sequence[bytes] = ()
    if count:
        packed = PackedBodies(body[:end], at, lengths)
        results = packed if count >= PACKED_FROM else packed.to_list()
    return CommandAnswer(decode_append_answer(bytes(body[end:]), commands), bool(is_applied), results)


def encode_question(request: QuestionRequest) -> bytes:
    contents = request.contents
    head = _QUESTION.pack(request.mode, request.wait_ms, len(contents))
    return b"".join((head, struct.pack(f">{len(contents)}I", *map(len, contents)), *contents))


def decode_question(body: BytesLike) -> QuestionRequest:
    """Raises BodyError."""
    if not _QUESTION.size <= len(body) <= _QUESTION.size + QUESTION_BYTES_MAX:
        raise BodyError(f"questions of {len(body)} bytes; up to {QUESTION_BYTES_MAX} are taken")
    mode, wait_ms, count = _QUESTION.unpack_from(body)
    if mode > READ_MODE_MAX or wait_ms > WAIT_MS_MAX:
        raise BodyError(f"a question in mode {mode} that waits {wait_ms} ms; up to {WAIT_MS_MAX} are allowed")
    if not 1 <= count <= QUESTIONS_MAX or _QUESTION.size + 4 * count > len(body):
        raise BodyError(f"{count} questions in {len(body)} bytes; 1 to {QUESTIONS_MAX} are taken")
    lengths = struct.unpack_from(f">{count}I", body, _QUESTION.size)
    at = _QUESTION.size + 4 * count
    if at + sum(lengths) != len(body):
        raise BodyError(f"questions of {len(body)} bytes say {at + sum(lengths)}")
    contents: list[bytes] = []
    for length in lengths:
        contents.append(bytes(body[at : at + length]))
        at += length
    return QuestionRequest(contents, ReadMode(mode), wait_ms)


def encode_question_answer(answers: Sequence[tuple[ResponseCode, int, bytes]]) -> list[bytes]:
    return [(answers if type(answers) is PackedAnswers else PackedAnswers.of(answers)).packed]


def decode_question_answer(body: BytesLike, count: int) -> list[QuestionAnswer]:
    """To `count` questions; a refusal of all of them may stand there once. Raises BodyError."""
    answers: list[QuestionAnswer] = []
    at, data, unpack, head_bytes = 0, bytes(body), _ANSWER.unpack_from, _ANSWER.size
    end = len(data)
    try:
        while at < end:
            code, applied_index, length = unpack(data, at)
            at += head_bytes + length
            if at > end:
                raise BodyError("an answer goes past its frame's end")
            answers.append(_new_answer((response_code(code), applied_index, data[at - length : at])))
    except struct.error as error:
        raise BodyError(f"a broken answer to a question: {error}") from None
    if len(answers) == 1 < count and answers[0].code is not ResponseCode.SUCCESS:
        return answers * count
    if len(answers) != count:
        raise BodyError(f"{len(answers)} answers to {count} questions")
    return answers
