"""Commands to a group's state machine and questions to it, as clients send them (COMMAND, QUESTION).

A command's body is an append's (`slab_frames.encode_append`); its answer has the results in front of an append's
answer. Invariant: counts and lengths are checked against the bytes that are there before anything is taken apart.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from node.protocol.codes import ResponseCode
from node.protocol.entry import BytesLike
from node.transport.slab_frames import (
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


def encode_command_answer(answer: CommandAnswer) -> bytes:
    results = answer.results
    head = _RESULTS.pack(answer.is_applied, len(results)) + struct.pack(f">{len(results)}I", *map(len, results))
    return b"".join((head, *results, encode_append_answer(answer.append)))


def decode_command_answer(body: BytesLike) -> CommandAnswer:
    """Raises BodyError."""
    try:
        is_applied, count = _RESULTS.unpack_from(body)
        if count * 4 > len(body):
            raise BodyError(f"{count} results in {len(body)} bytes")
        lengths = struct.unpack_from(f">{count}I", body, _RESULTS.size)
    except struct.error as error:
        raise BodyError(f"a broken answer to a command: {error}") from None
    at = _RESULTS.size + 4 * count
    if at + sum(lengths) > len(body):
        raise BodyError("the results go past the answer's end")
    results: list[bytes] = []
    for length in lengths:
        results.append(bytes(body[at : at + length]))
        at += length
    return CommandAnswer(decode_append_answer(bytes(body[at:])), bool(is_applied), results)


def encode_question(request: QuestionRequest) -> bytes:
    contents = request.contents
    head = _QUESTION.pack(request.mode, request.wait_ms, len(contents))
    return b"".join((head, struct.pack(f">{len(contents)}I", *map(len, contents)), *contents))


def decode_question(body: BytesLike) -> QuestionRequest:
    """Raises BodyError."""
    if not _QUESTION.size <= len(body) <= _QUESTION.size + QUESTION_BYTES_MAX:
        raise BodyError(f"questions of {len(body)} bytes; up to {QUESTION_BYTES_MAX} are taken")
    mode, wait_ms, count = _QUESTION.unpack_from(body)
    if mode > ReadMode.UNSAFE or wait_ms > WAIT_MS_MAX:
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


def encode_question_answer(answers: Sequence[QuestionAnswer]) -> list[bytes]:
    pieces: list[bytes] = []
    for one in answers:
        pieces += (_ANSWER.pack(one.code, one.applied_index, len(one.content)), one.content)
    return [b"".join(pieces)]


def decode_question_answer(body: BytesLike, count: int) -> list[QuestionAnswer]:
    """To `count` questions; a refusal of all of them may stand there once. Raises BodyError."""
    answers: list[QuestionAnswer] = []
    at = 0
    try:
        while at < len(body):
            code, applied_index, length = _ANSWER.unpack_from(body, at)
            at += _ANSWER.size + length
            if at > len(body):
                raise BodyError("an answer goes past its frame's end")
            answers.append(QuestionAnswer(response_code(code), applied_index, bytes(body[at - length : at])))
    except struct.error as error:
        raise BodyError(f"a broken answer to a question: {error}") from None
    if len(answers) == 1 < count and answers[0].code is not ResponseCode.SUCCESS:
        return answers * count
    if len(answers) != count:
        raise BodyError(f"{len(answers)} answers to {count} questions")
    return answers
