"""Questions that cost more than their bytes say, in pieces between batches, on a processor's clock of the test's."""

from __future__ import annotations

import random
from collections.abc import Sequence

from node.protocol.codes import ResponseCode
from node.protocol.kv import VALUE_BYTES_MAX, If, KvCommand, Op, encode_command
from node.state_machine.caller import Answer, Caller
from node.state_machine.frames import QuestionFrame
from node.state_machine.interface import LONG_RESULTS_BYTES_MAX, Command
from node.state_machine.kind import kind_of
from node.state_machine.kv import KeyValue
from node.state_machine.questions import ANSWERS_BYTES_MAX, FRAME_NS, PIECE, SLICE_NS, Questions


class Costly(KeyValue):
    """Answers with the question, and takes as long as it says; `wait…` has to wait."""

    cpu_ns = 0

    def query(self, question: bytes) -> bytes | None:
        name, _, cost_ns = question.partition(b" ")
        self.cpu_ns += int(cost_ns or b"0")
        return None if name == b"wait" else name


class Process:
    def __init__(self) -> None:
        self.machine = Costly()
        self.caller = Caller(self.machine, kind_of("kv"))
        self.said: dict[int, Sequence[Answer]] = {}
        self.order: list[int] = []
        self.questions = Questions(self.caller, self.take, lambda: self.machine.cpu_ns)

    def take(self, number: int, answers: Sequence[Answer]) -> None:
        assert number not in self.said
        self.said[number] = answers
        self.order.append(number)

    def ask(self, number: int, contents: Sequence[bytes]) -> None:
        self.questions.add(QuestionFrame(number, -1, 60_000, contents))


def test_each_frame_is_answered_whole_and_in_order_whatever_its_questions_cost() -> None:
    rng, process = random.Random(12), Process()
    asked: dict[int, list[bytes]] = {}
    for number in range(40):
        costs = [rng.choice([0, 1000, 100_000, 2_000_000, 30_000_000]) for _ in range(rng.randrange(1, 4))]
        asked[number] = [b"%d %d" % (at, rng.choice(costs)) for at in range(rng.randrange(1, 200))]
        process.ask(number, asked[number])
    turns = 0
    while process.questions.wait:
        before = process.machine.cpu_ns
        process.questions.go_on()
        assert process.machine.cpu_ns - before <= SLICE_NS + PIECE * 30_000_000
        assert (turns := turns + 1) < 10_000
    assert process.order == list(range(40))
    for number, contents in asked.items():
        answers = process.said[number]
        assert len(answers) == len(contents)
        refused = [one.code is ResponseCode.LEADER_PENDING_FULL for one in answers]
        assert refused == sorted(refused), "those at the end"
        for content, one in zip(contents, answers, strict=True):
            assert one.code is ResponseCode.LEADER_PENDING_FULL or one.content == content.partition(b" ")[0]
        spent = sum(int(one.partition(b" ")[2]) for one, no in zip(contents, refused, strict=True) if not no)
        assert not refused[-1] or spent > FRAME_NS
    assert any(one.code is ResponseCode.LEADER_PENDING_FULL for answers in process.said.values() for one in answers)


def test_what_waits_keeps_no_other_frame_from_its_answers() -> None:
    process = Process()
    process.ask(1, [b"wait", b"here"])
    process.ask(2, [b"there"])
    assert process.order == [2] and not process.questions.wait


def test_answers_are_bounded_by_frame() -> None:
    process = Process()
    long = bytes(ANSWERS_BYTES_MAX // 10)
    process.ask(1, [long.replace(b"\0", b"x")] * 30)
    while process.questions.wait:
        process.questions.go_on()
    answers = process.said[1]
    told = [one for one in answers if one.code is ResponseCode.SUCCESS]
    assert len(answers) == 30 and 8 <= len(told) <= 10


def test_of_long_results_only_the_first_are_made() -> None:
    """Each copied a value of 1 MiB, for a command of 30 bytes, and the next batch waited for seconds."""
    machine = KeyValue()
    first = Command(0, 1, encode_command(KvCommand(Op.PUT, b"k", bytes(VALUE_BYTES_MAX))))
    fails = encode_command(KvCommand(Op.PUT, b"k", b"", condition=If.INDEX_IS, expected_index=99))
    results = list(machine.apply([first, *(Command(at, 1, fails) for at in range(1, 500))]))
    kept = [one for one in results if one is not None]
    assert len(results) == 500 and sum(map(len, kept)) <= LONG_RESULTS_BYTES_MAX + 10_000 and len(kept) > 5
    caller = Caller(machine, kind_of("kv"))
    assert caller.answers_now([b"\1k"], -1, 1 << 30) is not None
