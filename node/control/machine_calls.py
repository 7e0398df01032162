"""Commands to this group's state machine and questions to it, through the engine: what every route does that has any.

Invariants: a command that may have been appended is 504 with `outcome: unknown`, and never invites to be repeated; a
question changes nothing, and says how fresh its answer is.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Final, NamedTuple

from fastapi import Request

from node.control.common import Json, Parts
from node.control.engine_link import EngineAway, EngineRefused, EngineSilent
from node.control.entries import asked_to_append, refused, unknown_outcome
from node.control.problems import Problem
from node.control.read_modes import MODES, Consistency
from node.protocol.codes import RequestCode, ResponseCode
from node.transport.machine_frames import (
    QuestionAnswer,
    QuestionRequest,
    decode_command_answer,
    decode_question_answer,
    encode_question,
)
from node.transport.slab_frames import AppendAnswer, AppendedByte, AppendRequest, BodyError, encode_append

WRITE_TIMEOUT_S: Final = 10.0
READ_WAIT_MS: Final = 5000
GRACE_S: Final = 2.0
RETRY: Final = {"retry-after": "1"}
NO_ANSWER_YET: Final = "The state machine has no answer yet; `wait_ms` says for how long a question may wait for one."


class Carried(NamedTuple):
    """Commands that were applied, in one run from `first_index` on."""

    first_index: int
    term: int
    results: Sequence[bytes]


def shown(raw: bytes, as_: str) -> Json:
    """Bytes as a field, in base64 also where text was asked for and this is none."""
    if as_ == "text":
        try:
            return {"value": raw.decode(), "as": "text"}
        except UnicodeDecodeError:
            pass
    return {"value": base64.b64encode(raw).decode(), "as": "base64"}


async def commands(parts: Parts, bodies: Sequence[bytes]) -> Carried:
    """Has the group apply them, one behind the other. Raises Problem."""
    sent = encode_append(AppendRequest(bodies))
    answer = await asked_to_append(parts, RequestCode.COMMAND, sent, WRITE_TIMEOUT_S, decode_command_answer)
    parts.snapshots.outdate()
    append = answer.append
    if append.appended is AppendedByte.NOT_APPENDED:
        raise await refused(parts, append)
    if append.appended is AppendedByte.UNKNOWN:
        raise unknown_outcome(append.detail, append)
    if not answer.is_applied:
        raise unknown_result(append)
    return Carried(append.first_index, append.term, answer.results)


def unknown_result(append: AppendAnswer) -> Problem:
    """The commands are committed: there is nothing to wait for in the log, only what applying them came to."""
    detail = append.detail or "committed, but the result of applying it is unknown"
    text = f"{detail.rstrip('.')}. It stays in the log: ask the state machine what came of it before it is sent again."
    known: Json = {"first_index": append.first_index, "last_index": append.last_index, "term": append.term}
    return Problem(504, "Outcome unknown", text, outcome="unknown", safe_to_retry=False, code=int(append.code), **known)


async def ask(parts: Parts, question: bytes, consistency: Consistency, wait_ms: int = 0) -> QuestionAnswer | None:
    """None: nothing happened within `wait_ms`. Raises Problem."""
    sent = encode_question(QuestionRequest([question], MODES[consistency], wait_ms or READ_WAIT_MS))
    timeout_s = (wait_ms or READ_WAIT_MS) / 1000 + GRACE_S
    try:
        [answer] = decode_question_answer(await parts.link.request(RequestCode.QUESTION, [sent], timeout_s), 1)
    except EngineSilent as error:
        text = (
            f"{error}: the engine does not answer, or its state machine hangs or is slow; `quorumscope status` shows"
            " which, a hung state machine once an entry waits for it"
        )
        raise Problem(503, "No answer in time", text, headers=RETRY) from None
    except (EngineAway, EngineRefused, BodyError) as error:
        raise Problem(503, "The engine does not answer", str(error), headers=RETRY) from None
    if answer.code is ResponseCode.SUCCESS:
        return answer
    if answer.code is ResponseCode.TIMEOUT and wait_ms and not answer.content:
        return None
    if answer.code is ResponseCode.UNEXPECTED_ARGUMENT:
        raise Problem(422, "Invalid request", f"question: {answer.text}", code=int(answer.code))
    timed_out = answer.code is ResponseCode.TIMEOUT  # and nothing said why: it was the state machine that waited
    text = answer.text or (NO_ANSWER_YET if timed_out else "The quorum could not confirm the read; try again.")
    raise Problem(503, "Not now", text, headers=RETRY, code=int(answer.code))


async def ask_waiting(
    request: Request, parts: Parts, question: bytes, consistency: Consistency, wait_ms: int
) -> QuestionAnswer | None:
    """The same, for whoever would still be let in when something happens. Raises Problem."""
    answer = await ask(parts, question, consistency, wait_ms)
    if wait_ms and not getattr(request.state, "still", lambda: True)():
        raise Problem(401, "Not allowed", "The token's right ended while this waited.")
    return answer


async def found(parts: Parts, question: bytes, consistency: Consistency) -> QuestionAnswer:
    """One that is not to wait for anything to happen. Raises Problem."""
    answer = await ask(parts, question, consistency)
    assert answer is not None, "it was not to wait for anything"
    return answer
