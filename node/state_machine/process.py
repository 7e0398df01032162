"""A state machine's process: takes frames from its engine, has the caller apply and answer, and saves snapshots.

One thread and one loop. A snapshot is saved while applying goes on (`saving.py`). The process ends when its engine
does, and when anything goes wrong that is not the state machine's own answer: it starts again from the newest snapshot,
so nothing of it has to survive.

Invariants: the engine hears of an entry when it is applied, never before; one save is under way at a time; a snapshot
is named as saved when it is durable.
"""

from __future__ import annotations

import contextlib
import gc
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from traceback import format_exc
from typing import Any, Final

from node.protocol.entry import BytesLike
from node.protocol.group_kind import GroupKind
from node.snapshots import directory as snapshots
from node.state_machine import frames
from node.state_machine.batches import first_records
from node.state_machine.caller import Answer, Caller
from node.state_machine.frames import (
    AnswerFrame,
    AppliedFrame,
    BatchFrame,
    DamagedFrame,
    FrameReader,
    KeptFrame,
    Kind,
    SavedFrame,
    StandsFrame,
)
from node.state_machine.interface import StateMachine
from node.state_machine.kind import path_of
from node.state_machine.questions import Questions
from node.state_machine.raised import tell_raised
from node.state_machine.saving import ERROR_BYTES_MAX, CopiedSave, Save, SteppedSave, Target
from node.transport.machine_frames import PackedAnswers

READ_BYTES: Final = 1 << 20
IDLE_S: Final = 5.0
WAITING_AT_ONCE: Final = 256  # questions that wait, between two looks at what came
SAVE_BYTES: Final = 1 << 30  # of entries behind the last save, however few: a data file's, or old ones could never go
SAVES_SHARE: Final = 10  # of all time, saves that nobody asked for take one part in so many
SAVES_APART_NS: Final = 2_000_000_000  # and begin no sooner: what a start applies again is seconds of load as it is
PASSED_NS: Final = 60_000_000_000  # behind its rest, before it saves what passed meanwhile, at whatever entry it is
AGAIN_NS_MIN: Final = 5_000_000_000  # after a save that failed; twice as long after each further one
AGAIN_NS_MAX: Final = 300_000_000_000
COLLECTOR_THRESHOLDS: Final = (20_000, 20, 50)  # a batch of commands is some thousand objects, and soon gone
MS: Final = 1_000_000


@dataclass(slots=True, frozen=True)
class Options:
    """`directory`: the store's. `save_every`: a snapshot is saved behind each so many-th entry of the log; `kept`: how
    many of them stay."""

    choice: str
    directory: Path
    save_every: int
    kept: int


class EngineGone(Exception):
    """The other end is closed: this process has nothing to do any more."""


def machine_of(choice: str) -> StateMachine:
    """Raises ValueError, ImportError, whatever its module raises."""
    module, _, name = path_of(choice).partition(":")
    made = getattr(import_module(module), name, None)
    if not (isinstance(made, type) and issubclass(made, StateMachine)):
        raise ValueError(f"{choice}: {name} is no class that implements node.state_machine.StateMachine")
    return made()


class Process:
    """See the module's docstring. `run` returns when the engine is gone."""

    def __init__(self, connection: socket.socket, machine: StateMachine, kind: GroupKind, options: Options) -> None:
        self._connection, self._options = connection, options
        self._caller = Caller(machine, kind, tell_raised)
        self._questions = Questions(self._caller, self._answered)
        self._reader = FrameReader()
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._out: list[BytesLike] = []
        self._saving: Save | None = None  # the one that is under way
        self._saved_index = -1
        self._unsaved_bytes = 0  # of the entries that were applied since a save began
        self._save_began_ns = self.last_save_ns = 0  # when the last one began, how long it took
        self._rest_until_ns = 0
        self._again_ns = 0  # how long it rests after a save that failed; 0: the last one did not
        self._save_asked = False
        self._save_index = -1  # the last entry of the one that is under way
        self._damaged: frozenset[int] = frozenset()  # of those that are there
        self._replaced: frozenset[int] = frozenset()  # what of it the save that is under way takes the place of
        self._owed_index = -1  # a state up to there, or newer, is to be saved again
        self._damage_number = 0  # the engine's, of what it said last; 0: nothing yet
        self._stood = 0  # how often it said where it stands and has not heard which life that is
        self._life = 0
        self._handlers: dict[Kind, Callable[[memoryview], None]] = {
            Kind.BATCH: lambda body: self._batch(frames.read_batch(body)),
            Kind.QUESTION: lambda body: self._questions.add(frames.read_question(body)),
            Kind.SAVE: lambda _: self._wish_to_save(),
            Kind.RELOAD: lambda _: self._reload(),
            Kind.LIFE: lambda body: self._lives(frames.read_life(body)),
            Kind.DAMAGED: lambda body: self._learn_of_damage(frames.read_damaged(body)),
        }

    # --- the loop -------------------------------------------------------------------------------------------------
    def run(self) -> None:
        """Raises EngineGone, OSError, FrameError, OutOfOrder, whatever a state machine's `load` raises."""
        snapshots.clean(self._options.directory)
        self._load()
        gc.collect()
        gc.freeze()
        gc.set_threshold(*COLLECTOR_THRESHOLDS)
        self._stand()
        while True:
            self._flush()
            readable = self._wait()
            if self._connection in readable:
                self._take()
            elif self._questions.wait:
                self._questions.go_on()
            if self._saving is not None:
                self._save_goes_on(self._saving, readable)
            deadline = self._caller.next_deadline
            if self._caller.unasked or (deadline is not None and deadline <= time.monotonic_ns()):
                self._caller.answer_waiting(time.monotonic_ns(), WAITING_AT_ONCE)
            self._save_if_due()

    def _wait(self) -> list[Any]:
        deadline = self._caller.next_deadline
        wait_s = IDLE_S if deadline is None else max(0.0, (deadline - time.monotonic_ns()) / 1e9)
        wait_s = 0.0 if self._caller.unasked or self._questions.wait else wait_s
        sources: list[Any] = [self._connection]
        if self._saving is not None:
            sources.append(self._saving)
            step_s = self._saving.due_in_s(time.monotonic_ns())
            wait_s = wait_s if step_s is None else min(wait_s, step_s)
        return select.select(sources, [], [], min(wait_s, IDLE_S))[0]

    def _take(self) -> None:
        size_bytes = self._connection.recv_into(self._buffer)
        if not size_bytes:
            raise EngineGone
        for kind, body in self._reader.frames(bytes(self._buffer[:size_bytes])):
            self._handlers[kind](body)

    def _flush(self) -> None:
        if self._out:
            pieces, self._out = self._out, []
            self._connection.sendall(b"".join(pieces))

    # --- what it is asked -----------------------------------------------------------------------------------------
    def _lives(self, life: int) -> None:
        self._stood -= 1
        self._life = life

    def _batch(self, one: BatchFrame) -> None:
        if self._stood or one.life != self._life:
            return  # ordered before it stood where it stands now
        one = self._up_to_a_save(one)
        report = self._caller.apply(one.first_index, one.last_index, one.records)
        self._unsaved_bytes += len(one.records)
        results = report.results if one.results_wanted else []
        times_ms = self._caller.time_ms, self._caller.wake_at_ms()
        self._out += frames.applied(AppliedFrame(one.life, report.upto_index, *times_ms, report.error, results))
        self._caller.answer_waiting(time.monotonic_ns(), WAITING_AT_ONCE)

    def _up_to_a_save(self, one: BatchFrame) -> BatchFrame:
        """Ends where a save is due, so that all members save behind the same entries, however these came to each: only
        such states can be compared. The engine hands over again what is left."""
        last_index = (one.last_index + 1) // self._options.save_every * self._options.save_every - 1
        if not one.first_index <= last_index < one.last_index or not self._may_save():
            return one
        records = first_records(one.records, last_index - one.first_index + 1)
        return one._replace(last_index=last_index, records=records)

    def _answered(self, number: int, answers: list[Answer]) -> None:
        self._out += frames.answer(AnswerFrame(number, PackedAnswers.of(answers)))

    def _stand(self) -> None:
        self._stood += 1
        caller = self._caller
        term = caller.term if caller.at >= 0 else None
        times_ms = caller.time_ms, caller.wake_at_ms()
        self._out += frames.stands(StandsFrame(caller.at, term, caller.chain, self._saved_index, *times_ms))

    # --- snapshots ------------------------------------------------------------------------------------------------
    def _load(self) -> bool:
        """The newest sound one, if it is newer than the state; what is damaged is said, and the one before taken."""
        found, wrong = snapshots.newest_sound(self._options.directory, sets_aside=True)
        for text in wrong:
            self._out += frames.saved(SavedFrame(self._saved_index, f"a snapshot cannot be used: {text}"))
        if found is None:
            return False
        if self._saving is not None and found.meta.index > self._caller.at:
            self._saving.abandon()  # of the state that this one takes the place of
        self._saved_index = max(self._saved_index, found.meta.index)
        return self._caller.load(found.meta, snapshots.pieces_of(found))

    def _reload(self) -> None:
        """Another one lies there, perhaps: it is where the state begins from now on. The engine hears where that is."""
        self._load()
        self._kept(saves=False)
        self._stand()
        self._caller.answer_waiting(time.monotonic_ns(), WAITING_AT_ONCE)  # perhaps no entry follows for long

    def _wish_to_save(self) -> None:
        self._save_asked = True

    def _learn_of_damage(self, reported: DamagedFrame) -> None:
        """The state of this process is as good as ever, and is saved again: until then nothing is removed."""
        self._damaged |= frozenset(reported.indexes)
        self._owed_index = max(self._owed_index, *reported.indexes)
        self._damage_number = reported.number
        self._kept(saves=True)

    def _kept(self, *, saves: bool) -> None:
        """Says what is there in the place of the damaged ones; those that a newer one stands for are set aside.

        `saves`: where none does the state is saved now. Not after a save that failed: the engine asks again by and by.
        """
        if not self._damage_number:
            return
        directory = self._options.directory
        sound = self._newest_index()
        for index in sorted(one for one in self._damaged if one < sound):
            snapshots.set_aside(directory, index)
        self._damaged &= frozenset(snapshots.named_in(directory))
        is_owed = sound < self._owed_index
        if not is_owed:
            self._owed_index = -1
        elif saves:
            self._saved_index, self._save_asked = sound, True
        self._out += frames.kept(KeptFrame(self._damage_number, sound, is_owed))

    def _save_goes_on(self, saving: Save, readable: list[Any]) -> None:
        if saving in readable:
            self._save_ended()
        elif self._caller.stopped_by:
            saving.abandon()
        else:
            saving.step(time.monotonic_ns())

    def _may_save(self) -> bool:
        """Whether it would begin one by itself now."""
        return self._saving is None and time.monotonic_ns() >= self._rest_until_ns

    def _save_if_due(self) -> None:
        caller, every = self._caller, self._options.save_every
        behind = caller.at - self._saved_index
        passed = behind >= every and time.monotonic_ns() >= self._rest_until_ns + PASSED_NS
        due = passed or (caller.at + 1) % every == 0 or self._unsaved_bytes >= SAVE_BYTES or self._again_ns > 0
        due = due and behind > 0 and self._may_save() and not caller.stopped_by
        if self._saving is not None or not (due or self._save_asked):
            return
        self._save_asked, self._unsaved_bytes = False, 0
        self._save_began_ns = time.monotonic_ns()
        try:
            meta = caller.meta()
        except ValueError as error:
            self._out += frames.saved(SavedFrame(self._saved_index, str(error)))
            return
        if meta.index <= self._saved_index:
            self._out += frames.saved(SavedFrame(self._saved_index))
            return
        self._save_index = meta.index
        pieces = caller.save_in_steps()
        target, self._replaced = Target(meta, self._options.directory, self._options.kept, self._damaged), self._damaged
        if pieces is not None:
            self._saving = SteppedSave(pieces, target)
            return
        self._flush()  # a copy has what waits here, too
        try:
            self._saving = CopiedSave(caller.save, target, self._connection.close)
        except OSError as error:
            self._save_failed(f"no copy of the process can be made: {error}")

    def _save_ended(self) -> None:
        assert self._saving is not None
        saving, self._saving = self._saving, None
        self.last_save_ns = time.monotonic_ns() - self._save_began_ns
        self._rest_until_ns = self._save_began_ns + max(SAVES_SHARE * self.last_save_ns, SAVES_APART_NS)
        error = saving.ended()
        if not error:
            self._damaged -= self._replaced
        self._saved_index = max(self._saved_index, self._newest_index())
        if error and self._saved_index < self._save_index:
            self._save_failed(error)
        else:
            self._again_ns = 0
            self._out += frames.saved(SavedFrame(self._saved_index))
        self._kept(saves=False)

    def _newest_index(self) -> int:
        return snapshots.newest_index(self._options.directory, but=self._damaged)

    def _save_failed(self, why: str) -> None:
        """Again by and by, however little is applied meanwhile: no entry behind the newest snapshot may go before."""
        self._again_ns = min(max(2 * self._again_ns, AGAIN_NS_MIN), AGAIN_NS_MAX)
        self._rest_until_ns = max(self._rest_until_ns, time.monotonic_ns() + self._again_ns)
        self._out += frames.saved(SavedFrame(self._newest_index(), why, not self._caller.stopped_by))


def serve(connection: socket.socket, options: Options, kind: GroupKind) -> int:
    """The whole life; why it ends goes to the engine, which says it in its log, its traceback to standard error."""
    try:
        try:
            machine = machine_of(options.choice)
        except Exception as error:
            raise ValueError(f"{options.choice} cannot be loaded: {type(error).__name__}: {error}") from error
        Process(connection, machine, kind, options).run()
    except (EngineGone, ConnectionError, BrokenPipeError):
        return 0
    except Exception as error:
        tell_raised(format_exc())
        text = f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            connection.sendall(b"".join(frames.frame(Kind.FAILED, text.encode()[:ERROR_BYTES_MAX])))
        return 1
    return 0
