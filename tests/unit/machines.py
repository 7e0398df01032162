"""State machines for tests; each is named as `tests.unit.machines:Class`, as one's own is."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence

from node.state_machine import BadQuestion, Command, StateMachine
from node.state_machine.interface import Write


class Journal(StateMachine):
    """Keeps every command; answers `COMMAND:how many so far`, and the whole of it to `all`.

    A command `poison` cannot be applied. Its snapshot takes a piece for each command.
    """

    def __init__(self) -> None:
        self.lines: list[tuple[int, bytes | None]] = []

    def apply(self, commands: Sequence[Command]) -> Iterator[bytes]:
        for command in commands:
            if command.body == b"poison":
                raise RuntimeError("I cannot take that")
            self.lines.append((command.index, command.body))
            yield b"%s:%d" % (command.body or b"tick", len(self.lines))

    def save(self, write: Write) -> None:
        for index, body in self.lines:
            write(b"%d %s\n" % (index, b"-" if body is None else body.hex().encode()))

    def load(self, pieces: Iterable[bytes]) -> None:
        self.lines = []
        for line in b"".join(pieces).splitlines():
            index, _, body = line.partition(b" ")
            self.lines.append((int(index), None if body == b"-" else bytes.fromhex(body.decode())))

    def query(self, question: bytes) -> bytes | None:
        if question == b"fail":
            raise RuntimeError("a bug")
        if question == b"later":
            return None
        if question != b"all":
            raise BadQuestion(f"{question!r} is no question")
        return b" ".join(body or b"tick" for _, body in self.lines)


class Threaded(Journal):
    """Has a thread that nobody ends; its answer to `wrong` is none."""

    def __init__(self) -> None:
        super().__init__()
        threading.Thread(target=threading.Event().wait).start()

    def query(self, question: bytes) -> bytes | None:
        return "a text" if question == b"wrong" else super().query(question)  # type: ignore[return-value]


class Broken(StateMachine):
    """Cannot even be made."""

    def __init__(self) -> None:
        raise RuntimeError("no licence found")

    def apply(self, commands: Sequence[Command]) -> Iterator[bytes]:
        yield from ()

    def save(self, write: Write) -> None:
        """Never called."""

    def load(self, pieces: Iterable[bytes]) -> None:
        """Never called."""


class Saved(Journal):
    """As most are: what it saved begins with how many commands there were, and no bytes are no state."""

    def save(self, write: Write) -> None:
        write(b"%d\n" % len(self.lines))
        super().save(write)

    def load(self, pieces: Iterable[bytes]) -> None:
        head, _, rest = b"".join(pieces).partition(b"\n")
        super().load([rest])
        assert len(self.lines) == int(head)


class Unsaved(Journal):
    """Cannot save, by a copy of the process."""

    def save(self, write: Write) -> None:
        raise RuntimeError("I cannot save that")


class UnsavedInSteps(Journal):
    """The same in steps."""

    def save_in_steps(self) -> Iterator[bytes]:
        yield b"begun"
        raise RuntimeError("I cannot save that")
