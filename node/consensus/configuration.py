"""The group's configuration: voters, learners and their addresses; every question about a majority.

Theory. Any two majorities of the voters have a member in common: so no two leaders of one term, and no leader without
what was committed before. A learner is sent the whole log and is asked for nothing: its acknowledgements make no entry
committed, and its vote elects nobody (SAFETY M4). Where the voters differ by one, a majority of the ones and a majority
of the others still have a member in common: so they change one at a time (M2), by entries of the log
(`reconfiguration.py`).

Invariants: a member is a voter or a learner, never both; a configuration never changes, a change makes another one;
nothing else in the core computes a majority.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from node.protocol.group_members import THIS_ENTRY, GroupMembers
from node.protocol.quorum import majority_of


class Configuration:
    """See the module's docstring. `voters`, `learners` and `members` (both) map ids to addresses "host:port".

    `index`: of the entry that says so, -1 at the group's birth; `named`: what that entry says. `joined`: at which
    entry each member came; -1: it is one since the birth. `voting`: at which entry each voter became one, where an
    entry says so; -1 as before.
    """

    __slots__ = ("index", "joined", "learners", "majority", "members", "named", "voters", "voting")

    def __init__(
        self, voters: Mapping[str, str], learners: Mapping[str, str] | None = None, *, index: int = -1,
        named: GroupMembers | None = None,
    ) -> None:  # fmt: skip
        self.index = index
        self.named = named or GroupMembers(dict.fromkeys(voters, ""), dict.fromkeys(learners or {}, ""))
        self.voters, self.learners = dict(voters), dict(learners or {})
        both = self.voters.keys() & self.learners.keys()
        if both:
            raise ValueError(f"{sorted(both)} can be voters or learners, not both")
        if not self.voters:
            raise ValueError("a group needs at least one voter")
        self.members = self.voters | self.learners
        self.joined = dict.fromkeys(self.members, -1)
        self.voting = dict.fromkeys(self.voters, -1)
        self.majority = majority_of(len(self.voters))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Configuration):
            return NotImplemented
        return (self.voters, self.learners) == (other.voters, other.learners)

    def __hash__(self) -> int:
        return hash((frozenset(self.voters), frozenset(self.learners)))

    def __repr__(self) -> str:
        return f"Configuration(voters {sorted(self.voters)}, learners {sorted(self.learners)})"

    @classmethod
    def at_entry(cls, index: int, named: GroupMembers, birth: Configuration) -> Configuration:
        """What that entry says; addresses that it does not say are those of the birth, "" where nobody knows one.

        A learner came later also where its id was a voter's at the birth: that one was removed, and its id came back.
        """

        def known(members: Mapping[str, str]) -> dict[str, str]:
            return {one: at or birth.members.get(one, "") for one, at in members.items()}

        made = cls(known(named.voters), known(named.learners), index=index, named=named)
        of_birth = birth.voters.keys() - made.learners.keys()
        made.joined = {one: named.joined.get(one, -1 if one in of_birth else index) for one in made.members}
        said = {one: index if at == THIS_ENTRY else at for one, at in named.voting.items()}
        made.voting = {one: -1 for one in made.voters if made.joined[one] < 0} | said
        return made

    def to_change(self) -> GroupMembers:
        """What the next entry begins with: who came when is known by now."""
        joined, voting = ({one: at for one, at in places.items() if at >= 0} for places in (self.joined, self.voting))
        return replace(self.named, joined=joined, voting=voting)

    # --- majorities ---------------------------------------------------------------------------------------------
    def reached(self, values: Iterable[int]) -> int:
        """The highest value that a majority of the voters reaches (SAFETY R3); `values` holds one of each voter."""
        ordered = sorted(values, reverse=True)
        if len(ordered) != len(self.voters):
            raise AssertionError(f"{len(ordered)} values of {len(self.voters)} voters")
        return ordered[self.majority - 1]

    def reached_by(self, own_id: str, own: int, others: Iterable[int]) -> int:
        """The same for one that asks for itself too; who is no voter (any more) does not count itself (M5)."""
        return self.reached([own, *others] if own_id in self.voters else others)

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
