"""Commands to a group's state machine and questions to it, over a `LedgerClient`'s connections.

Invariant: a command is sent again only after an outcome that says "definitely not appended" (SAFETY C2). A question
changes nothing, so it is asked again as often as the deadline allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import ceil
from typing import Final, NamedTuple

from node.client.arguments import seconds_of
from node.client.errors import DENIED, Denied, LedgerError, NotAppended, OutcomeUnknown, Unsupported
from node.client.gathered import Gathered
from node.client.ledger_client import LedgerClient
from node.client.link import Lost, MemberLink, NotSupported, RemotingError
from node.client.members import link_to
from node.client.retry import Retry
from node.protocol.codes import RequestCode, ResponseCode
from node.transport.machine_frames import (
    QUESTIONS_MAX,
    WAIT_MS_MAX,
    CommandAnswer,
    QuestionAnswer,
    QuestionRequest,
    decode_command_answer,
    decode_question_answer,
    encode_question,
)
from node.transport.slab_frames import AppendedByte, AppendRequest, BodyError, ReadMode, encode_append, response_code

# In one frame. Twice as many cost less CPU each, but with many in flight everybody then waits for the others' turns.
COMMANDS_MAX: Final = 1024
COMMANDS_BYTES_MAX: Final = 1024 * 1024
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
    """Use from one event loop, that of its `LedgerClient`, which stays the owner of the connections.

    Calls of one turn of the loop travel together: commands in one frame, and so do questions of one kind. `kind`: only
    a group with that state machine gets them (`state_machine/kind.py`), for a command is in the log for good, and one
    that its state machine cannot apply may stop it on every member; None: any gets them.
    """

    def __init__(self, client: LedgerClient, deadline_s: float = 10.0, kind: str | None = None) -> None:
        self._client, self._deadline_s = client, seconds_of("deadline_s", deadline_s)
        self._kind, self._is_checked = kind, kind is None
        self._commands: Gathered[Sequence[bytes], CommandResult] = Gathered(
            COMMANDS_MAX, self._carry_out, COMMANDS_BYTES_MAX
        )
        self._questions: dict[tuple[ReadMode, str | None], Gathered[bytes, QuestionAnswer]] = {}

    async def command(self, *bodies: bytes) -> CommandResult:
        """Has the group apply them, one behind the other; returns with the results.

        Raises NotAppended, Unreachable, Denied, Unsupported (the group has no state machine): nothing was applied.
        OutcomeUnknown: ask the state machine what became of it, before it is tried again.
        """
        return await self._commands.add(bodies, len(bodies), sum(map(len, bodies)))

    async def _carry_out(self, calls: Sequence[Sequence[bytes]]) -> list[CommandResult | LedgerError]:
        """What several calls wanted, as one run; what is unknown names each call's own entries (SAFETY C2)."""
        counts = [len(bodies) for bodies in calls]
        try:
            whole = await self.run([body for bodies in calls for body in bodies])
        except OutcomeUnknown as error:
            return [*unknown_each(error, counts)]
        results = list(whole.results)
        return [
            CommandResult(whole.first_index + at, whole.term, results[at : at + count])
            for at, count in zip(accumulate(counts, initial=0), counts, strict=False)
        ]

    async def run(self, bodies: Sequence[bytes]) -> CommandResult:
        """One frame's worth (COMMANDS_MAX), until it has an outcome. Raises LedgerError."""
        retry = Retry(self._deadline_s)
        sent = encode_append(AppendRequest(bodies))
        while True:
            link = await self._client.leader_link(retry)
            if not self._is_checked and not await self._check_kind(link, retry):
                await retry.pause()
                continue
            try:
                found = self._settled(link, await self._send(link, sent, len(bodies), retry), retry)
            except NotSupported as error:
                raise Unsupported(f"{link.member_id} has no state machine: {error}") from error
            if found is not None:
                return found
            await retry.pause()

    async def _check_kind(self, link: MemberLink, retry: Retry) -> bool:
        """False: it cannot be asked now. Raises Unsupported where the group has another state machine. One that names
        none is a plain log, which refuses commands, or of an older release."""
        if link.identity.state_machine is None:
            try:
                fields = await link.ask(RequestCode.METADATA, {}, retry.left_s())
                link.identity.check(link, fields)
            except (OSError, TimeoutError, RemotingError, BodyError) as error:
                retry.reason = str(error) or "no answer in time"
                self._client.forget(link)
                return False
            link.identity.learn(fields)
        has = link.identity.state_machine
        if has not in (None, self._kind):
            raise Unsupported(f"the group's state machine is {has!r}, not {self._kind!r}")
        self._is_checked = True
        return True

    async def _send(self, link: MemberLink, sent: Sequence[bytes], commands: int, retry: Retry) -> CommandAnswer | None:
        """None: it was not sent, and may be again. Raises OutcomeUnknown, NotSupported."""
        try:
            return decode_command_answer(await link.request(RequestCode.COMMAND, sent, retry.left_s()), commands)
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
        """What an answer means for a command: its result; None where it was not appended and may be tried again."""
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
                text += f" ({append.detail})" if append.detail else ""
            raise OutcomeUnknown(text, code=code, **numbers)
        if code in DENIED:
            raise Denied(text)
        retry.not_appended = NotAppended(text, code=code, leader_id=append.leader_id or None)
        if code not in AGAIN:
            raise retry.not_appended
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
        if wait_ms:  # it may wait long: others are not to wait with it
            [found] = await self.ask_all([question], mode, member_id, wait_ms)
        else:
            together = self._questions.get((mode, member_id))
            if together is None:
                together = Gathered(QUESTIONS_MAX, lambda contents: self.ask_all(contents, mode, member_id))
                self._questions[mode, member_id] = together
            found = await together.add(question, 1, len(question))
        if isinstance(found, LedgerError):
            raise found
        return Answered(found.content, found.applied_index) if found.code is ResponseCode.SUCCESS else None

    async def ask_all(
        self, questions: Sequence[bytes], mode: ReadMode, member_id: str | None, wait_ms: int = 0
    ) -> list[QuestionAnswer | LedgerError]:
        """One for each: the answer (TIMEOUT: nothing happened within `wait_ms`), or why there is none."""
        retry = Retry(self._deadline_s + wait_ms / 1000)
        settled: list[QuestionAnswer | LedgerError | str] = ["it was not asked yet"] * len(questions)
        while True:
            link = await link_to(self._client, member_id, retry)
            if not self._is_checked and not await self._check_kind(link, retry):
                await retry.pause()
                continue
            open_at = [at for at, one in enumerate(settled) if isinstance(one, str)]
            # Without a wait of its own it still may wait for its state; with one it waits for what is left of that, and
            # the time for an answer stays: behind a change of the leader, too.
            left_s = retry.left_s() - (self._deadline_s if wait_ms else 0.0)
            patience_ms = max(1, ceil(left_s * 1000))
            asked = [questions[at] for at in open_at]
            body = encode_question(QuestionRequest(asked, mode, min(patience_ms, WAIT_MS_MAX)))
            try:
                answered = await link.request(RequestCode.QUESTION, [body], retry.left_s())
                answers = decode_question_answer(answered, len(asked))
            except NotSupported as error:
                raise Unsupported(f"{link.member_id} has no state machine: {error}") from error
            except (OSError, TimeoutError, LookupError, RemotingError, BodyError) as error:
                retry.reason = str(error) or "no answer in time"
            else:
                if len(asked) == len(questions) and all(one.code is ResponseCode.SUCCESS for one in answers):
                    return [*answers]
                for at, one in zip(open_at, answers, strict=True):
                    settled[at] = self._judged(link, one, wait_ms)
                left = [one for one in settled if isinstance(one, str)]
                if not left:
                    return [one for one in settled if not isinstance(one, str)]
                if len(left) < len(asked):
                    continue  # all of them together were too much for one answer
                retry.reason = left[0]
            self._client.forget(link)
            await retry.pause()

    @staticmethod
    def _judged(link: MemberLink, answer: QuestionAnswer, wait_ms: int) -> QuestionAnswer | LedgerError | str:
        """The answer, why there will be none, or (a text) why it is worth another try."""
        if answer.code is ResponseCode.SUCCESS:
            return answer
        if answer.code is ResponseCode.TIMEOUT and wait_ms and not answer.content:
            return answer
        text = f"{link.member_id} answers {answer.code.value} {answer.code.name}: {answer.text}"
        if answer.code in DENIED:
            return Denied(text)
        if answer.code in (ResponseCode.UNEXPECTED_ARGUMENT, ResponseCode.INTERNAL_ERROR):
            return LedgerError(text)
        return text


def unknown_each(error: OutcomeUnknown, counts: Sequence[int]) -> list[OutcomeUnknown]:
    """What is unknown of a run of commands, as each call's own: so many commands each (SAFETY C2). Nothing is named
    where the indexes that the member named are not as many as the commands: then nobody knows which are whose."""
    first, term = error.first_index, error.term
    is_shared = first >= 0 and error.last_index - first + 1 == sum(counts)
    found = []
    for at, count in zip(accumulate(counts, initial=0), counts, strict=False):
        own = {"first_index": first + at, "last_index": first + at + count - 1, "term": term} if is_shared else {}
        found.append(OutcomeUnknown(str(error), code=error.code, **own))
    return found
