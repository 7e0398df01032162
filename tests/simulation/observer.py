"""What a simulated world tells those who watch it, and what they raise when a promise is broken.

Checks, coverage and the trace are observers: the world knows none of them, and none of them changes the world. Every
method is empty here, so that an observer names only what it wants to see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from node.consensus.effects import Effects, Event
    from node.protocol.messages import Message
    from node.store.log_store import HardState, TruncationRecord
    from tests.simulation.member import Member
    from tests.simulation.world import World


class Violation(AssertionError):
    """A promise that did not hold: `invariant` is its stable name, `detail` what was seen."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant
        self.detail = detail


class Observer:
    """Sees everything, in the order in which it happens. Nothing that is handed over may be changed."""

    def started(self, world: World) -> None:
        """Before the first step; every member has booted or was refused."""

    def stepped(self, world: World) -> None:
        """After every step."""

    def healed(self, world: World) -> None:
        """The faults stopped and the world ran until it was calm, or until its bound of simulated time."""

    # --- a member's life ------------------------------------------------------------------------------------------
    def booted(self, member: Member) -> None:
        """Store open, replica made; `member.incarnation` counts these."""

    def crashed(self, member: Member, how: str) -> None:
        """The process is gone: "process", "power_loss", "io_boundary", "store_error", "stopped"."""

    def refused(self, member: Member, error: BaseException) -> None:
        """Its store does not open without a person; the member stays down."""

    # --- what it does ---------------------------------------------------------------------------------------------
    def effects(self, member: Member, effects: Effects) -> None:
        """As taken from the core, before any of it is carried out."""

    def sent(self, member: Member, to: str, message: Message) -> None:
        """Handed to the network, which may lose it."""

    def delivered(self, sender: str, to: str, message: Message) -> None:
        """About to enter the core of `to`."""

    def persisted(self, member: Member, hard_state: HardState) -> None:
        """Durable now."""

    def synced(self, member: Member, durable_index: int) -> None:
        """A sync ended well; the core has not heard of it yet."""

    def cut(self, member: Member, record: TruncationRecord) -> None:
        """The log was cut; the core has not heard of it yet."""

    def event(self, member: Member, event: Event) -> None:
        """What the core says for people."""

    def fault(self, kind: str, detail: str) -> None:
        """A fault was injected; `kind` is a stable name ("drop", "power_loss", "enospc", ...)."""
