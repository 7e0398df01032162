"""What every member's log held, written down from outside while it happens: the ground that invariants stand on.

Theory. An entry is known by (index, term): only one leader ever appends in a term, each index once. The chain of an
entry proves the whole prefix before it. So a mirror of (term, chain) per member, kept up to date after every step, lets
each invariant compare logs without reading them again.

Invariants: a mirror says what the member's store says, entry by entry; what cannot be read (rot) is None there. A
mirror outlives the process: a machine that is down still holds what it held, until it comes back and says otherwise.
Where the group was born behind an entry, that one is the mirror's first, of no bytes: every member knows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from node.store.errors import StoreError
from node.store.file_store import FileStore
from node.store.files.identity import Base
from tests.simulation.broker_records import about_group, words_of
from tests.simulation.entry_list import EntryList
from tests.simulation.observer import Observer, Violation

if TYPE_CHECKING:
    from tests.simulation.member import Member
    from tests.simulation.world import World

NEVER = 1 << 62


@dataclass(slots=True, frozen=True)
class Held:
    """One entry as a member holds it. Position and size in bytes.

    `body`: what a client said, None: not a client's entry. `about`: what an entry says of the group. `raw`: the body as
    it is stored.
    """

    term: int
    chain: int
    pos: int
    size: int
    body: bytes | None
    about: bytes | None = None
    raw: bytes | None = None

    @property
    def key(self) -> tuple[int, int]:
        return self.term, self.chain


def log_from(born_at: Base | None) -> EntryList[Any]:
    """An empty log, or one that begins with the entry that the group was born behind."""
    if born_at is None:
        return EntryList()
    entries = EntryList[Any](born_at.meta.index)
    assert born_at.meta.chain is not None
    entries.append(Held(born_at.meta.term, born_at.meta.chain, born_at.pos, 0, None))
    return entries


class Mirror:
    """One member's log."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.entries: EntryList[Held | None] = log_from(member.world.born_at)
        self.first_index = self.entries.end  # of what it can hold
        self.disk_id = ""
        self.changed_from = 0  # the first index that the last update may have changed
        self.unseen_from = NEVER  # and all updates since `Memberships` looked
        self._incarnation = -1
        self._cuts = -1

    @property
    def end_index(self) -> int:
        return self.entries.end - 1

    def at(self, index: int) -> Held | None:
        return self.entries.get(index)

    def holds(self, index: int, key: tuple[int, int]) -> bool:
        held = self.at(index)
        return held is not None and held.key == key

    def update(self) -> bool:
        """Takes in what the store says now; True if anything changed."""
        store = self.member.store
        if store is None:
            return False
        end = store.end_index
        renewed = self._incarnation != self.member.incarnation or self._cuts != store.files.cuts
        if not renewed and end == self.end_index:
            return False
        self._incarnation, self._cuts, self.disk_id = self.member.incarnation, store.files.cuts, self.member.disk_id
        before = self.entries.end
        if renewed:
            self.entries.cut(max(end + 1, self.first_index))
            if self.entries and not self._still_true(store):
                self.entries.cut(self.first_index)
        self.changed_from = self.entries.end
        self.unseen_from = min(self.unseen_from, self.changed_from)
        for index in range(self.entries.end, end + 1):
            self.entries.append(read_held(store, index))
        return before != self.entries.end or self.changed_from < before

    def _still_true(self, store: FileStore) -> bool:
        """By the chain at the end of what is left: it proves the rest."""
        last = self.entries.last
        try:
            meta = store.meta(self.end_index)
        except StoreError:
            return False
        return last is not None and meta is not None and (meta.term, meta.chain) == last.key

    def refill(self) -> None:
        """Reads again what could not be read before."""
        store = self.member.store
        if store is not None and None in self.entries:
            for index, held in enumerate(list(self.entries), self.entries.begin):
                if held is None and index <= store.end_index:
                    self.entries[index] = read_held(store, index)
                    self.unseen_from = min(self.unseen_from, index)


def read_held(store: FileStore, index: int) -> Held | None:
    """The entry as the store gives it now, or the base; None where it cannot."""
    base = store.base
    if index == base.index and base.chain is not None:
        return Held(base.term, base.chain, store.files.begin_pos, 0, None)
    try:
        entry = store.get(index)
    except StoreError:
        return None
    if entry is None:
        return None
    body, about = words_of(store.kind, entry), about_group(store.kind, entry)
    raw = None if body is None else bytes(entry.body)
    return Held(entry.term, entry.chain_crc, entry.pos, entry.size, body, about, raw)


class Mirrors(Observer):
    """All of them, and log matching on the way. Comes before every observer that asks it."""

    def __init__(self) -> None:
        self.of: dict[str, Mirror] = {}
        self.chains: dict[tuple[int, int], int] = {}  # (index, term) -> chain: whoever holds one holds that prefix
        self.touched: list[Mirror] = []  # what changed in this step

    def started(self, world: World) -> None:
        self.of = {member_id: Mirror(world.members[member_id]) for member_id in world.all_ids}

    def stepped(self, world: World) -> None:
        self.touched = [mirror for mirror in (self.of[one.id] for one in world.touched) if mirror.update()]
        for mirror in self.touched:
            self._match(mirror)
        if world.steps % 100 == 0:
            for mirror in self.of.values():
                mirror.refill()

    def _match(self, mirror: Mirror) -> None:
        """Raft's log matching: one chain per (index, term), in the whole world, for ever."""
        last_term = -1
        if mirror.changed_from > mirror.entries.begin:
            before = mirror.entries[mirror.changed_from - 1]
            last_term = before.term if before is not None else -1
        for index in range(mirror.changed_from, mirror.entries.end):
            held = mirror.entries[index]
            if held is None:
                continue
            known = self.chains.setdefault((index, held.term), held.chain)
            if known != held.chain:
                text = f"{mirror.member.id} holds entry {index} of term {held.term} with another prefix or body"
                raise Violation("log_matching", text)
            if held.term < last_term:
                text = f"{mirror.member.id}: entry {index} of term {held.term} follows one of term {last_term}"
                raise Violation("terms_ascend", text)
            last_term = held.term
