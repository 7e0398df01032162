"""Queue of proposals: what clients want appended, until a turn of the loop takes it to the core.

Invariants: proposals reach the core in the order of their arrival (SAFETY C4); a turn takes no more than TURN_BYTES or
TURN_ENTRIES and one proposal, so that the followers get one slab while the next one is encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from node.consensus.api import Appended, Outcome, Proposal
from node.protocol.codes import ResponseCode

TURN_BYTES: Final = 512 * 1024  # of bodies
TURN_ENTRIES: Final = 16_384
Done = list[tuple[Callable[[Any], None], Any]]  # what ended: whom to tell what


class Origin(Protocol):
    """Where a proposal came from."""

    order_broken: bool  # an append that was to keep its order failed

    def __hash__(self) -> int: ...


class Core(Protocol):
    """What takes proposals."""

    @property
    def leader_id(self) -> str | None: ...
    def propose_many(self, proposals: Sequence[Proposal], now: int) -> object: ...


class Proposals:
    """One engine's. `waiting` is what no turn has taken yet."""

    def __init__(self, core: Core, done: Done) -> None:
        self._core, self._done = core, done
        self.waiting: list[tuple[Origin, Proposal, bool]] = []

    def add(self, origin: Origin, proposal: Proposal, ordered: bool) -> None:
        """Its outcome goes to `done`, with whom to tell; one that breaks its origin's order says so there."""
        deliver, done = proposal.on_done, self._done

        def ended(outcome: Outcome) -> None:
            if ordered and outcome.appended is not Appended.YES:
                origin.order_broken = True
            done.append((deliver, outcome))

        proposal.on_done, proposal.origin = ended, origin
        self.waiting.append((origin, proposal, ordered))

    def _take(self) -> list[tuple[Origin, Proposal, bool]]:
        """One turn's worth."""
        waiting, taken_bytes, taken = self.waiting, 0, 0
        for number, (_origin, proposal, _ordered) in enumerate(waiting, start=1):
            taken_bytes += proposal.size_bytes
            taken += proposal.count
            if (taken_bytes >= TURN_BYTES or taken >= TURN_ENTRIES) and number < len(waiting):
                self.waiting = waiting[number:]
                return waiting[:number]
        self.waiting = []
        return waiting

    def propose(self, now: int) -> None:
        """One turn's worth at once; only what follows an ordered append of its origin waits to see how it went."""
        waiting = self._take()
        while waiting:
            batch: list[Proposal] = []
            later: list[tuple[Origin, Proposal, bool]] = []
            held: set[Origin] = set()
            for item in waiting:
                origin, proposal, ordered = item
                if origin in held:
                    later.append(item)
                elif ordered and origin.order_broken:
                    text = "an earlier ordered append of this connection was not appended"
                    refused = ResponseCode.INCONSISTENT_INDEX
                    outcome = Outcome(refused, -1, -1, -1, Appended.NOT_APPENDED, self._core.leader_id, text)
                    proposal.on_done(outcome)
                else:
                    batch.append(proposal)
                    if ordered:
                        held.add(origin)
            self._core.propose_many(batch, now)
            waiting = later
