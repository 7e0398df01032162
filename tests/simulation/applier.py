"""A member's state machine in a simulated world: a process of its own beside the engine, with a state of its own.

The caller is the product's (`node/state_machine/caller.py`), the state machine a test's: its state is a running hash of
the commands, so that two that applied the same ones in the same order, each once, answer the same. It applies a batch a
little later, fails at a command now and then, ends and starts again from its last snapshot, is given other members'
snapshots, newer and older, and is asked what it holds; it outlives engines, or ends with them.

Invariants: nothing is applied that does not continue the state (`applied_in_order`); a life is one engine's, and what
an earlier one ordered is dropped once this machine said where it stands.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from zlib import crc32

from node.consensus.api import MS
from node.engine.applier import Applier, Batch, Reports
from node.protocol.codes import ResponseCode
from node.protocol.entry import unpack_record
from node.protocol.group_kind import PLAIN
from node.snapshots.directory import SnapshotMeta, newest_sound, pieces_of
from node.state_machine import interface
from node.state_machine.caller import Answer, Caller, OutOfOrder, Question
from node.state_machine.interface import Command, Write
from tests.simulation.observer import Violation

if TYPE_CHECKING:
    from tests.simulation.member import Member

SAVED = 0.3  # share of batches after which the state is saved
OUTLIVES = 0.5  # share of engines that end without their state machine
NEW_STATE = 0.5  # share of replaced disks that held the state machine's, too
PATIENCE_NS: Final = 2000 * MS  # of a question
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
    """One entry as it was applied; `result` None: not a client's."""

    index: int
    term: int
    chain: int
    result: bytes | None


class Saved(NamedTuple):
    """A snapshot, as it lies beside the log."""

    meta: SnapshotMeta
    data: bytes


def result_after(before: bytes, index: int, body: bytes) -> bytes:
    """What applying a command answers."""
    return b"%d:%08x" % (index, crc32(body, crc32(before)))


class Hashes(interface.StateMachine):
    """The state machine: what its last command answered is all that it holds."""

    def __init__(self, fails: Callable[[Command], bool]) -> None:
        self.last = b""
        self._fails = fails

    def apply(self, commands: Sequence[Command]) -> Iterator[bytes]:
        for command in commands:
            if self._fails(command):
                self.last = b"half of %d" % command.index
                raise RuntimeError("a fault of this simulation")
            assert command.body is not None
            self.last = result_after(self.last, command.index, command.body)
            yield self.last

    def save(self, write: Write) -> None:
        write(self.last[:3])
        write(self.last[3:])

    def load(self, pieces: Iterable[bytes]) -> None:
        self.last = b"".join(pieces)

    def query(self, question: bytes) -> bytes | None:
        return self.last


class StateMachine:
    """One member's, across engines; see the module's docstring."""

    def __init__(self, member: Member, rng: random.Random, schedule: Later, now: Callable[[], int]) -> None:
        self._member, self._rng, self._schedule, self.now = member, rng, schedule, now
        self._pace: Pace = member.world.config
        base = member.world.base
        self._first = Saved(SnapshotMeta(base.index, base.term), b"") if base.index >= 0 else None
        self.saved: Saved | None = self._first
        self._run = 0  # its own incarnations
        self.alive = True
        self._engine: Attachment | None = None
        self._begin()
        if self._pace.apply_restart:
            self._again()

    def _begin(self) -> None:
        """A new process, with the state of its snapshot."""
        self.machine = Hashes(self._fails)
        self.caller = Caller(self.machine, PLAIN)
        if self.saved is not None:
            self.caller.load(self.saved.meta, [self.saved.data])

    def _fails(self, command: Command) -> bool:
        world = self._member.world
        if not (self._pace.apply_fail and world.faulty and self._rng.random() < self._pace.apply_fail):
            return False
        world.tell.fault("applier_failed", f"{self._member.id} {command.index}")
        return True

    @property
    def at(self) -> int:
        """The last entry that it has applied."""
        return self.caller.at

    @property
    def result(self) -> bytes:
        """What the last command answered."""
        return self.machine.last

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
        self._load_installed()
        self._pin()
        if not self.alive:
            self._start()
        else:
            engine.later(self._soon(), self._say, engine, self._run)

    def _say(self, engine: Attachment, run: int) -> None:
        if engine is self._engine and run == self._run:
            known = self.at >= 0 and self._rng.random() < 0.9
            assert engine.reports is not None
            engine.life = engine.reports.stands(self.at, self.caller.term if known else None)

    def take(self, engine: Attachment, batch: Batch) -> None:
        """A batch came; it is applied by and by."""
        self._schedule(self._soon(), self._apply, engine, self._run, batch._replace(records=bytes(batch.records)))

    def _apply(self, engine: Attachment, run: int, batch: Batch) -> bool:
        if run != self._run or engine is not self._engine or batch.life != engine.life:
            return False
        try:
            report = self.caller.apply(batch.first_index, batch.last_index, batch.records)
        except OutOfOrder as error:
            raise Violation("applied_in_order", f"{self._member.id}: {error}") from None
        self._note(batch, report.upto_index, report.results)
        if self._rng.random() < SAVED:
            self._save()
        self.caller.answer_waiting(self.now())
        assert engine.reports is not None
        engine.later(
            self._soon(), engine.reports.applied, batch.life, report.upto_index, report.results, report.error
        )  # fmt: skip
        if report.error:
            self._schedule(self._soon() + 100 * MS, self._start_anew, run)
        elif self._pace.apply_restart and self._rng.random() < 0.05:
            self._schedule(self._soon(), self._install, run)
        return True

    def _note(self, batch: Batch, upto_index: int, results: Sequence[bytes]) -> None:
        offset = 0
        for index in range(batch.first_index, upto_index + 1):
            entry = unpack_record(batch.records, offset)
            offset += entry.size
            result = results[index - batch.first_index] or None
            self._member.world.tell.applied(self._member, Applied(index, entry.term, entry.chain_crc, result))

    # --- its snapshots --------------------------------------------------------------------------------------------
    def _save(self) -> None:
        try:
            meta = self.caller.meta()
        except ValueError:
            return  # nothing is applied, or nobody can vouch for the state
        if self.saved is None or meta.index > self.saved.meta.index:
            pieces: list[bytes] = []
            self.caller.save(pieces.append)
            self.saved = Saved(meta, b"".join(pieces))
            self._pin()

    def _pin(self) -> None:
        """What it needs again after a restart stays in the log, as `node/server.py` sees to it."""
        store = self._member.store
        if store is None:
            return
        index = store.begin_index if self.saved is None else self.saved.meta.index + 1
        if index >= store.begin_index:
            store.pin(index, "the state machine")
        else:
            store.release("the state machine")

    def _install(self, run: int) -> bool:
        """Another member's snapshot, whatever it holds, is put beside this log."""
        others = [
            one.state_machine.saved for one in self._member.world.members.values()
            if one is not self._member and one.state_machine is not None and one.state_machine.saved is not None
        ]  # fmt: skip
        if run != self._run or not self.alive or not others:
            return False
        given, at = self._rng.choice(others), self.at
        is_loaded = self.caller.load(given.meta, [given.data])
        if self.at < at:
            raise Violation("applied_never_back", f"{self._member.id} had applied {at}, and now {self.at}")
        if is_loaded:
            self._member.world.tell.fault("snapshot_installed", f"{self._member.id} {given.meta.index}")
            self.saved = given
            self._pin()
            if self._engine is not None and self._engine.reports is not None:
                self._engine.life = 0  # what was ordered before continues another state
                self._engine.later(self._soon(), self._say, self._engine, run)
        return True

    def save_now(self) -> None:
        """Its engine wants a snapshot."""
        if self.alive:
            self._save()

    def reload(self, engine: Attachment) -> None:
        """The log begins behind a snapshot, which lies beside it now."""
        engine.later(self._soon(), self._reload, engine, self._run)

    def _reload(self, engine: Attachment, run: int) -> None:
        if engine is self._engine and run == self._run and self.alive:
            self._load_installed()
            engine.life = 0  # what was ordered before continues another state
            self._say(engine, run)

    def _load_installed(self) -> None:
        """What came from another member by the product's own way, if it is newer."""
        member, at = self._member, self.at
        found, _wrong = newest_sound(member.directory, member.platform)
        if found is None or (self.saved is not None and found.meta.index <= self.saved.meta.index):
            return
        data = b"".join(pieces_of(found, platform=member.platform))
        self.caller.load(found.meta, [data])
        if self.at < at:
            raise Violation("applied_never_back", f"{member.id} had applied {at}, and now {self.at}")
        self.saved = Saved(found.meta, data)
        self._pin()

    # --- what it is asked -----------------------------------------------------------------------------------------
    def ask(self, read_index: int) -> None:
        """A client's question, behind that read index."""

        def answered(answer: Answer) -> None:
            if answer.code is ResponseCode.SUCCESS:
                self._member.world.tell.machine_read(self._member, read_index, answer.applied_index, answer.content)

        if self.alive:
            self.caller.ask(Question(b"", read_index, self.now() + PATIENCE_NS, answered))

    # --- its ends -------------------------------------------------------------------------------------------------
    def _again(self) -> None:
        self._schedule(int(self._rng.expovariate(self._pace.apply_restart) * 1000 * MS) + 1, self._restart)

    def _restart(self) -> bool:
        if not self._member.world.faulty:
            return False
        self._again()
        return self.alive and self.end("it crashed")

    def _start_anew(self, run: int) -> bool:
        """An operator saw the alarm."""
        return run == self._run and self.alive and self.end("it is started again")

    def end(self, reason: str) -> bool:
        """It ends; what was not saved is gone. Its supervisor starts it again if an engine is there."""
        self._run += 1
        self._begin()
        self.alive = False
        self._member.world.tell.fault("applier_ended", self._member.id)
        engine = self._engine
        if engine is not None and engine.reports is not None:
            life, engine.life = engine.life, 0
            if life and self._rng.random() < 0.7:  # a connection that closes is noticed, mostly
                engine.later(self._soon(), engine.reports.ended, life, reason)
            engine.later(self._soon(), self._start_for, engine, self._run)
        return True

    def lose_snapshots(self) -> None:
        """They rotted, and it starts from nothing."""
        self.saved = None
        self.end("its snapshots rotted")

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
            self._begin()
            self.alive = False

    def disk_replaced(self) -> None:
        """The member's disk is another one."""
        if self._rng.random() < NEW_STATE:
            self.saved = self._first
            self._run += 1
            self._begin()
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

    def reload(self) -> None:
        self._machine.reload(self)

    def stop(self) -> None:
        """The engine ends in an orderly way: what it is told from now on goes nowhere."""
