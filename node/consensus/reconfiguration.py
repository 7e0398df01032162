"""Another configuration comes into effect: every part of a member hears of it, at one moment.

It is in effect as soon as its entry is in the log, and that of the entry before is once a cut has taken it away (SAFETY
M1). So this follows the log and asks nobody; what may be changed, and when, is the leader's affair (`member_changes`).

Invariants: it is safe at any moment, between any two calls of the core: what is under way for a peer that is gone comes
to nothing, and nothing that it said before counts if it comes back under the same id; no entry about the members is in
the log before the hard state says durably that it may be.
"""

from __future__ import annotations

from collections.abc import Callable

from node.consensus.configuration import Configuration
from node.consensus.configurations import NEVER, Record
from node.consensus.leader_elector import LeaderElector
from node.consensus.log_giving import LogGiving
from node.consensus.log_repair import LogRepair
from node.consensus.member_state import MemberState
from node.consensus.membership import Membership
from node.consensus.office import Office
from node.consensus.own_entries import may_hold_change
from node.consensus.progress import Peers
from node.consensus.term_gate import TermGate
from node.protocol.codes import Role
from node.protocol.entry import Slab


class Reconfiguration:
    """One per replica. `settle`: what may follow from any step."""

    def __init__(
        self, member: MemberState, peers: Peers, membership: Membership, elector: LeaderElector, repair: LogRepair,
        giving: LogGiving, gate: TermGate, office: Office, settle: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._member, self._peers, self._elector = member, peers, elector
        self._membership, self._gate, self._office = membership, gate, office
        self._repair, self._giving, self._settle = repair, giving, settle
        self._from_log = member.configuration
        member.configurations.committed(member.committed_index, member.durable_index)
        # An entry of ours that is to be appended once it is on durable record.
        self.to_append: Record | None = None
        self.save_records()  # what a start did not find was cut, or never came

    # --- what the log says --------------------------------------------------------------------------------------
    def on_record(self, slab: Slab) -> bool:
        """Whether what a slab says of the members is durable here; if not, it will be."""
        if not may_hold_change(self._member.config.kind, slab):
            return True
        configurations = self._member.configurations
        wanted = configurations.with_slab(slab)
        if self._member.hard.configurations != wanted:
            self._member.save(configurations=wanted)
            configurations.expected_index = next((index for index, _ in wanted[len(configurations.records) :]), NEVER)
            return False
        return self._member.durable_hard.configurations == wanted

    def save_records(self) -> None:
        """What the hard state should name now, where it is something else: nothing that has not come, but our own."""
        self._member.configurations.expected_index = NEVER
        own = () if self.to_append is None else (self.to_append,)
        wanted = (*self._member.configurations.records, *own)
        if self._member.hard.configurations != wanted:
            self._member.save(configurations=wanted)

    def log_changed(self, slab: Slab | None, now: int) -> None:
        """Entries about the members came in that slab; or they were cut, or are committed."""
        member = self._member
        if slab is not None:
            member.configurations.appended(slab)
        member.configurations.committed(member.committed_index, member.durable_index)
        self.save_records()
        in_effect = member.configurations.in_effect
        if in_effect is not self._from_log:
            self._from_log = in_effect
            self.configure(in_effect, now)
        if in_effect.index <= member.committed_index:
            self._forget_stores()
            self._tell_removed(in_effect, now)

    def _forget_stores(self) -> None:
        """What is on record of those who left protects no quorum any more."""
        for peer_id in self._member.hard.store_ids.keys() - self._member.configuration.members.keys():
            if peer_id != self._member.self_id:
                self._membership.records.forget(peer_id)

    def _tell_removed(self, configuration: Configuration, now: int) -> None:
        """Whoever knows that it was removed says so; it has no vote any more, so it does not campaign (M5)."""
        member = self._member
        store_id = configuration.named.removed.get(member.self_id)
        if store_id == member.store_id and member.self_id not in configuration.members:
            text = f"{member.self_id} was removed from the group by entry {configuration.index}: stop this member"
            member.alarm("removed", text, now, severity="warning")

    # --- in effect ----------------------------------------------------------------------------------------------
    def configure(self, to: Configuration, now: int) -> None:
        """These members from now on."""
        member, before = self._member, self._member.configuration
        gone, new = before.members.keys() - to.members.keys(), to.members.keys() - before.members.keys()
        promoted = (to.voters.keys() & before.learners.keys()) - {member.self_id}
        self._keep_leader(gone)
        for one in new:
            member.configurations.guests.pop(one, None)
        member.configure(to)
        for peer_id in sorted(gone & self._peers.of.keys()):
            self._forget(peer_id, now, was_voter=peer_id in before.voters)
        self._peers.configure(to, gone)
        self._elector.members_changed(now)
        leadership = self._office.leadership
        for peer_id in sorted((new | promoted) & self._peers.of.keys()):
            peer = self._peers.of[peer_id]
            if leadership is not None and peer_id in new:
                leadership.add_peer(peer, now)
            if leadership is not None and peer.is_voter:
                leadership.voter_came(peer, now)
            self._membership.reconsider(peer_id, now)
        if gone or new or promoted or to != before:
            member.event(
                "configuration", now, index=to.index, voters=sorted(to.voters), learners=sorted(to.learners),
                joined=sorted(new), left=sorted(gone), promoted=sorted(to.voters.keys() & before.learners.keys()),
            )  # fmt: skip
        if leadership is not None:
            leadership.recount(now)
        self._settle(now)

    def _keep_leader(self, gone: set[str]) -> None:
        """A leader that removes itself leads on until that is committed (M5)."""
        member = self._member
        leader_id = member.leader_id
        if member.role is Role.FOLLOWER and leader_id in gone:
            hello = self._peers.of[leader_id].hello
            if hello is not None:
                member.configurations.guests[leader_id] = hello

    def _forget(self, peer_id: str, now: int, *, was_voter: bool) -> None:
        leadership = self._office.leadership
        if leadership is not None:
            leadership.remove_peer(peer_id)
        self._repair.peer_lost(peer_id, now)
        self._giving.peer_lost(peer_id)
        self._gate.forget(peer_id)
        if was_voter:  # until the change is committed it may come back, as what it was
            self._membership.stranger_gone(peer_id, now)
        else:
            self._membership.forget(peer_id, now)
        for code, about in list(self._member.alarms):
            if about == peer_id:
                self._member.clear_alarm(code, now, peer_id=peer_id)

    # --- learners that a driver names by itself (the simulator) -------------------------------------------------------
    def add_learner(self, peer_id: str, address: str, now: int) -> None:
        """A member without a vote, from now on. Raises ValueError where that id or address cannot be one's."""
        self.configure(self._member.configuration.with_learner(peer_id, address), now)

    def remove_learner(self, peer_id: str, now: int) -> None:
        """It is gone. Raises ValueError where it is no learner."""
        self.configure(self._member.configuration.without_learner(peer_id), now)
