"""The checker of keys: held against one that tries every order, and against histories that are known to be wrong."""

from __future__ import annotations

import random
from itertools import permutations

from tests.simulation.key_linearizability import NEVER, KeyOperation, is_linearizable, keys_at_fault


def put(value: bytes, invoked: float, completed: float = NEVER, key: bytes = b"k") -> KeyOperation:
    return KeyOperation(key, "put", invoked, completed, value, answer=True)


def get(answer: bytes | None, invoked: float, completed: float, key: bytes = b"k") -> KeyOperation:
    return KeyOperation(key, "get", invoked, completed, answer=answer)


def by_every_order(history: list[KeyOperation]) -> bool:
    """Any subset of the unknown ones, in any order that respects time."""
    unknown = [one for one in history if one.completed == NEVER]
    known = [one for one in history if one.completed != NEVER]
    for chosen in range(1 << len(unknown)):
        taken = known + [one for number, one in enumerate(unknown) if chosen >> number & 1]
        for order in permutations(taken):
            if any(later.completed < earlier.invoked for at, earlier in enumerate(order) for later in order[at + 1 :]):
                continue
            held: bytes | None = None
            for one in order:
                held, answer = one.after(held)
                if one.completed != NEVER and answer != one.answer:
                    break
            else:
                return True
    return False


def drawn(rng: random.Random) -> list[KeyOperation]:
    """Up to six operations that overlap, with answers that may be anybody's."""
    history = []
    for _ in range(rng.randrange(1, 7)):
        invoked = rng.randrange(10)
        completed = NEVER if rng.random() < 0.2 else invoked + rng.randrange(1, 5)
        value, other = rng.choice([b"a", b"b"]), rng.choice([b"a", b"b", None])
        kind = rng.choice(["get", "put", "delete", "cas"])
        answer: bytes | bool | None = rng.random() < 0.5
        if kind == "get":
            answer = other
        elif kind == "put":
            answer = True
        expected = other if kind == "cas" else None
        history.append(
            KeyOperation(b"k", kind, invoked, completed, value if kind in ("put", "cas") else None, expected, answer)  # type: ignore[arg-type]
        )
    return history


def test_it_agrees_with_one_that_tries_every_order() -> None:
    rng = random.Random("keys")
    verdicts = set()
    for _ in range(1500):
        history = drawn(rng)
        verdict = is_linearizable(history)
        assert verdict == by_every_order(history), history
        verdicts.add(verdict)
    assert verdicts == {True, False}


def test_a_stale_read_a_lost_write_and_one_that_was_undone_are_found() -> None:
    assert not is_linearizable([put(b"a", 0, 1), put(b"b", 2, 3), get(b"a", 4, 5)])
    assert not is_linearizable([put(b"a", 0, 1), get(None, 2, 3)])
    assert not is_linearizable([put(b"a", 0, 1), put(b"b", 2), get(b"b", 3, 4), get(b"a", 5, 6)])
    both_won = [KeyOperation(b"k", "cas", 0, 5, value, None, True) for value in (b"a", b"b")]
    assert not is_linearizable(both_won)


def test_an_unknown_write_may_happen_late_or_never() -> None:
    assert is_linearizable([put(b"a", 0), get(None, 1, 2), get(b"a", 3, 4)])
    assert is_linearizable([put(b"a", 0), get(None, 1, 2), get(None, 3, 4)])


def test_keys_are_judged_apart_and_a_long_history_is_judged_soon() -> None:
    history = [put(b"a", 0, 1, b"x"), get(b"a", 2, 3, b"x"), put(b"a", 0, 1, b"y"), get(None, 2, 3, b"y")]
    assert keys_at_fault(history) == [b"y"]
    rng, held, long = random.Random(7), b"", []
    for at in range(3000):
        if rng.random() < 0.5:
            held = b"%d" % at
            long.append(put(held, at, at + 0.9))
        elif held:
            long.append(get(held, at, at + 0.9))
    assert is_linearizable(long)
