"""What a log that is replaced by one behind a base may never do: go back, lose what it held, or begin at a wrong place.

A member begins where its leader's log begins; what it judges by is what that leader said. Here the committed log of the
whole world, and everybody's positions, are looked at instead.

Invariants: those named `base_*` in `invariants.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from node.protocol.group_members import members_in
from node.store.files.layout import place
from node.store.files.truncation_archive import TruncationArchive
from tests.simulation.invariants_log import Committed
from tests.simulation.mirror import Mirrors
from tests.simulation.observer import Observer, Violation

if TYPE_CHECKING:
    from node.consensus.effects import BeginBehind, Effects
    from node.store.files.identity import Base
    from tests.simulation.member import Member


@dataclass(slots=True)
class Beginning:
    """One that was ordered, and whose end nobody has seen."""

    base: Base
    disk_id: str
    held: set[tuple[int, int, int]]  # index, term and chain of what the old log held, where that could be read


class Bases(Observer):
    """Sees each order to begin anew, its end, and the starts in between. Comes after `Logs`."""

    def __init__(self, mirrors: Mirrors, committed: Committed) -> None:
        self._mirrors, self._committed = mirrors, committed
        self._under_way: dict[str, Beginning] = {}

    def effects(self, member: Member, effects: Effects) -> None:
        order = effects.begin_behind
        if order is None or member.replica is None or member.store is None:
            return
        base, store = order.base, member.store
        index = base.meta.index
        if index < member.replica.committed_index:
            text = f"{member.id} is to begin behind {index}, and has committed {member.replica.committed_index}"
            raise Violation("base_above_committed", text)
        known = self._committed.entries
        key = base.meta.term, base.meta.chain
        if index >= known.end or (index >= known.begin and known[index].key != key):
            raise Violation("base_committed", f"{member.id} is to begin behind {base.meta}, which nobody has committed")
        self._position(member, base)
        self._members(member, base)
        mirror = self._mirrors.of[member.id]
        mirror.update()
        entries = enumerate(mirror.entries, mirror.entries.begin)
        held = {(at, *one.key) for at, one in entries if one is not None and at >= store.begin_index}
        self._under_way[member.id] = Beginning(base, member.disk_id, held)

    def _position(self, member: Member, base: Base) -> None:
        """S5: where the first entry lies follows from the layout, at everybody alike."""
        first = base.meta.index + 1
        for mirror in self._mirrors.of.values():
            one = mirror.at(first)
            of_all = first < self._committed.entries.end and one is not None and mirror.member is not member
            if one is None or not of_all or one.key != self._committed.entries[first].key:
                continue
            if place(base.pos, one.size, member.world.config.data_file_size) != one.pos:
                text = f"{member.id} is to begin at {base.pos}; entry {first} lies at {one.pos} at {mirror.member.id}"
                raise Violation("base_in_place", text)

    def _members(self, member: Member, base: Base) -> None:
        """M1: who belonged to the group there is what the newest such entry up to there says."""
        known = self._committed.entries
        for index in range(min(base.meta.index, known.end - 1), known.begin - 1, -1):
            about = known[index].about
            if about is not None and members_in(about) is not None:
                if base.members != (index, about.decode()):
                    text = f"{member.id} is to begin behind {base.meta.index} with the members of {base.members}"
                    raise Violation("base_members", f"{text}; entry {index} says {about!r:.300}")
                return

    def begun_behind(self, member: Member, order: BeginBehind) -> None:
        """Its writer has done it; the core has not heard of it yet."""
        self._mirrors.of[member.id].update()
        self._begun(member)

    def booted(self, member: Member) -> None:
        """A start finds the old log, or the new one."""
        one, store = self._under_way.get(member.id), member.store
        assert store is not None
        if one is not None and store.base == one.base.meta and one.disk_id == member.disk_id:
            self._begun(member)
        self._under_way.pop(member.id, None)

    def _begun(self, member: Member) -> None:
        one, store = self._under_way.pop(member.id), member.store
        assert store is not None
        index = one.base.meta.index
        if (store.begin_index, store.end_index, store.durable_index) != (index + 1, index, index):
            text = f"{member.id} begins at {store.begin_index} and ends at {store.end_index}, behind {index}"
            raise Violation("base_begun", text)
        if store.base_on_record.members != one.base.members:
            text = f"{member.id} knows {store.base_on_record.members} for the members at its base {one.base.members}"
            raise Violation("base_begun", text)
        if member.damage.anywhere or member.damage.entries:
            return
        archive = TruncationArchive(member.directory, platform=member.platform)
        record = archive.record(archive.count)
        kept = {(entry.index, entry.term, entry.chain_crc) for entry in archive.entries(archive.count)}
        # Files may have gone from the front between the order and the archive.
        begun_at = -1 if record is None or record.leader_id is None else record.from_index
        lost = sorted(key for key in one.held - kept if key[0] >= begun_at)
        if lost:
            text = f"{member.id} began anew, and entry {lost[0]} of its old log is nowhere; archived: {record}"
            raise Violation("base_archived", text)
