"""What one client asks of a key-value store costs the others nothing: long results and answers, many watches."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.client import LedgerClient, OutcomeUnknown
from node.client.kv import KvClient
from node.client.machine import MachineClient
from node.client.retry import Retry
from node.engine import machine_process
from node.engine.engine import Engine
from node.engine.machine_process import MachineProcess
from node.engine.machine_requests import CROWD, CROWDED_MAX, NOT_TAKEN, UNTAKEN_BYTES_MAX, MachineRequests
from node.engine.quota import Quota
from node.protocol.codes import RequestCode, ResponseCode
from node.protocol.kv import VALUE_BYTES_MAX, If, KvCommand, Op, ask_get, ask_range, ask_watch, encode_command
from node.state_machine import frames
from node.state_machine.caller import QUESTIONS_MAX, Answer, Caller, Question
from node.state_machine.frames import AppliedFrame, FrameReader
from node.state_machine.interface import Command
from node.state_machine.kind import kind_of
from node.state_machine.kv import KeyValue
from node.transport.machine_frames import QuestionRequest, decode_question_answer, encode_question
from node.transport.remoting import Frame
from node.transport.slab_frames import ReadMode
from tests.unit.test_machine_process import pid_of, run

Work = Callable[[KvClient, MachineClient], Awaitable[None]]


async def surely(call: Callable[[], Awaitable[Any]]) -> Any:
    """A busy machine may apply it too late for its result to be known; then it is done again."""
    for _ in range(30):
        try:
            return await call()
        except OutcomeUnknown as error:
            if "in time" not in str(error):
                raise
    raise AssertionError("never in time")


def beside(tmp_path: Path, work: Work, with_engine: Callable[[Engine], None] = lambda _engine: None) -> None:
    """One engine with its store's process; whoever attacks, both are the same afterwards and serve."""

    async def attacked(engine: Engine, machine: MachineProcess, client: MachineClient) -> None:
        kv = KvClient(client._client, deadline_s=60.0)
        await surely(lambda: kv.put(b"mine", b"1"))
        pid = pid_of(machine)
        with_engine(engine)
        stranger = LedgerClient(dict(engine.settings.peers), deadline_s=60.0)
        try:
            await work(kv, MachineClient(stranger, deadline_s=60.0))
        finally:
            await stranger.close()
        item = await kv.get(b"mine")
        assert item is not None and item.value == b"1" and not engine.reason and pid_of(machine) == pid
        assert await surely(lambda: kv.put(b"mine", b"2")) > item.index

    run(tmp_path, attacked, choice="kv")


@pytest.mark.parametrize("seed", range(3))
def test_results_that_are_too_long_together_are_not_told_and_end_nothing(tmp_path: Path, seed: int) -> None:
    """17 conditions that do not hold, on a value of 1 MiB, were an answer that is no frame, and ended the engine."""
    rng = random.Random(seed)

    async def work(kv: KvClient, stranger: MachineClient) -> None:
        large = bytes(rng.randrange(VALUE_BYTES_MAX // 2, VALUE_BYTES_MAX))
        await surely(lambda: kv.put(b"large", large))
        failing = encode_command(KvCommand(Op.PUT, b"large", b"", condition=If.INDEX_IS, expected_index=2**40))
        assert len((await surely(lambda: stranger.command(*[failing] * 3))).results) == 3
        many = [failing] * rng.randrange(40, 3000)
        with pytest.raises(OutcomeUnknown, match="fewer"):
            await surely(lambda: stranger.command(*many))

    beside(tmp_path, work)


@pytest.mark.parametrize("seed", range(3))
def test_answers_that_are_too_long_together_are_refused_from_there_on(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)

    async def work(kv: KvClient, stranger: MachineClient) -> None:
        for name in (b"a", b"b", b"c"):
            value = bytes(rng.randrange(VALUE_BYTES_MAX // 2, VALUE_BYTES_MAX))
            await surely(partial(kv.put, name, value))
        asked = rng.choice([ask_get(b"a"), ask_range(b"a", b"", 1000), ask_watch(b"", 0)])
        answers = await asyncio.gather(*(stranger.ask(asked) for _ in range(rng.randrange(20, 40))))
        assert all(one is not None for one in answers)  # asked again, a few at a time

    beside(tmp_path, work)


def test_questions_to_a_process_that_stands_still_do_not_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were given up stayed in the engine's memory until the process read them, if ever."""
    monkeypatch.setattr(machine_process, "BACKLOG_BYTES_MAX", 4 << 20)
    monkeypatch.setattr(machine_process, "PATIENCE_S", 0.05)

    async def work(kv: KvClient, stranger: MachineClient) -> None:
        (engine,) = engines
        machine = engine.machine_requests._machine
        body = encode_question(QuestionRequest([bytes(1 << 18)] * 3, ReadMode.UNSAFE, 1))
        link = await stranger._client.leader_link(Retry(60.0))
        os.kill(pid_of(machine), signal.SIGSTOP)
        try:
            for _ in range(60):
                answered = decode_question_answer(await link.request(RequestCode.QUESTION, [body], 60.0), 3)
                assert {one.code for one in answered} <= {ResponseCode.TIMEOUT, ResponseCode.LEADER_PENDING_FULL}
                assert machine._pipe.backlog_bytes <= (4 << 20) + (2 << 20)
            assert {one.code for one in answered} == {ResponseCode.LEADER_PENDING_FULL}
        finally:
            os.kill(pid_of(machine), signal.SIGCONT)

    engines: list[Any] = []
    beside(tmp_path, work, engines.append)


def put(key: bytes, value: bytes = b"", ttl_ms: int = 0) -> bytes:
    return encode_command(KvCommand(Op.PUT, key, value, ttl_ms))


class Counting(KeyValue):
    """Counts the events that watches look at."""

    looked_at = 0

    def _newer(self, from_index: int) -> Iterator[Any]:
        for event in super()._newer(from_index):
            self.looked_at += 1
            yield event


def test_what_many_watches_wait_for_is_looked_for_in_new_events_only() -> None:
    """Each of ten thousand looked at a hundred thousand events behind every batch."""
    machine, rng = Counting(), random.Random(7)
    list(machine.apply([Command(index, 1, put(b"k%d" % index)) for index in range(1000)]))
    watches = [ask_watch(b"none%d" % number, rng.randrange(1000)) for number in range(50)]
    for asked in watches:
        assert machine.query(asked) is None
    machine.looked_at = 0
    for round_ in range(20):
        list(machine.apply([Command(1000 + round_, 1, put(b"k"))]))
        for asked in watches:
            assert machine.query(asked) is None
    assert machine.looked_at == 0, "none of them begins so"
    list(machine.apply([Command(2000, 1, put(b"none7"))]))
    assert [machine.query(asked) is not None for asked in watches].count(True) == 1


def test_a_key_written_again_and_again_with_a_time_to_live_takes_the_memory_of_one() -> None:
    machine, rng = KeyValue(), random.Random(8)
    for index in range(0, 20_000, 100):
        batch = [put(b"k%d" % rng.randrange(10), b"", rng.choice([1, 10**11])) for _ in range(100)]
        list(machine.apply([Command(index + at, 1, body) for at, body in enumerate(batch)]))
        assert len(machine._expiring) < 2000
    wake = machine.wake_at_ms()
    soonest = min((until for _, _, _, until in machine._items.values()), default=None)
    assert wake == soonest


def test_thousands_of_keys_that_go_at_once_are_no_answer_that_fits_nowhere() -> None:
    machine = KeyValue()
    list(machine.apply([Command(index, 1, put(b"%01000d" % index, b"", 5)) for index in range(8000)]))
    list(machine.apply([Command(9000, 10, None)]))
    from node.protocol.kv import decode_watched

    answer = machine.query(ask_watch(b"", 9000))
    assert answer is not None
    watched = decode_watched(answer)
    assert watched.is_gone and watched.next_index == 9001 and machine.query(ask_watch(b"", 9001)) is None


def question(content: bytes, answers: list[Answer], deadline: int = 10**18) -> Question:
    return Question(content, -1, deadline, answers.append)


def test_whoever_waits_longest_makes_room_and_what_need_not_wait_is_answered() -> None:
    caller, first, others, last, got = Caller(KeyValue(), kind_of("kv")), *(list[Answer]() for _ in range(4))
    caller.ask(question(ask_watch(b"first", 0), first))
    for number in range(QUESTIONS_MAX - 1):
        caller.ask(question(ask_watch(b"%d" % number, 0), others))
    caller.ask(question(ask_get(b"k"), got))
    assert [one.code for one in got] == [ResponseCode.SUCCESS] and not first
    caller.ask(question(ask_watch(b"last", 0), last))
    assert [(one.code, one.content) for one in first] == [(ResponseCode.TIMEOUT, b"")] and not others and not last


def test_what_waits_is_asked_for_in_turns_and_nobody_is_left_out() -> None:
    rng = random.Random(9)
    for _ in range(20):
        caller, answers = Caller(KeyValue(), kind_of("kv")), dict[int, list[Answer]]()
        count, at_most = rng.randrange(1, 60), rng.randrange(1, 20)
        for number in range(count):
            answers[number] = []
            over = rng.random() < 0.5
            caller.ask(question(ask_watch(b"%d" % number, 0), answers[number], 5 if over else 50))
        caller.answer_waiting(10, at_most)
        while caller.unasked:
            caller.at += rng.random() < 0.01  # entries are applied meanwhile
            before = caller.unasked
            caller.answer_waiting(10, at_most)
            assert caller.unasked <= max(before, count) and len(caller._waiting) <= count
        assert caller.next_deadline in (None, 50)
        caller.answer_waiting(60)
        assert all(len(one) == 1 and one[0].code is ResponseCode.TIMEOUT for one in answers.values())


def test_reports_and_long_frames_come_through_in_any_parts() -> None:
    rng = random.Random(10)
    results = [None if rng.random() < 0.3 else rng.randbytes(rng.choice([0, 3, 200_000])) for _ in range(30)]
    sent = b"".join(frames.applied(AppliedFrame(3, 40, 7, None, "", results)) + frames.life(7)) * 2
    reader, found, at = FrameReader(), [], 0
    while at < len(sent):
        part = sent[at : at + rng.randrange(1, 300_000)]
        found += [(kind, bytes(body)) for kind, body in reader.frames(part)]
        at += len(part)
    assert len(found) == 4 and list(frames.read_applied(memoryview(found[2][1])).results) == results


class Peer:
    """A connection, as far as questions are concerned."""

    def __init__(self) -> None:
        self.backlog_bytes = 0
        self.answers: list[Any] = []

    def answer(self, frame: Frame, *pieces: bytes) -> None:
        self.answers += decode_question_answer(b"".join(pieces), frame.opaque)


class Slow:
    """A state machine that keeps what it is asked."""

    def __init__(self) -> None:
        self.asked: list[Callable[[], None]] = []

    def ask(self, contents: Any, _min_index: int, _wait_ms: int, deliver: Any) -> None:
        self.asked.append(partial(deliver, [(ResponseCode.SUCCESS, 1, b"x")] * len(contents)))


def test_the_watches_of_a_crowd_keep_nobody_from_asking() -> None:
    machine = Slow()
    driver = SimpleNamespace(replica=SimpleNamespace(applying=SimpleNamespace(unfit="")))
    requests = MachineRequests(driver, machine, None, Quota())  # type: ignore[arg-type]

    def ask(peer: Peer, count: int) -> None:
        body = encode_question(QuestionRequest([b"?"] * count, ReadMode.UNSAFE))
        requests.question(peer, Frame(RequestCode.QUESTION, count, body))  # type: ignore[arg-type]

    greedy, other = Peer(), Peer()
    for _ in range(5):
        ask(greedy, 1000)
    assert len(machine.asked) == 2  # and the others were refused, with a code that says: again
    assert {one.code for one in greedy.answers} == {ResponseCode.LEADER_PENDING_FULL} and len(greedy.answers) == 3000
    crowd = [Peer() for _ in range(CROWD // 1000)]
    for one in crowd:
        ask(one, 1000)
    for _ in range(CROWDED_MAX + 5):
        ask(other, 1)
    assert len(other.answers) == 5
    for answer in machine.asked:
        answer()
    assert len(other.answers) == CROWDED_MAX + 5 and not requests._open and not requests._open_of_all
    other.backlog_bytes = UNTAKEN_BYTES_MAX + 1
    ask(other, 1)
    machine.asked[-1]()
    assert other.answers[-1].text == NOT_TAKEN
