"""Clients that append and read through the real client while everything breaks, and remember what they were told.

Each client does one operation at a time. Bodies are unique, so an entry in a log names the operation that wrote it. An
outcome is `ok`, `fail` (the client promises that nothing was appended; of a read: no answer) or `unknown`.

Invariant: an operation is invoked in the history before its first byte leaves, and completed after its answer was read;
what this program itself ends stays open, which is unknown and never a failure.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from node.client import Denied, LedgerClient, LedgerError, NotAppended, OutcomeUnknown, ReadMode, Unreachable
from node.protocol.codes import ResponseCode
from node.protocol.entry import Magic
from tests.process.chaos_nodes import GROUP
from tests.simulation.history import History

DEADLINE_S: Final = 3.0
_BATCH_MAX: Final = 8
_BODY_BYTES: Final = (24, 500)
_LARGE_BODY_BYTES: Final = 30_000
_LARGE_SHARE: Final = 0.01
_READ_BACK_MAX: Final = 40
_PAUSE_S: Final = (0.004, 0.03)
READ_LIMIT: Final = 100_000


class Recorder:
    """The history that is judged (tests/simulation/history.py), and beside it what only a reader of a finding wants."""

    def __init__(self) -> None:
        self.history = History()
        self.expected: dict[int, int] = {}
        """Append -> the index that it asked for."""
        self.errors: dict[int, str] = {}

    @property
    def highest_index(self) -> int:
        """The highest index that anybody was promised."""
        return self.history.acknowledged_index

    async def append(
        self, client: LedgerClient, name: str, bodies: Sequence[bytes], expected_index: int | None = None
    ) -> None:
        """One append, by the client's single or its batch call."""
        number = self.history.invoke(name, "append", "leader", bodies)
        if expected_index is not None:
            self.expected[number] = expected_index
        try:
            if len(bodies) == 1:
                result = await client.append(bodies[0], expected_index=expected_index)
            else:
                result = await client.append_many(bodies, expected_index=expected_index)
        except OutcomeUnknown as error:
            self.errors[number] = f"OutcomeUnknown: {error}"
            self.history.complete(
                number, "unknown", code=error.code, first_index=error.first_index, last_index=error.last_index,
                term=error.term,
            )  # fmt: skip
        except LedgerError as error:
            # What the exception promises (node/client/errors.py), and nothing beyond it.
            self.errors[number] = f"{type(error).__name__}: {error}"
            nothing_appended = isinstance(error, NotAppended | Unreachable | Denied)
            code = error.code if isinstance(error, NotAppended) else 0
            self.history.complete(number, "fail" if nothing_appended else "unknown", code=code)
        else:
            self.history.complete(
                number, "ok", first_index=result.first_index, last_index=result.last_index, term=result.term
            )

    async def read(self, client: LedgerClient, name: str, member: str, mode: ReadMode, from_index: int) -> None:
        """Everything from `from_index` on: the read saw the log's end, so its read index is the last entry's."""
        number = self.history.invoke(name, "read", f"{member} {mode.name.lower()}", from_index=from_index)
        try:
            entries = await client.read(from_index, READ_LIMIT, include_all=True, mode=mode)
        except LedgerError as error:
            self.errors[number] = f"{type(error).__name__}: {error}"
            self.history.complete(number, "fail")
        else:
            seen = [(entry.index, entry.body if entry.magic == Magic.NORMAL else None) for entry in entries]
            self.history.complete(number, "ok", read_index=seen[-1][0] if seen else from_index - 1, seen=seen)

    def count(self) -> dict[str, dict[str, int]]:
        """Kind -> outcome -> how many; what was never answered is unknown."""
        counts: dict[str, dict[str, int]] = {}
        for one in self.history:
            outcomes = counts.setdefault(one.kind, {"ok": 0, "fail": 0, "unknown": 0})
            outcomes[one.result or "unknown"] += 1
        return counts

    def refusals(self) -> dict[str, int]:
        """Why appends were refused: the name of DLedger's code, or "unreachable" -> how many."""
        names = Counter(
            ResponseCode(one.code).name if one.code else "unreachable"
            for one in self.history
            if one.kind == "append" and one.result == "fail"
        )
        return dict(sorted(names.items()))


class Clients:
    """The workload of one run. `start` and `stop` it; `recorder` holds what happened."""

    def __init__(self, peers: Mapping[str, str], seed: int, *, lease_reads: bool = False) -> None:
        self.recorder = Recorder()
        self._peers, self._seed = peers, seed
        self._modes = (ReadMode.LINEARIZABLE, ReadMode.FOLLOWER, *[ReadMode.LEASE] * lease_reads)
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()

    async def begin(self, within_s: float) -> str:
        """The first append; why there is none, once the time is over."""
        client = LedgerClient(self._peers, group=GROUP, deadline_s=within_s)
        try:
            await self.recorder.append(client, "first", [b"the first one"])
        finally:
            await client.close()
        return "" if self.recorder.highest_index >= 0 else str(self.recorder.errors.get(0))

    def count(self) -> dict[str, dict[str, int]]:
        return self.recorder.count()

    def refusals(self) -> dict[str, int]:
        return self.recorder.refusals()

    def acknowledged(self) -> int:
        """Entries."""
        return sum(len(one.bodies) for one in self.recorder.history if one.kind == "append" and one.result == "ok")

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
        await asyncio.sleep(chance.uniform(*_PAUSE_S))

    def _body(self, name: str, number: int, chance: random.Random) -> bytes:
        size = _LARGE_BODY_BYTES if chance.random() < _LARGE_SHARE else chance.randint(*_BODY_BYTES)
        return f"{name}:{number}:".encode().ljust(size, b".")

    async def _append(self, name: str, chance: random.Random) -> None:
        client = LedgerClient(self._peers, group=GROUP, deadline_s=DEADLINE_S)
        number = 0
        try:
            while not self._stopping.is_set():
                await self.recorder.append(client, name, [self._body(name, number, chance)])
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
                bodies = [self._body(name, number + one, chance) for one in range(count)]
                number += count
                await self.recorder.append(client, name, bodies)
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
                await self.recorder.append(client, name, [body], expected)
                number += 1
                await self._pause(chance)
        finally:
            await client.close()

    async def _read(self, name: str, chance: random.Random) -> None:
        client = LedgerClient(self._peers, group=GROUP, deadline_s=DEADLINE_S)
        try:
            while not self._stopping.is_set():
                await self.recorder.read(client, name, "leader", chance.choice(self._modes), self._from(chance))
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
                mode = chance.choice(self._modes)
                await self.recorder.read(alone[member], name, member, mode, self._from(chance))
                await self._pause(chance)
        finally:
            for client in alone.values():
                await client.close()

    def _from(self, chance: random.Random) -> int:
        return max(0, self.recorder.highest_index - chance.randint(0, _READ_BACK_MAX))
