"""Whether a key's history is that of one register: Wing and Gong's search, with Lowe's memory of what was tried.

Keys are independent, so a history of a store is linearizable exactly if that of each key is (Herlihy and Wing). For one
key an order of its operations is looked for in which each takes effect between its invocation and its completion and
answers what a register would have answered. An operation of unknown outcome may take effect at any time after it was
invoked, or never. The same set of done operations with the same value is never tried twice, which keeps the search
short where few operations overlap.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

NEVER: Final = float("inf")


@dataclass(slots=True)
class KeyOperation:
    """One call. `completed` NEVER: its outcome is unknown. `answer`: of a get what was there, else whether it did."""

    key: bytes
    kind: Literal["get", "put", "delete", "cas"]
    invoked: float
    completed: float = NEVER
    value: bytes | None = None  # that it sets
    expected: bytes | None = None  # of a cas
    answer: bytes | bool | None = None

    def after(self, held: bytes | None) -> tuple[bytes | None, bytes | bool | None]:
        """What the register holds behind it, and what it answers."""
        if self.kind == "get":
            return held, held
        if self.kind == "put":
            return self.value, True
        if self.kind == "delete":
            return None, held is not None
        return (self.value, True) if held == self.expected else (held, False)


def is_linearizable(history: Iterable[KeyOperation]) -> bool:
    """Of one key's operations."""
    operations = sorted(history, key=lambda one: one.invoked)
    count = len(operations)
    known = sum(1 << number for number, one in enumerate(operations) if one.completed != NEVER)
    tried: set[tuple[int, bytes | None]] = set()
    waiting: list[tuple[int, bytes | None]] = [(0, None)]
    while waiting:
        done, held = state = waiting.pop()
        if done & known == known:
            return True
        if state in tried:
            continue
        tried.add(state)
        left = [number for number in range(count) if not done >> number & 1]
        first_end = min(operations[number].completed for number in left)
        for number in left:
            one = operations[number]
            if one.invoked > first_end:
                break  # something that is not done yet had ended before this began, and before all behind it
            after, answer = one.after(held)
            if one.completed == NEVER or answer == one.answer:
                waiting.append((done | 1 << number, after))
    return False


def keys_at_fault(history: Iterable[KeyOperation]) -> list[bytes]:
    """The keys whose operations are not those of one register."""
    by_key: dict[bytes, list[KeyOperation]] = {}
    for one in history:
        by_key.setdefault(one.key, []).append(one)
    return [key for key, operations in by_key.items() if not is_linearizable(operations)]
