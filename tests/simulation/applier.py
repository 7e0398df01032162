"""A member's state machine in a simulated world: a process of its own beside the engine, with a state of its own.

It applies a batch a little later, fails at an entry now and then, ends and starts again from what it had saved; it
outlives engines, or ends with them. Its state is a list of results, one an entry, each made of all that came before: so
two machines that applied the same entries in the same order, each once, hold the same list.

Invariants: nothing is applied that does not continue the state (`applied_in_order`); a life is one engine's, and what
an earlier one ordered is dropped once this machine said where it stands.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from zlib import crc32

from node.consensus.api import MS
from node.engine.applier import Applier, Batch, Reports
from node.protocol.entry import Entry, Magic, unpack_record
from tests.simulation.observer import Violation

if TYPE_CHECKING:
    from tests.simulation.member import Member

SAVED = 0.3  # share of batches after which the state is saved
OUTLIVES = 0.5  # share of engines that end without their state machine
NEW_STATE = 0.5  # share of replaced disks that held the state machine's, too
Later = Callable[..., None]  # delay in nanoseconds, call, arguments; nobody is there once that engine is gone


class Pace(Protocol):
    """What of a swarm moves a state machine."""

    @property
    def apply_ms(self) -> float: ...
    @property
    def apply_fail(self) -> float: ...
    @property
    def apply_restart(self) -> float: ...


@dataclass(slots=True, frozen=True)
class Applied:
    """One entry as it was applied."""

    index: int
    term: int
    chain: int
    result: bytes


def result_after(before: bytes, index: int, body: bytes | None) -> bytes:
    """What applying an entry answers; `body` None: not a client's entry."""
    return b"%d:%08x" % (index, crc32(body or b"", crc32(before)))


class StateMachine:
    """One member's, across engines; see the module's docstring."""

    def __init__(self, member: Member, rng: random.Random, schedule: Later, now: Callable[[], int]) -> None:
        self._member, self._rng, self._schedule, self.now = member, rng, schedule, now
        self._pace: Pace = member.world.config
        self.state: list[Applied] = []
        self._base = member.world.base
        self._saved = 0
        self._run = 0  # its own incarnations
        self.alive = True
        self._engine: Attachment | None = None
        if self._pace.apply_restart:
            self._again()

    @property
    def at(self) -> int:
        """The last entry that it has applied."""
        return self._base.index + len(self.state)

    def life_in(self, engine: object) -> int:
        """The life in which that engine's core feeds it; 0: none."""
        attached = self._engine
        return attached.life if attached is not None and attached.reports is engine and self.alive else 0

    def _soon(self) -> int:
        return self._rng.randrange(int(2 * self._pace.apply_ms * MS) + 1)

    # --- its engine -----------------------------------------------------------------------------------------------
    def attach(self, engine: Attachment) -> None:
        """An engine starts beside it, or it beside an engine."""
        self._engine = engine
        if not self.alive:
            self._start()
        else:
            engine.later(self._soon(), self._say, engine, self._run)

    def _say(self, engine: Attachment, run: int) -> None:
        if engine is self._engine and run == self._run:
            known = self.state[-1].term if self.state else self._base.term
            term = known if self.at >= 0 and self._rng.random() < 0.9 else None
            assert engine.reports is not None
            engine.life = engine.reports.stands(self.at, term)

    def take(self, engine: Attachment, batch: Batch) -> None:
        """A batch came; it is applied by and by."""
        entries, offset, records = [], 0, bytes(batch.records)
        while offset < len(records):
            entry = unpack_record(records, offset)
            entries.append(entry)
            offset += entry.size
        self._schedule(self._soon(), self._apply, engine, self._run, batch, entries)

    def _apply(self, engine: Attachment, run: int, batch: Batch, entries: Sequence[Entry]) -> bool:
        if run != self._run or engine is not self._engine or batch.life != engine.life:
            return False
        if [one.index for one in entries] != list(range(batch.first_index, batch.last_index + 1)):
            raise Violation("applied_in_order", f"{self._member.id}: {batch[:3]} holds other entries")
        results: list[bytes] = []
        error = ""
        for entry in entries:
            if self._pace.apply_fail and self._member.world.faulty and self._rng.random() < self._pace.apply_fail:
                error = "a fault of this simulation"
                self._member.world.tell.fault("applier_failed", f"{self._member.id} {entry.index}")
                break
            results.append(self._one(entry))
        if self._rng.random() < SAVED:
            self._saved = len(self.state)
        assert engine.reports is not None
        upto = entries[0].index + len(results) - 1
        engine.later(self._soon(), engine.reports.applied, batch.life, upto, results, error)
        return True

    def _one(self, entry: Entry) -> bytes:
        if entry.index != self.at + 1:
            text = f"{self._member.id} was given entry {entry.index} and had applied {self.at}"
            raise Violation("applied_in_order", text)
        before = self.state[-1].result if self.state else b""
        result = result_after(before, entry.index, bytes(entry.body) if entry.magic == Magic.NORMAL else None)
        self.state.append(Applied(entry.index, entry.term, entry.chain_crc, result))
        self._member.world.tell.applied(self._member, self.state[-1])
        return result

    # --- its ends -------------------------------------------------------------------------------------------------
    def _again(self) -> None:
        self._schedule(int(self._rng.expovariate(self._pace.apply_restart) * 1000 * MS) + 1, self._restart)

    def _restart(self) -> bool:
        if not self._member.world.faulty:
            return False
        self._again()
        return self.alive and self.end("it crashed")

    def end(self, reason: str) -> bool:
        """It ends; what was not saved is gone. Its supervisor starts it again if an engine is there."""
        self._run += 1
        del self.state[self._saved :]
        self.alive = False
        self._member.world.tell.fault("applier_ended", self._member.id)
        engine = self._engine
        if engine is not None and engine.reports is not None:
            life, engine.life = engine.life, 0
            if life and self._rng.random() < 0.7:  # a connection that closes is noticed, mostly
                engine.later(self._soon(), engine.reports.ended, life, reason)
            engine.later(self._soon(), self._start_for, engine, self._run)
        return True

    def _start_for(self, engine: Attachment, run: int) -> None:
        if engine is self._engine and run == self._run:
            self._start()

    def _start(self) -> None:
        self.alive = True
        engine = self._engine
        assert engine is not None
        engine.later(self._soon(), self._say, engine, self._run)

    def engine_ended(self, *, power: bool) -> None:
        """The engine's process is gone; this one's may be, too."""
        if power or self._rng.random() >= OUTLIVES:
            self._run += 1
            del self.state[self._saved :]
            self.alive = False

    def disk_replaced(self) -> None:
        """The member's disk is another one."""
        if self._rng.random() < NEW_STATE:
            self.state.clear()
            self._saved = 0
            self._run += 1
            self.alive = False


class Attachment(Applier):
    """One engine's end of the connection to it."""

    def __init__(self, machine: StateMachine, later: Later) -> None:
        self._machine, self.later = machine, later
        self.reports: Reports | None = None
        self.life = 0

    def start(self, reports: Reports) -> None:
        self.reports = reports
        self._machine.attach(self)

    def apply(self, batch: Batch) -> None:
        self._machine.take(self, batch)

    def stop(self) -> None:
        """The engine ends in an orderly way: what it is told from now on goes nowhere."""
