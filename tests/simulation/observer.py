"""What a simulated world tells those who watch it, and what they raise when a promise is broken.

Checks, coverage and the trace are observers: the world knows none of them, and none of them changes the world. Every
method is empty here, so that an observer names only what it wants to see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from node.consensus.api import Outcome
    from node.consensus.effects import BeginBehind, Effects, Event
    from node.consensus.member_changes import ChangeOutcome, MemberChange
    from node.protocol.messages import Message
    from node.store.log_store import HardState, TruncationRecord
    from tests.simulation.applier import Applied
    from tests.simulation.member import Member
    from tests.simulation.world import World

FRAMES_SHOWN = 5


@dataclass(slots=True, frozen=True, eq=False)
class Removal:
    """One order to remove entries from the front of a log; no other one is equal to it."""

    through_index: int
    forced: bool


class Violation(AssertionError):
    """A promise that did not hold: `invariant` is its stable name, `detail` what was seen."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant
        self.detail = detail


def of_exception(where: str, error: BaseException) -> Violation:
    """Something that the product must not raise, with the places that it passed."""
    frames = [
        f"{Path(frame.filename).name}:{frame.lineno}" for frame in extract_tb(error.__traceback__)[-FRAMES_SHOWN:]
    ]
    return Violation("no_exception", f"{where}: {type(error).__name__}: {error} ({' > '.join(frames)})")


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
        """Its store does not open without an operator; the member stays down."""

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

    def begun_behind(self, member: Member, order: BeginBehind) -> None:
        """The log was replaced by one that begins behind a base; the core has not heard of it yet."""

    def to_be_trimmed(self, member: Member, removal: Removal) -> None:
        """Decided, and handed to its writer."""

    def trimmed(self, member: Member, begin_before: int, removal: Removal) -> None:
        """Its writer has removed what it could of those entries."""

    def event(self, member: Member, event: Event) -> None:
        """What the core says for people."""

    def applied(self, member: Member, one: Applied) -> None:
        """Its state machine has taken in one entry."""

    def answered(self, member_id: str, outcome: Outcome) -> None:
        """A request that was to wait for its result has ended there."""

    def machine_read(self, member: Member, read_index: int, applied_index: int, content: bytes) -> None:
        """Its state machine answered a question that was asked behind that read index."""

    def members_changed(self, asked: Member, change: MemberChange, outcome: ChangeOutcome) -> None:
        """What a member that was asked to change the group's members said of it."""

    def fault(self, kind: str, detail: str) -> None:
        """A fault was injected; `kind` is a stable name ("drop", "power_loss", "enospc", ...)."""


class Broadcast:
    """Calls a hook of every observer that has it; made once, when the observers are known."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        everybody = list(observers)
        self.started = _spread(everybody, "started")
        self.stepped = _spread(everybody, "stepped")
        self.healed = _spread(everybody, "healed")
        self.booted = _spread(everybody, "booted")
        self.crashed = _spread(everybody, "crashed")
        self.refused = _spread(everybody, "refused")
        self.effects = _spread(everybody, "effects")
        self.sent = _spread(everybody, "sent")
        self.delivered = _spread(everybody, "delivered")
        self.persisted = _spread(everybody, "persisted")
        self.synced = _spread(everybody, "synced")
        self.cut = _spread(everybody, "cut")
        self.begun_behind = _spread(everybody, "begun_behind")
        self.to_be_trimmed = _spread(everybody, "to_be_trimmed")
        self.trimmed = _spread(everybody, "trimmed")
        self.event = _spread(everybody, "event")
        self.applied = _spread(everybody, "applied")
        self.answered = _spread(everybody, "answered")
        self.machine_read = _spread(everybody, "machine_read")
        self.members_changed = _spread(everybody, "members_changed")
        self.fault = _spread(everybody, "fault")


def _spread(observers: list[Observer], name: str) -> Callable[..., None]:
    """One call for all who override this hook."""
    empty = getattr(Observer, name)
    hooks = [getattr(one, name) for one in observers if getattr(type(one), name) is not empty]
    if len(hooks) == 1:
        only: Callable[..., None] = hooks[0]
        return only

    def tell(*args: Any) -> None:
        for hook in hooks:
            hook(*args)

    return tell
