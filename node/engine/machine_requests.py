"""Commands to a group's state machine, and questions to it, between clients and the core.

A command is stamped with the leader's time, appended, and answered when it is applied, with its result. A question is
answered by this member's own state machine, leader or not, from a state that holds every entry that was committed when
the question came (read index, then applied), unless it asks for less.

Invariants: every request gets exactly one answer; a stamp is never before the one before it; what is asked with
LINEARIZABLE is put to the state machine only behind its read index. What a connection's questions wait for is bounded,
more closely where many wait, so that one client's watches keep no other from asking; a connection that does not take
its answers gets short ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from node.consensus.api import Appended, Applied, Outcome, Proposal, ReadOutcome
from node.consensus.replica import Replica
from node.engine.applier import Machine
from node.engine.clock import now_ns, wall_ms
from node.engine.log_clock import LogClock
from node.engine.proposals import Proposals
from node.engine.quota import Quota
from node.protocol.codes import ResponseCode, Role
from node.protocol.messages import ReadWay
from node.protocol.packed_bodies import with_head
from node.state_machine.kind import Type, body_of
from node.transport.bodies import BodyError
from node.transport.connection import Connection
from node.transport.machine_frames import (
    CommandAnswer,
    QuestionRequest,
    decode_question,
    encode_command_answer,
    encode_question_answer,
)
from node.transport.remoting import FLAG_ONE_WAY, Frame
from node.transport.slab_frames import AppendAnswer, ReadMode, decode_append

Answers = Sequence[tuple[ResponseCode, int, bytes]]
TICK_LOOK_S: Final = 0.1  # a key's time may end so much earlier than its entry comes
OPEN_MAX: Final = 2048  # questions of a connection; one that has none open may always ask a whole frame of them
CROWD: Final = 4096  # of all: then each may have only so many
CROWDED_MAX: Final = 16
UNTAKEN_BYTES_MAX: Final = 16 * 1024 * 1024  # of a connection: results and answers that come then are not sent
NOT_TAKEN: Final = "the answers before this one were not taken: read them first"


def _nobody_asked(_index: int, _error: str) -> None:
    """What became of a save is in the log."""


class Driver(Protocol):
    """What is needed of the engine."""

    replica: Replica
    proposals: Proposals

    def read_index(self, done: Callable[[ReadOutcome], None], way: ReadWay = ReadWay.USUAL) -> None: ...
    def read_done(self) -> None: ...


class Clients(Protocol):
    """What is needed of the other client requests."""

    def append_answer(self, outcome: Outcome) -> AppendAnswer: ...
    def hold(self, connection: Connection, frame: Frame, body: bytes) -> None: ...


class Ticks:
    """Where the entries come from that say nothing but that time has passed."""

    order_broken = False


class MachineRequests:
    """One per engine of a group with a state machine."""

    def __init__(
        self, driver: Driver, machine: Machine, clients: Clients, quota: Quota, wall: Callable[[], int] = wall_ms,
        steady_ns: Callable[[], int] = now_ns,
    ) -> None:  # fmt: skip
        self._driver, self._machine, self._clients, self._quota = driver, machine, clients, quota
        self._clock, self._clock_of_term = LogClock(wall, steady_ns), -1
        self._open: dict[Connection, int] = {}  # questions
        self._open_of_all = 0
        self._ticks = Ticks()
        self._tick_open = False
        self._timer: asyncio.TimerHandle | None = None

    # --- commands -------------------------------------------------------------------------------------------------
    def command(self, connection: Connection, frame: Frame) -> None:
        """COMMAND. Raises BodyError."""
        request = decode_append(frame.body)
        count, size = len(request.bodies), len(frame.body)
        if request.ordered or request.expected_index >= 0:
            raise BodyError("commands take no expected_index and no order: name a condition in the command itself")
        idle = self._idle()
        if idle is not None:
            connection.answer(frame, encode_command_answer(CommandAnswer(self._clients.append_answer(idle), False)))
            return
        self._quota.take(connection, count, size)

        def done(outcome: Outcome) -> None:
            self._quota.give(connection, count, size)
            if not frame.flag & FLAG_ONE_WAY:
                append, known = self._clients.append_answer(outcome), outcome.applied is Applied.YES
                if known and connection.backlog_bytes > UNTAKEN_BYTES_MAX:
                    append, known = append._replace(detail=NOT_TAKEN), False
                elif not known:
                    append = append._replace(detail=outcome.detail)
                answer = CommandAnswer(append, known, outcome.results if known else ())
                self._clients.hold(connection, frame, encode_command_answer(answer))

        bodies = with_head(request.bodies, body_of(Type.COMMAND, self._log_time_ms()))
        self._driver.proposals.add(connection, Proposal(bodies, done, at_apply=True), ordered=False)

    def _idle(self) -> Outcome | None:
        """Refuses for a leader whose state machine has not said yet where it stands (it starts, or is started again),
        which cannot apply an entry, or whose state is not one of this log.

        What was appended then would be in the log for good, and its result unknown where that takes long.
        """
        replica = self._driver.replica
        if replica.role is not Role.LEADER:
            return None
        if replica.applied_index is None:
            text = f"the state machine is not there: {replica.applying.status().last_error or 'it has not started yet'}"
        elif failing := replica.applying.failing:
            text = f"the state machine applies nothing more: {failing}"
        elif unfit := replica.applying.unfit:
            text = f"the state machine takes no commands here: {unfit}"
        else:
            return None
        code = ResponseCode.LEADER_NOT_READY
        return Outcome(code, -1, -1, replica.term, Appended.NOT_APPENDED, replica.config.self_id, text)

    def _log_time_ms(self) -> int:
        replica = self._driver.replica
        member = replica.member
        if replica.role is not Role.LEADER:  # it is refused, or elected this turn: its own clock says nothing yet
            return max(member.last_time.milliseconds(), self._machine.time_ms)
        if member.term != self._clock_of_term:  # another leader's entries may have come since
            self._clock_of_term = member.term
            self._clock.learn(max(member.last_time.milliseconds(), self._machine.time_ms))
        return self._clock.now_ms()

    # --- questions ------------------------------------------------------------------------------------------------
    def question(self, connection: Connection, frame: Frame) -> None:
        """QUESTION. Raises BodyError."""
        request, size = decode_question(frame.body), len(frame.body)
        count = len(request.contents)
        mine = self._open.get(connection, 0)
        if mine and mine + count > (OPEN_MAX if self._open_of_all < CROWD else CROWDED_MAX):
            text = f"{mine} questions of this connection wait already"
            refused = (ResponseCode.LEADER_PENDING_FULL, -1, text.encode())
            connection.answer(frame, *encode_question_answer([refused] * count))
            return
        unfit = self._driver.replica.applying.unfit
        if unfit:
            refused = (ResponseCode.ILLEGAL_MEMBER_STATE, -1, f"ask another member: {unfit}".encode())
            connection.answer(frame, *encode_question_answer([refused] * count))
            return
        self._quota.take(connection, count, size)
        self._open[connection] = mine + count
        self._open_of_all += count

        def answer(answers: Answers) -> None:
            self._quota.give(connection, count, size)
            self._answered(connection, count)
            if connection.backlog_bytes > UNTAKEN_BYTES_MAX:
                answers = [(ResponseCode.LEADER_PENDING_FULL, -1, NOT_TAKEN.encode())] * count
            connection.answer(frame, *encode_question_answer(answers))

        if request.mode is ReadMode.UNSAFE:
            self._machine.ask(request.contents, -1, request.wait_ms, answer)
        else:
            self._driver.read_index(lambda outcome: self._confirmed(request, outcome, answer), request.mode.way)

    def _answered(self, connection: Connection, count: int) -> None:
        self._open_of_all -= count
        left = self._open.pop(connection) - count
        if left:
            self._open[connection] = left

    def _confirmed(self, request: QuestionRequest, outcome: ReadOutcome, answer: Callable[[Answers], None]) -> None:
        if outcome.code is not ResponseCode.SUCCESS:
            text = (outcome.detail or "the quorum could not confirm the read").encode()
            answer([(outcome.code, -1, text)] * len(request.contents))
        else:
            self._machine.ask(request.contents, outcome.read_index, request.wait_ms, answer)

    def snapshot(self, done: Callable[[int, str], None]) -> None:
        """See `Machine.save`."""
        self._machine.save(done)

    def save_upto(self, index: int) -> None:
        """A snapshot that goes up to that entry or beyond. Where none is committed there an entry is added that says
        nothing but the time: the newest snapshot may be damaged, and a group that is idle would wait for a client."""
        if index > self._driver.replica.committed_index and self._driver.replica.role is Role.LEADER:
            self._tick(lambda: self._machine.save(_nobody_asked))
        else:
            self._machine.save(_nobody_asked)

    def restart(self) -> None:
        """See `Machine.restart`."""
        self._machine.restart()

    # --- time -----------------------------------------------------------------------------------------------------
    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_LOOK_S, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        """A leader whose state machine waits for a time that has come adds an entry that says so."""
        self.start()
        self._clock.learn(self._machine.time_ms)  # whoever leads next goes on from there
        wake = self._machine.wake_at_ms
        if wake is not None and self._driver.replica.role is Role.LEADER and self._log_time_ms() >= wake:
            self._tick(lambda: None)

    def _tick(self, done: Callable[[], None]) -> None:
        """An entry that says what time it is; one at a time."""
        if self._tick_open or self._idle() is not None:
            return
        self._tick_open = True

        def ticked(_outcome: Outcome) -> None:
            self._tick_open = False
            done()

        tick = Proposal([body_of(Type.TICK, self._log_time_ms())], ticked, at_apply=True)
        self._driver.proposals.add(self._ticks, tick, ordered=False)
        self._driver.read_done()
