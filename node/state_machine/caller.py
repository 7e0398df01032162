"""The rules by which a state machine is called: in order, once in one state, with each result where it belongs.

Nothing here touches a socket, a file or a clock: the process (`process.py`) and the simulator drive the same object.

Theory. The state is that of one snapshot (or of an empty log) and of every entry behind it up to `at`, each applied
once. What the state was is forgotten with the process: it starts from its newest snapshot and says where it stands, and
the core feeds it from there (`consensus/applying.py`). A command that raises leaves a state that nobody can vouch for:
it is neither served nor saved any more, and what is behind that entry is refused until the process starts again.

Invariants: `at` never goes back; an entry is taken only at `at + 1`; a result stands at its own entry's place; a
question is answered from a state that holds every entry that it asks for, and in the order in which they were asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from traceback import format_exc
from typing import Final, NamedTuple

from node.protocol.codes import ResponseCode
from node.protocol.entry import BytesLike, unpack_record
from node.protocol.group_kind import GroupKind
from node.protocol.packed_bodies import PackedBodies
from node.snapshots.directory import SnapshotMeta
from node.state_machine.batches import OutOfOrder, read_batch, read_run
from node.state_machine.interface import (
    LONG_RESULTS_BYTES_MAX,
    RESULT_BYTES_MAX,
    SHORT_RESULT_BYTES,
    BadQuestion,
    Command,
    Run,
    StateMachine,
    Write,
)

TIME_KEY: Final = "log_time_ms"  # in a snapshot's `more`
ERROR_CHARS_MAX: Final = 500
QUESTIONS_MAX: Final = 10_000
SUCCESS: Final = ResponseCode.SUCCESS


class Report(NamedTuple):
    """Applied is everything up to `upto_index`; `error`: why not the entry behind it. None: no result, or one that was
    too long beside the others of its batch."""

    upto_index: int
    results: Sequence[bytes | None]
    error: str = ""


class Answer(NamedTuple):
    """To a question. `content` is the answer, or with another code than SUCCESS a text that says why there is none."""

    code: ResponseCode
    applied_index: int
    content: bytes


@dataclass(slots=True, frozen=True)
class Question:
    """`min_index`: what has to be applied before it is answered. `deadline`: in the driver's clock."""

    content: bytes
    min_index: int
    deadline: int
    deliver: Callable[[Answer], None]


class Caller:
    """One state machine, and where it stands; see the module's docstring."""

    def __init__(
        self, machine: StateMachine, kind: GroupKind, raised: Callable[[str], object] = lambda _text: None
    ) -> None:
        """`raised`: gets the traceback of what `apply` raised, which is too long for a report."""
        self._machine, self._kind, self._raised = machine, kind, raised
        self._takes_runs = type(machine).apply_run is not StateMachine.apply_run
        self.at = -1  # the last entry that is in the state
        self.term = -1  # its term; -1: unknown, or none
        self.time_ms = 0
        self.chain: int | None = None  # that entry's; None: not known
        self._next_pos: int | None = None
        self.stopped_by = ""  # the entry that could not be applied, and why
        self._waiting: deque[Question] = deque()
        self.unasked = 0  # the first of them have not been asked for since the state moved, to `_asked_at`
        self._asked_at = -1
        self.next_deadline: int | None = None  # not after any question's that waits

    # --- the state from a snapshot, and to one --------------------------------------------------------------------
    def load(self, meta: SnapshotMeta, pieces: Iterable[bytes]) -> bool:
        """Takes a snapshot's state in the place of the present one; False where it is not newer: nothing happened.

        Whatever `pieces` raises comes out of here, and the state is then one that nobody can vouch for.
        """
        if meta.index <= self.at:
            return False
        at, self.at = self.at, -1
        self.stopped_by = f"the snapshot up to entry {meta.index} could not be loaded over the state of entry {at}"
        self._machine.load(pieces)
        self.at, self.term, self.chain, self._next_pos = meta.index, meta.term, meta.chain, meta.next_pos
        time_ms = meta.more.get(TIME_KEY, 0)
        self.time_ms = time_ms if type(time_ms) is int else 0
        self.stopped_by = ""
        return True

    def meta(self) -> SnapshotMeta:
        """What a snapshot of the present state stands for. Raises ValueError where there is none to be saved."""
        if self.stopped_by or self.at < 0:
            raise ValueError(self.stopped_by or "nothing is applied yet")
        return SnapshotMeta(self.at, self.term, self.chain, self._next_pos, more={TIME_KEY: self.time_ms})

    def save(self, write: Write) -> None:
        self._machine.save(write)

    def save_in_steps(self) -> Iterator[bytes] | None:
        """See StateMachine."""
        return self._machine.save_in_steps()

    # --- entries --------------------------------------------------------------------------------------------------
    def apply(self, first_index: int, last_index: int, records: BytesLike) -> Report:
        """Whole records, one behind the other. Raises OutOfOrder where they do not continue the state."""
        if self.stopped_by:
            return Report(first_index - 1, [], self.stopped_by)
        if first_index != self.at + 1:
            raise OutOfOrder(f"entries from {first_index} on, and {self.at} is the last one applied")
        run = read_run(self._kind, first_index, last_index, records, self.time_ms) if self._takes_runs else None
        if run is not None:
            report = self._apply_run(run)
            if report is not None:
                return report
        commands, places, offsets = read_batch(self._kind, first_index, last_index, records, self.time_ms)
        results: list[bytes | None] = [b""] * len(offsets)
        applied, error = self._call(commands, places, results)
        count = len(offsets) if not error else places[applied]
        if count:
            self._stands_behind(records, offsets[count - 1])
        if applied:
            self.time_ms = commands[applied - 1].time_ms
        if error:
            self._stop(error)
        return Report(self.at, results[:count], self.stopped_by)

    def _stands_behind(self, records: BytesLike, offset: int) -> None:
        """The record there is the last one that is applied."""
        last = unpack_record(records, offset)
        self.at, self.term = last.index, last.term
        sealed = last.chain_crc or last.body_crc
        self.chain, self._next_pos = last.chain_crc if sealed else None, last.pos + last.size

    def _stop(self, error: str) -> None:
        self.stopped_by = (
            f"{error}. Nothing behind entry {self.at + 1} is applied on this member, and its state is not served:"
            " start it again with a state machine that can apply this entry"
        )

    def _apply_run(self, run: Run) -> Report | None:
        """All of it, or nothing; None: the state machine wants its commands one by one."""
        try:
            results = self._machine.apply_run(run)
            if results is None:
                return None
            if type(results) is not PackedBodies or len(results) != run.count or results.longest > SHORT_RESULT_BYTES:
                raise ValueError(f"results of a run are {run.count} PackedBodies of up to {SHORT_RESULT_BYTES} bytes")
        except Exception as error:
            self._raised(format_exc())
            self._stop(f"entry {run.first_index}: {type(error).__name__}: {error}"[:ERROR_CHARS_MAX])
            return Report(self.at, [], self.stopped_by)
        self._stands_behind(run.data, (run.count - 1) * run.stride)
        self.time_ms = run.time_ms
        return Report(self.at, results)

    def _call(self, commands: Sequence[Command], places: Sequence[int], results: list[bytes | None]) -> tuple[int, str]:
        """How many were applied, and why not the next one; each result goes to its own entry's place."""
        applied, count, long_bytes = 0, len(commands), 0
        if not commands:
            return 0, ""
        try:
            for result in self._machine.apply(commands):
                if applied == count:
                    raise ValueError(f"more than {applied} results for {applied} commands")
                kept = result
                if result is None:
                    results[places[applied]] = None
                    applied += 1
                    continue
                if not isinstance(result, bytes) or len(result) > RESULT_BYTES_MAX:
                    raise ValueError(
                        f"a {type(result).__name__} for a result: up to {RESULT_BYTES_MAX} bytes are wanted"
                    )
                if len(result) > SHORT_RESULT_BYTES:
                    long_bytes += len(result)
                    kept = result if long_bytes <= LONG_RESULTS_BYTES_MAX else None
                results[places[applied]] = kept
                applied += 1
            if applied < len(commands):
                raise ValueError(f"{applied} results for {len(commands)} commands")
        except Exception as error:
            if applied == len(commands):
                applied -= 1
            index = commands[applied].index
            self._raised(format_exc())
            return applied, f"entry {index}: {type(error).__name__}: {error}"[:ERROR_CHARS_MAX]
        return applied, ""

    def wake_at_ms(self) -> int | None:
        """See StateMachine."""
        return None if self.stopped_by else self._machine.wake_at_ms()

    # --- questions ------------------------------------------------------------------------------------------------
    def answers_now(self, contents: Sequence[bytes], min_index: int, bytes_max: int) -> list[Answer] | None:
        """To all of them, where they can be answered from the state as it is, and nothing is out of the ordinary."""
        if self.stopped_by or self.at < min_index:
            return None
        query, at, known = self._machine.query, self.at, []
        try:
            for question in contents:
                content = query(question)
                if content is None or len(content) > bytes_max:
                    return None
                bytes_max -= len(content)
                known.append(Answer(SUCCESS, at, content))
        except Exception:
            return None  # each by itself
        return known

    def ask(self, question: Question) -> None:
        """It is answered once: now, behind an `apply`, or at its deadline."""
        if self._answered(question):
            return
        if len(self._waiting) >= QUESTIONS_MAX:
            # Who waited longest hears that nothing happened, and asks again: one client's watches keep no other out.
            self._give_up(self._waiting.popleft())
            self.unasked = max(0, self.unasked - 1)
        self._keep(question)

    def _give_up(self, question: Question) -> None:
        in_time = self.at >= question.min_index
        text = f"entry {question.min_index} is not applied yet, only {self.at}".encode()
        question.deliver(Answer(ResponseCode.TIMEOUT, self.at, b"" if in_time else text))

    def _keep(self, question: Question) -> None:
        self._waiting.append(question)
        if self.next_deadline is None or question.deadline < self.next_deadline:
            self.next_deadline = question.deadline

    def answer_waiting(self, now: int, at_most: int = QUESTIONS_MAX) -> None:
        """After anything was applied, and as time passes. Of more than `at_most` the others come with the next calls
        (`unasked` are left): what thousands wait for must not hold up the next batch."""
        if self.unasked <= 0 or self.at != self._asked_at:
            self.unasked, self._asked_at = len(self._waiting), self.at
            self.next_deadline = None
        for _ in range(min(at_most, self.unasked)):
            self.unasked -= 1
            question = self._waiting.popleft()
            if self._answered(question):
                continue
            if question.deadline <= now:
                self._give_up(question)
            else:
                self._keep(question)

    def _answered(self, question: Question) -> bool:
        """Whether it could be answered from the state as it is."""
        if self.stopped_by:
            question.deliver(Answer(ResponseCode.ILLEGAL_MEMBER_STATE, self.at, self.stopped_by.encode()))
            return True
        if self.at < question.min_index:
            return False
        try:
            content = self._machine.query(question.content)
        except BadQuestion as error:
            question.deliver(Answer(ResponseCode.UNEXPECTED_ARGUMENT, self.at, str(error).encode()))
            return True
        except Exception as error:
            text = f"the state machine failed over this question: {type(error).__name__}: {error}"[:ERROR_CHARS_MAX]
            question.deliver(Answer(ResponseCode.INTERNAL_ERROR, self.at, text.encode()))
            return True
        if content is not None:
            question.deliver(Answer(ResponseCode.SUCCESS, self.at, content))
        return content is not None
