"""The caller: order, results at their own entries, what stops it, snapshots that are newer, questions that wait."""

from __future__ import annotations

import pytest

from node.protocol.codes import ResponseCode
from node.protocol.entry import Magic
from node.protocol.group_kind import Channel
from node.snapshots.directory import SnapshotMeta
from node.state_machine.caller import Answer, Caller, OutOfOrder, Question
from node.state_machine.kind import Type, body_of, kind_of
from node.state_machine.raised import tell_raised
from node.store.memory_store import MemoryStore
from tests.unit.machines import Journal

KIND = kind_of("tests.unit.machines:Journal")


class Log:
    """A leader's log: commands and its own entries."""

    def __init__(self) -> None:
        self.store = MemoryStore(kind=KIND.name)
        self.store.append_as_leader([KIND.first_of_term(-1)], 1, Magic.NORMAL, Channel.FIRST_OF_TERM)

    def commands(self, *contents: bytes, time_ms: int = 10) -> None:
        self.store.append_as_leader([body_of(Type.COMMAND, time_ms, one) for one in contents], 1)

    def records(self, first: int, last: int) -> bytes:
        found = b""
        for index in range(first, last + 1):
            slab = self.store.read_slab(index, 1)
            found += bytes(slab.data)
        return found

    def feed(self, caller: Caller, first: int, last: int) -> tuple[int, list[bytes], str]:
        return tuple(caller.apply(first, last, self.records(first, last)))  # type: ignore[return-value]


def test_results_stand_at_their_own_entries_beside_the_leaders() -> None:
    log, caller = Log(), Caller(Journal(), KIND)
    log.commands(b"a", b"b")
    assert log.feed(caller, 0, 2) == (2, [b"", b"a:1", b"b:2"], "")
    assert (caller.at, caller.term, caller.time_ms) == (2, 1, 10)
    meta = caller.meta()
    assert (meta.index, meta.term, meta.chain) == (2, 1, log.store.end_chain)
    assert meta.next_pos == log.store.read_slab(2, 1).end_pos


def test_what_does_not_continue_the_state_is_refused() -> None:
    log, caller = Log(), Caller(Journal(), KIND)
    log.commands(b"a", b"b", b"c")
    log.feed(caller, 0, 1)
    for first, last in ((1, 2), (0, 0), (3, 3)):
        with pytest.raises(OutOfOrder):
            log.feed(caller, first, last)
    with pytest.raises(OutOfOrder, match="holds other entries"):
        caller.apply(2, 3, log.records(2, 2))
    assert log.feed(caller, 2, 3)[1] == [b"b:2", b"c:3"]


def test_time_never_goes_back_and_is_in_the_snapshot() -> None:
    log, caller = Log(), Caller(Journal(), KIND)
    log.commands(b"a", time_ms=500)
    log.commands(b"b", time_ms=90)
    log.feed(caller, 0, 2)
    assert caller.time_ms == 500
    other = Caller(Journal(), KIND)
    pieces: list[bytes] = []
    caller.save(pieces.append)
    assert other.load(caller.meta(), pieces) and other.time_ms == 500


def test_a_command_that_raises_stops_it_there() -> None:
    log, caller = Log(), Caller(Journal(), KIND)
    log.commands(b"a", b"poison", b"b")
    upto, results, error = log.feed(caller, 0, 3)
    assert (upto, results) == (1, [b"", b"a:1"]) and "entry 2: RuntimeError" in error
    assert log.feed(caller, 2, 3) == (1, [], error)
    with pytest.raises(ValueError, match="entry 2"):
        caller.meta()
    heard: list[Answer] = []
    caller.ask(Question(b"all", -1, 0, heard.append))
    assert heard[0].code is ResponseCode.ILLEGAL_MEMBER_STATE and caller.wake_at_ms() is None


def test_too_few_too_many_and_wrong_results_stop_it() -> None:
    class Odd(Journal):
        def __init__(self, results: list[object]) -> None:
            super().__init__()
            self.results = results

        def apply(self, commands):  # type: ignore[no-untyped-def]
            yield from self.results

    for results, upto in (([b"1"], 1), ([b"1", b"2", b"3"], 1), ([b"1", "2"], 1), ([], 0)):
        log, caller = Log(), Caller(Odd(list(results)), KIND)
        log.commands(b"a", b"b")
        assert log.feed(caller, 0, 2)[0] == upto, results
        assert caller.stopped_by


def test_a_snapshot_is_loaded_over_an_older_state_only() -> None:
    log, caller = Log(), Caller(Journal(), KIND)
    log.commands(b"a", b"b")
    log.feed(caller, 0, 2)
    for index in (1, 2):
        assert caller.load(SnapshotMeta(index, 1), [b"1 ff\n"]) is False
    assert caller.at == 2 and not caller.stopped_by
    assert caller.load(SnapshotMeta(9, 1), [b"9 ", b"ff\n"]) is True
    assert (caller.at, caller.term) == (9, 1)
    with pytest.raises(ValueError, match="hex"):
        caller.load(SnapshotMeta(11, 1), [b"11 zz\n"])
    assert "could not be loaded" in caller.stopped_by


def test_questions_wait_for_what_they_ask_for_and_for_their_deadline() -> None:
    log, caller = Log(), Caller(Journal(), KIND)
    log.commands(b"a", b"b")
    log.feed(caller, 0, 1)
    heard: list[tuple[str, Answer]] = []
    for name, content, min_index, deadline in (
        ("now", b"all", 1, 5), ("later", b"all", 2, 50), ("never", b"all", 99, 7), ("nothing", b"later", 1, 9),
    ):  # fmt: skip
        caller.ask(Question(content, min_index, deadline, lambda answer, name=name: heard.append((name, answer))))
    assert [name for name, _ in heard] == ["now"] and caller.next_deadline == 7
    caller.answer_waiting(8)
    assert heard[1:] == [("never", Answer(ResponseCode.TIMEOUT, 1, b"entry 99 is not applied yet, only 1"))]
    log.feed(caller, 2, 2)
    caller.answer_waiting(9)
    assert heard[2:] == [
        ("later", Answer(ResponseCode.SUCCESS, 2, b"a b")),
        ("nothing", Answer(ResponseCode.TIMEOUT, 2, b"")),
    ]
    assert caller.next_deadline is None


def test_what_apply_raised_is_told_with_its_traceback() -> None:
    told: list[str] = []
    log, caller = Log(), Caller(Journal(), KIND, told.append)
    log.commands(b"a", b"poison")
    log.feed(caller, 0, 2)
    assert len(told) == 1 and told[0].startswith("Traceback")
    assert "machines.py" in told[0] and "I cannot take that" in told[0]


def test_a_traceback_is_told_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    tell_raised("Traceback:\nValueError: bad\nengine: \x1b[31mforged\n")
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith("state machine: ") for line in lines] == [True] * 3 and "\x1b" not in "".join(lines)
