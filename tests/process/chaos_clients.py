"""Clients that append and read through the real client while everything breaks, and remember what they were told.

Each client does one operation at a time. Bodies are unique, so an entry in a log names the operation that wrote it. An
outcome is `ok`, `fail` (the client promises that nothing was appended; for a read: no answer) or `unknown`.

Invariants: `invoked_ns` is taken before the first byte leaves and `completed_ns` after the answer was read, on one
clock (CLOCK_MONOTONIC); an operation that this program itself ends is unknown, never a failure.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from node.client import Denied, LedgerClient, LedgerError, NotAppended, ReadMode, Unreachable
from tests.process.chaos_nodes import GROUP

DEADLINE_S: Final = 3.0
_BATCH_MAX: Final = 8
_BODY_BYTES: Final = (24, 500)
_LARGE_BODY_BYTES: Final = 30_000
_LARGE_SHARE: Final = 0.01
_READ_BACK_MAX: Final = 40
READ_LIMIT: Final = 100_000


@dataclass(slots=True)
class Operation:
    """One call. An append has `bodies` and, when ok, `first_index`; a read has `from_index` and what it saw."""

    client: str
    kind: str  # "append" or "read"
    invoked_ns: int
    bodies: tuple[bytes, ...] = ()
    from_index: int = 0
    expected_index: int | None = None
    how: str = ""  # of a read: which member was asked alone, and in which mode
    outcome: str = "unknown"
    completed_ns: int | None = None
    first_index: int = -1
    seen: tuple[tuple[int, bytes], ...] = ()
    error: str = ""


@dataclass(slots=True)
class Recorder:
    """All operations in the order of their invocation, and the highest index that anybody was promised."""

    operations: list[Operation] = field(default_factory=list)
    highest_index: int = -1

    def begin(self, operation: Operation) -> Operation:
        self.operations.append(operation)
        return operation

    def appended(self, operation: Operation, first_index: int) -> None:
        operation.first_index = first_index
        self._end(operation, "ok")
        self.highest_index = max(self.highest_index, first_index + len(operation.bodies) - 1)

    def read(self, operation: Operation, seen: Sequence[tuple[int, bytes]]) -> None:
        operation.seen = tuple(seen)
        self._end(operation, "ok")

    def failed(self, operation: Operation, error: Exception) -> None:
        """What the client's exception promises (node/client_errors.py), and nothing beyond it."""
        nothing_appended = isinstance(error, NotAppended | Unreachable | Denied)
        operation.error = f"{type(error).__name__}: {error}"
        if operation.kind == "read" or nothing_appended:
            self._end(operation, "fail")
        # An unknown outcome never completes: it may take effect at any later time.

    def _end(self, operation: Operation, outcome: str) -> None:
        operation.outcome, operation.completed_ns = outcome, time.monotonic_ns()

    def count(self) -> dict[str, dict[str, int]]:
        """Kind -> outcome -> how many."""
        counts: dict[str, dict[str, int]] = {}
        for one in self.operations:
            outcomes = counts.setdefault(one.kind, {"ok": 0, "fail": 0, "unknown": 0})
            outcomes[one.outcome] += 1
        return counts


class Clients:
    """The workload of one run. `start` and `stop` it; `recorder` holds what happened."""

    def __init__(self, peers: Mapping[str, str], seed: int, *, per_second: float = 60.0) -> None:
        self.recorder = Recorder()
        self._peers, self._seed, self._pause_s = peers, seed, 1.0 / per_second
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()

    def start(self) -> None:
        """Four that append: two singly, one in batches, one expecting an index. Three that read, two of one member."""
        loops: list[tuple[str, Callable[[str, random.Random], Awaitable[None]]]] = [
            ("a0", self._append), ("a1", self._append), ("a2", self._append_batches), ("a3", self._append_expecting),
            ("r0", self._read), ("r1", self._read_from_one), ("r2", self._read_from_one),
        ]  # fmt: skip
        for name, loop in loops:
            chance = random.Random(f"client {name} {self._seed}")
            self._tasks.append(asyncio.ensure_future(loop(name, chance)))

    async def stop(self) -> None:
        """Lets each client finish its operation. Raises what a client could not explain."""
        self._stopping.set()
        await asyncio.gather(*self._tasks)

    def check(self) -> None:
        """Raises the error of a client that ended early: a mistake of ours, or an answer that it could not read."""
        for task in self._tasks:
            if task.done() and not self._stopping.is_set():
                task.result()

    async def _pause(self, chance: random.Random) -> None:
        await asyncio.sleep(chance.uniform(0.2, 1.8) * self._pause_s)

    def _body(self, name: str, number: int, chance: random.Random) -> bytes:
        size = _LARGE_BODY_BYTES if chance.random() < _LARGE_SHARE else chance.randint(*_BODY_BYTES)
        return f"{name}:{number}:".encode().ljust(size, b".")

    async def _append(self, name: str, chance: random.Random) -> None:
        client = LedgerClient(self._peers, group=GROUP, deadline_s=DEADLINE_S)
        number = 0
        try:
            while not self._stopping.is_set():
                await self._append_once(client, name, (self._body(name, number, chance),), None)
                number += 1
                await self._pause(chance)
        finally:
            await client.close()

    async def _append_batches(self, name: str, chance: random.Random) -> None:
        client = LedgerClient(self._peers, group=GROUP, deadline_s=DEADLINE_S)
        number = 0
        try:
            while not self._stopping.is_set():
                count = chance.randint(2, _BATCH_MAX)
                bodies = tuple(self._body(name, number + one, chance) for one in range(count))
                number += count
                await self._append_once(client, name, bodies, None)
                await self._pause(chance)
        finally:
            await client.close()

    async def _append_expecting(self, name: str, chance: random.Random) -> None:
        """Compare and swap on the end of the log: mostly beaten by the others, and never wrong."""
        client = LedgerClient(self._peers, group=GROUP, deadline_s=DEADLINE_S)
        number = 0
        try:
            while not self._stopping.is_set():
                expected = self.recorder.highest_index + 1
                body = self._body(name, number, chance)
                await self._append_once(client, name, (body,), expected if expected > 0 else None)
                number += 1
                await self._pause(chance)
        finally:
            await client.close()

    async def _append_once(
        self, client: LedgerClient, name: str, bodies: tuple[bytes, ...], expected_index: int | None
    ) -> None:
        operation = Operation(name, "append", time.monotonic_ns(), bodies=bodies, expected_index=expected_index)
        self.recorder.begin(operation)
        try:
            if len(bodies) == 1:
                result = await client.append(bodies[0], expected_index=expected_index)
            else:
                result = await client.append_many(bodies, expected_index=expected_index)
        except LedgerError as error:
            self.recorder.failed(operation, error)
        else:
            self.recorder.appended(operation, result.first_index)

    async def _read(self, name: str, chance: random.Random) -> None:
        client = LedgerClient(self._peers, group=GROUP, deadline_s=DEADLINE_S)
        try:
            while not self._stopping.is_set():
                await self._read_once(client, name, "", ReadMode.LINEARIZABLE, chance)
                await self._pause(chance)
        finally:
            await client.close()

    async def _read_from_one(self, name: str, chance: random.Random) -> None:
        """Asks one member at a time, deposed and paused ones too: whoever answers must answer linearizably."""
        alone = {
            member: LedgerClient({member: address}, group=GROUP, deadline_s=DEADLINE_S / 2, follow_redirects=False)
            for member, address in self._peers.items()
        }
        try:
            while not self._stopping.is_set():
                member = chance.choice(sorted(alone))
                mode = chance.choice((ReadMode.LINEARIZABLE, ReadMode.FOLLOWER))
                await self._read_once(alone[member], name, member, mode, chance)
                await self._pause(chance)
        finally:
            for client in alone.values():
                await client.close()

    async def _read_once(
        self, client: LedgerClient, name: str, member: str, mode: ReadMode, chance: random.Random
    ) -> None:
        from_index = max(0, self.recorder.highest_index - chance.randint(0, _READ_BACK_MAX))
        how = f"{member or 'leader'} {mode.name.lower()}"
        operation = Operation(name, "read", time.monotonic_ns(), from_index=from_index, how=how)
        self.recorder.begin(operation)
        try:
            entries = await client.read(from_index, READ_LIMIT, include_all=True, mode=mode)
        except LedgerError as error:
            self.recorder.failed(operation, error)
        else:
            self.recorder.read(operation, [(entry.index, entry.body) for entry in entries])
