"""Settings that change while the group runs: SAFETY R2, C1, E8, E9. What a member may have promised is kept to.

Reckoned from what each member has on record at the moment, not from what others were told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from node.protocol.codes import Role, VoterState
from tests.simulation.observer import Observer, Violation

if TYPE_CHECKING:
    from node.consensus.effects import Event
    from node.store.file_store import FileStore
    from tests.simulation.member import Member
    from tests.simulation.world import World


class Settings(Observer):
    """See the module's docstring."""

    def __init__(self) -> None:
        self._world: World | None = None
        self._unsynced: dict[str, FileStore] = {}  # of voters under async: with entries that may not be on the disk
        self._power_lost: set[str] = set()  # with such entries

    def started(self, world: World) -> None:
        self._world = world

    # --- leases ---------------------------------------------------------------------------------------------------
    def event(self, member: Member, event: Event) -> None:
        """At the moment of an election; who handed leadership over relies on no lease any more (E7)."""
        if event.kind != "role" or event.detail["role"] != Role.LEADER.value:
            return
        assert self._world is not None
        for other in self._world.members.values():
            replica = other.replica
            if other is member or replica is None or replica.leadership is None:
                continue
            left_ns = replica.leadership.reads.lease_left_ns(other.clock.now())
            if replica.term < event.detail["term"] and left_ns > 0:
                text = f"{member.id} leads term {event.detail['term']}, {other.id} has a lease of term {replica.term}"
                raise Violation("lease_exclusive", f"{text} for {left_ns / 1e6:.1f} ms more")

    # --- flush ----------------------------------------------------------------------------------------------------
    def stepped(self, world: World) -> None:
        if not world.config.retune:
            return
        for member in world.touched:
            replica, store = member.replica, member.store
            if replica is None or store is None:
                continue
            kept, voter = replica.member.durable_hard.kept, store.hard_state.voter_state is VoterState.VOTER
            unsynced = kept is not None and kept.promises.unsynced and store.hard_state.kept == kept
            if voter and unsynced:
                self._unsynced[member.id] = store
            else:
                self._unsynced.pop(member.id, None)

    def crashed(self, member: Member, how: str) -> None:
        """What was not on its disk at that very moment: the power may go in the middle of a stop, or behind a sync."""
        if how == "stopped":  # it has synced everything
            self._unsynced.pop(member.id, None)
        if how != "power_loss":
            return
        store = self._unsynced.pop(member.id, None)
        if store is not None and store.end_index > store.durable_index:
            self._power_lost.add(member.id)

    def booted(self, member: Member) -> None:
        assert member.store is not None
        if member.id in self._power_lost and member.store.hard_state.voter_state is VoterState.VOTER:
            raise Violation("async_rejoins", f"{member.id} votes after a power loss, and may lack what it acknowledged")
        self._power_lost.discard(member.id)
