"""One line per thing that happens, hashed always and kept only on request: what "the same run" means.

Invariants: a line holds nothing but simulated values, in a fixed order; two runs of one seed have the same lines.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

from node.protocol.messages import FetchResponse, Hello, PushRequest
from tests.simulation.observer import Observer

if TYPE_CHECKING:
    from node.consensus.effects import Effects, Event
    from node.protocol.messages import Message
    from node.store.log_store import HardState, TruncationRecord
    from tests.simulation.member import Member
    from tests.simulation.world import World

HASH_LINES = 512


def describe(message: Message) -> str:
    """A message on one line; a slab by its indexes and its checksum only."""
    if isinstance(message, PushRequest):
        slab = message.slab
        tail = "" if slab is None else f" [{slab.first_index}..{slab.last_index}] {slab.last_chain}"
        return (
            f"{message.kind.name} #{message.seq} t{message.term} e{message.dispatch_epoch} c{message.commit_index}"
            f" after {message.prev_index} t{message.prev_term} {message.prev_chain} at {message.first_index}{tail}"
        )
    if isinstance(message, Hello):
        what = "HELLO answer" if message.answer else "HELLO"
        return f"{what} #{message.seq} {message.store_id} {message.voter_state.value} end {message.end_index}"
    if isinstance(message, FetchResponse):
        slab = message.slab
        what = "" if slab is None else f"[{slab.first_index}..{slab.last_index}] {slab.last_chain}"
        return f"FETCH answer #{message.seq} {message.code.name} end {message.end_index} {what}"
    return repr(message)


class Trace(Observer):
    """See the module's docstring. `keep`: also keeps the lines, in `lines`."""

    def __init__(self, *, keep: bool = False) -> None:
        self._hash = sha256()
        self._pending: list[str] = []
        self._keep = keep
        self.lines: list[str] = []
        self.count = 0
        self._world: World | None = None

    def started(self, world: World) -> None:
        self._world = world
        self._line("swarm", repr(world.config))

    def _line(self, *words: Any) -> None:
        now = self._world.now if self._world is not None else 0
        self._pending.append(f"{now} {' '.join(map(str, words))}\n")
        self.count += 1
        if len(self._pending) >= HASH_LINES:
            self._flush()

    def _flush(self) -> None:
        self._hash.update("".join(self._pending).encode())
        if self._keep:
            self.lines.extend(self._pending)
        self._pending.clear()

    def sha256(self) -> str:
        """Of all lines so far, in hex."""
        self._flush()
        return self._hash.hexdigest()

    # --- what is traced --------------------------------------------------------------------------------------------
    def healed(self, world: World) -> None:
        self._line("healed")

    def booted(self, member: Member) -> None:
        assert member.store is not None
        self._line("booted", member.id, member.incarnation, member.store.end_index, member.store.hard_state)

    def crashed(self, member: Member, how: str) -> None:
        self._line("crashed", member.id, how)

    def refused(self, member: Member, error: BaseException) -> None:
        self._line("refused", member.id, type(error).__name__, error)

    def effects(self, member: Member, effects: Effects) -> None:
        if effects.truncate is not None or effects.reads:
            self._line("disk", member.id, effects.truncate, effects.reads)

    def delivered(self, sender: str, to: str, message: Message) -> None:
        self._line(f"{sender}>{to}", describe(message))

    def persisted(self, member: Member, hard_state: HardState) -> None:
        self._line("persisted", member.id, hard_state)

    def synced(self, member: Member, durable_index: int) -> None:
        self._line("synced", member.id, durable_index)

    def cut(self, member: Member, record: TruncationRecord) -> None:
        self._line("cut", member.id, record)

    def event(self, member: Member, event: Event) -> None:
        self._line("event", member.id, event.kind, event.severity, event.detail)

    def fault(self, kind: str, detail: str) -> None:
        self._line("fault", kind, detail)
