"""Whether a history of clients is that of one log: a polynomial checker, exact for appends that name their index.

Theory. In a log every append says where it took effect, and every read how far it saw. So the only order in which the
operations can have happened is that of their indexes, and the history is linearizable exactly if (1) no two things are
said of one index, and (2) nobody is told of a lower index than somebody else had been told of before he asked: an
append invoked after index k was told lies above k, a read invoked after it reaches k. Both need one pass. (In general
the question is NP-complete; `tests/simulation/test_linearizability.py` holds this checker against one that tries every
order.) Appends of unknown outcome may lie anywhere above what was told before they were invoked, once, or nowhere;
failed ones nowhere. A batch is contiguous but not atomic: a prefix of it may be all there is (SAFETY C4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.simulation.history import History, Operation


@dataclass(slots=True, frozen=True)
class Anomaly:
    """`rule` is a stable name: duplicate_index, real_time, stale_read, read_order, dirty_read, beyond_read_index,
    failed_applied, duplicate_entry, batch_order, lost, phantom, expected_index, connection_order."""

    rule: str
    detail: str


class LogChecker:
    """Takes completions one by one, then the log that was left; each call returns what is wrong, and remembers."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.entries: dict[int, bytes | None] = {}  # index -> what somebody was told lies there; None: a NOOP
        self._reported_by: dict[int, Operation | None] = {}
        self._index_of: dict[bytes, int] = {}

    # --- online -------------------------------------------------------------------------------------------------
    def completed(self, operation: Operation) -> list[Anomaly]:
        """An operation just completed."""
        if operation.result != "ok":
            return []
        return self._append(operation) if operation.kind == "append" else self._read(operation)

    def _append(self, operation: Operation) -> list[Anomaly]:
        found: list[Anomaly] = []
        if operation.last_index - operation.first_index + 1 != len(operation.bodies):
            found.append(Anomaly("batch_order", f"{operation.describe()} has {len(operation.bodies)} entries"))
        if operation.first_index <= operation.floor:
            text = f"{operation.describe()}, but index {operation.floor} had been told before it was invoked"
            found.append(Anomaly("real_time", text))
        if operation.expected_index not in (None, operation.first_index):
            found.append(Anomaly("expected_index", f"{operation.describe()} wanted {operation.expected_index}"))
        for offset, body in enumerate(operation.bodies):
            found += self._claim(operation.first_index + offset, body, operation)
        return found

    def _read(self, operation: Operation) -> list[Anomaly]:
        found: list[Anomaly] = []
        if operation.read_index < operation.floor:
            text = f"{operation.describe()}, but index {operation.floor} had been told before it was invoked"
            found.append(Anomaly("stale_read", text))
        for offset, (index, body) in enumerate(operation.seen):
            if index != operation.from_index + offset:
                text = f"{operation.describe()} saw {index} in place of {operation.from_index + offset}"
                return [*found, Anomaly("read_order", text)]
            if index > operation.read_index:
                found.append(Anomaly("beyond_read_index", f"{operation.describe()} saw entry {index}"))
            found += self._claim(index, body, operation)
        return found

    def _claim(self, index: int, body: bytes | None, by: Operation | None) -> list[Anomaly]:
        """`by` (None: the log that was left) says that `body` lies at `index`."""
        who = "the log that was left" if by is None else by.describe()
        if index in self.entries:
            if self.entries[index] == body:
                return []
            other = self._reported_by[index]
            reported = f"{_text(self.entries[index])} by {'the log' if other is None else other.describe()}"
            both_appends = by is not None and by.kind == "append" and other is not None and other.kind == "append"
            rule = "duplicate_index" if both_appends else "lost" if by is None else "dirty_read"
            return [Anomaly(rule, f"entry {index} is {_text(body)} for {who}, {reported}")]
        self.entries[index] = body
        self._reported_by[index] = by
        return [] if body is None else self._place(index, body, who)

    def _place(self, index: int, body: bytes, who: str) -> list[Anomaly]:
        """An entry was seen for the first time: may it be there?"""
        owner = self._history.owner.get(body)
        if owner is None:
            return [Anomaly("phantom", f"entry {index} is {_text(body)} for {who}; nobody appended that")]
        if owner.result == "fail":
            return [Anomaly("failed_applied", f"entry {index} is there for {who}, but {owner.describe()}")]
        if body in self._index_of:
            return [Anomaly("duplicate_entry", f"{_text(body)} lies at {self._index_of[body]} and at {index}")]
        start = self._start_of(owner)
        self._index_of[body] = index
        found: list[Anomaly] = []
        if index <= owner.floor:
            text = f"entry {index} of {owner.describe()}: index {owner.floor} had been told before it was invoked"
            found.append(Anomaly("real_time", text))
        expected = index if start is None else start + owner.bodies.index(body)
        if expected != index:
            found.append(Anomaly("batch_order", f"entry {index} of {owner.describe()} should lie at {expected}"))
        return found

    def _start_of(self, owner: Operation) -> int | None:
        """Where the append begins, as far as its answer or its other entries tell."""
        if owner.result is not None and owner.first_index >= 0:
            return owner.first_index
        for offset, body in enumerate(owner.bodies):
            if body in self._index_of:
                return self._index_of[body] - offset
        return None

    # --- at the end -----------------------------------------------------------------------------------------------
    def finish(self, log: Mapping[int, bytes | None]) -> list[Anomaly]:
        """`log`: every committed entry that is left, by index; None for an entry that is not a client's."""
        found: list[Anomaly] = []
        for operation in self._history:
            if operation.kind == "append" and operation.result == "fail":
                found += [
                    Anomaly("failed_applied", f"entry {self._index_of[body]}, but {operation.describe()}")
                    for body in operation.bodies
                    if body in self._index_of
                ]
        reported, end = self._history.reported_index, max(log, default=-1)
        if end < reported:
            found.append(Anomaly("lost", f"index {reported} had been told, the log that was left ends at {end}"))
        for index in sorted(self.entries):
            if index not in log:
                by = self._reported_by[index]
                text = f"entry {index} of {'the log' if by is None else by.describe()} is not in the log that was left"
                found.append(Anomaly("lost", text))
        for index in sorted(log):
            found += self._claim(index, log[index], None)
        return found + self._prefixes() + self._connections()

    def _connections(self) -> list[Anomaly]:
        """What is there of one connection lies in the order of its requests; if ordered, nothing behind a failure."""
        found: list[Anomaly] = []
        last: dict[str, tuple[int, Operation]] = {}
        broken: dict[str, Operation] = {}
        for operation in self._history:
            name = operation.connection
            if not name or operation.kind != "append":
                continue
            if operation.ordered and operation.result == "fail":
                broken.setdefault(name, operation)
            places = [self._index_of[body] for body in operation.bodies if body in self._index_of]
            if not places:
                continue
            if name in last and min(places) < last[name][0]:
                text = f"{operation.describe()} lies before {last[name][1].describe()}, which was sent first"
                found.append(Anomaly("connection_order", text))
            if operation.ordered and name in broken:
                text = f"{operation.describe()} is there although {broken[name].describe()} before it"
                found.append(Anomaly("connection_order", text))
            last[name] = max(places), operation
        return found

    def _prefixes(self) -> list[Anomaly]:
        """A part of a batch is a prefix of it."""
        found: list[Anomaly] = []
        for operation in self._history:
            there = [body in self._index_of for body in operation.bodies]
            if there != sorted(there, reverse=True):
                found.append(Anomaly("batch_order", f"a part that is no prefix is there of {operation.describe()}"))
        return found


def check(history: History, log: Mapping[int, bytes | None] | None = None) -> list[Anomaly]:
    """A whole history at once; `log` as in `LogChecker.finish`, None where it is not known."""
    checker = LogChecker(history)
    done = [operation for operation in history if operation.completed is not None]
    found: list[Anomaly] = []
    for operation in sorted(done, key=lambda one: one.completed or 0):
        found += checker.completed(operation)
    return found if log is None else found + checker.finish(log)


def _text(body: bytes | None) -> str:
    return "a NOOP" if body is None else repr(body[:24])
