"""Own entries that cannot be read: none can be compared, but their neighbours are known (SAFETY S6).

Where no entries of the leader's lead from before some damage to behind it, the histories part in it or behind it. What
is verified or committed here is in that leader's log as it was here: its word for the last of those entries takes the
place of the sound entry behind the damage. So they heal, and only what is above them is left to go.

Invariants: what is verified or committed is never said to be beyond repair; nothing above is taken on a leader's word.
"""

from __future__ import annotations

from collections.abc import Mapping

from node.consensus.member_state import MemberState
from node.store.faults.ranges import fault_at
from node.store.faults.results import Fault
from node.store.log_store import EntryMeta


class DamagedEntries:
    """One member's, as its store's faults and its leader's answers say."""

    def __init__(self, member: MemberState) -> None:
        self._member = member
        # Faults, by their first index, that the leader (term, id) could not give entries for.
        self._unlinkable: Mapping[int, tuple[int, str | None]] = {}
        self._vouched: tuple[tuple[int, str | None], EntryMeta] | None = None  # by whom, and for which entry

    def note_unlinkable(self, leaders: Mapping[int, tuple[int, str | None]]) -> None:
        """All faults, by first index, that the leader (term, id) could not give entries for."""
        self._unlinkable = leaders

    def unlinkable_at(self, index: int) -> Fault | None:
        """The fault that holds `index`, if our present leader has nothing that links it, and all of it may go.

        What is verified or committed never may; what another leader could not give, this one perhaps can.
        """
        fault = self._not_linked_at(index)
        return fault if fault is not None and fault.first_index > self._shared_through() else None

    def heard_of(self, entry: EntryMeta) -> int | None:
        """Our present leader says what a damaged entry is; the index of the one that it is to speak of instead.

        Once its entries do not link, its word for what is verified or committed is taken.
        """
        fault, shared = self._not_linked_at(entry.index), self._shared_through()
        if fault is None or fault.first_index > shared:
            return None
        if entry.index > shared:
            return shared
        if entry.chain is not None:
            self._vouched = (self._member.term, self._member.leader_id), entry
        return None

    def _shared_through(self) -> int:
        """Up to here our log was the present leader's, whatever can be read of it now."""
        return max(self._member.verified_index, self._member.committed_index)

    def _not_linked_at(self, index: int) -> Fault | None:
        member = self._member
        fault = fault_at(member.store.faults, index)
        if fault is None or self._unlinkable.get(fault.first_index) != (member.term, member.leader_id):
            return None
        return fault

    def vouched_in(self, fault: Fault) -> EntryMeta | None:
        """The entry of this fault that our present leader vouched for."""
        if self._vouched is None:
            return None
        leader, entry = self._vouched
        holds = fault.first_index <= entry.index <= fault.last_index
        return entry if holds and leader == (self._member.term, self._member.leader_id) else None

    def term_bounds(self, index: int) -> tuple[int, int]:
        """Between which terms that of a damaged entry must lie: terms never go down along a log."""
        member, store = self._member, self._member.store
        fault = fault_at(store.faults, index)
        assert fault is not None, f"entry {index} is not damaged"
        before = member.meta(fault.first_index - 1)
        after = member.meta(min(fault.last_index + 1, store.end_index))
        return -1 if before is None else before.term, store.end_term if after is None else after.term
