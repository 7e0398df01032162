"""Commands to a group's state machine and questions to it, over a `LedgerClient`'s connections.

Invariant: a command is sent again only after an outcome that says "definitely not appended" (SAFETY C2). A question
changes nothing, so it is asked again as often as the deadline allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from node.client.errors import Denied, LedgerError, NotAppended, OutcomeUnknown, Unsupported
from node.client.leader import DENIED
from node.client.ledger_client import LedgerClient
from node.client.link import Lost, MemberLink, NotSupported, RemotingError
from node.client.retry import Retry
from node.protocol.codes import RequestCode, ResponseCode
from node.transport.machine_frames import (
    WAIT_MS_MAX,
    CommandAnswer,
    QuestionAnswer,
    QuestionRequest,
    decode_command_answer,
    decode_question_answer,
    encode_question,
)
from node.transport.slab_frames import AppendedByte, AppendRequest, BodyError, ReadMode, encode_append, response_code

AGAIN: Final = frozenset(
    {
        ResponseCode.NOT_LEADER, ResponseCode.LEADER_NOT_READY, ResponseCode.LEADER_TRANSFERRING,
        ResponseCode.LEADER_PENDING_FULL,
    }
)  # fmt: skip


class CommandResult(NamedTuple):
    """Where the commands are in the log, and what applying each of them answered."""

    first_index: int
    term: int
    results: Sequence[bytes]


class Answered(NamedTuple):
    """An answer, and the last entry that was applied to the state that gave it."""

    content: bytes
    applied_index: int


class MachineClient:
    """Use from one event loop, that of its `LedgerClient`, which stays the owner of the connections."""

    def __init__(self, client: LedgerClient, deadline_s: float = 10.0) -> None:
        self._client, self._deadline_s = client, deadline_s

    async def command(self, *bodies: bytes) -> CommandResult:
        """Has the group apply them, one behind the other; returns with the results.

        Raises NotAppended, Unreachable, Denied, Unsupported (the group has no state machine): nothing was applied.
        OutcomeUnknown: ask the state machine what became of it, before it is tried again.
        """
        retry = Retry(self._deadline_s)
        sent = encode_append(AppendRequest(bodies))
        while True:
            link = await self._client.leader_link(retry)
            try:
                found = self._settled(link, await self._send(link, sent, retry), retry)
            except NotSupported as error:
                raise Unsupported(f"{link.member_id} has no state machine: {error}") from error
            if found is not None:
                return found
            await retry.pause()

    async def _send(self, link: MemberLink, sent: Sequence[bytes], retry: Retry) -> CommandAnswer | None:
        """None: it was not sent, and may be again. Raises OutcomeUnknown, NotSupported."""
        try:
            return decode_command_answer(await link.request(RequestCode.COMMAND, sent, retry.left_s()))
        except NotSupported:
            raise
        except Lost as error:
            if error.sent:
                raise OutcomeUnknown(f"the answer of {link.member_id} got lost: {error}") from error
            retry.reason = str(error)
        except (OSError, TimeoutError, RemotingError, BodyError) as error:
            raise OutcomeUnknown(f"{link.member_id}: {str(error) or 'no answer in time'}") from error
        self._client.forget(link)
        return None

    def _settled(self, link: MemberLink, answer: CommandAnswer | None, retry: Retry) -> CommandResult | None:
        """None: not appended, and worth another try."""
        if answer is None:
            return None
        append, code = answer.append, response_code(answer.append.code)
        if append.appended is AppendedByte.YES and answer.is_applied:
            return CommandResult(append.first_index, append.term, answer.results)
        text = f"{link.member_id} answers {code.value} {code.name}: {append.detail}"
        if append.appended is not AppendedByte.NOT_APPENDED:
            numbers = {"first_index": append.first_index, "last_index": append.last_index, "term": append.term}
            if append.appended is AppendedByte.YES:
                text = f"{link.member_id}: it is in the log for good, and what applying it answered is not known"
            raise OutcomeUnknown(text, code=code, **numbers)
        if code in DENIED:
            raise Denied(text)
        if code not in AGAIN:
            raise NotAppended(text, code=code, leader_id=append.leader_id or None)
        if code is ResponseCode.NOT_LEADER:
            retry.at_once = self._client.redirected(link, append.leader_id)
        retry.hint_s, retry.reason = append.retry_after_ms / 1000, text
        return None

    async def ask(
        self, question: bytes, *, mode: ReadMode = ReadMode.LINEARIZABLE, member_id: str | None = None,
        wait_ms: int = 0,
    ) -> Answered | None:  # fmt: skip
        """The answer from the leader's state, or from that member's; as fresh either way, unless `mode` is UNSAFE.

        `wait_ms`: so long a question may wait for something to happen; then the answer is None. Raises Unreachable,
        Denied, Unsupported, and LedgerError for a question that the state machine does not understand.
        """
        retry = Retry(self._deadline_s + wait_ms / 1000)
        while True:
            link = await self._client.leader_link(retry) if member_id is None else self._client.link_of(member_id)
            # Without a wait of its own it still may wait for its state.
            patience_ms = wait_ms or int(min(retry.left_s() * 1000, WAIT_MS_MAX))
            body = encode_question(QuestionRequest(question, mode, min(patience_ms, WAIT_MS_MAX)))
            try:
                answer = decode_question_answer(await link.request(RequestCode.QUESTION, [body], retry.left_s()))
            except NotSupported as error:
                raise Unsupported(f"{link.member_id} has no state machine: {error}") from error
            except (OSError, TimeoutError, LookupError, RemotingError, BodyError) as error:
                retry.reason = str(error) or "no answer in time"
            else:
                if answer.code is ResponseCode.SUCCESS:
                    return Answered(answer.content, answer.applied_index)
                if answer.code is ResponseCode.TIMEOUT and wait_ms and not answer.content:
                    return None
                retry.reason = self._why(link, answer)
            self._client.forget(link)
            await retry.pause()

    @staticmethod
    def _why(link: MemberLink, answer: QuestionAnswer) -> str:
        """Why there is no answer yet. Raises Denied, LedgerError where there will be none."""
        text = f"{link.member_id} answers {answer.code.value} {answer.code.name}: {answer.text}"
        if answer.code in DENIED:
            raise Denied(text)
        if answer.code in (ResponseCode.UNEXPECTED_ARGUMENT, ResponseCode.INTERNAL_ERROR):
            raise LedgerError(text)
        return text
