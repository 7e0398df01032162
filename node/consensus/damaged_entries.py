"""Own entries that cannot be read: none can be compared, but their neighbours are known (SAFETY S6).

Invariant: what is verified or committed is never said to be beyond repair.
"""

from __future__ import annotations

from collections.abc import Mapping

from node.consensus.member_state import MemberState
from node.store.faults.ranges import fault_at
from node.store.faults.results import Fault


class DamagedEntries:
    """One member's, as its store's faults and its leader's answers say."""

    def __init__(self, member: MemberState) -> None:
        self._member = member
        # Faults, by their first index, that the leader (term, id) could not give entries for.
        self._unlinkable: Mapping[int, tuple[int, str | None]] = {}

    def note_unlinkable(self, leaders: Mapping[int, tuple[int, str | None]]) -> None:
        """All faults, by first index, that the leader (term, id) could not give entries for."""
        self._unlinkable = leaders

    def unlinkable_at(self, index: int) -> Fault | None:
        """The fault that holds `index`, if our present leader has nothing that links it, and all of it may go.

        What is verified or committed never may; what another leader could not give, this one perhaps can.
        """
        member = self._member
        fault = fault_at(member.store.faults, index)
        if fault is None or self._unlinkable.get(fault.first_index) != (member.term, member.leader_id):
            return None
        return fault if fault.first_index > max(member.verified_index, member.committed_index) else None

    def term_bounds(self, index: int) -> tuple[int, int]:
        """Between which terms that of a damaged entry must lie: terms never go down along a log."""
        member, store = self._member, self._member.store
        fault = fault_at(store.faults, index)
        assert fault is not None, f"entry {index} is not damaged"
        before = member.meta(fault.first_index - 1)
        after = member.meta(min(fault.last_index + 1, store.end_index))
        return -1 if before is None else before.term, store.end_term if after is None else after.term
