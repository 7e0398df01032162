"""The client's appends: what was asked for in one turn of the loop leaves as one frame, and one answer ends them all.

The usual way makes no task and waits on no lock: a frame leaves over the leader's open connection, and its answer
settles the futures from the connection's own callback. Everything else (no leader known, a refusal that is worth
another try) takes the long way, `_deliver`. A single append is a future and two list entries; all else is done once a
frame. Invariants: every future is settled exactly once; entries leave in the order of the calls as long as all go the
usual way, and are sent again only after an answer that says "definitely not appended" (SAFETY C2).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from threading import get_ident
from typing import Any, Final, Protocol

from node.client.append_group import AppendResult, Group
from node.client.arguments import ENTRIES_MAX, body_of_entry, number_of, seconds_of
from node.client.errors import DENIED, Denied, NotAppended, OutcomeUnknown, WrongLoop
from node.client.link import Lost, MemberLink, NotSupported, RemotingError, body_of
from node.client.plain_dledger import append_one
from node.client.retry import Retry
from node.loop_home import LoopHome
from node.protocol.codes import RemotingCode, RequestCode, ResponseCode
from node.transport.remoting import Frame, FrameError
from node.transport.slab_frames import (
    AppendAnswer,
    AppendedByte,
    BodyError,
    decode_append_answer,
    response_code,
)

# A frame leaves as soon as it is this full: the leader works on it while the rest of the turn still gathers.
MERGE_ENTRIES_MAX: Final = 1024
MERGE_BYTES_MAX: Final = 1024 * 1024
# So many bytes of bodies are under way at most, and one frame more: a fast link has its fill, and what waited
# behind them in the connection's buffer would be in memory twice, and end as unknown at a deadline before it left.
IN_FLIGHT_BYTES_MAX: Final = 16 * 1024 * 1024
# Bodies up to this size are not counted: as many as a frame holds are MERGE_BYTES_MAX.
SMALL_BODY_BYTES_MAX: Final = MERGE_BYTES_MAX // MERGE_ENTRIES_MAX
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

# Of a frame of several calls: none of them is to blame for the others.
ONE_BY_ONE: Final = frozenset({ResponseCode.UNEXPECTED_ARGUMENT, ResponseCode.UNSUPPORTED})

Answered = Frame | Exception  # of one request: a frame, or why there is none


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


class Appends:
    """All of one client. `in_flight_max` bounds the entries that wait for their answer; others wait to be sent."""

    def __init__(
        self, leaders: Leaders, deadline_s: float, in_flight_max: int, home: LoopHome | None = None
    ) -> None:  # fmt: skip
        """Raises TypeError, ValueError: without room, or a deadline that a clock reaches, an append would never end."""
        self._leaders, self._deadline_s = leaders, seconds_of("deadline_s", deadline_s)
        self._in_flight_max = number_of("in_flight_max", in_flight_max, ENTRIES_MAX, 1)
        self._home = home or LoopHome(WrongLoop)
        self._in_flight = self._in_flight_bytes = 0  # entries of frames and their bodies, this turn's not among them
        self._bodies: list[bytes] = []  # of this turn's frame
        self._answers: list[asyncio.Future[AppendResult]] = []
        self._runs: list[tuple[int, int]] = []
        self._bytes = 0  # of what is not small
        self._full_at = 0  # a small body goes into this turn's frame while it has fewer entries; 0: not without a look
        self._flush_is_due = False
        self._was_alone = False  # the last frame: one call's, while nothing else was under way
        self._waiting: deque[tuple[Sequence[bytes], asyncio.Future[AppendResult], int]] = deque()  # for room, in order
        self._open: dict[Group, None] = {}  # in the order in which they were sent
        self._one_by_one = asyncio.Lock()  # a plain DLedger promises no order among requests that are under way
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # that of the first append
        self._new_answer: Callable[[], asyncio.Future[AppendResult]]
        self._closed = False

    # --- entrance -----------------------------------------------------------------------------------------------
    def submit(self, body: bytes) -> asyncio.Future[AppendResult]:
        """Appends one entry, in a frame with whatever else this turn asks for."""
        bodies = self._bodies
        if len(bodies) >= self._full_at or len(body) > SMALL_BODY_BYTES_MAX or type(body) is not bytes:
            return self.submit_run([body_of_entry(body)])
        if get_ident() != self._home.thread:
            self._home.check()
        bodies.append(body)
        answer = self._new_answer()
        self._answers.append(answer)
        return answer

    def submit_run(self, bodies: Sequence[bytes], expected_index: int = -1) -> asyncio.Future[AppendResult]:
        """Appends a contiguous run; a short one goes with what else this turn asks for."""
        loop = self._home.check()  # once a frame: in Python 3.11 it costs system calls
        if self._loop is None:
            self._loop, self._new_answer = loop, loop.create_future
        answer = self._new_answer()
        if self._closed:
            answer.set_exception(NotAppended("the client is closed"))
        elif self._waiting or self._is_full():
            self._waiting.append((bodies, answer, expected_index))
            self._full_at = 0  # nothing overtakes what waits
        else:
            self._take(bodies, answer, expected_index)
        return answer

    def _take(self, bodies: Sequence[bytes], answer: asyncio.Future[AppendResult], expected_index: int) -> None:
        count = len(bodies)
        size_bytes = sum(map(len, bodies)) if count <= MERGED_RUN_ENTRIES_MAX else MERGED_RUN_BYTES_MAX + 1
        if expected_index >= 0 or not count or size_bytes > MERGED_RUN_BYTES_MAX:
            self._flush()  # in the order of the calls
            self._send(Group(bodies, [answer], [(0, count)], expected_index))
            return
        if len(self._bodies) + count > MERGE_ENTRIES_MAX or self._bytes + size_bytes > MERGE_BYTES_MAX:
            self._flush()
        # One at a time: nothing is under way, nor was when the last call left. It has nobody to wait for.
        alone = not self._open and self._was_alone and not self._flush_is_due
        if not alone and not self._flush_is_due:
            assert self._loop is not None
            self._flush_is_due = True
            self._loop.call_soon(self._turn_ends)
        if count != 1:
            self._runs.append((len(self._answers), count))
        self._answers.append(answer)
        self._bodies += bodies
        self._bytes += size_bytes
        if alone:
            self._flush()
        else:
            self._full_at = 0 if self._waiting else min(MERGE_ENTRIES_MAX, self._in_flight_max - self._in_flight)

    def _is_full(self) -> bool:
        """Whether the next call waits for room."""
        if self._in_flight + len(self._bodies) >= self._in_flight_max:
            return True
        return self._in_flight_bytes + self._bytes >= IN_FLIGHT_BYTES_MAX

    def _let_in(self) -> None:
        """Takes calls that wait, as long as there is room in flight."""
        while self._waiting and not self._is_full():
            bodies, answer, expected_index = self._waiting.popleft()
            if not answer.done():  # else nobody wants it any more, and nothing of it was sent
                self._take(bodies, answer, expected_index)

    def _turn_ends(self) -> None:
        self._flush_is_due = False
        self._flush()

    def _flush(self) -> None:
        if self._answers:
            group = Group(self._bodies, self._answers, self._runs)
            self._bodies, self._answers, self._runs, self._bytes, self._full_at = [], [], [], 0, 0
            self._send(group)

    # --- the usual way ------------------------------------------------------------------------------------------
    def _send(self, group: Group) -> None:
        assert self._loop is not None
        self._was_alone = len(group.answers) == 1 and not self._open
        self._open[group] = None
        self._in_flight += len(group.bodies)
        self._in_flight_bytes += group.size_bytes
        link = self._leaders.leader_at_hand()
        if link is None or link.plain:
            self._leaders.spawn(self._go_on(group, None, self._deadline_s))
            return
        group.link, group.due_s = link, self._loop.time() + self._deadline_s
        try:
            group.opaque = link.call(RequestCode.FAST_APPEND, group.pieces(), partial(self._answered, group, link))
        except FrameError as error:
            self._failed(group, NotAppended(str(error), code=ResponseCode.UNEXPECTED_ARGUMENT))
            return
        if self._deadline_timer is None:
            self._deadline_timer = self._loop.call_later(self._deadline_s, self._look_at_deadlines)

    def _look_at_deadlines(self) -> None:
        """One timer for all: they are due in the order in which they were sent."""
        assert self._loop is not None
        self._deadline_timer = None
        now = self._loop.time()
        for group in list(self._open):
            if group.link is None:
                continue  # the long way has a clock of its own
            if group.due_s > now:
                self._deadline_timer = self._loop.call_later(group.due_s - now, self._look_at_deadlines)
                return
            group.link.fail_one(group.opaque, TimeoutError())

    def _answered(self, group: Group, link: MemberLink, outcome: Answered) -> None:
        group.link = None
        if isinstance(outcome, Frame) and outcome.code == RemotingCode.SUCCESS:
            try:
                answer = decode_append_answer(outcome.body, len(group.bodies))
            except BodyError as error:
                self._failed(group, OutcomeUnknown(str(error)))
                return
            if answer.appended is AppendedByte.YES:
                self._succeeded(group, answer.first_index, answer.term)
                return
        assert self._loop is not None
        left_s = group.due_s - self._loop.time()
        self._leaders.spawn(self._go_on(group, (link, outcome), max(0.0, left_s)))

    # --- the long way -------------------------------------------------------------------------------------------
    async def _go_on(self, group: Group, first: tuple[MemberLink, Answered] | None, left_s: float) -> None:
        assert self._loop is not None
        due_s = self._loop.time() + left_s
        try:
            answer = await self._deliver(group, first, left_s)
        except NotAppended as error:
            if error.code in ONE_BY_ONE and len(group.answers) > 1:
                del self._open[group]  # one body is at fault, or one is all that is taken: each by itself
                for one in group.apart():  # in what is left of their time
                    self._open[one] = None
                    self._leaders.spawn(self._go_on(one, None, max(0.0, due_s - self._loop.time())))
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
                    answer = decode_append_answer(body_of(link, outcome), len(group.bodies))
                else:
                    link = await self._leaders.leader_link(retry)
                    answer = await (self._append_plain if link.plain else self._append)(group, link, retry)
            except Lost as error:
                self._leaders.forget(link)
                if error.sent:
                    raise OutcomeUnknown(f"the answer of {link.member_id} got lost: {error}") from error
                retry.reason = str(error)
            except TimeoutError as error:
                raise OutcomeUnknown(f"{link.member_id} did not answer within {self._deadline_s:g} s") from error
            except NotSupported as error:
                if link.plain:
                    raise NotAppended(str(error), code=ResponseCode.UNSUPPORTED) from error
                link.plain, retry.at_once, retry.reason = True, True, str(error)
            except (RemotingError, BodyError) as error:
                raise OutcomeUnknown(str(error)) from error
            else:
                if answer.appended is AppendedByte.YES:
                    return answer
                self._judge(link, answer, retry)
            await retry.pause()

    async def _append(self, group: Group, link: MemberLink, retry: Retry) -> AppendAnswer:
        answered = await link.request(RequestCode.FAST_APPEND, group.pieces(), retry.left_s())
        return decode_append_answer(answered, len(group.bodies))

    async def _append_plain(self, group: Group, link: MemberLink, retry: Retry) -> AppendAnswer:
        """In DLedger's own form, which knows one entry a request. Raises NotAppended, and as `append_one`; Lost, not
        sent, where those before it took its time."""
        refused = None
        if group.expected_index >= 0:
            refused = "it cannot append at an expected index only"
        elif len(group.bodies) != 1:
            refused = "it takes one entry a request, so nothing keeps a run together"
        if refused is not None:
            text = f"{link.member_id} is a plain DLedger: {refused}"
            raise NotAppended(text, code=ResponseCode.UNSUPPORTED)
        if await retry.within(self._one_by_one.acquire()) is None:
            raise Lost(f"{link.member_id} takes one entry at a time: those before used up the time", sent=False)
        try:
            return await append_one(link, group.bodies[0], retry.left_s())
        finally:
            self._one_by_one.release()

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
        retry.hint_s = answer.retry_after_ms / 1000
        retry.not_appended = NotAppended(
            text, code=code, leader_id=answer.leader_id or None, retry_after_s=retry.hint_s or None
        )
        if code is ResponseCode.NOT_LEADER:
            retry.at_once = self._leaders.redirected(link, answer.leader_id)

    # --- the end of a group -------------------------------------------------------------------------------------
    def _succeeded(self, group: Group, first_index: int, term: int) -> None:
        if self._settle(group):
            settled = map(asyncio.Future.set_result, group.answers, group.results(first_index, term))
            while True:
                try:
                    deque(settled, 0)  # all of it, in C
                    return
                except asyncio.InvalidStateError:
                    continue  # that one was cancelled; on with the next

    def _failed(self, group: Group, error: Exception) -> None:
        if self._settle(group):
            for answer, own in zip(group.answers, group.errors(error), strict=False):
                if not answer.done():
                    answer.set_exception(own)

    def _settle(self, group: Group) -> bool:
        """Counts a group as no longer in flight; False where that was done before."""
        if group.settled:
            return False
        group.settled = True
        self._open.pop(group, None)
        self._in_flight -= len(group.bodies)
        self._in_flight_bytes -= group.size_bytes
        if self._waiting:
            assert self._loop is not None
            self._loop.call_soon(self._let_in)
        return True

    def close(self) -> None:
        """What still waits ends as unknown, and as not appended what was not sent yet."""
        self._closed, self._full_at = True, 0
        self._flush()
        while self._waiting:
            _bodies, answer, _expected_index = self._waiting.popleft()
            if not answer.done():
                answer.set_exception(NotAppended("the client was closed before it was sent"))
        for group in list(self._open):
            self._failed(group, OutcomeUnknown("the client was closed before an answer came"))
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
