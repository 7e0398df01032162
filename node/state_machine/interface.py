"""What a state machine is: it takes in commands in the order of the log, answers questions, saves and loads its state.

It runs in a process of its own, one call at a time. All members apply the same commands in the same order, so it must
be deterministic: no clock, no randomness, no set or file that may differ; time is `Command.time_ms`.

What the caller promises (`caller.py`): every command once in one state, in the order of the log; after a restart from
the newest snapshot on. A command that raises stops this member's state machine: see `StateMachine.apply`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from node.protocol.entry import BytesLike
from node.protocol.packed_bodies import PackedBodies

RESULT_BYTES_MAX = 4 * 1024 * 1024
# Of one batch: results this short are always reported, longer ones up to that sum.
SHORT_RESULT_BYTES = 4096
LONG_RESULTS_BYTES_MAX = 8 * 1024 * 1024
Write = Callable[[bytes], object]


class Command(NamedTuple):
    """One entry of the log.

    `time_ms`: log time, milliseconds of wall time as the leader stamped them; it never goes back from one command to
    the next. `body` None: nothing but time passed (the leader adds such an entry when `wake_at_ms` asked for it).
    """

    index: int  # type: ignore[assignment]  # not tuple.index
    time_ms: int
    body: bytes | None


class Run(NamedTuple):
    """Many commands in a row whose bodies are equally long, as they lie in their records: none is an object of its own.

    The body of the first begins at `begin` in `data`, each further one `stride` bytes behind the one before. `time_ms`:
    that of the last command; no other's is later, nor before that of the command before the run.
    """

    first_index: int
    count: int  # type: ignore[assignment]  # not tuple.count
    time_ms: int
    data: BytesLike
    begin: int
    stride: int
    body_bytes: int


class BadQuestion(ValueError):
    """Raised by `query` for a question that it does not understand: the asker gets the text."""


class StateMachine(ABC):
    """See the module's docstring. It is made without arguments; its state is then that of an empty log."""

    @abstractmethod
    def apply(self, commands: Sequence[Command]) -> Iterator[bytes | None]:
        """Applies a batch: one result each, in order (a generator that yields is the simplest).

        Raising says that the command whose result is due next cannot be applied. Then nothing behind it is applied on
        this member, its state is served and saved no more, and an alarm names the entry, until the member starts with
        code that can. So for input that clients got wrong yield a result that says so, and change nothing.

        Long results of one batch are reported up to LONG_RESULTS_BYTES_MAX together; whoever asked for more hears that
        they are unknown. Beyond it None saves making them.
        """

    def apply_run(self, run: Run) -> PackedBodies | None:
        """The same as `apply` for many commands at once, where there is a quicker way; a result each, of up to
        SHORT_RESULT_BYTES. None: nothing was changed, and `apply` is called with them.

        Raising says that the first of them cannot be applied: see `apply`.
        """
        return None

    @abstractmethod
    def save(self, write: Write) -> None:
        """Hands the whole state to `write`, piece by piece. Called in a copy of the process: nothing waits for it.
        At least one byte, also of an empty state: nothing is what a `save` writes that was forgotten, and is refused.

        Equal states as equal bytes, or an audit takes them for different ones (`app/audit/states.py`).
        """

    def save_in_steps(self) -> Iterator[bytes] | None:
        """A save of the state as it is now, whose pieces are made one by one between commands; None: there is no such.

        For a state of gigabytes, which a copy of the process (`save`) takes long to make. The pieces together are what
        `save` would have written at once, whatever was applied between them; making one takes a millisecond at most.
        Nothing is taken of it any more where it is closed, or where another one is asked for.
        """
        return None

    @abstractmethod
    def load(self, pieces: Iterable[bytes]) -> None:
        """Takes the place of the present state with what `save` wrote. Pieces are cut anywhere."""

    def query(self, question: bytes) -> bytes | None:
        """Answers from the state, and changes nothing. None: not yet; it is asked again when more was applied.

        Raises BadQuestion.
        """
        raise BadQuestion("this state machine answers no questions")

    def wake_at_ms(self) -> int | None:
        """From which log time on an entry is wanted although no client appends (something ends then); None: never."""
        return None
