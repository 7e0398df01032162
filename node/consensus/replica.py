"""One member's replication core: composes the parts and is all that a driver sees.

The driver calls one method at a time, with `now` in CLOCK_BOOTTIME nanoseconds, then carries out `take_effects()` in
its order of duty. Nothing here touches a socket, a clock, a thread or a file; the log store is called synchronously.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

from node.consensus import status_builder
from node.consensus.api import (
    MS,
    Appended,
    Outcome,
    Proposal,
    Randomness,
    ReadOutcome,
    ReplicaConfig,
    Timing,
    TransferOutcome,
)
from node.consensus.applying import Applying
from node.consensus.closures import Closure
from node.consensus.configuration import Configuration
from node.consensus.damaged_entries import DamagedEntries
from node.consensus.disk_reports import DiskReports
from node.consensus.entry_handler import EntryHandler
from node.consensus.full_disk import FullDisk
from node.consensus.group_naming import GroupNaming
from node.consensus.handover import Handover
from node.consensus.held_entries import HeldEntries
from node.consensus.lanes import LaneOpened, Lanes
from node.consensus.leader_elector import LeaderElector
from node.consensus.leadership import Leadership
from node.consensus.leadership_transfer import LeadershipTransfer
from node.consensus.link_reports import LinkReports
from node.consensus.log_giving import LogGiving
from node.consensus.log_repair import LogRepair
from node.consensus.lost_states import LostStates
from node.consensus.member_changes import ChangeOutcome, MemberChange, MemberChanges
from node.consensus.member_state import MemberState
from node.consensus.membership import Membership
from node.consensus.office import Office
from node.consensus.peer_messages import PeerMessages
from node.consensus.progress import Peers
from node.consensus.quiet_ticks import QuietTicks
from node.consensus.reads import FollowerReads
from node.consensus.reconfiguration import Reconfiguration
from node.consensus.roles import RoleEvent
from node.consensus.settings_change import SettingsChange
from node.consensus.status import ReplicaStatus
from node.consensus.term_gate import TermGate
from node.protocol.codes import ResponseCode, Role
from node.protocol.entry import Slab
from node.protocol.messages import Hello, MemberMark, Message, ReadWay
from node.store.log_store import LogStore

__all__ = [
    "Appended", "Closure", "Outcome", "Proposal", "ReadOutcome", "Replica", "ReplicaConfig", "Timing",
    "TransferOutcome",
]  # fmt: skip


class Replica:
    """See the module's docstring."""

    def __init__(self, config: ReplicaConfig, store: LogStore, rng: Randomness, now: int) -> None:
        if store.kind != config.kind.name:
            raise ValueError(f"the store holds a {store.kind} log, this member is configured for {config.kind.name}")
        kept = store.hard_state.kept
        promised_ns = 0 if kept is None else kept.promises.lease_ms * MS
        self.config = config = replace(config, promised_ns=promised_ns)  # our own: it changes while we run
        self.store = store
        self.member = MemberState(config, store, rng, now)
        self.peers = Peers(config, self.member.configuration)
        self._office = Office(self.member)
        self.membership = Membership(self.member, self.peers, now)
        self.elector = LeaderElector(self.member, self.membership, self.peers, self._elected, now)
        damaged = DamagedEntries(self.member)
        self.handler = EntryHandler(self.member, damaged)
        self.transfers = LeadershipTransfer(self.member)
        self.lanes = Lanes(self.member)
        self.follower_reads = FollowerReads(self.member)
        self.repair = LogRepair(self.member, self.peers, damaged)
        self.giving = LogGiving(self.member, self.peers)
        self.naming = GroupNaming(self.member, self.membership, self.peers)
        self.handover = Handover(self.member, self.peers, self._office, self.transfers, now)
        self._full_disk = FullDisk(self.member, self._office, self.transfers, self.handover)
        self._gate = TermGate(self.member, self.peers)
        self.held = HeldEntries(self.member, self.peers, self._office)
        self.lost_states = LostStates(self.member, self.peers, self._office, self.handover, self.transfers)
        self.reconfiguration = Reconfiguration(
            self.member, self.peers, self.membership, self.elector, self.repair, self.giving, self._gate, self._office,
            self._settle,
        )  # fmt: skip
        self.changes = MemberChanges(
            self.member, self.peers, self.membership, self.reconfiguration, self.transfers, self.handover
        )
        self.settings = SettingsChange(self.member, self.peers, self.membership, self.elector, self._office)
        # What the driver reports of its connections, and of its disk.
        self.links = LinkReports(
            self.member, self.peers, self.membership, self.elector, self.repair, self.giving, self.transfers,
            self._office, self._settle,
        )  # fmt: skip
        self.disk = DiskReports(
            self.member, self.membership, self.handler, self.repair, self.giving, self._full_disk, self.naming,
            self.changes, self.lost_states, self._office, self._recount, self._settle,
        )  # fmt: skip
        # What peers say; also the bytes of a frame of theirs that is not whole yet.
        self.messages = PeerMessages(
            self.member, self.peers, self._gate, self.membership, self.elector, self.handler, self.repair, self.giving,
            self.transfers, self.naming, self.follower_reads, self.held, self.lost_states, self._office, self._recount,
            self._settle,
        )  # fmt: skip
        self._quiet = QuietTicks(
            self.member, self.peers, self._office, self.elector, self.membership, self.handler, self.repair,
            self.transfers, self.settings, self._full_disk, self.lost_states,
            (
                self.transfers.next_deadline, self.membership.next_deadline, self.settings.next_deadline,
                self.follower_reads.next_deadline, self.repair.next_deadline, self.handover.next_deadline,
            ),
        )  # fmt: skip
        self.receive, self.leader_bytes = self.messages.receive, self.messages.leader_bytes
        self.take_effects = self.member.take_effects  # what the driver must do now, in that order; begins a new batch
        self.elector.ticket_is_ours = self.transfers.ticket_is_ours
        self.member.wire(
            applying=Applying(self.member) if config.applies else None, on_abdicate=self._abdicated,
            on_rejoin=self.membership.rejoin, may_append=self._may_append, on_commit=self.naming.committed,
            on_members=self._members_changed,
        )  # fmt: skip
        self.membership.records.acknowledged = self._acknowledged
        self._stopped = False
        self.disk.watch_damage(now)

    def as_it_leaves(self, message: Message, now: int) -> Message | None:
        """A message that waited for a save, as it leaves now; None: not at all, as what it relied on has changed.

        A HELLO says where the log ends now: an answer to a push of another connection overtakes it, and it would pass
        for that of a copy which lacks what was acknowledged.
        """
        if not (self.transfers.may_leave(message, now) and self.membership.may_leave(message)):
            return None
        return replace(message, end_index=self.store.end_index) if type(message) is Hello else message

    def _may_append(self, slab: Slab) -> bool:
        """Whether what it says of the group, if it does, is on durable record; else both are at once."""
        named = self.member.hard.group_id is not None or self.naming.on_record(slab)
        return self.reconfiguration.on_record(slab) and named

    def _members_changed(self, slab: Slab | None, now: int) -> None:
        self.reconfiguration.log_changed(slab, now)
        self.changes.committed()

    def _acknowledged(self, peer_id: str) -> MemberMark | None:
        """What a peer acknowledged in the present leadership."""
        leadership = self._office.leadership
        return None if leadership is None else leadership.marks.acknowledged(self.peers.of[peer_id])

    # --- plain reads --------------------------------------------------------------------------------------------
    @property
    def log_epoch(self) -> int:
        return self.member.log_epoch

    @property
    def configuration(self) -> Configuration:
        """Who belongs to the group now."""
        return self.member.configuration

    @property
    def guests(self) -> Mapping[str, Hello]:
        """Members that are let in, and that our configuration does not know (M3)."""
        return self.member.configurations.guests

    @property
    def leadership(self) -> Leadership | None:
        """The present one, if this member leads."""
        return self._office.leadership

    @property
    def role(self) -> Role:
        return self.member.role

    @property
    def term(self) -> int:
        return self.member.term

    @property
    def leader_id(self) -> str | None:
        return self.member.leader_id

    @property
    def committed_index(self) -> int:
        return self.member.committed_index

    @property
    def applied_index(self) -> int | None:
        return self.member.applied_index

    @property
    def applying(self) -> Applying:
        """What the driver reports about the state machine to. Raises AssertionError in a group that is a log alone."""
        assert self.member.applying is not None, "this group is a log alone: nothing is applied"
        return self.member.applying

    @property
    def has_pending(self) -> bool:
        """Whether this leader has appended what no quorum is known to hold."""
        return self._office.leadership is not None and bool(self._office.leadership.closures.pending)

    def promise_lease(self, now: int) -> int:
        """For how long others may rely on nobody else's being elected (SAFETY C1); 0 once a transfer began."""
        leadership = self.leadership
        if leadership is None or not leadership.own_entry_committed or self.transfers.current is not None:
            return 0
        return leadership.reads.promise_lease(now)

    def status(self, now: int) -> ReplicaStatus:
        """A copy of everything an observer may ask."""
        return status_builder.build_status(self, now)

    @property
    def has_effects(self) -> bool:
        """Whether there is anything to do."""
        return self.member.gathered is not None

    # --- leadership begins and ends -----------------------------------------------------------------------------
    def _elected(self, now: int) -> None:
        leadership = self._office.leadership = Leadership(self.member, self.membership, self.peers, self.lanes, now)
        self.handover.elected(now)
        self.changes.elected(now)
        leadership.begin(now)

    def _abdicated(self, reason: str, now: int) -> None:
        """Called by MemberState just before this member stops leading."""
        leadership, self._office.leadership = self._office.leadership, None
        self.lanes.end(f"leadership of term {self.term} ended: {reason}")
        self.changes.leadership_ended(f"leadership of term {self.term} ended: {reason}")
        if leadership is not None:
            leadership.end(reason, now)
            if self.member.applying is not None:
                self.member.applying.leadership_ended(reason)
        self.elector.stepped_down(now)

    def _recount(self, now: int) -> None:
        """A peer counts that did not: its vote may be the missing one, and what it acknowledged make a quorum."""
        self.elector.recount(now)
        self._office.unless_damaged(lambda leadership: leadership.recount(now))

    def _settle(self, now: int) -> None:
        """What may follow from any step: damage, a finished joining, a full disk just met, a transfer's next step, a
        read that waits for an entry to be committed here, whoever leads by now.

        Mostly nothing: each of the five says by one look whether it has anything to do.
        """
        if self.store.faults or self.repair.known_faults:
            self.disk.watch_damage(now)
        if self.membership.target_index is not None:
            self.membership.progress(now)
        if self.member.disk_full or self._full_disk.gave_others_a_try:
            self._full_disk.leave(now)
        if self.transfers.current is not None:
            self.handover.go_on(now)
        if self.follower_reads.asked:
            self.follower_reads.progress()

    # --- clients ------------------------------------------------------------------------------------------------
    def propose_many(self, proposals: Sequence[Proposal], now: int) -> list[Closure]:
        """Everything that arrived since the last turn, as one append; every proposal gets exactly one outcome."""
        refusal = self._write_refusal()
        if refusal is not None and refusal[0] is ResponseCode.DISK_FULL and self._full_disk.takes(proposals):
            refusal = None
        if refusal is None and self._office.leadership is not None:
            closures = self._office.leadership.propose_many(proposals, now)
            self._settle(now)
            return closures
        closures = [Closure(proposal.on_done) for proposal in proposals]
        code, detail = refusal or (ResponseCode.NOT_LEADER, "")
        for closure in closures:
            closure.refuse(code, self.leader_id, detail)
        return closures

    def open_lane(self, origin: Hashable, now: int) -> LaneOpened:
        """A lane for that connection, and the end of every earlier one (`consensus/lanes.py`)."""
        refusal = self._write_refusal()
        if refusal is not None and refusal[0] is ResponseCode.DISK_FULL and self._full_disk.keeps_reserve:
            refusal = None  # a snapshot may still be written
        return self.lanes.open(origin, self._office.leadership, refusal, now)

    def _write_refusal(self) -> tuple[ResponseCode, str] | None:
        if self._stopped or self._office.leadership is None:
            return ResponseCode.NOT_LEADER, f"{self.config.self_id} does not lead term {self.term}"
        if self.transfers.current is not None and self.transfers.pauses_writes:
            return ResponseCode.LEADER_TRANSFERRING, f"leadership moves to {self.transfers.transferee_id}"
        if self.member.disk_full:
            return ResponseCode.DISK_FULL, f"the disk of {self.config.self_id} is full"
        return None

    def propose(
        self,
        bodies: Sequence[bytes],
        now: int,
        *,
        expected_index: int | None = None,
        on_done: Callable[[Outcome], None] | None = None,
    ) -> Closure:
        """One request on its own."""
        proposal = Proposal(bodies, on_done or (lambda _outcome: None), expected_index)
        return self.propose_many([proposal], now)[0]

    def read_index(self, on_done: Callable[[ReadOutcome], None], now: int, way: ReadWay = ReadWay.USUAL) -> None:
        """From where a linearizable read may be served here; on any member (SAFETY C1)."""
        if self._office.leadership is None:
            self.follower_reads.ask(on_done, now, way)
            return
        member = self.member

        def deliver(code: ResponseCode, index: int) -> None:
            on_done(ReadOutcome(code, index, member.term, member.leader_id, "" if index >= 0 else code.name))

        self._office.leadership.read_index(deliver, now, way)
        self._settle(now)

    def transfer(
        self,
        to: str | None,
        now: int,
        *,
        on_done: Callable[[TransferOutcome], None],
        deadline_ns: int | None = None,
        if_term: int | None = None,
        reason: str = "asked for",
    ) -> None:
        """Moves leadership; `to` None picks the best peer. The outcome is always reported."""
        self.handover.ask(to, now, on_done, deadline_ns, if_term, reason)
        self._settle(now)

    def change_settings(self, wanted: ReplicaConfig, now: int) -> str | None:
        """Other settings from now on, of those that may change while a member runs; otherwise why not."""
        refused = self.settings.change(wanted, now)
        self._settle(now)
        return refused

    def change_members(self, change: MemberChange, on_done: Callable[[ChangeOutcome], None]) -> None:
        """One change of who belongs to the group; the outcome is always reported."""
        self.changes.ask(change, None if self._stopped else self._office.leadership, on_done)

    def refused_change(self, change: MemberChange) -> tuple[ResponseCode, str] | None:
        """Why that change would be refused now; None: it would be made."""
        return self.changes.refusal(change, None if self._stopped else self._office.leadership)

    # --- what the driver reports --------------------------------------------------------------------------------
    def hello(self, seq: int, to: str) -> Hello:
        """Our own, for the driver to open a connection to that peer with."""
        return self.membership.hello(seq, to=to, code=ResponseCode.SUCCESS, at_once=True)

    # --- time ---------------------------------------------------------------------------------------------------
    def tick(self, now: int) -> None:
        """Time passes."""
        if self._stopped:
            return
        self._quiet.ticked_at = now
        self.elector.tick(now)
        self.handler.tick()
        self._office.unless_damaged(lambda leadership: leadership.tick(now))
        self.repair.tick(now)
        self.transfers.tick(now)
        self.membership.tick(now)
        self.settings.tick(now)
        self.follower_reads.tick(now)
        if self.member.applying is not None:
            self.member.applying.tick(now)
            self.lost_states.tick(now)
        self._office.unless_damaged(lambda leadership: self.changes.tick(leadership, now))
        self.handover.prefer_others(now)
        if self.member.hard.group_id is None and self.transfers.current is None:
            self._office.unless_damaged(lambda leadership: self.naming.leads(leadership, now))
        self._settle(now)

    def next_deadline(self) -> int:
        """When `tick` has something to do next."""
        return self._quiet.next_deadline()

    def next_look(self, now: int) -> int:
        """The same for a driver that need not tick to count a silence that is none yet; see `quiet_ticks.py`."""
        return self._quiet.next_look(now)

    def stop(self, now: int) -> None:
        """The end of this process's part: whatever waits fails as unknown."""
        if self._stopped:
            return
        if self.member.role is Role.LEADER:
            self.member.change_role(RoleEvent.DEPOSED, now, "this member stops")
        self.follower_reads.fail_all(ResponseCode.TERM_CHANGED)
        self.transfers.abandon("this member stops", now)
        self._stopped = True
