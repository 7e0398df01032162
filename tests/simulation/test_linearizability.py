"""The checker against histories that are known to be bad, and against one that tries every order."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tests.simulation.history import History, Operation, Seen
from tests.simulation.linearizability import check

A, B, C = b"a", b"b", b"c"


class Script:
    """Writes a history step by step."""

    def __init__(self) -> None:
        self.history = History()

    def append(self, *bodies: bytes) -> int:
        return self.history.invoke("c", "append", "n0", bodies)

    def appended(self, number: int, first: int) -> None:
        last = first + len(self.history.operations[number].bodies) - 1
        self.history.complete(number, "ok", first_index=first, last_index=last)

    def read(self, from_index: int = 0) -> int:
        return self.history.invoke("c", "read", "n0", from_index=from_index)

    def has_read(self, number: int, read_index: int, seen: Sequence[Seen] = ()) -> None:
        self.history.complete(number, "ok", read_index=read_index, seen=seen)

    def rules(self, log: Sequence[bytes | None] | None = None) -> set[str]:
        return {one.rule for one in check(self.history, None if log is None else dict(enumerate(log)))}


def test_a_quiet_history_is_sound() -> None:
    s = Script()
    first, second = s.append(A), s.append(B)
    s.appended(second, 1)
    s.appended(first, 2)  # concurrent: any order
    s.has_read(s.read(), 2, [(0, None), (1, B), (2, A)])
    assert s.rules([None, B, A]) == set()


def test_two_appends_at_one_index() -> None:
    s = Script()
    first, second = s.append(A), s.append(B)
    s.appended(first, 0)
    s.appended(second, 0)
    assert s.rules() == {"duplicate_index"}


def test_an_append_before_one_that_was_acknowledged() -> None:
    s = Script()
    s.appended(s.append(A), 3)
    s.appended(s.append(B), 2)
    assert s.rules() == {"real_time"}


def test_a_read_that_misses_an_acknowledged_entry() -> None:
    s = Script()
    s.appended(s.append(A), 0)
    s.has_read(s.read(), -1)
    assert s.rules() == {"stale_read"}


def test_a_read_that_goes_back_behind_another_read() -> None:
    s = Script()
    s.append(A)
    s.has_read(s.read(), 0, [(0, A)])
    s.has_read(s.read(), -1)
    assert s.rules() == {"stale_read"}


def test_a_read_may_miss_what_is_acknowledged_while_it_runs() -> None:
    s = Script()
    read = s.read()
    s.appended(s.append(A), 0)
    s.has_read(read, -1)
    assert s.rules([A]) == set()


def test_reads_that_contradict_each_other() -> None:
    s = Script()
    s.append(A), s.append(B)
    one, other = s.read(), s.read()
    s.has_read(one, 0, [(0, A)])
    s.has_read(other, 0, [(0, B)])
    assert s.rules() == {"dirty_read"}


def test_a_read_with_a_hole_and_one_beyond_its_index() -> None:
    s = Script()
    s.append(A), s.append(B)
    s.has_read(s.read(), 2, [(0, A), (2, B)])
    assert s.rules() == {"read_order"}
    s = Script()
    s.append(A)
    s.has_read(s.read(), -1, [(0, A)])
    assert s.rules() == {"beyond_read_index"}


def test_an_acknowledged_entry_that_is_gone_or_replaced() -> None:
    s = Script()
    s.appended(s.append(A), 0)
    assert s.rules([]) == {"lost"}
    s.append(B)
    assert s.rules([B]) == {"lost"}
    assert s.rules([A]) == set()


def test_an_unknown_append_is_there_once_or_not_at_all() -> None:
    for log in ([None, A], [None], [None, A, A]):
        s = Script()
        s.history.complete(s.append(A), "unknown", first_index=1, last_index=1)
        assert s.rules(log) == ({"duplicate_entry"} if log.count(A) == 2 else set())


def test_an_unknown_append_does_not_slip_in_below_what_was_told() -> None:
    s = Script()
    s.has_read(s.read(), 4)
    s.history.complete(s.append(A), "unknown")
    assert s.rules([None, A, None, None, None]) == {"real_time"}


def test_a_refused_append_is_never_there() -> None:
    s = Script()
    s.history.complete(s.append(A), "fail")
    assert s.rules([A]) == {"failed_applied"}
    s = Script()
    number = s.append(A)
    s.has_read(s.read(), 0, [(0, A)])
    s.history.complete(number, "fail")  # the lie comes after the sight
    assert s.rules([A]) == {"failed_applied"}


def test_a_batch_is_contiguous_and_a_part_of_it_is_a_prefix() -> None:
    s = Script()
    s.history.complete(s.append(A, B, C), "unknown")
    assert s.rules([A, B]) == set()
    assert s.rules([B, C]) == {"batch_order"}
    assert s.rules([A, None, B]) == {"batch_order"}
    assert s.rules([B, A]) == {"batch_order"}


def test_an_entry_of_nobody() -> None:
    s = Script()
    s.has_read(s.read(), 0, [(0, A)])
    assert s.rules() == {"phantom"}


def test_an_append_lies_where_it_was_expected_or_nowhere() -> None:
    s = Script()
    number = s.history.invoke("c", "append", "n0", [A], expected_index=3)
    s.appended(number, 4)
    assert s.rules() == {"expected_index"}


def test_appends_of_one_connection_keep_their_order() -> None:
    s = Script()
    for body in (A, B):
        s.history.complete(s.history.invoke("c", "append", "n0", [body], connection="x"), "unknown")
    assert s.rules([A, B]) == set()
    assert s.rules([B, A]) == {"connection_order"}


def test_nothing_of_an_ordered_connection_follows_a_failure() -> None:
    s = Script()
    s.history.complete(s.history.invoke("c", "append", "n0", [A], connection="x", ordered=True), "fail")
    s.history.complete(s.history.invoke("c", "append", "n0", [B], connection="x", ordered=True), "unknown")
    s.append(C)
    assert s.rules([C]) == set()
    assert s.rules([B]) == {"connection_order"}


def test_a_history_takes_each_body_and_each_completion_once() -> None:
    s = Script()
    number = s.append(A)
    with pytest.raises(ValueError, match="appended twice"):
        s.append(A)
    s.appended(number, 0)
    with pytest.raises(ValueError, match="completed twice"):
        s.appended(number, 0)


# --- the reference: every order is tried ---------------------------------------------------------------------------
class Reference:
    """Searches for an order of all operations that one log could have carried out. Exponential.

    A log may append a NOOP of its own whenever it likes. What it holds at the end must be `log` where that is given.
    """

    def __init__(self, history: History, log: Sequence[bytes | None] | None) -> None:
        self._operations = list(history)
        self._log = log
        self._dead: set[tuple[tuple[bytes | None, ...], frozenset[int]]] = set()
        self._longest = max(
            [len(log or ())] + [max(one.last_index, one.read_index) + 1 for one in self._operations]
        )  # fmt: skip

    def linearizable(self) -> bool:
        return self._search((), frozenset())

    def _search(self, state: tuple[bytes | None, ...], done: frozenset[int]) -> bool:
        if (state, done) in self._dead:
            return False
        left = [one for one in self._operations if one.number not in done]
        owed = [one for one in left if one.result == "ok"]
        if not owed and self._ends_well(state):
            return True
        deadline = min((one.completed or 0 for one in owed), default=1 << 60)
        for one in left:
            if one.invoked < deadline:
                after = self._apply(one, state)
                if after is not None and self._search(after, done | {one.number}):
                    return True
        if len(state) < self._longest and self._search((*state, None), done):
            return True
        self._dead.add((state, done))
        return False

    def _ends_well(self, state: tuple[bytes | None, ...]) -> bool:
        return self._log is None or state == tuple(self._log)

    @staticmethod
    def _apply(one: Operation, state: tuple[bytes | None, ...]) -> tuple[bytes | None, ...] | None:
        if one.result == "fail":
            return None
        if one.kind == "append":
            fits = one.result != "ok" or one.first_index == len(state)
            return (*state, *one.bodies) if fits else None
        if one.result != "ok":
            return None
        fits = one.read_index == len(state) - 1 and all(i <= one.read_index and state[i] == b for i, b in one.seen)
        return state if fits else None


def random_history(rng: random.Random) -> tuple[History, list[bytes | None]]:
    """A history of a real log, most of the time spoilt by a lie or two."""
    history = History()
    log: list[bytes | None] = []
    waiting: list[int] = []
    taken: dict[int, int] = {}  # operation -> where it took effect
    for number in range(rng.randrange(2, 7)):
        if rng.random() < 0.6:
            waiting.append(history.invoke("c", "append", "n0", [b"%d" % number]))
        else:
            waiting.append(history.invoke("c", "read", "n0", from_index=0))
        while waiting and rng.random() < 0.55:
            one = history.operations[rng.choice(waiting)]
            if one.number not in taken:
                if rng.random() < 0.15:
                    log.append(None)
                if one.kind == "append" and rng.random() < 0.9:
                    log.append(one.bodies[0])
                taken[one.number] = len(log) - 1
            if rng.random() < 0.6:
                waiting.remove(one.number)
                _complete(history, one, taken[one.number], log, rng)
    return history, log


def _complete(history: History, one: Operation, at: int, log: list[bytes | None], rng: random.Random) -> None:
    lie = rng.choice((-1, 1)) if rng.random() < 0.12 else 0
    if one.kind == "append":
        result = rng.choices(("ok", "unknown", "fail"), (6, 3, 1))[0]
        index = at + lie if result == "ok" else -1
        history.complete(one.number, result, first_index=index, last_index=index)
    else:
        end = max(-1, at + lie)
        seen = [(index, log[index]) for index in range(min(end + 1, len(log)))]
        if seen and rng.random() < 0.1:
            seen[-1] = (seen[-1][0], log[rng.randrange(len(log))])
        history.complete(one.number, "ok", read_index=end, seen=seen)


@pytest.mark.parametrize("first", range(0, 4000, 500))
def test_it_agrees_with_the_one_that_tries_every_order(first: int) -> None:
    verdicts = {True: 0, False: 0}
    for seed in range(first, first + 500):
        rng = random.Random(seed)
        history, left = random_history(rng)
        log = left if rng.random() < 0.7 else None
        expected = Reference(history, log).linearizable()
        found = check(history, None if log is None else dict(enumerate(log)))
        assert (not found) == expected, (seed, found, [one.describe() for one in history], log)
        verdicts[expected] += 1
    assert min(verdicts.values()) > 50, verdicts  # both answers were put to the test
