"""The group's configuration: voters, learners and their addresses; every question about a majority.

Theory. Any two majorities of the voters have a member in common: so no two leaders of one term, and no leader without
what was committed before. A learner is sent the whole log and is asked for nothing: its acknowledgements make no entry
committed, and its vote elects nobody (SAFETY M4).

The voters change only by an entry of the log, one at a time (SAFETY M1, M2), which is not built yet: two members that
judge over voters which differ by more than one can elect two leaders in one term. So the verbs below make a
configuration with other learners, never with other voters.

Invariants: a member is a voter or a learner, never both; a configuration never changes, a change makes another one;
nothing else in the core computes a majority.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from node.protocol.quorum import majority_of


class Configuration:
    """See the module's docstring. `voters`, `learners` and `members` (both) map ids to addresses "host:port"."""

    __slots__ = ("learners", "majority", "members", "voters")

    def __init__(self, voters: Mapping[str, str], learners: Mapping[str, str] | None = None) -> None:
        self.voters, self.learners = dict(voters), dict(learners or {})
        both = self.voters.keys() & self.learners.keys()
        if both:
            raise ValueError(f"{sorted(both)} can be voters or learners, not both")
        if not self.voters:
            raise ValueError("a group needs at least one voter")
        self.members = self.voters | self.learners
        self.majority = majority_of(len(self.voters))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Configuration):
            return NotImplemented
        return (self.voters, self.learners) == (other.voters, other.learners)

    def __hash__(self) -> int:
        return hash((frozenset(self.voters), frozenset(self.learners)))

    def __repr__(self) -> str:
        return f"Configuration(voters {sorted(self.voters)}, learners {sorted(self.learners)})"

    # --- majorities ---------------------------------------------------------------------------------------------
    def reached(self, values: Iterable[int]) -> int:
        """The highest value that a majority of the voters reaches (SAFETY R3); `values` holds one of each voter."""
        ordered = sorted(values, reverse=True)
        if len(ordered) != len(self.voters):
            raise AssertionError(f"{len(ordered)} values of {len(self.voters)} voters")
        return ordered[self.majority - 1]

    def is_majority(self, member_ids: Iterable[str]) -> bool:
        """Whether a majority of the voters is among these; learners and strangers count for nothing."""
        return len(self.voters.keys() & set(member_ids)) >= self.majority

    def still_needed(self, holding: int) -> int:
        """How many voters more make a majority with `holding` that do already."""
        return max(0, self.majority - holding)

    # --- learners come and go -----------------------------------------------------------------------------------
    def with_learner(self, member_id: str, address: str) -> Configuration:
        """Raises ValueError where that id is a voter's, or another learner's with another address."""
        if member_id in self.voters:
            raise ValueError(f"{member_id} is a voter already: give the learner another id")
        if self.learners.get(member_id, address) != address:
            raise ValueError(f"learner {member_id} is at {self.learners[member_id]}: remove it first")
        if address in (held for one, held in self.members.items() if one != member_id):
            raise ValueError(f"another member has the address {address}")
        return Configuration(self.voters, self.learners | {member_id: address})

    def without_learner(self, member_id: str) -> Configuration:
        """Raises ValueError for whoever is no learner."""
        if member_id not in self.learners:
            voter = "a voter, and voters cannot be removed while the group runs"
            what = voter if member_id in self.voters else "nobody"
            raise ValueError(f"{member_id} is no learner here but {what}")
        return Configuration(self.voters, {one: at for one, at in self.learners.items() if one != member_id})
