"""The seam for a state machine: what an engine hands to whatever takes in committed entries, and what that says.

It works off the engine's loop, so that neither its heap nor what it computes delays a heartbeat, and it gets records as
they lie in the log: nobody takes them apart here. A group that is a log alone has none.

Invariants: an applier has one batch at a time, in one life; what belongs to another life than its present one is
dropped, by the core (`consensus/applying.py`) and by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from node.protocol.codes import ResponseCode
from node.protocol.entry import BytesLike


class Batch(NamedTuple):
    """Committed entries, whole records one behind the other."""

    life: int
    first_index: int
    last_index: int
    records: BytesLike
    results_wanted: bool


class Reports(Protocol):
    """What an applier says, on the engine's loop and never from inside a call of the engine's."""

    def stands(self, index: int, term: int | None, chain: int | None = None) -> int:
        """It starts, or starts again: applied is everything up to `index`, an entry of `term` and with that chain. Its
        life from now on."""
        ...

    def applied(self, life: int, upto_index: int, results: Sequence[bytes | None], error: str = "") -> None:
        """Of that life's batch, up to there, which answered `results`; `error`: why not what is behind."""
        ...

    def ended(self, life: int, reason: str) -> None:
        """It is gone, and says so once it stands somewhere again."""
        ...


class Applier(Protocol):
    """Called on the engine's loop, and returns at once."""

    def start(self, reports: Reports) -> None: ...
    def apply(self, batch: Batch) -> None: ...
    def reload(self) -> None:
        """A newer snapshot lies in the store's directory, and the log begins behind it: it takes that state, and says
        again where it stands."""
        ...

    def stop(self) -> None: ...


class Machine(Applier, Protocol):
    """An applier that answers questions from what it applied."""

    @property
    def time_ms(self) -> int:
        """The log time of what it applied last; 0: none is known."""
        ...

    @property
    def wake_at_ms(self) -> int | None:
        """From which log time on it wants an entry, also where no client appends; None: it wants none."""
        ...

    def ask(
        self,
        contents: Sequence[bytes],
        min_index: int,
        wait_ms: int,
        deliver: Callable[[Sequence[tuple[ResponseCode, int, bytes]]], None],
    ) -> None:
        """`deliver` is called once, later, with one for each: the code, the entry applied last, and the answer or why
        there is none. The state that answers holds every entry up to `min_index`.
        """
        ...

    def save(self, done: Callable[[int, str], None]) -> None:
        """A snapshot now; `done` is called once, later: the newest one's last entry, and why there is no newer one."""
        ...

    def damaged(self, indexes: Sequence[int], done: Callable[[bool], None]) -> None:
        """These snapshots are not what was written: the state is saved again where no newer one stands for them.

        `done` is called whenever something is known of that, until the next call: whether nothing is owed any more.
        """
        ...

    def restart(self) -> None:
        """What runs it may hang: it is ended, and begins again from the newest snapshot."""
        ...
