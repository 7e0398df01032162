"""Changes of the members at their leader: what is asked for, and what follows by itself (SAFETY M2, M4, M5).

Theory. Voters change one at a time, and only from a configuration that is committed, by a leader that has committed an
entry of its own term: else two leaders could each remove or add another voter, and find two majorities without a common
member (Ongaro, raft-dev 2015). A new member learns first. Once it holds what this leader's log held a heartbeat ago it
becomes a voter, by a change of its own; whom it replaces leaves by another one. What is still to do stands in the
configuration itself, so that the next leader goes on with it.

Invariants: one change is under way at a time; it is on durable record here before its entry is appended; whoever asked
has one outcome. A leader that is no voter any more hands over once that is committed.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from node.consensus.api import Appended
from node.consensus.handover import Handover
from node.consensus.leadership import Leadership
from node.consensus.leadership_transfer import LeadershipTransfer
from node.consensus.member_state import MemberState
from node.consensus.membership import Membership
from node.consensus.own_caps import SEES_CHANGES
from node.consensus.progress import Peers
from node.consensus.reconfiguration import Reconfiguration
from node.consensus.roles import RoleEvent
from node.consensus.settings_book import is_older
from node.protocol.codes import DispatcherState, ResponseCode, VoterState
from node.protocol.group_members import GroupMembers, MembersError
from node.protocol.messages import Hello
from node.protocol.quorum import majority_of


class Kind(StrEnum):
    """What is to change."""

    ADD = "add"
    PROMOTE = "promote"
    REMOVE = "remove"
    ADDRESS = "address"


class MemberChange(NamedTuple):
    """One change. `promote`: a new member becomes a voter once it has caught up; `replaces`: and then that one goes."""

    kind: Kind
    member_id: str
    address: str = ""
    promote: bool = True
    replaces: str = ""


class ChangeOutcome(NamedTuple):
    """How it ended; no entry (-1) where nothing was appended."""

    code: ResponseCode
    entry_index: int
    term: int
    appended: Appended
    leader_id: str | None
    detail: str


OnDone = Callable[[ChangeOutcome], None]
Refused = tuple[ResponseCode, str]


def nobody(_outcome: ChangeOutcome) -> None:
    """Follows what nobody asked for."""


class MemberChanges:
    """One per replica."""

    def __init__(
        self, member: MemberState, peers: Peers, membership: Membership, reconfiguration: Reconfiguration,
        transfers: LeadershipTransfer, handover: Handover,
    ) -> None:  # fmt: skip
        self._member, self._peers, self._membership = member, peers, membership
        self._reconfiguration, self._transfers, self._handover = reconfiguration, transfers, handover
        self._on_done: OnDone = nobody
        self._entry_index: int | None = None  # appended, not committed yet
        self._ends = (0, 0, 0)  # the log's end a heartbeat ago, at `_ends[2]`, and when that was
        self._asked_to_leave = False

    @property
    def waits_for_record(self) -> bool:
        """Whether an entry is to be appended as soon as it is on record."""
        return self._reconfiguration.to_append is not None

    # --- asked for ----------------------------------------------------------------------------------------------
    def ask(self, change: MemberChange, leadership: Leadership | None, on_done: OnDone) -> None:
        """The outcome comes when it is committed, or at once where it is refused."""
        refused = self.refusal(change, leadership)
        if refused is not None:
            self._refuse(on_done, *refused)
            return
        self._begin(self._next(change), on_done)

    def _refuse(self, on_done: OnDone, code: ResponseCode, text: str) -> None:
        member = self._member
        on_done(ChangeOutcome(code, -1, member.term, Appended.NOT_APPENDED, member.leader_id, text))

    def refusal(self, change: MemberChange, leadership: Leadership | None) -> Refused | None:
        """Why it cannot be made now; None: it can."""
        member = self._member
        if leadership is None:
            return ResponseCode.NOT_LEADER, f"{member.self_id} does not lead: ask {member.leader_id or 'the leader'}"
        if member.hard.group_id is None:
            return ResponseCode.ILLEGAL_MEMBER_STATE, "the group has no id yet: all its voters have to be up for that"
        if self._membership.strangers.plain:
            text = "a plain DLedger process stands at a member's address, and knows no changes of members: end it first"
            return ResponseCode.ILLEGAL_MEMBER_STATE, text
        older = [peer.peer_id for peer in self._peers.of.values() if self._is_older(peer.hello)]
        if older:
            text = f"{older[0]} is of a release that knows no changes of members: upgrade it first"
            return ResponseCode.ILLEGAL_MEMBER_STATE, text
        if self._transfers.current is not None:
            return ResponseCode.LEADER_TRANSFERRING, f"leadership moves to {self._transfers.transferee_id}: ask again"
        busy = self._busy(leadership)
        if busy:
            return ResponseCode.INCONSISTENT_STATE, busy
        if member.disk_full:
            return ResponseCode.DISK_FULL, f"the disk of {member.self_id} is full"
        try:
            after = self._next(change)
        except MembersError as error:
            return ResponseCode.UNEXPECTED_ARGUMENT, str(error)
        return self._unsafe(change, after)

    def _is_older(self, hello: Hello | None) -> bool:
        """Whether a peer that said this would not see such an entry in its log; None: nothing is known of it."""
        lacks = hello is not None and not self._member.config.kind.is_plain and SEES_CHANGES not in hello.caps
        return is_older(hello) or lacks

    def _busy(self, leadership: Leadership) -> str:
        """Why no change may be proposed yet (M2)."""
        if not leadership.own_entry_committed:
            return f"no entry of term {self._member.term} is committed yet: ask again"
        if self.waits_for_record or self._member.configuration.index > self._member.committed_index:
            return "another change of the members is under way: ask again once it is committed"
        return ""

    def _next(self, change: MemberChange) -> GroupMembers:
        """Raises MembersError."""
        named, one = self._member.configuration.to_change(), change.member_id
        match change.kind:
            case Kind.ADD:
                known = {at: other for other, at in self._member.configuration.members.items()}
                if change.address in known:
                    raise MembersError(f"{known[change.address]} has the address {change.address}")
                return named.with_learner(one, change.address, promote=change.promote, replaces=change.replaces)
            case Kind.PROMOTE:
                return named.promoted(one)
            case Kind.REMOVE:
                return named.without(one, self._store_of(one))
            case Kind.ADDRESS:
                return named.at_address(one, change.address)

    def _store_of(self, member_id: str) -> str | None:
        if member_id == self._member.self_id:
            return self._member.store_id
        peer = self._peers.of.get(member_id)
        known = self._member.hard.store_ids.get(member_id)
        return known if peer is None or peer.hello is None else peer.hello.store_id

    def _unsafe(self, change: MemberChange, after: GroupMembers) -> Refused | None:
        """Why the group could not go on with it."""
        if change.kind is Kind.PROMOTE and not self.caught_up(change.member_id):
            text = f"{change.member_id} has not caught up: `members list` shows what it lacks; it is promoted then"
            return ResponseCode.FALL_BEHIND_TOO_MUCH, text
        if change.kind is Kind.REMOVE:
            left = self._without_quorum(after)
            if left:
                return ResponseCode.ILLEGAL_MEMBER_STATE, left
        if change.kind is Kind.ADDRESS and change.member_id in after.voters.keys() - {self._member.self_id}:
            # Nobody reaches it until it runs there. What names a place where it never does could not be taken back.
            left = self._without_quorum(after, but=change.member_id)
            if left:
                return ResponseCode.ILLEGAL_MEMBER_STATE, f"until {change.member_id} runs there, {left}"
        return None

    def _without_quorum(self, after: GroupMembers, but: str | None = None) -> str:
        """Why those that are left, and without `but`, could commit nothing; empty: they could."""
        member = self._member
        up = {one.peer_id for one in self._peers.voters if one.connected and one.counts}
        if member.self_id in member.configuration.voters:
            up.add(member.self_id)
        there, needed = sorted((up & after.voters.keys()) - {but}), majority_of(len(after.voters))
        if len(there) >= needed:
            return ""
        verb = "answers" if len(there) == 1 else "answer"
        words = f"{len(there)} of the {len(after.voters)} voters that are left {verb} ({', '.join(there) or 'none'})"
        return f"{words}, and {needed} have to: bring one back or add a member first"

    # --- its way ------------------------------------------------------------------------------------------------
    def _begin(self, after: GroupMembers, on_done: OnDone) -> None:
        """First it is written down, and once that is durable it is appended."""
        member = self._member
        body = after.body(f"{member.rng.getrandbits(64):016x}").decode()
        self._reconfiguration.to_append = member.store.end_index + 1, body
        self._on_done = on_done
        self._reconfiguration.save_records()

    def recorded(self, leadership: Leadership, now: int) -> None:
        """A hard state is durable: perhaps the one that names our entry."""
        member, record = self._member, self._reconfiguration.to_append
        if record is None or record not in member.durable_hard.configurations:
            return
        if record not in member.hard.configurations:
            return
        if self._transfers.current is not None:
            self._give_up(ResponseCode.LEADER_TRANSFERRING, "leadership moves: ask again")
            return

        def written() -> None:
            """It is in the log, and sent: from now on everything is judged by it (M1)."""
            self._reconfiguration.to_append = None
            self._entry_index = member.store.end_index
            member.configurations.own(self._entry_index, record[1])
            member.on_members(None, now)

        if not leadership.append_config_change(record[1].encode(), now, written):
            self._give_up(ResponseCode.DISK_FULL, f"the disk of {member.self_id} is full")

    def _give_up(self, code: ResponseCode, text: str) -> None:
        """Nothing was appended."""
        on_done, self._on_done = self._on_done, nobody
        self._reconfiguration.to_append = None
        self._reconfiguration.save_records()
        self._refuse(on_done, code, text)

    def committed(self) -> None:
        """The committed index moved to an entry about the members."""
        index, member = self._entry_index, self._member
        if index is not None and index <= member.committed_index:
            on_done, self._on_done, self._entry_index = self._on_done, nobody, None
            on_done(ChangeOutcome(ResponseCode.SUCCESS, index, member.term, Appended.YES, member.leader_id, ""))

    def leadership_ended(self, reason: str) -> None:
        """Whether it comes about is for the next leader's log to say."""
        if self.waits_for_record:
            self._give_up(ResponseCode.TERM_CHANGED, reason)
        if self._entry_index is not None:
            on_done, index = self._on_done, self._entry_index
            self._on_done, self._entry_index = nobody, None
            term = self._member.term
            on_done(ChangeOutcome(ResponseCode.TERM_CHANGED, index, term, Appended.UNKNOWN, None, reason))

    # --- what follows by itself -----------------------------------------------------------------------------------
    def elected(self, now: int) -> None:
        end = self._member.store.end_index
        self._ends, self._asked_to_leave = (end, end, now), False

    def caught_up(self, member_id: str) -> bool:
        """Whether a learner holds, safely, what our log held a heartbeat ago."""
        peer = self._peers.of.get(member_id)
        if peer is None or not peer.connected or peer.voter_state is not VoterState.VOTER:
            return False
        if peer.hello is None or self._member.configuration.named.removed.get(member_id) == peer.hello.store_id:
            return False  # the store of a member that was removed, which stayed connected (M5)
        return peer.state is DispatcherState.APPEND and peer.faulty_from < 0 and peer.watermark_index >= self._ends[0]

    def tick(self, leadership: Leadership, now: int) -> None:
        """The next of the changes that the configuration asks for."""
        member = self._member
        if now - self._ends[2] >= member.config.timing.heartbeat_ns:
            self._ends = self._ends[1], member.store.end_index, now
        if self._transfers.current is not None or self._busy(leadership):
            return
        if member.self_id not in member.configuration.voters:
            self._leave(now)
            return
        named = member.configuration.named
        old = named.to_leave()
        if old is not None:
            change = MemberChange(Kind.REMOVE, old)
        else:
            ready = [one for one in named.promoting if self.caught_up(one)]
            if not ready:
                return
            change = MemberChange(Kind.PROMOTE, ready[0])
        if self.refusal(change, leadership) is None:
            self._begin(self._next(change), nobody)

    def _leave(self, now: int) -> None:
        """We removed ourselves, and that is committed: another one leads from now on (M5)."""
        member = self._member
        if self._asked_to_leave:
            text = f"{member.self_id} is no voter any more, and nobody took over"
            member.change_role(RoleEvent.DEPOSED, now, text)
            return
        self._asked_to_leave = True
        self._handover.ask(None, now, lambda _outcome: None, reason=f"{member.self_id} is no voter any more")
