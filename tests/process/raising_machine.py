"""A state machine that cannot apply an entry while the file that the entry names is there: what an operator mends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from node.state_machine import StateMachine
from node.state_machine.interface import Command, Write


class RaisesWhile(StateMachine):
    """Commands are paths."""

    def __init__(self) -> None:
        self.applied = 0

    def apply(self, commands: Sequence[Command]) -> Iterator[bytes]:
        for command in commands:
            if command.body is not None and Path(command.body.decode()).exists():
                raise RuntimeError("the file is there")
            self.applied += 1
            yield b""

    def query(self, question: bytes) -> bytes:
        return b"%d" % self.applied

    def save(self, write: Write) -> None:
        write(b"%d" % self.applied)

    def load(self, pieces: Iterable[bytes]) -> None:
        self.applied = int(b"".join(pieces) or b"0")
