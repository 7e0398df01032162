"""The questions that a state machine's process was handed, answered in small pieces between batches of commands.

A frame holds up to a thousand of them, and each may cost much more than its bytes say; commands that come behind them
in the same pipe must not wait for all that. Invariants: each frame gets one answer, with one for each question, in
their order; frames are begun in the order in which they came; no frame takes much more than FRAME_NS of the processor
or ANSWERS_BYTES_MAX of answers: what is left of it then is refused, and may be asked again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from node.protocol.codes import ResponseCode
from node.state_machine.caller import Answer, Caller, Question
from node.state_machine.frames import QuestionFrame

SLICE_NS: Final = 10_000_000  # of the processor, between two looks at what came
FRAME_NS: Final = 100_000_000
PIECE: Final = 16  # questions between two looks at the clock, where they can be answered at once
ANSWERS_BYTES_MAX: Final = 8 * 1024 * 1024  # of one frame's questions
MS: Final = 1_000_000
Said = Callable[[int, list[Answer]], None]


class Asked:
    """One frame."""

    def __init__(self, frame: QuestionFrame, said: Said, deadline: int) -> None:
        self.frame, self._said, self.deadline = frame, said, deadline
        self.next = 0  # the first question that was not asked yet
        self.left_bytes, self.spent_ns = ANSWERS_BYTES_MAX, 0
        self._answers: dict[int, Answer] = {}

    def deliver(self, place: int, answer: Answer) -> None:
        self.left_bytes -= len(answer.content)
        if self.left_bytes < 0 and answer.code is ResponseCode.SUCCESS:
            answer = too_long(answer)
        self._answers[place] = answer
        if len(self._answers) == len(self.frame.contents):
            self._said(self.frame.number, [self._answers[at] for at in range(len(self._answers))])


class Questions:
    """One process's. `said(number, answers)` is called once for each frame."""

    def __init__(self, caller: Caller, said: Said, cpu_ns: Callable[[], int] = time.thread_time_ns) -> None:
        self._caller, self._said, self._cpu_ns = caller, said, cpu_ns
        self._frames: deque[Asked] = deque()

    @property
    def wait(self) -> bool:
        """Whether there are some that were not asked yet."""
        return bool(self._frames)

    def add(self, frame: QuestionFrame) -> None:
        """Most are answered at once."""
        alone = not self._frames
        self._frames.append(Asked(frame, self._said, time.monotonic_ns() + frame.wait_ms * MS))
        if alone:
            self.go_on()

    def go_on(self) -> None:
        """For a little while."""
        began_ns = self._cpu_ns()
        while self._frames:
            one = self._frames[0]
            self._piece(one)
            now_ns = self._cpu_ns()
            if one.next >= len(one.frame.contents):
                self._frames.popleft()
            if now_ns - began_ns >= SLICE_NS:
                return

    def _piece(self, one: Asked) -> None:
        began_ns, contents = self._cpu_ns(), one.frame.contents
        if one.left_bytes < 0 or one.spent_ns > FRAME_NS or (one.next and time.monotonic_ns() > one.deadline):
            while one.next < len(contents):
                one.next += 1
                one.deliver(one.next - 1, unasked(self._caller.at))
            return
        piece = contents[one.next : one.next + PIECE]
        at_once = self._caller.answers_now(piece, one.frame.min_index, one.left_bytes) if one.left_bytes else None
        for number, content in enumerate(piece):
            one.next += 1
            if at_once is not None:
                one.deliver(one.next - 1, at_once[number])
                continue
            deliver = partial(one.deliver, one.next - 1)
            self._caller.ask(Question(content, one.frame.min_index, one.deadline, deliver))
            if one.left_bytes < 0 or self._cpu_ns() - began_ns >= SLICE_NS:
                break
        one.spent_ns += self._cpu_ns() - began_ns


def too_long(answer: Answer) -> Answer:
    """Instead of an answer that does not fit beside those before it, or into any frame."""
    if len(answer.content) > ANSWERS_BYTES_MAX:
        text = f"an answer of {len(answer.content)} bytes; up to {ANSWERS_BYTES_MAX} are given: ask for less"
        return Answer(ResponseCode.UNEXPECTED_ARGUMENT, answer.applied_index, text.encode())
    return unasked(answer.applied_index)


def unasked(at: int) -> Answer:
    text = "the questions before this one took too much, in bytes or in time: ask fewer at once"
    return Answer(ResponseCode.LEADER_PENDING_FULL, at, text.encode())
