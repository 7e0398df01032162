"""A group's state machine, as its engine sees it: an `Applier` in a process of its own, started again when it ends.

The engine hands over whole records and questions as bytes, and takes reports and answers; it runs none of the state
machine's code. What that process does, how long it takes or how it ends never holds up the engine's loop.

Invariants: whatever was handed to one incarnation is answered by that one, or fails with it; a report counts in the
life that the core gave for it; nothing is kept for a process that is not there.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from node.background import Background, reason_of
from node.children import dying_with_parent, environment, how_ended, python
from node.engine.applier import Batch, Reports
from node.protocol.codes import ResponseCode
from node.protocol.entry import BytesLike
from node.state_machine import frames
from node.state_machine.frames import (
    AnswerFrame,
    AppliedFrame,
    BatchFrame,
    DamagedFrame,
    FrameReader,
    Kind,
    QuestionFrame,
    SavedFrame,
)

QUESTIONS_MAX: Final = 25_000  # requests, open at a time: more than clients' connections may have together
BACKLOG_BYTES_MAX: Final = 32 * 1024 * 1024  # that its process has not read: what was given up stays there until then
PATIENCE_S: Final = 5.0  # beyond a question's own: then the process does not answer
SOCKET_BYTES: Final = 1024 * 1024  # a batch and its head go in one piece, as far as the kernel allows: one wake-up
BACK_OFF_S_MIN: Final = 0.2
BACK_OFF_S_MAX: Final = 10.0
STEADY_AFTER_S: Final = 30.0
END_WITHIN_S: Final = 1.0
Deliver = Callable[[Sequence[tuple[ResponseCode, int, bytes]]], None]
Note = Callable[[str, str, dict[str, Any]], None]
Alarm = Callable[[str, str | None], None]


class MachineOptions(NamedTuple):
    """`directory`: the store's. `save_every`: a snapshot is saved behind each so many-th entry of the log; `kept`: how
    many of them stay."""

    choice: str
    directory: Path
    save_every: int
    kept: int


class Asked(NamedTuple):
    """Questions that have no answers yet."""

    questions: int
    deliver: Deliver
    patience: asyncio.TimerHandle


class Pipe(asyncio.Protocol):
    """One incarnation's end of its connection. Frames of one turn leave together."""

    def __init__(self, on_frame: Callable[[Kind, memoryview], None], on_broken: Callable[[str], None]) -> None:
        self._on_frame, self._on_broken = on_frame, on_broken
        self._reader = FrameReader()
        self._transport: asyncio.WriteTransport | None = None
        self._out: list[BytesLike] = []
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's are none by inheritance

    def data_received(self, data: bytes) -> None:
        try:
            for kind, body in self._reader.frames(data):
                self._on_frame(kind, body)
        except Exception as error:  # what a broken process says must not end the engine
            self._on_broken(reason_of(error))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.ended.set()

    def send(self, pieces: list[BytesLike]) -> None:
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out += pieces

    @property
    def backlog_bytes(self) -> int:
        """What the process has not read, without what leaves with this turn."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def _flush(self) -> None:
        pieces, self._out = self._out, []
        if self._transport is not None:
            self._transport.writelines(pieces)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class MachineProcess:
    """See the module's docstring. An `Applier`."""

    def __init__(
        self, options: MachineOptions, note: Note, saved: Callable[[int], None], alarm: Alarm = lambda *_: None
    ) -> None:
        """`saved` is called with the last entry of the newest snapshot, when it starts and when one was saved. `alarm`
        with a code, and why it stands or None: `snapshot_failed` (why a save failed that is tried again; None: the last
        one did not, or none was tried yet), `applier_silent`."""
        self._options, self._note, self._saved, self._alarm = options, note, saved, alarm
        self._is_silent = False  # a question had no answer, and nothing was heard since
        self._reports: Reports | None = None
        self._pipe: Pipe | None = None  # None: no process is there
        self._life = 0
        self._batch: Batch | None = None  # the one that is with it
        self._why = "it has not started yet"
        self._numbers = 0
        self._asked: dict[int, Asked] = {}
        self._waiting_for_save: list[Callable[[int, str], None]] = []
        self._damage_number = 0
        self._damage_known: Callable[[bool], None] = lambda _: None
        self._tasks = Background(lambda _name, error: note("state_machine", "error", {"reason": reason_of(error)}))
        self._process: asyncio.subprocess.Process | None = None
        self.time_ms = 0  # log time, of what was applied last
        self.wake_at_ms: int | None = None  # from which log time on an entry is wanted
        self.saved_index = -1

    # --- Applier --------------------------------------------------------------------------------------------------
    def start(self, reports: Reports) -> None:
        self._reports = reports
        self._tasks.run("the state machine", self._keep())

    def apply(self, batch: Batch) -> None:
        if self._pipe is not None:
            self._batch = batch
            self._pipe.send(frames.batch(BatchFrame(*batch[:3], batch.results_wanted, batch.records)))

    def stop(self) -> None:
        """The process sees the end of its connection; one that does not is killed."""
        self._reports = None
        self._lost("this member stops")
        for task in self._tasks.tasks:
            task.cancel()
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def restart(self) -> None:
        """Ends its process, which may hang; another one begins from the newest snapshot."""
        if self._process is not None and self._process.returncode is None:
            self._why = "an operator asked for its end"
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    # --- questions, snapshots -------------------------------------------------------------------------------------
    def ask(self, contents: Sequence[bytes], min_index: int, wait_ms: int, deliver: Deliver) -> None:
        """`deliver` is called once, later, with the answers from a state that holds every entry up to `min_index`."""
        pipe, loop = self._pipe, asyncio.get_running_loop()
        if pipe is None or len(self._asked) >= QUESTIONS_MAX or pipe.backlog_bytes > BACKLOG_BYTES_MAX:
            busy = pipe is not None
            code = ResponseCode.LEADER_PENDING_FULL if busy else ResponseCode.ILLEGAL_MEMBER_STATE
            text = "too many questions wait already" if busy else f"the state machine is not there: {self._why}"
            loop.call_soon(deliver, [(code, -1, text.encode())] * len(contents))
            return
        self._numbers += 1
        number = self._numbers
        patience = loop.call_later(wait_ms / 1000 + PATIENCE_S, self._no_answer, number)
        self._asked[number] = Asked(len(contents), deliver, patience)
        pipe.send(frames.question(QuestionFrame(number, min_index, wait_ms, contents)))

    def _no_answer(self, number: int) -> None:
        asked = self._asked.pop(number, None)
        if asked is not None:
            asked.deliver([(ResponseCode.TIMEOUT, -1, b"the state machine does not answer")] * asked.questions)
            if not self._is_silent:
                self._is_silent = True
                text = f"a question to the state machine had no answer {PATIENCE_S:.0f} s after it was due"
                self._alarm("applier_silent", text)

    def _heard(self) -> None:
        if self._is_silent:
            self._is_silent = False
            self._alarm("applier_silent", None)

    def save(self, done: Callable[[int, str], None]) -> None:
        """A snapshot now; `done` with the newest one's last entry, and why there is no newer one."""
        if self._pipe is None:
            asyncio.get_running_loop().call_soon(done, self.saved_index, self._why)
            return
        self._waiting_for_save.append(done)
        self._pipe.send(frames.frame(Kind.SAVE))

    def damaged(self, indexes: Sequence[int], done: Callable[[bool], None]) -> None:
        """See `Machine`. Where no process is there nothing is known: it is to be asked again."""
        self._damage_number += 1
        self._damage_known = done
        if self._pipe is not None:
            self._pipe.send(frames.damaged(DamagedFrame(self._damage_number, indexes)))

    def reload(self) -> None:
        """Another snapshot was put into the directory: the state begins there, if it is newer."""
        if self._pipe is not None:
            self._pipe.send(frames.frame(Kind.RELOAD))

    # --- the process ----------------------------------------------------------------------------------------------
    async def _keep(self) -> None:
        """Starts it, and again whenever it ends, with back-off."""
        loop = asyncio.get_running_loop()
        wait_s = 0.0
        while True:
            began_s = loop.time()
            try:
                await self._one_life()
            except OSError as error:  # no process, no descriptor to be had: that passes
                self._why = f"it cannot be started: {error}"
            reports, life = self._reports, self._life
            self._lost(self._why)
            if reports is None:
                return
            reports.ended(life, self._why)
            wait_s = 0.0 if loop.time() - began_s >= STEADY_AFTER_S else wait_s
            wait_s = min(max(wait_s * 2, BACK_OFF_S_MIN), BACK_OFF_S_MAX)
            self._note("state_machine", "error", {"reason": f"{self._why}; it is started again in {wait_s:.1f} s"})
            await asyncio.sleep(wait_s)

    async def _one_life(self) -> None:
        options = self._options
        ours, theirs = socket.socketpair()
        self._why = ""
        pipe: Pipe | None = None
        try:
            ours.setblocking(False)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
            words = (
                theirs.fileno(), options.choice, options.directory, options.save_every, options.kept, frames.LAYOUT,
            )  # fmt: skip
            self._process = await asyncio.create_subprocess_exec(
                *python("-m", "node.state_machine", *map(str, words)),
                env=environment(),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=2,
                preexec_fn=dying_with_parent(signal.SIGKILL),
            )
            theirs.close()
            _, pipe = await asyncio.get_running_loop().create_unix_connection(
                lambda: Pipe(self._on_frame, self._broken), sock=ours
            )
            self._pipe = pipe
            await pipe.ended.wait()
            await self._end(self._process)
        finally:
            theirs.close()
            if pipe is None:
                ours.close()
            else:
                pipe.close()

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """Its connection has ended: so does it, by itself or not."""
        try:
            code = await asyncio.wait_for(process.wait(), END_WITHIN_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            code = await process.wait()
        self._why = self._why or f"its process {how_ended(code)}"

    def _lost(self, why: str) -> None:
        """Whatever it was asked has no answer now."""
        pipe, self._pipe, self._life, self._batch, self.wake_at_ms = self._pipe, None, 0, None, None
        if pipe is not None:
            pipe.close()
        self._heard()  # it ended, and that has an alarm of its own
        asked, self._asked = self._asked, {}
        for one in asked.values():
            one.patience.cancel()
            text = f"the state machine ended: {why}".encode()
            one.deliver([(ResponseCode.ILLEGAL_MEMBER_STATE, -1, text)] * one.questions)
        waiting, self._waiting_for_save = self._waiting_for_save, []
        for done in waiting:
            done(self.saved_index, why)

    def _broken(self, why: str) -> None:
        self._why = f"what its process says cannot be understood: {why}"

    # --- what it says ---------------------------------------------------------------------------------------------
    def _on_frame(self, kind: Kind, body: memoryview) -> None:
        reports = self._reports
        if reports is None:
            return
        self._heard()
        if kind is Kind.APPLIED:
            self._applied(reports, frames.read_applied(body))
        elif kind is Kind.ANSWER:
            self._answered(frames.read_answer(body))
        elif kind is Kind.STANDS:
            stands = frames.read_stands(body)
            self.time_ms, self.wake_at_ms = stands.time_ms, stands.wake_at_ms
            self._note_saved(stands.saved_index)
            if not self._life:
                self._alarm("snapshot_failed", None)  # of another process
            self._batch = None
            self._life = reports.stands(stands.index, stands.term, stands.chain)
            if self._pipe is not None:
                self._pipe.send(frames.life(self._life))
        elif kind is Kind.SAVED:
            self._save_ended(frames.read_saved(body))
        elif kind is Kind.KEPT:
            kept = frames.read_kept(body)
            self._note_saved(kept.newest_index)
            if kept.number == self._damage_number:
                self._damage_known(not kept.is_owed)
        elif kind is Kind.FAILED:
            self._why = bytes(body).decode(errors="replace")
        else:
            raise frames.FrameError(f"a {kind.name} from a state machine")

    def _applied(self, reports: Reports, done: AppliedFrame) -> None:
        """Held against what was ordered first: the core takes a report that cannot be for a bug of the engine."""
        batch, self._batch = self._batch, None
        if batch is None or done.life != batch.life:
            self._batch = batch
            return  # of a batch that was ordered before it stood where it stands now
        lowest = batch.first_index - 1 if done.error else batch.first_index
        if not lowest <= done.upto_index <= batch.last_index:
            raise frames.FrameError(f"applied up to {done.upto_index} of {batch.first_index}..{batch.last_index}")
        if len(done.results) not in (0, done.upto_index - batch.first_index + 1):
            raise frames.FrameError(f"{len(done.results)} results up to {done.upto_index}")
        self.time_ms, self.wake_at_ms = done.time_ms, done.wake_at_ms
        reports.applied(done.life, done.upto_index, done.results, done.error)

    def _answered(self, answer: AnswerFrame) -> None:
        asked = self._asked.get(answer.number)
        if asked is not None:
            if len(answer.answers) != asked.questions:
                raise frames.FrameError(f"{len(answer.answers)} answers to {asked.questions} questions")
            del self._asked[answer.number]
            asked.patience.cancel()
            asked.deliver(answer.answers)

    def _save_ended(self, one: SavedFrame) -> None:
        if one.error:
            self._note("snapshot_failed", "warning", {"reason": one.error})
        elif one.index > self.saved_index:
            self._note("snapshot", "info", {"index": one.index})
        if one.is_tried_again or not one.error:
            self._alarm("snapshot_failed", one.error or None)
        self._note_saved(one.index)
        waiting, self._waiting_for_save = self._waiting_for_save, []
        for done in waiting:
            done(one.index, one.error)

    def _note_saved(self, index: int) -> None:
        self.saved_index = index
        self._saved(index)
