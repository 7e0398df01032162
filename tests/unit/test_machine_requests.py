"""Commands and questions between clients and the core: what is stamped, and from which state a question is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import repeat
from types import SimpleNamespace
from typing import Any

import pytest

from node.consensus.api import Appended, Outcome, Proposal, ReadOutcome
from node.engine.machine_requests import MachineRequests
from node.engine.quota import Quota
from node.protocol.codes import RequestCode, ResponseCode, Role
from node.state_machine.kind import HEAD, Type
from node.transport.machine_frames import QuestionRequest, encode_question
from node.transport.remoting import Frame
from node.transport.slab_frames import AppendAnswer, AppendedByte, AppendRequest, ReadMode, encode_append


class Engine:
    """A leader; `proposed` is what came to the core, which ends nothing by itself."""

    def __init__(self) -> None:
        applying = SimpleNamespace(needs_state_from=-1, failing="", unfit="")
        self.replica = SimpleNamespace(
            role=Role.LEADER, term=1, applied_index=3, committed_index=9, applying=applying,
            config=SimpleNamespace(self_id="n0"),
            member=SimpleNamespace(term=1, last_time=SimpleNamespace(milliseconds=lambda: self.last_ms)),
        )  # fmt: skip
        self.last_ms = -1  # that the log's last entry carries
        self.proposals = self
        self.proposed: list[Proposal] = []
        self.asked: list[tuple[int, int]] = []  # of the state machine: least index, wait
        self.time_ms = 0  # the state machine's
        self.wake_at_ms: int | None = None
        self.confirmed = ReadOutcome(ResponseCode.SUCCESS, 7, 1)

    def add(self, _origin: object, proposal: Proposal, ordered: bool) -> None:
        assert not ordered
        self.proposed.append(proposal)

    def read_done(self) -> None:
        pass

    def read_index(self, done: Callable[[ReadOutcome], None], _way: object) -> None:
        done(self.confirmed)

    def ask(self, _contents: object, min_index: int, wait_ms: int, _deliver: object) -> None:
        self.asked.append((min_index, wait_ms))


class Answers:
    """Of the other client requests: an outcome as it is."""

    def append_answer(self, outcome: Outcome) -> AppendAnswer:
        return AppendAnswer(outcome.code, -1, -1, outcome.term, AppendedByte.NOT_APPENDED, detail=outcome.detail)


class Peer:
    """A client's connection that takes everything."""

    backlog_bytes = 0

    def __init__(self) -> None:
        self.answers: list[bytes] = []

    def answer(self, _frame: Frame, *pieces: bytes) -> None:
        self.answers.append(b"".join(pieces))


def requests_of(engine: Engine, clock_ms: Iterator[int] = iter(()), steady_ns: Callable[[], int] = lambda: 0) -> Any:
    return MachineRequests(engine, engine, None, Quota(), lambda: next(clock_ms), steady_ns)  # type: ignore[arg-type]


def test_a_stamp_is_never_before_the_one_before_it() -> None:
    engine = Engine()
    requests = requests_of(engine, iter([1000, 900, 1100]))
    for _ in range(3):
        body = b"".join(encode_append(AppendRequest([b"x"])))
        requests.command(Peer(), Frame(RequestCode.COMMAND, 1, body))
    stamps = [HEAD.unpack_from(bytes(one.bodies[0])) for one in engine.proposed]
    assert stamps == [(Type.COMMAND, 1000), (Type.COMMAND, 1000), (Type.COMMAND, 1100)]


def test_time_goes_on_behind_a_former_leader_whose_clock_was_ahead() -> None:
    """Else a key with a time to live lasts until this leader's clock has come so far, and is not asked for before."""

    async def work() -> None:
        engine, steady_ns = Engine(), 0
        engine.last_ms, engine.wake_at_ms = 86_400_000, 86_401_000
        requests = requests_of(engine, repeat(5), lambda: steady_ns)
        requests._look()
        steady_ns = 999_999_999
        requests._look()
        assert not engine.proposed
        steady_ns = 1_000_000_000
        requests._look()
        (tick,) = engine.proposed
        assert HEAD.unpack_from(bytes(tick.bodies[0])) == (Type.TICK, 86_401_000)
        engine.replica.member.term, engine.last_ms = 2, 90_000_000
        requests.command(Peer(), Frame(RequestCode.COMMAND, 1, b"".join(encode_append(AppendRequest([b"x"])))))
        assert HEAD.unpack_from(bytes(engine.proposed[1].bodies[0])) == (Type.COMMAND, 90_000_000)
        requests.stop()

    asyncio.run(work())


def test_what_passed_before_it_led_counts_where_the_clock_of_the_leader_before_was_ahead() -> None:
    """It followed, and applied the last entry, nine seconds ago: one that lasts ten is over in one."""

    async def work() -> None:
        engine, steady_ns = Engine(), 0
        requests = requests_of(engine, repeat(5), lambda: steady_ns)
        engine.replica.role, engine.time_ms, engine.last_ms = Role.FOLLOWER, 86_400_000, 86_400_000
        engine.wake_at_ms = 86_410_000
        for _ in range(91):  # as it looks all the time
            requests._look()
            steady_ns += 100_000_000
        engine.replica.role, engine.replica.member.term = Role.LEADER, 2
        requests._look()
        assert not engine.proposed
        steady_ns = 10_000_000_000
        requests._look()
        (tick,) = engine.proposed
        assert HEAD.unpack_from(bytes(tick.bodies[0])) == (Type.TICK, 86_410_000)
        requests.stop()

    asyncio.run(work())


def test_a_command_that_a_follower_is_asked_for_by_mistake_sets_no_clock() -> None:
    """Its wall clock was a day ahead then. Under its leadership each key would have ended a day early."""
    engine, body = Engine(), b"".join(encode_append(AppendRequest([b"x"])))
    requests = requests_of(engine, iter([2000]))
    engine.replica.role, engine.last_ms = Role.FOLLOWER, 1000
    requests.command(Peer(), Frame(RequestCode.COMMAND, 1, body))
    engine.replica.role, engine.replica.member.term = Role.LEADER, 2
    requests.command(Peer(), Frame(RequestCode.COMMAND, 2, body))
    stamps = [HEAD.unpack_from(bytes(one.bodies[0]))[1] for one in engine.proposed]
    assert stamps == [1000, 2000]


def test_a_leader_whose_log_begins_behind_a_snapshot_goes_on_from_the_time_of_that() -> None:
    """Its log says nothing. Stamps of its own clock, which is behind, would stand still for the state machine."""
    engine = Engine()
    engine.time_ms = 86_400_000
    requests = requests_of(engine, repeat(5))
    requests.command(Peer(), Frame(RequestCode.COMMAND, 1, b"".join(encode_append(AppendRequest([b"x"])))))
    assert HEAD.unpack_from(bytes(engine.proposed[0].bodies[0])) == (Type.COMMAND, 86_400_000)


def test_a_leader_whose_state_is_not_of_its_log_takes_no_command() -> None:
    """It would be in the log for good, and its result be what another history makes of it."""
    engine, peer = Engine(), Peer()
    engine.replica.applying.unfit = "its snapshots are of another history"
    requests = MachineRequests(engine, engine, Answers(), Quota())  # type: ignore[arg-type]
    requests.command(peer, Frame(RequestCode.COMMAND, 1, b"".join(encode_append(AppendRequest([b"x"])))))
    (answer,) = peer.answers
    assert not engine.proposed and b"takes no commands here: its snapshots are of another history" in answer


@pytest.mark.parametrize(("mode", "least"), [(ReadMode.LINEARIZABLE, 7), (ReadMode.LEASE, 7), (ReadMode.UNSAFE, -1)])
def test_a_question_is_put_to_a_state_that_holds_its_read_index(mode: ReadMode, least: int) -> None:
    """Not to that of the entries which are applied here by chance: one that was acknowledged may be missing there."""
    engine, peer = Engine(), Peer()
    body = encode_question(QuestionRequest([b"?"], mode, 50))
    requests_of(engine).question(peer, Frame(RequestCode.QUESTION, 1, body))
    assert engine.asked == [(least, 50)] and not peer.answers


def test_a_question_that_is_not_confirmed_is_answered_by_nobody_here() -> None:
    engine, peer = Engine(), Peer()
    engine.confirmed = ReadOutcome(ResponseCode.NOT_LEADER, -1, 1)
    body = encode_question(QuestionRequest([b"?"], ReadMode.LINEARIZABLE))
    requests_of(engine).question(peer, Frame(RequestCode.QUESTION, 1, body))
    assert not engine.asked and len(peer.answers) == 1


@pytest.mark.parametrize("appended", list(Appended))
def test_time_goes_on_whatever_became_of_the_entry_that_said_it_before(appended: Appended) -> None:
    """A leader that lost its quorum for a moment, or had no room, ends no clock for good."""

    async def work() -> None:
        engine = Engine()
        engine.wake_at_ms = 500
        requests = requests_of(engine, iter(range(1000, 2000)))
        requests._look()
        requests._look()
        assert len(engine.proposed) == 1, "one at a time"
        engine.proposed[0].on_done(Outcome(ResponseCode.UNKNOWN, -1, -1, 1, appended))
        requests._look()
        assert len(engine.proposed) == 2
        requests.stop()

    asyncio.run(work())
