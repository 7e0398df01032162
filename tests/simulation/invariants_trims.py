"""What removing the front of a log may never do: take what another member lacks, or a pin keeps, or move it wrongly.

A member removes whole files of its own; what it judges by is what its leader, or its own leadership, knows of the
others. Here everybody's disks are looked at instead: those of the voters, by the log of whoever removes, and of the
learners that the removal spoke for when it was decided (`spoken_for.py`).

Invariants: those named `needed_entries_kept` and `begin_exact` in `invariants.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from node.store.files.layout import place
from tests.simulation.invariants_members import Memberships
from tests.simulation.mirror import Mirrors
from tests.simulation.observer import Observer, Removal, Violation
from tests.simulation.spoken_for import SpokenFor, Told

if TYPE_CHECKING:
    from node.consensus.effects import BeginBehind
    from node.protocol.messages import Message
    from tests.simulation.member import Member
    from tests.simulation.world import World


class Trims(Observer):
    """Sees each removal, and each start after one."""

    def __init__(self, mirrors: Mirrors, members: Memberships) -> None:
        self._mirrors, self._members, self._spoken_for = mirrors, members, SpokenFor()
        self._asked: dict[Removal, Told] = {}  # those under way, and whom each spoke for
        self._comings: World | None = None  # if learners come here
        self._durable: dict[str, tuple[str, int]] = {}  # member -> its disk, and what was durable there last
        self._begin: dict[str, tuple[str, int]] = {}  # member -> its disk, and where its log began last

    def started(self, world: World) -> None:
        self._comings = world if world.learner_ids or world.spare_ids else None

    def stepped(self, world: World) -> None:
        if self._comings is not None:
            self._spoken_for.stepped(world)
        for member in world.touched:
            if member.store is not None:
                self._durable[member.id] = member.disk_id, member.store.durable_index

    def _durable_of(self, member: Member) -> int:
        if member.store is not None:
            return member.store.durable_index
        disk_id, index = self._durable.get(member.id, ("", -1))
        return index if disk_id == member.disk_id else -1

    def _begin_of(self, member: Member) -> int:
        if member.store is not None:
            return member.store.begin_index
        disk_id, begin = self._begin.get(member.id, ("", -1))
        return begin if disk_id == member.disk_id else -1

    def sent(self, member: Member, to: str, message: Message) -> None:
        if self._comings is not None:
            self._spoken_for.sent(member, to, message)

    def delivered(self, sender: str, to: str, message: Message) -> None:
        if self._comings is not None:
            self._spoken_for.delivered(sender, self._comings.members[to], message)

    def to_be_trimmed(self, member: Member, removal: Removal) -> None:
        self._asked[removal] = {} if self._comings is None else self._spoken_for.by(member)

    def trimmed(self, member: Member, begin_before: int, removal: Removal) -> None:
        """It was to remove entries of a log that began at `begin_before`."""
        store, through_index = member.store, removal.through_index
        told, voters = self._asked.pop(removal), self._members.voters(member.id)
        assert store is not None
        begin = store.begin_index
        # Nothing is left to remove where the log has begun anew, further on, since the removal was asked for.
        if not begin_before <= begin <= max(begin_before, through_index + 1):
            text = f"{member.id} was to remove entries {begin_before} to {through_index}, its log begins at {begin} now"
            raise Violation("begin_exact", text)
        if removal.forced:
            self._exact(member)
            return
        last = self._mirrors.of[member.id].at(begin - 1)
        for other in member.world.present():
            held = self._durable_of(other)
            gone = self._begin_of(other) >= begin  # removed there, too, or its log began anew behind it
            same = last is None or gone or self._mirrors.of[other.id].holds(begin - 1, last.key)
            # Who joined since is to learn what there is; who forgot since has to say so first.
            judged = other is not member and (other.id in told or other.id in voters)
            judged = judged and (told.get(other.id) == other.disk_id or member.world.nemesis.remembers(other))
            if judged and begin > begin_before and (held < begin - 1 or not same):
                text = f"{member.id} removed entries up to {begin - 1}, {other.id} has {held} durable, {same=}"
                raise Violation("needed_entries_kept", text)
        pin = min((index for _, index in store.pins.held()), default=begin)
        if begin > begin_before and pin < begin:
            raise Violation("needed_entries_kept", f"{member.id} removed entries up to {begin - 1}, {pin} was pinned")
        self._exact(member)

    def begun_behind(self, member: Member, order: BeginBehind) -> None:
        self._mirrors.of[member.id].update()
        self._exact(member)

    def booted(self, member: Member) -> None:
        assert member.store is not None
        disk_id, begin = self._begin.get(member.id, ("", -1))
        if disk_id == member.disk_id and member.store.begin_index < begin:
            text = f"the log of {member.id} began at {begin}, after a new start it does at {member.store.begin_index}"
            raise Violation("begin_exact", text)
        self._exact(member)

    def _exact(self, member: Member) -> None:
        """The base is the entry before the first one, as it was written, and the first one lies where a file begins."""
        store = member.store
        assert store is not None
        begin = store.begin_index
        self._begin[member.id] = member.disk_id, begin
        held = self._mirrors.of[member.id].at(begin - 1)
        base = store.base
        if base.index != begin - 1 or (held is not None and (base.term, base.chain) != held.key):
            raise Violation("begin_exact", f"the log of {member.id} begins at {begin}, behind {base}")
        first = self._mirrors.of[member.id].at(begin)
        begin_pos = store.files.begin_pos
        # Where a group is born, what is left of a file may be too little for a record.
        if first is not None and first.pos != place(begin_pos, first.size, store.data_file_size):
            text = f"entry {begin} of {member.id} lies at {first.pos}, its log is to begin at {begin_pos}"
            raise Violation("begin_exact", text)
