"""Group naming: gives an id to a group that was made without a token (SAFETY C9).

A leader whose own term's entry is committed appends one CONFIG_CHANGE entry with a random id, once all voters speak a
version that knows of it. The id holds when the entry is committed: each member keeps it in its hard state. A member
that has none (it was wiped, or ran an older release for a while) takes its leader's, and a leader that of a follower,
once COMPARE matched their logs: by its log, never by its name.

Theory. Two ids must never be given to one group, though leaders fail in the middle. So `hard.naming` says durably which
id the last such entry in this log has, before that entry gets into the log: a leader writes down the id that it will
give, a follower what it will append. Whoever leads then gives that id and no other one; twice in one log the same id
does no harm. The index in it says where the entry lies, -1: not known (any more).

An operator may give a group another id (E10), and its log then still holds the entry with the old one. So an entry
never counts against an id that is there: a member that has one keeps it, and one that has none takes its leader's
first.

Invariants: a log that holds such an entry has its id durably in `naming` until the member has the id itself; a member
that has an id never changes it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from node.consensus.effects import FetchLog
from node.consensus.member_state import MemberState
from node.consensus.membership import Membership
from node.consensus.own_entries import config_changes_in, is_config_change
from node.consensus.progress import Peers
from node.protocol.entry import Slab, unpack_record
from node.protocol.group_id import is_group_id

if TYPE_CHECKING:
    from node.consensus.leadership import Leadership

NAMING_VERSION = 2  # of HELLO: the first that knows of group ids


def naming_body(group_id: str) -> bytes:
    """The body of the entry that gives a group its id."""
    return json.dumps({"group_id": group_id}).encode()


def named_in(body: bytes) -> str | None:
    """The id in a CONFIG_CHANGE entry's body; None: it changes something else."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return None
    found = fields.get("group_id") if isinstance(fields, dict) else None
    return found if is_group_id(found) else None


class GroupNaming:
    """One per replica; idle once the member has an id."""

    def __init__(self, member: MemberState, membership: Membership, peers: Peers) -> None:
        self._member, self._membership, self._peers = member, membership, peers
        self._kind = member.config.kind
        self._given_in_term = -1
        self._reading_in: int | None = None  # the log's epoch, while the driver reads the entry (S9)

    # --- the entry ----------------------------------------------------------------------------------------------
    def on_record(self, slab: Slab) -> bool:
        """Whether what a slab says of the group's id is durable here, where there is none yet; if not, it will be.

        Two leaders may have given it one after the other: what counts is the last entry that says so.
        """
        member = self._member
        for entry in reversed(config_changes_in(self._kind, slab)):
            group_id = named_in(self._kind.content_of(entry.body))
            if group_id is None:
                continue
            said = (entry.index, group_id)
            if member.hard.naming != said:
                member.save(naming=said)
            return member.durable_hard.naming == said
        return True

    def committed(self, now: int) -> None:
        """The committed index moved, and there is a naming in this log, as far as is known."""
        member = self._member
        assert member.hard.naming is not None
        if member.hard.group_id is not None:
            member.save(naming=None)
            return
        index, group_id = member.hard.naming
        if not 0 <= index <= member.committed_index:
            return
        slab = member.store.recent_slab(index, 1)
        if index < member.store.begin_index:
            member.save(naming=(-1, group_id))  # it is not kept any more
        elif slab is not None:
            self._judge(slab, group_id, now)
        elif self._reading_in is None:
            self._reading_in = member.log_epoch
            member.effects.fetches.append(FetchLog(member.self_id, 0, index, index, 1))

    def fetched(self, order: FetchLog, slab: Slab | None, now: int) -> None:
        """The entry was cold and the driver has read it. None: it is damaged, and asked for again once it is mended,
        or not needed once COMPARE matched another member that knows."""
        member, epoch, self._reading_in = self._member, self._reading_in, None
        naming = member.hard.naming
        if slab is not None and epoch == member.log_epoch and naming is not None and naming[0] == order.first_index:
            self._judge(slab, naming[1], now)

    def _judge(self, slab: Slab, group_id: str, now: int) -> None:
        """Takes the id, if the committed entry that the slab begins with is the one that gives it."""
        member = self._member
        entry = unpack_record(slab.data)
        if is_config_change(self._kind, entry) and named_in(self._kind.content_of(entry.body)) == group_id:
            leader_id = member.leader_id
            if leader_id in self._peers.of and self._believed(leader_id) and self._id_of(leader_id) != group_id:
                self._named(self._id_of(leader_id), f"{leader_id} leads the same log, and has another id since", now)
            else:
                self._named(group_id, f"entry {slab.first_index} is committed", now)
        else:
            member.save(naming=(-1, group_id))  # it was cut off, and another entry took its place

    # --- who gives it, and who takes it -----------------------------------------------------------------------------
    def leads(self, leadership: Leadership, now: int) -> None:
        """A leader without an id: a follower's of the same log, else a new one."""
        member, peers = self._member, self._peers.of
        if not leadership.own_entry_committed:
            return
        for peer_id, peer in peers.items():
            if peer.match_index >= 0 and self._believed(peer_id):
                self._named(self._id_of(peer_id), f"{peer_id} holds the same log", now)
                return
        all_know = all(peer.connected and peer.version >= NAMING_VERSION for peer in self._peers.voters)
        none_has_one = all(self._id_of(peer_id) == "" for peer_id in peers)
        if all_know and none_has_one and not member.short_of_space and self._given_in_term != member.term:
            self._give(leadership, now)

    def _give(self, leadership: Leadership, now: int) -> None:
        """First it is written down, and once that is durable it is appended."""
        member, naming = self._member, self._member.hard.naming
        if naming is None:
            member.save(naming=(-1, f"{member.rng.getrandbits(128):032x}"))
        elif member.durable_hard.naming == naming and leadership.append_config_change(naming_body(naming[1]), now):
            self._given_in_term = member.term
            member.save(naming=(member.store.end_index, naming[1]))

    def follows(self, leader_id: str, now: int) -> None:
        """A follower without an id whose log matched its leader's."""
        if self._member.verified_index >= 0 and self._believed(leader_id):
            self._named(self._id_of(leader_id), f"{leader_id} leads the same log", now)

    def _id_of(self, peer_id: str) -> str:
        hello = self._peers.of[peer_id].hello
        return "" if hello is None else hello.group_id or ""

    def _believed(self, peer_id: str) -> bool:
        """Whether that peer has an id, and is proven where that is asked for."""
        view = self._peers.of[peer_id]
        return is_group_id(self._id_of(peer_id)) and (view.proven or not self._member.config.proof_wanted)

    def _named(self, group_id: str, reason: str, now: int) -> None:
        member = self._member
        member.save(group_id=group_id, naming=None)
        member.event("group_id", now, group_id=group_id, reason=reason)
