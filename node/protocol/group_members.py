"""Who belongs to a group, as a CONFIG_CHANGE entry says it: the whole of it, and one change after another.

An entry holds the whole configuration, not the change: whoever has that entry needs no earlier one. Where it says no
address, each member knows that one by its own `[peers]`, as since the group's birth (members may reach each other in
different ways); an address that an operator gave is the same for all.

Invariants: a member is a voter or a learner, never both; two configurations one verb apart differ by one voter at most
(SAFETY M2); whatever cannot be read as this is no configuration, and is bounded before it is looked at.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from node.protocol.entry import POSITION_MAX
from node.protocol.group_id import is_group_id
from node.protocol.peers import MEMBER_ID, split_address

MEMBERS_MAX: Final = 32
REMOVED_KEPT: Final = 64
ENDED_KEPT: Final = 8
BODY_BYTES_MAX: Final = 64 * 1024
STORE_ID_CHARS_MAX: Final = 64
THIS_ENTRY: Final = -1  # an entry does not know its own index


class MembersError(ValueError):
    """That change cannot be made; the text says what to do instead."""


@dataclass(slots=True, frozen=True)
class GroupMembers:
    """`voters`, `learners`: id to address ("": by each member's own peers). `promoting`: learners that become voters
    once they have caught up; `replacing`: for which member such a one came. `joined`: at which entry, for those who
    came later; `voting`: at which one such a one became a voter, where an entry said so. `removed`: the stores of
    members that left: these never come back (M5). `ended`: the ids that the group had before an operator went on with
    its survivors (C9): who still has one of these belongs to it no more."""

    voters: Mapping[str, str]
    learners: Mapping[str, str] = field(default_factory=dict)
    promoting: tuple[str, ...] = ()
    replacing: Mapping[str, str] = field(default_factory=dict)
    joined: Mapping[str, int] = field(default_factory=dict)
    voting: Mapping[str, int] = field(default_factory=dict)
    removed: Mapping[str, str] = field(default_factory=dict)
    ended: tuple[str, ...] = ()

    @property
    def ids(self) -> set[str]:
        return {*self.voters, *self.learners}

    # --- one change ---------------------------------------------------------------------------------------------
    def with_learner(self, member_id: str, address: str, *, promote: bool, replaces: str = "") -> GroupMembers:
        """A new member, without a vote (M4)."""
        if not MEMBER_ID.fullmatch(member_id):
            raise MembersError(f'"{member_id}" is no member id: letters, digits, "_" and "." only')
        _check_address(address)
        if member_id in self.ids:
            raise MembersError(f"{member_id} is a member already")
        if address in (*self.voters.values(), *self.learners.values()):
            raise MembersError(f"another member has the address {address}")
        if len(self.ids) >= MEMBERS_MAX:
            raise MembersError(f"a group has {MEMBERS_MAX} members at most")
        if replaces and replaces not in self.voters:
            raise MembersError(f"{replaces or 'nobody'} is no voter of this group, so nobody can replace it")
        return replace(
            self, learners={**self.learners, member_id: address},
            promoting=(*self.promoting, member_id) if promote else self.promoting,
            replacing={**self.replacing, member_id: replaces} if replaces else self.replacing,
        )  # fmt: skip

    def promoted(self, member_id: str) -> GroupMembers:
        """A learner becomes a voter."""
        if member_id not in self.learners:
            raise MembersError(f"{member_id} is {'a voter already' if member_id in self.voters else 'no member'}")
        voters = {**self.voters, member_id: self.learners[member_id]}
        left = tuple(one for one in self.promoting if one != member_id)
        voting = {**self.voting, member_id: THIS_ENTRY}
        return replace(
            self, voters=voters, learners=_without(self.learners, member_id), promoting=left, voting=voting
        )  # fmt: skip

    def without(self, member_id: str, store_id: str | None) -> GroupMembers:
        """A member leaves, and with it the store that it had."""
        if member_id not in self.ids:
            raise MembersError(f"{member_id} is no member")
        voters = _without(self.voters, member_id)
        if not voters:
            raise MembersError(f"{member_id} is the only voter: a group needs one")
        removed = dict(self.removed)
        if store_id:
            removed.pop(member_id, None)
            removed[member_id] = store_id
        for oldest in list(removed)[: max(0, len(removed) - REMOVED_KEPT)]:
            del removed[oldest]
        return replace(
            self, voters=voters, learners=_without(self.learners, member_id),
            promoting=tuple(one for one in self.promoting if one != member_id),
            replacing={new: old for new, old in self.replacing.items() if member_id not in (new, old)},
            joined=_without(self.joined, member_id), voting=_without(self.voting, member_id), removed=removed,
        )  # fmt: skip

    def at_address(self, member_id: str, address: str) -> GroupMembers:
        """The same member, elsewhere."""
        _check_address(address)
        if member_id not in self.ids:
            raise MembersError(f"{member_id} is no member")
        others = {one: at for one, at in {**self.voters, **self.learners}.items() if one != member_id}
        if address in others.values():
            raise MembersError(f"another member has the address {address}")
        if {**self.voters, **self.learners}[member_id] == address:
            raise MembersError(f"{member_id} is at {address} already")
        if member_id in self.voters:
            return replace(self, voters={**self.voters, member_id: address})
        return replace(self, learners={**self.learners, member_id: address})

    def only(self, kept: Mapping[str, str], stores: Mapping[str, str], old_id: str | None) -> GroupMembers:
        """The survivors, as voters, after the others were lost for good; `stores`: what those had, as far as known."""
        removed = {**self.removed, **{one: store for one, store in stores.items() if one not in kept}}
        for oldest in list(removed)[: max(0, len(removed) - REMOVED_KEPT)]:
            del removed[oldest]
        # Whom this very entry made a voter did not become one with the next: since when is not known then.
        voting = {one: at for one, at in self.voting.items() if one in kept and at != THIS_ENTRY}
        voting |= {one: THIS_ENTRY for one in kept if one in self.learners}
        return GroupMembers(
            dict(kept), joined={one: at for one, at in self.joined.items() if one in kept}, voting=voting,
            removed=removed, ended=(*self.ended, *([old_id] if old_id else []))[-ENDED_KEPT:],
        )  # fmt: skip

    def to_leave(self) -> str | None:
        """Whom a member replaced that is a voter by now."""
        return next((old for new, old in self.replacing.items() if new in self.voters and old in self.ids), None)

    # --- the entry's body ---------------------------------------------------------------------------------------
    def body(self, change_id: str) -> bytes:
        """`change_id`: another one for each entry, so that none is taken for another."""
        fields = {
            "voters": dict(self.voters), "learners": dict(self.learners), "promoting": list(self.promoting),
            "replacing": dict(self.replacing), "joined": dict(self.joined), "removed": dict(self.removed),
        }  # fmt: skip
        if self.voting:
            fields["voting"] = dict(self.voting)
        if self.ended:
            fields["ended"] = list(self.ended)
        return json.dumps({"change": change_id, "members": fields}, sort_keys=True).encode()


def _without(known: Mapping[str, Any], member_id: str) -> dict[str, Any]:
    return {one: at for one, at in known.items() if one != member_id}


def _check_address(address: str) -> None:
    try:
        split_address(address)
    except ValueError as error:
        raise MembersError(str(error)) from error


def members_in(body: bytes) -> GroupMembers | None:
    """What a CONFIG_CHANGE entry says of the members; None: it is about something else."""
    if len(body) > BODY_BYTES_MAX:
        return None
    try:
        fields = json.loads(body.decode())["members"]
        found = GroupMembers(
            _texts(fields["voters"]), _texts(fields["learners"]), tuple(map(str, fields.get("promoting", ()))),
            _texts(fields.get("replacing", {})), _places(fields.get("joined", {})), _places(fields.get("voting", {})),
            _texts(fields.get("removed", {})), tuple(map(str, fields.get("ended", ()))),
        )  # fmt: skip
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None
    return found if _is_sound(found) else None


def _texts(fields: Mapping[str, Any]) -> dict[str, str]:
    if not all(isinstance(value, str) for value in fields.values()):
        raise ValueError(f"texts are wanted, not {fields!r}")
    return dict(fields)


def _places(fields: Mapping[str, Any]) -> dict[str, int]:
    return {str(one): int(at) for one, at in fields.items()}


def _is_sound(found: GroupMembers) -> bool:
    """Whether a group can have these members."""
    if not found.voters or found.voters.keys() & found.learners.keys() or len(found.ids) > MEMBERS_MAX:
        return False
    try:
        for address in (*found.voters.values(), *found.learners.values()):
            if address:
                split_address(address)
    except ValueError:
        return False
    named = all(MEMBER_ID.fullmatch(one) for one in (*found.ids, *found.removed))
    stores = all(len(store_id) <= STORE_ID_CHARS_MAX for store_id in found.removed.values())
    places = all(0 <= at <= POSITION_MAX for at in found.joined.values())
    places &= all(THIS_ENTRY <= at <= POSITION_MAX for at in found.voting.values())
    ended = len(found.ended) <= ENDED_KEPT and all(is_group_id(one) for one in found.ended)
    return named and stores and places and ended and len(found.removed) <= REMOVED_KEPT
