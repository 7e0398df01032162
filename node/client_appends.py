"""The client's appends: what was asked for in one turn of the loop leaves as one frame, and one answer ends them all.

The usual way makes no task and waits on no lock: a frame leaves over the leader's open connection, and its answer
settles the futures from the connection's own callback. Everything else (no leader known, a refusal that is worth
another try) takes the long way, `_deliver`. Invariants: every future is settled exactly once; entries are sent again
only after an answer that says "definitely not appended" (SAFETY C2).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from node.client_errors import Denied, NotAppended, OutcomeUnknown
from node.client_leader import DENIED
from node.client_link import Lost, MemberLink, RemotingError, body_of
from node.client_retry import Retry
from node.protocol.codes import RemotingCode, RequestCode, ResponseCode
from node.transport.remoting import Frame, FrameError
from node.transport.slab_frames import (
    AppendAnswer,
    AppendedByte,
    AppendRequest,
    BodyError,
    decode_append_answer,
    encode_append,
    response_code,
)

# A frame leaves as soon as it is this full: the leader works on it while the rest of the turn still gathers.
MERGE_ENTRIES_MAX: Final = 1024
MERGE_BYTES_MAX: Final = 1024 * 1024
# Longer runs than these leave in a frame of their own.
MERGED_RUN_ENTRIES_MAX: Final = 256
MERGED_RUN_BYTES_MAX: Final = 128 * 1024
# Worth another try by itself: the group is between leaders, or full for a moment.
RETRIED: Final = frozenset(
    {
        ResponseCode.NOT_LEADER, ResponseCode.LEADER_NOT_READY, ResponseCode.LEADER_TRANSFERRING,
        ResponseCode.LEADER_PENDING_FULL,
    }
)  # fmt: skip

Answered = Frame | Exception  # of one request: a frame, or why there is none


class AppendResult(NamedTuple):
    """Where the entries are: inclusive indexes, and the term they were written in."""

    first_index: int
    last_index: int
    term: int


class Leaders(Protocol):
    """What appends need to know of the group."""

    follow_redirects: bool

    def leader_at_hand(self) -> MemberLink | None:
        """The leader as last known, if its connection is open."""
        ...

    async def leader_link(self, retry: Retry) -> MemberLink: ...
    def forget(self, link: MemberLink) -> None: ...
    def redirected(self, link: MemberLink, leader_id: str) -> bool:
        """The member named another leader; whether to go there at once."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...


class Group:
    """The entries of one frame: one call's or several calls', of which each has `counts` entries and a future."""

    __slots__ = ("answers", "bodies", "counts", "expected_index", "settled")

    def __init__(
        self,
        bodies: Sequence[bytes],
        answers: list[asyncio.Future[AppendResult]],
        counts: list[int],
        expected: int = -1,
    ) -> None:
        self.bodies, self.answers, self.counts, self.expected_index = bodies, answers, counts, expected
        self.settled = False

    def apart(self) -> list[Group]:
        """Every call by itself."""
        groups: list[Group] = []
        at = 0
        for answer, count in zip(self.answers, self.counts, strict=True):
            groups.append(Group(self.bodies[at : at + count], [answer], [count]))
            at += count
        return groups


class Appends:
    """All of one client. `in_flight_max` bounds the entries that wait for their answer."""

    def __init__(self, leaders: Leaders, deadline_s: float, in_flight_max: int) -> None:
        self._leaders, self._deadline_s = leaders, deadline_s
        self._in_flight_max, self._in_flight = in_flight_max, 0
        self._room: deque[asyncio.Future[None]] = deque()
        self._bodies: list[bytes] = []  # of this turn
        self._answers: list[asyncio.Future[AppendResult]] = []
        self._counts: list[int] = []
        self._bytes = 0
        self._open: set[Group] = set()
        self._loop: asyncio.AbstractEventLoop | None = None  # that of the first append

    # --- entrance -----------------------------------------------------------------------------------------------
    async def one(self, body: bytes) -> AppendResult:
        """Appends one entry, in a frame with whatever else this turn asks for."""
        if self._in_flight >= self._in_flight_max:
            await self._wait_for_room()
        size_bytes = len(body)
        if not self._answers or len(self._bodies) >= MERGE_ENTRIES_MAX or self._bytes + size_bytes > MERGE_BYTES_MAX:
            self._make_room(1, size_bytes)
        assert self._loop is not None
        answer: asyncio.Future[AppendResult] = self._loop.create_future()
        self._answers.append(answer)
        self._counts.append(1)
        self._bodies.append(bytes(body))
        self._bytes += size_bytes
        self._in_flight += 1
        return await answer

    def _get_loop(self) -> asyncio.AbstractEventLoop:
        """Asked for once: in Python 3.11 every call costs a system call."""
        self._loop = asyncio.get_running_loop()
        return self._loop

    async def run(self, bodies: Sequence[bytes], expected_index: int) -> AppendResult:
        """Appends a contiguous run; a short one goes with what else this turn asks for."""
        if self._in_flight >= self._in_flight_max:
            await self._wait_for_room()
        answer: asyncio.Future[AppendResult] = (self._loop or self._get_loop()).create_future()
        count, size_bytes = len(bodies), sum(map(len, bodies))
        if expected_index < 0 and 0 < count <= MERGED_RUN_ENTRIES_MAX and size_bytes <= MERGED_RUN_BYTES_MAX:
            self._make_room(count, size_bytes)
            self._answers.append(answer)
            self._counts.append(count)
            self._bodies += bodies
            self._bytes += size_bytes
            self._in_flight += count
        else:
            self._flush()  # in the order of the calls
            self._in_flight += count
            self._post(Group(bodies, [answer], [count], expected_index))
        return await answer

    def _make_room(self, count: int, size_bytes: int) -> None:
        """A frame that leaves at this turn's end, with room for that."""
        loop = self._loop or self._get_loop()
        if not self._answers:
            loop.call_soon(self._flush)
        elif len(self._bodies) + count > MERGE_ENTRIES_MAX or self._bytes + size_bytes > MERGE_BYTES_MAX:
            self._flush()
            loop.call_soon(self._flush)

    async def _wait_for_room(self) -> None:
        while self._in_flight >= self._in_flight_max:
            room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._room.append(room)
            await room

    def _flush(self) -> None:
        if self._answers:
            group = Group(self._bodies, self._answers, self._counts)
            self._bodies, self._answers, self._counts, self._bytes = [], [], [], 0
            self._post(group)

    # --- the usual way ------------------------------------------------------------------------------------------
    def _post(self, group: Group) -> None:
        self._open.add(group)
        link = self._leaders.leader_at_hand()
        if link is None:
            self._leaders.spawn(self._go_on(group, None, self._deadline_s))
            return
        loop = self._loop or self._get_loop()
        began = loop.time()
        timer: asyncio.TimerHandle | None = None

        def answered(outcome: Answered) -> None:
            if timer is not None:
                timer.cancel()
            self._answered(group, link, outcome, began)

        try:
            opaque = link.call(RequestCode.FAST_APPEND, _pieces(group), answered)
        except FrameError as error:
            self._failed(group, error)
            return
        timer = loop.call_later(self._deadline_s, partial(link.fail_one, opaque, TimeoutError()))

    def _answered(self, group: Group, link: MemberLink, outcome: Answered, began: float) -> None:
        if isinstance(outcome, Frame) and outcome.code == RemotingCode.SUCCESS:
            try:
                answer = decode_append_answer(outcome.body)
            except BodyError as error:
                self._failed(group, OutcomeUnknown(str(error)))
                return
            if answer.appended is AppendedByte.YES:
                self._succeeded(group, answer.first_index, answer.term)
                return
        left_s = self._deadline_s - ((self._loop or self._get_loop()).time() - began)
        self._leaders.spawn(self._go_on(group, (link, outcome), max(0.0, left_s)))

    # --- the long way -------------------------------------------------------------------------------------------
    async def _go_on(self, group: Group, first: tuple[MemberLink, Answered] | None, left_s: float) -> None:
        try:
            answer = await self._deliver(group, first, left_s)
        except NotAppended as error:
            if error.code is ResponseCode.UNEXPECTED_ARGUMENT and len(group.answers) > 1:
                self._open.discard(group)  # one body is at fault: the others must not suffer for it
                for one in group.apart():
                    self._post(one)
                return
            self._failed(group, error)
        except asyncio.CancelledError:
            self._failed(group, OutcomeUnknown("the client was closed before an answer came"))
        except Exception as error:
            self._failed(group, error)
        else:
            self._succeeded(group, answer.first_index, answer.term)

    async def _deliver(self, group: Group, first: tuple[MemberLink, Answered] | None, left_s: float) -> AppendAnswer:
        """One append frame until it has an outcome; `first` is what became of its first try."""
        retry = Retry(left_s)
        while True:
            try:
                if first is not None:
                    (link, outcome), first = first, None
                    answer = decode_append_answer(body_of(link, outcome))
                else:
                    link = await self._leaders.leader_link(retry)
                    answer = decode_append_answer(
                        await link.request(RequestCode.FAST_APPEND, _pieces(group), retry.left_s())
                    )
            except Lost as error:
                self._leaders.forget(link)
                if error.sent:
                    raise OutcomeUnknown(f"the answer of {link.member_id} got lost: {error}") from error
                retry.reason = str(error)
            except TimeoutError as error:
                raise OutcomeUnknown(f"{link.member_id} did not answer within {self._deadline_s:g} s") from error
            except (RemotingError, BodyError) as error:
                raise OutcomeUnknown(str(error)) from error
            else:
                if answer.appended is AppendedByte.YES:
                    return answer
                self._judge(link, answer, retry)
            await retry.pause()

    def _judge(self, link: MemberLink, answer: AppendAnswer, retry: Retry) -> None:
        """Raises unless another try makes sense."""
        code = response_code(answer.code)
        text = f"{link.member_id} answers {code.value} {code.name}" + (f": {answer.detail}" if answer.detail else "")
        if answer.appended is AppendedByte.UNKNOWN:
            raise OutcomeUnknown(
                text, code=code, first_index=answer.first_index, last_index=answer.last_index, term=answer.term
            )
        if code in DENIED:
            raise Denied(text)
        elsewhere = code is ResponseCode.NOT_LEADER and not self._leaders.follow_redirects
        if code not in RETRIED or elsewhere:
            leader = (answer.leader_id or None, answer.leader_address or None)
            raise NotAppended(text, code=code, leader_id=leader[0], leader_address=leader[1])
        retry.reason = text
        retry.not_appended = NotAppended(text, code=code, leader_id=answer.leader_id or None)
        if code is ResponseCode.NOT_LEADER:
            retry.at_once = self._leaders.redirected(link, answer.leader_id)

    # --- the end of a group -------------------------------------------------------------------------------------
    def _succeeded(self, group: Group, first_index: int, term: int) -> None:
        if not self._settle(group):
            return
        for answer, count in zip(group.answers, group.counts, strict=True):
            if not answer.done():
                answer.set_result(AppendResult(first_index, first_index + count - 1, term))
            first_index += count

    def _failed(self, group: Group, error: Exception) -> None:
        if self._settle(group):
            for answer in group.answers:
                if not answer.done():
                    answer.set_exception(error)

    def _settle(self, group: Group) -> bool:
        """False where that was done before."""
        if group.settled:
            return False
        group.settled = True
        self._open.discard(group)
        entries = len(group.bodies)
        self._in_flight -= entries
        for _ in range(min(entries, len(self._room))):
            room = self._room.popleft()
            if not room.done():
                room.set_result(None)
        return True

    def close(self) -> None:
        """What still waits ends as unknown."""
        self._flush()
        for group in list(self._open):
            self._failed(group, OutcomeUnknown("the client was closed before an answer came"))


def _pieces(group: Group) -> list[bytes]:
    return encode_append(AppendRequest(group.bodies, group.expected_index))
