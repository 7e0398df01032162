"""Which configurations this member's log holds: the newest that stays, and those behind it (SAFETY M1).

Theory. A configuration is in effect as soon as its entry is in the log, and no longer: a cut brings back the one
before. A start must find it without reading the whole log, so the hard state says where such entries are, and says it
durably before the entry gets into the log: a follower answers "busy" until then, a leader appends it afterwards (its
place is then the first entry that it can be, until the next save says where it is). What the hard state names and the
log does not hold was cut, or never came; it leaves the hard state once another entry is committed there, and until then
nothing at its place leaves the log: below the log's base what is named counts as committed. Where that place cannot be
read it counts as being there until it can: such a member does not lead (S6).

What is committed stays once it is durable here, too: a quorum may hold an entry that a power loss takes from this
member, and then the one before is in effect again.

Invariants: each configuration in the log from the newest one on that stays is on durable record; `in_effect` is that of
the last one in the log, or the group's at its birth.
"""

from __future__ import annotations

from node.consensus.api import ReplicaConfig
from node.consensus.configuration import Configuration
from node.consensus.own_entries import config_changes_in, is_config_change
from node.protocol.entry import Entry, Slab
from node.protocol.group_members import members_in
from node.protocol.messages import Hello
from node.store.errors import StoreCorrupt
from node.store.faults.ranges import fault_at
from node.store.log_store import LogStore

Record = tuple[int, str]  # where the entry is, and its body
NEVER = 1 << 62
PAST_KEPT = 16


class Configurations:
    """One per replica. `next_index`: the first entry about the members that is not committed; `expected_index`: the
    first that is on record and has not come: once another entry is committed there it never does. `guests`: members
    that our configuration, which may be behind, does not know, and what their HELLOs said (M3, M7)."""

    def __init__(self, config: ReplicaConfig, store: LogStore) -> None:
        self._birth = config.configuration
        self._kind = config.kind
        self._keeps_past = config.applies or not config.kind.is_plain
        self._past: tuple[Record, ...] = ()
        self._in_log: list[Configuration] = []
        self.next_index = self.expected_index = NEVER
        self.guests: dict[str, Hello] = {}
        self._records: tuple[Record, ...] = ()
        self._unread: list[int] = []  # where entries were taken to be that could not be read
        self._end_at_start = store.end_index
        for index, body in store.hard_state.configurations:
            place = self._place_of(store, index, body)
            if place is not None:
                self._take(place, body)

    @property
    def records(self) -> tuple[Record, ...]:
        """What the hard state should name of them."""
        return (*self._past, *self._records)

    def at(self, index: int) -> Record | None:
        """Who belonged to the group at that entry, which is committed; None: as at the log's base."""
        return next((record for record in reversed(self.records) if record[0] <= index), None)

    @property
    def known_from(self) -> int:
        """From which entry on `at` can be asked; before that it does not remember."""
        return self._past[0][0] if len(self._past) == PAST_KEPT else -1

    @property
    def in_effect(self) -> Configuration:
        return self._in_log[-1] if self._in_log else self._birth

    def was_removed(self, member_id: str, store_id: str) -> bool:
        """Whether that store left, for good: an entry that is not committed may be cut yet, by a leader that it removed
        (M1, M5)."""
        settled = next((one for one in reversed(self._in_log) if one.index < self.next_index), self._birth)
        return settled.named.removed.get(member_id) == store_id

    def may_campaign(self, member_id: str) -> bool:
        """A voter; or one whose removal is not committed yet: its log may be the only one that holds that entry, and
        then nobody else could be elected (M5)."""
        if member_id in self.in_effect.voters:
            return True
        if self.next_index == NEVER or member_id in self.in_effect.members:
            return False
        before = self._in_log[-2] if len(self._in_log) > 1 else self._birth
        return member_id in before.voters

    def knows(self, member_id: str) -> bool:
        """Whether that is a member, as far as this one can tell."""
        return member_id in self.in_effect.members or member_id in self.guests

    def _place_of(self, store: LogStore, index: int, body: str) -> int | None:
        """Where the log holds that entry, from there on; one that was removed from its front was committed."""
        if index <= store.base.index:
            return index
        for at in range(max(index, store.begin_index), min(self._end_at_start, store.end_index) + 1):
            try:
                entry = store.get(at)
            except StoreCorrupt:
                if at == index:
                    self._unread.append(at)
                    return at  # it cannot be read, and it was there; or not: see `mended`
                continue
            if entry is not None and is_config_change(self._kind, entry) and self._said(entry) == body.encode():
                return at
        return None

    def _said(self, entry: Entry) -> bytes:
        """What an entry about the group says, without what its kind wraps it in."""
        return self._kind.content_of(entry.body)

    def _take(self, index: int, body: str) -> None:
        named = members_in(body.encode())
        if named is not None:
            self._in_log.append(Configuration.at_entry(index, named, self._birth))
            self._records = (*self._records, (index, body))

    # --- the log ------------------------------------------------------------------------------------------------
    def with_slab(self, slab: Slab) -> tuple[Record, ...]:
        """The records once that slab, which continues the log, is in it. Raises EntryError."""
        return (*self.records, *self._new_in(slab))

    def _new_in(self, slab: Slab) -> list[Record]:
        said = [(one.index, self._said(one)) for one in config_changes_in(self._kind, slab)]
        return [(index, body.decode()) for index, body in said if members_in(body) is not None]

    def appended(self, slab: Slab) -> bool:
        """A slab is in the log; whether another configuration is in effect."""
        before = len(self._in_log)
        for index, body in self._new_in(slab):
            self._take(index, body)
        return len(self._in_log) > before

    def own(self, index: int, body: str) -> None:
        """An entry of ours, as the leader, is in the log."""
        self._take(index, body)

    def cut(self, cut_index: int) -> bool:
        """Nothing from there on is in the log any more; whether another one is in effect."""
        kept = [one for one in self._in_log if one.index < cut_index]
        changed = len(kept) < len(self._in_log)
        self._in_log = kept
        self._records = tuple(record for record in self._records if record[0] < cut_index)
        self._unread = [index for index in self._unread if index < cut_index]
        return changed

    def mended(self, store: LogStore) -> bool:
        """Some damage is none any more: what was taken on trust there is looked up; whether anything was."""
        readable = {index for index in self._unread if fault_at(store.faults, index) is None}
        if not readable:
            return False
        past, records = self._past, self._records
        self._past, self._in_log, self._records = (), [], ()
        self._unread = [index for index in self._unread if index not in readable]
        for index, body in (*past, *records):
            place = self._place_of(store, index, body) if index in readable else index
            if place is not None:
                self._take(place, body)
        return True

    def begin_behind(self, members: Record | None) -> None:
        """The log begins behind the leader's base: what was in effect there is all that is known (M1)."""
        self._in_log, self._records, self._past, self._unread, self.next_index = [], (), (), [], NEVER
        if members is not None:
            self._take(*members)

    def committed(self, index: int, durable_index: int) -> None:
        """Those before the newest one that stays are in effect nowhere any more, but where that one is not known to be
        there: a snapshot of an earlier state is to say them all the same, and a base in a log whose entries of that
        kind are not seen in its index."""
        while len(self._in_log) > 1 and self._in_log[1].index <= min(index, durable_index):
            if self._in_log[1].index in self._unread:
                break
            del self._in_log[0]
            if self._keeps_past:
                self._past = (*self._past, self._records[0])[-PAST_KEPT:]
            self._records = self._records[1:]
        self.next_index = next((one.index for one in self._in_log if one.index > index), NEVER)
