"""What clients asked and what they were told, in real-time order: the evidence that linearizability is judged by.

Theory. Only the order of invocations and completions counts, not the clock; so both take their number from one counter.
An operation without a completion may take effect at any time after its invocation, or never; so may one that was
completed as "unknown". "fail" means that the answer promised: nothing was appended, ever.

Invariants: every operation completes at most once; a body is appended by one operation only, so that an entry tells
whose it is; nothing that was recorded changes afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["append", "read"]
Result = Literal["ok", "fail", "unknown"]
# An entry as a reader sees it: its index and its body, None for an entry that is not a client's (a NOOP).
Seen = tuple[int, bytes | None]


@dataclass(slots=True)
class Operation:
    """One request. `floor`: the highest index that somebody had been told of before it was invoked; -1: none."""

    number: int
    client: str
    kind: Kind
    member: str
    bodies: tuple[bytes, ...]  # of an append
    from_index: int  # of a read: the first entry wanted
    invoked: int
    floor: int
    expected_index: int | None = None  # of an append: where it must lie, or nowhere (SAFETY C3)
    connection: str = ""  # appends of one connection keep their order (SAFETY C4); "": of none
    ordered: bool = False  # nothing of this connection follows a failure
    completed: int | None = None
    result: Result | None = None  # None: still open
    code: int = 0
    first_index: int = -1  # of an append: where its entries lie, or would lie if it is unknown
    last_index: int = -1
    term: int = -1
    read_index: int = -1  # of a read: all entries up to here were committed when it was served
    seen: tuple[Seen, ...] = ()  # of a read: what it returned, from `from_index` on, without holes

    def describe(self) -> str:
        what = f"{len(self.bodies)} entries" if self.kind == "append" else f"from {self.from_index}"
        reported = (
            f"[{self.first_index}, {self.last_index}]" if self.kind == "append" else f"read index {self.read_index}"
        )
        words = f"{self.kind} #{self.number} of {self.client} at {self.member} ({what})"
        return f"{words}: {self.result} {self.code} {reported}"


class History:
    """See the module's docstring. `watchers` hear of every completion, once, after it is recorded."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.watchers: list[Callable[[Operation], None]] = []
        self.owner: dict[bytes, Operation] = {}  # body -> the append that it belongs to
        self.reported_index = -1  # the highest index that any client was told is committed
        self.acknowledged_index = -1  # the highest index of an acknowledged append
        self._moment = 0
        self._open = 0

    def __iter__(self) -> Iterator[Operation]:
        return iter(self.operations)

    def __len__(self) -> int:
        return len(self.operations)

    @property
    def open_count(self) -> int:
        """Operations that nobody completed yet."""
        return self._open

    def invoke(
        self,
        client: str,
        kind: Kind,
        member: str,
        bodies: Sequence[bytes] = (),
        *,
        from_index: int = -1,
        expected_index: int | None = None,
        connection: str = "",
        ordered: bool = False,
    ) -> int:
        """A client sends a request to `member`; the number is what `complete` wants back.

        An append names its bodies, which nobody else may ever append; a read the first index that it wants.
        """
        number = len(self.operations)
        operation = Operation(
            number, client, kind, member, tuple(bodies), from_index, self._next(), self.reported_index,
            expected_index, connection, ordered,
        )  # fmt: skip
        for body in operation.bodies:
            if body in self.owner:
                raise ValueError(f"body {body!r} is appended twice, by #{self.owner[body].number} and #{number}")
            self.owner[body] = operation
        self.operations.append(operation)
        self._open += 1
        return number

    def complete(
        self,
        number: int,
        result: Result,
        *,
        code: int = 0,
        first_index: int = -1,
        last_index: int = -1,
        term: int = -1,
        read_index: int = -1,
        seen: Sequence[Seen] = (),
    ) -> None:
        """The client hears how it went. Raises ValueError on a second completion."""
        operation = self.operations[number]
        if operation.result is not None:
            raise ValueError(f"{operation.describe()} completed twice")
        operation.completed = self._next()
        operation.result, operation.code = result, code
        operation.first_index, operation.last_index, operation.term = first_index, last_index, term
        operation.read_index, operation.seen = read_index, tuple(seen)
        self._open -= 1
        if result == "ok":
            self.reported_index = max(self.reported_index, last_index, read_index)
            if operation.kind == "append":
                self.acknowledged_index = max(self.acknowledged_index, last_index)
        for watcher in self.watchers:
            watcher(operation)

    def _next(self) -> int:
        self._moment += 1
        return self._moment
