"""A client's lane: appends whose fate is known, for one appender at a time (what a lane is: `consensus/lanes.py`).

`client.open_lane()` voids every earlier lane of the group. Each append names its place in the lane and is taken whole
or not at all; any other end than success (a refusal, a lost connection, no answer in time) ends the lane: whatever was
under way is unknown then, and whoever goes on opens another lane and reads from the log, up to its `end_index`, what
became of it. Nothing is ever sent again.

Invariants: frames leave in the order of the calls; after the lane's end nothing more is sent; what does not fit the
window is refused here, before it has a place in the lane.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

from node.client.append_group import AppendResult
from node.client.appends import RETRIED
from node.client.errors import DENIED, Denied, LaneEnded, LedgerError, NotAppended, OutcomeUnknown, WrongLoop
from node.client.link import Lost, MemberLink, NotSupported, RemotingError, body_of
from node.client.retry import Retry
from node.loop_home import LoopHome
from node.protocol.codes import RequestCode, ResponseCode
from node.protocol.group_kind import NO_PATCH, Channel
from node.transport.lane_frames import LaneAnswer, LaneAppend, encode_lane_append, lane_answer
from node.transport.remoting import Frame, FrameError
from node.transport.slab_frames import AppendedByte, BodyError, decode_append_answer, response_code

OPEN_AGAIN: Final = RETRIED | {ResponseCode.DISK_FULL}
Answer = asyncio.Future[AppendResult]


class Leaders(Protocol):
    """Where to open one."""

    async def leader_link(self, retry: Retry) -> MemberLink: ...
    def forget(self, link: MemberLink) -> None: ...
    def redirected(self, link: MemberLink, leader_id: str) -> bool: ...


class Lane:
    """One that was opened. `end_index`: the log's end then, above which nothing of an earlier lane is."""

    def __init__(self, link: MemberLink, opened: LaneAnswer, deadline_s: float) -> None:
        self._link, self._deadline_s = link, deadline_s
        self.term, self.number, self.end_index = opened.term, opened.lane, opened.end_index
        self.window_entries, self.window_bytes = opened.window_entries, opened.window_bytes
        self.last_time_ms = opened.last_time_ms
        self.leader_id = link.member_id
        self.ended = ""  # why it ended; empty: it is open
        self._next_sequence = 0
        self._waiting_entries = self._waiting_bytes = 0
        self._open: deque[tuple[int, float, Answer]] = deque()  # what waits: its request, when it is due, for whom
        self._timer: asyncio.TimerHandle | None = None
        self._home = LoopHome(WrongLoop)
        self._loop = self._home.check()

    @property
    def waits(self) -> bool:
        """Whether any append has no outcome yet."""
        return self._waiting_entries > 0

    def has_room(self, entries: int, size_bytes: int) -> bool:
        """Whether an append of so much fits the window now; one alone always does."""
        if not self._waiting_entries:
            return True
        fits = self._waiting_entries + entries <= self.window_entries
        return fits and self._waiting_bytes + size_bytes <= self.window_bytes

    def append(
        self, bodies: Sequence[bytes], *, patch_at: int = NO_PATCH, channel: Channel = Channel.MESSAGE
    ) -> Answer:
        """Sends them at once; the future ends when the group promised to keep them all.

        `patch_at`: where in each body the leader writes the absolute position of that body in the log (8 bytes,
        big-endian). Raises LaneEnded; WrongLoop, and NotAppended where the window has no room: the lane is as it was.
        """
        self._home.check()
        if self.ended:
            raise LaneEnded(f"lane {self.number} of term {self.term} has ended: {self.ended}")
        count, size_bytes = len(bodies), sum(map(len, bodies))
        if not self.has_room(count, size_bytes):
            raise NotAppended("the lane's window is full", code=ResponseCode.LEADER_PENDING_FULL)
        answer: Answer = self._loop.create_future()
        request = LaneAppend(self.term, self.number, self._next_sequence, bodies, channel, patch_at)
        answered = partial(self._answered, answer, count, size_bytes)
        try:
            opaque = self._link.call(RequestCode.LANE_APPEND, encode_lane_append(request), answered)
        except FrameError as error:
            raise NotAppended(str(error)) from error
        if not answer.done():
            self._next_sequence += count
            self._waiting_entries += count
            self._waiting_bytes += size_bytes
            self._open.append((opaque, self._loop.time() + self._deadline_s, answer))
            self._look_later()
        return answer

    def _look_later(self) -> None:
        if self._timer is None and self._open:
            self._timer = self._loop.call_at(self._open[0][1], self._look_at_deadlines)

    def _look_at_deadlines(self) -> None:
        """One timer for all: they are due in the order in which they were sent."""
        self._timer = None
        while self._open:
            opaque, due_s, answer = self._open[0]
            has_answer = answer.done() and not answer.cancelled()  # what its caller cancelled still waits for one
            if not has_answer and due_s > self._loop.time():
                break
            self._open.popleft()
            if not has_answer:
                self._link.fail_one(opaque, TimeoutError(f"no answer within {self._deadline_s:g} s"))
        self._look_later()

    def _answered(self, answer: Answer, count: int, size_bytes: int, outcome: Frame | Exception) -> None:
        if self._waiting_entries:
            self._waiting_entries -= count
            self._waiting_bytes -= size_bytes
        while self._open and self._open[0][2] is answer:
            self._open.popleft()
        if answer.done():  # cancelled: what became of it is not known to anybody, so the lane cannot go on
            self._end("an append of it was cancelled")
            return
        try:
            answer.set_result(self._result(count, outcome))
        except LedgerError as error:
            self._end(str(error))
            answer.set_exception(error)

    def _result(self, count: int, outcome: Frame | Exception) -> AppendResult:
        """Raises LedgerError."""
        member_id = self._link.member_id
        try:
            answer = decode_append_answer(body_of(self._link, outcome), count)
        except Lost as error:
            if not error.sent:
                raise LaneEnded(str(error)) from error
            raise OutcomeUnknown(f"the answer of {member_id} got lost: {error}") from error
        except (TimeoutError, RemotingError, BodyError) as error:
            raise OutcomeUnknown(f"{member_id}: {error}") from error
        if answer.appended is AppendedByte.YES:
            return AppendResult(answer.first_index, answer.last_index, answer.term)
        code = response_code(answer.code)
        text = f"{member_id} answers {code.value} {code.name}: {answer.detail}"
        if answer.appended is AppendedByte.UNKNOWN:
            numbers = {"first_index": answer.first_index, "last_index": answer.last_index, "term": answer.term}
            raise OutcomeUnknown(text, code=code, **numbers)
        raise LaneEnded(text, code=code, leader_id=answer.leader_id or None)

    def _end(self, why: str) -> None:
        self.ended = self.ended or why

    def close(self) -> None:
        """Nothing more goes over it; what waits still gets its answer."""
        self._end("it was closed here")


async def open_lane(leaders: Leaders, deadline_s: float) -> Lane:
    """At whoever leads, within the deadline. Raises NotAppended, Unreachable, Denied."""
    retry = Retry(deadline_s)
    while True:
        link = await leaders.leader_link(retry)
        try:
            answer = lane_answer(await link.ask(RequestCode.OPEN_LANE, {}, retry.left_s()))
        except NotSupported as error:
            text = f"{link.member_id} knows no lanes: it is a plain DLedger, or of an older release"
            raise NotAppended(text, code=ResponseCode.UNSUPPORTED) from error
        except (OSError, TimeoutError, RemotingError, BodyError) as error:
            leaders.forget(link)
            retry.reason = str(error) or "no answer in time"
        else:
            if answer.code is ResponseCode.SUCCESS:
                return Lane(link, answer, deadline_s)
            retry.reason = f"{link.member_id} answers {answer.code.value} {answer.code.name}: {answer.detail}"
            if answer.code in DENIED:
                raise Denied(retry.reason)
            if answer.code not in OPEN_AGAIN:
                raise NotAppended(retry.reason, code=answer.code, leader_id=answer.leader_id)
            if answer.code is ResponseCode.NOT_LEADER:
                retry.at_once = leaders.redirected(link, answer.leader_id or "")
        await retry.pause()
