"""What a log in memory is made of: its records, and group commits that cost nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class MemoryTicket:
    """A group commit that costs nothing; `on_run` lets a test fail or delay it."""

    end_index: int
    cuts: int
    on_run: Callable[[], None] | None = None

    def run(self) -> None:
        if self.on_run is not None:
            self.on_run()


@dataclass(slots=True, frozen=True)
class Record:
    """One entry, at the position that the layout gives it."""

    data: bytes
    pos: int
    term: int
    chain: int
