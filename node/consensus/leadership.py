"""One leadership, from the election to the step-down: dispatchers, closures, heartbeats, commit.

Built when a quorum elected us, thrown away when we step down, so that nothing of one term can leak into another.

Invariants: an entry of the own term (a NOOP) is the first thing appended; the committed index moves only by
`committable` over the voters' watermarks (SAFETY R3); without a quorum of answers for an election time-out, counted in
ticks, the leadership ends (E6). Slabs go to the followers before the leader's own sync.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from node.consensus.admission import Admission
from node.consensus.api import MS, Proposal
from node.consensus.applying import wait_for_result
from node.consensus.closures import Closure, ClosureTable
from node.consensus.contradictions import two_leaders
from node.consensus.effects import new_send
from node.consensus.entry_dispatcher import EntryDispatcher
from node.consensus.lanes import Accepted, Lanes, Refusal, not_written, refuse_all, runs_of
from node.consensus.leader_marks import LeaderMarks
from node.consensus.member_state import MemberState
from node.consensus.membership import Membership
from node.consensus.own_entries import OwnEntry, config_change, first_of_term
from node.consensus.progress import Peers, Progress
from node.consensus.proposal_checks import ProposalChecks
from node.consensus.push_window import InFlight
from node.consensus.quorum_ack_checker import committable
from node.consensus.quorum_contact import QuorumContact
from node.consensus.reads import LeaderReads
from node.consensus.roles import RoleEvent
from node.consensus.snapshot_giving import SnapshotWay
from node.protocol.codes import ResponseCode
from node.protocol.entry import EntryError, Magic, Slab
from node.protocol.group_kind import NO_PATCH
from node.protocol.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
    PushRequest,
    PushResponse,
    ReadIndexRequest,
    ReadIndexResponse,
    ReadWay,
)
from node.protocol.packed_bodies import gather
from node.store.errors import StoreFull

FULL = ResponseCode.LEADER_PENDING_FULL
REFUSES_US = frozenset({
    ResponseCode.NOT_FOLLOWER, ResponseCode.INCONSISTENT_LEADER, ResponseCode.UNKNOWN_MEMBER,
    ResponseCode.UNEXPECTED_MEMBER,
})  # fmt: skip


class Leadership:
    """See the module's docstring."""

    def __init__(self, member: MemberState, membership: Membership, peers: Peers, lanes: Lanes, now: int) -> None:
        self._member, self._membership, self._peers = member, membership, peers
        self.term = member.term
        self.own_term_from = member.store.end_index + 1
        self.closures = ClosureTable(member.config, member.term)
        self.admission = Admission(member.config)
        self.checks = ProposalChecks(member, lanes)
        self.reads = LeaderReads(member, peers, partial(self.append_noop, again=True))
        epoch = peers.last_epoch + 1  # one for all, so that peers in step can be sent one and the same message
        self.marks, self.way = LeaderMarks(member, peers, membership.records), SnapshotWay()
        self.dispatchers = {one: EntryDispatcher(member, peer, epoch, now, self.way) for one, peer in peers.of.items()}
        self.contact = QuorumContact(member, peers, now)
        self.beat_at = now
        # When each recent slab was appended, for lag in milliseconds: (last index, at).
        self.appended_at: list[tuple[int, int]] = []

    def begin(self, now: int) -> None:
        """Heartbeats, COMPARE to every connected peer, and the NOOP that commits earlier terms (R3)."""
        self.beat(now)
        for dispatcher in self.dispatchers.values():
            dispatcher.pump(now)
        self.append_noop(now)

    def append_noop(self, now: int, *, again: bool = False) -> None:
        """The first entry of the own term, unless it is there already; a full disk has to wait for space.

        `again`: another one, by which a leader that nobody writes to finds out about its disk (S8).
        """
        if self._member.store.end_index < self.own_term_from or again:
            self._append_own(first_of_term(self._member.config.kind, self._member.last_time), now)

    def append_config_change(self, body: bytes, now: int, written: Callable[[], None] | None = None) -> bool:
        """An entry about the group itself; False where there is no space for it. `written`: called once it is in the
        log and sent, and before it can be committed (M1)."""
        return self._append_own(config_change(self._member.config.kind, self._member.last_time, body), now, written)

    def _append_own(self, own: OwnEntry, now: int, written: Callable[[], None] | None = None) -> bool:
        try:
            slabs = self._write([own.body], own.magic, now, own.channel, own.patch_at)
        except StoreFull as error:
            self._member.no_space(str(error), now)
            return False
        self._replicate(slabs, now, written)
        return True

    # --- appending ----------------------------------------------------------------------------------------------
    def propose_many(self, proposals: Sequence[Proposal], now: int) -> list[Closure]:
        """One append for everything that may be appended; each request gets its own outcome."""
        member = self._member
        closures: list[Closure] = []
        accepted: list[tuple[Proposal, Closure]] = []
        batches: list[Sequence[bytes]] = []
        next_index = member.store.end_index + 1
        requests_left, entries_left, bytes_left = self.closures.room()
        unsynced = member.unsynced.total
        bytes_left = min(bytes_left, member.config.unsynced_bytes_max - unsynced)
        idle = unsynced == 0 and not self.closures.pending
        waiting_bytes = self.closures.size_bytes
        rate: int | None = None
        measured, shared, over_lane = False, bool(self._peers.voters), False
        judged_from_bytes = 0 if self.admission.promised else self.admission.floor_bytes
        for proposal in proposals:
            closure = Closure(proposal.on_done)
            closures.append(closure)
            count, size_bytes = proposal.count, proposal.size_bytes
            refusal = self.checks.refusal(proposal, count, size_bytes, next_index)
            fits = requests_left >= 1 and entries_left >= count and bytes_left >= size_bytes
            wait_ns = 0
            if proposal.lane is not None:  # never refused for load within its window
                over_lane = True
            elif refusal is None and (accepted or not idle):  # one request alone is always let in
                if not fits:
                    refusal = FULL, "too much waits for its quorum or its sync already"
                elif shared and waiting_bytes >= judged_from_bytes:
                    if not measured:
                        rate, measured = self._peers.quorum_rate(member.configuration, now), True
                        if judged_from_bytes:  # nobody holds a promise
                            judged_from_bytes = self.admission.limit_bytes(rate)
                    wait_ns = self.admission.judge(proposal.origin, size_bytes, waiting_bytes, rate, now)
                    if wait_ns:
                        refusal = FULL, f"the links of a quorum carry no more now; room in {wait_ns // MS + 1} ms"
            if refusal is not None:
                closure.refuse(refusal[0], member.self_id, refusal[1], wait_ns)
                continue
            waiting_bytes += size_bytes
            closure.first_index = next_index
            next_index += count
            closure.last_index = next_index - 1
            closure.size_bytes = size_bytes
            accepted.append((proposal, closure))
            batches.append(proposal.bodies)
            requests_left -= 1
            entries_left -= count
            bytes_left -= size_bytes
        if accepted and not over_lane:
            self._append_accepted(accepted, gather(batches), now)
        elif accepted:
            self._append_runs(accepted, now)
        return closures

    def _append_runs(self, accepted: Accepted, now: int) -> None:
        """In order, what can be written at once together; behind a run that failed nothing is appended."""
        failure: Refusal | None = None
        for run, channel, patch_at in runs_of(accepted):
            if failure is None:
                bodies = gather([proposal.bodies for proposal, _closure in run])
                failure = self._append_accepted(run, bodies, now, channel, patch_at)
            else:
                refuse_all(run, failure, self._member.self_id)

    def _append_accepted(
        self, accepted: Accepted, bodies: Sequence[bytes], now: int, channel: int = 0, patch_at: int = NO_PATCH
    ) -> Refusal | None:
        """All of them at once; why not, where nothing was appended."""
        member = self._member
        default_ns = self._member.config.timing.closure_timeout_ns
        try:
            slabs = self._write(bodies, Magic.NORMAL, now, channel, patch_at)
        except (StoreFull, EntryError) as error:
            if isinstance(error, StoreFull):
                member.no_space(str(error), now)
            return not_written(accepted, error, self.term, member.self_id)
        for proposal, closure in accepted:  # registered before anything can commit them (FORMATS 6.9)
            closure.term = self.term
            closure.created_at = now
            own_ns = 0
            if closure.size_bytes >= self.admission.judged_from_bytes:
                rate = self._peers.quorum_rate(member.configuration, now)
                own_ns = self.admission.own_time_ns(closure.size_bytes, rate)
            closure.deadline = now + own_ns + (default_ns if proposal.timeout_ns is None else proposal.timeout_ns)
            if proposal.at_apply:
                wait_for_result(member, closure)
            self.closures.add(closure)
        self._replicate(slabs, now)
        return None

    def _write(
        self, bodies: Sequence[bytes], magic: int, now: int, channel: int = 0, patch_at: int = NO_PATCH
    ) -> list[Slab]:
        member = self._member
        self._prev_term = member.store.end_term
        slabs = member.store.append_as_leader(bodies, self.term, magic, channel, patch_at)
        if member.short_of_space:
            member.wrote_while_short()
        for slab in slabs:
            member.unsynced.written(slab.last_index, len(slab.data))
        self.appended_at.append((member.store.end_index, now))
        if len(self.appended_at) > 4096:
            del self.appended_at[:2048]
        return slabs

    def _replicate(self, slabs: list[Slab], now: int, written: Callable[[], None] | None = None) -> None:
        """The hot path: slabs just appended go out as they are, before the leader's own sync.

        Peers in step get one and the same message, so that the driver encodes it once.
        """
        prev_term, effects = self._prev_term, self._member.append_effects()
        for slab in slabs:
            push: PushRequest | None = None
            carried = InFlight(slab.first_index, slab.last_index, len(slab.data), now)
            for dispatcher in self.dispatchers.values():
                if dispatcher.takes_new(slab, now):
                    peer = dispatcher.peer
                    if push is None or push.dispatch_epoch != peer.dispatch_epoch:
                        push = dispatcher.append_of(slab, prev_term)
                    effects.sends.append(new_send((peer.peer_id, push)))
                    peer.sent(push.seq, carried, push.commit_index)
            prev_term = slab.last_term
        effects.sync_wanted = True
        if written is not None:
            written()
        if not self._peers.voters:  # with other voters, what is new here is nobody else's yet: no quorum can hold it
            self.advance_commit(now)

    # --- commit -------------------------------------------------------------------------------------------------
    def advance_commit(self, now: int) -> None:
        """Commits what a quorum holds, and whatever waited for it."""
        member = self._member
        marks = [peer.watermark_index if peer.counts else -1 for peer in self._peers.voters]
        index = member.configuration.reached_by(member.self_id, member.own_watermark(), marks)
        if not committable(index, member.committed_index, self.own_term_from) or not member.advance_commit(index, now):
            return
        self.closures.commit(index, member.self_id, now)
        self.reads.committed(index, now)
        self._drain_reads(now)

    def recount(self, now: int) -> None:
        """A peer counts that did not: what it acknowledged may make a quorum."""
        self.advance_commit(now)
        self._drain_reads(now)

    @property
    def own_entry_committed(self) -> bool:
        return self._member.committed_index >= self.own_term_from

    # --- answers ------------------------------------------------------------------------------------------------
    def _heard(self, peer: Progress, seq: int, now: int) -> bool:
        """An answer of our term: whether it counts for check-quorum and reads (E6, R6)."""
        if not peer.counts or peer.is_paused:
            return False
        peer.answered(seq, self.contact.ticks.count, now)
        if self.reads.pending and seq >= 0:
            self._drain_reads(now)
        return True

    def handle_push_answer(self, sender: str, answer: PushResponse, now: int) -> None:
        member = self._member
        if answer.term != member.term:
            if answer.term > member.term:
                member.adopt_term(answer.term, now, f"{sender} knows term {answer.term}")
            return
        if answer.code in REFUSES_US:
            self._refused_by(sender, answer.code, now)
            return
        dispatcher = self.dispatchers[sender]
        if dispatcher.answered(answer, now) and dispatcher.peer.watermark_index > member.committed_index:
            self.advance_commit(now)  # one who only catches up with what is committed moves nothing
        # No read rests on it: it does not say whether the peer still is a voter (E8, C1).
        self._heard(dispatcher.peer, -1, now)

    def _refused_by(self, sender: str, code: ResponseCode, now: int) -> None:
        """A peer does not take us for its leader."""
        if code in (ResponseCode.NOT_FOLLOWER, ResponseCode.INCONSISTENT_LEADER):
            two_leaders(self._member, sender, now)
        else:
            self._member.alarm("peer_refuses", f"{sender} answers {code.name}", now, peer_id=sender)

    def handle_beat_answer(self, sender: str, answer: HeartBeatResponse, now: int) -> None:
        """DLedger's parse of heartbeat results."""
        member = self._member
        if answer.term > member.term:
            member.adopt_term(answer.term, now, f"{sender} knows term {answer.term}")
        elif answer.code is ResponseCode.SUCCESS and answer.term == member.term:
            peer = self._peers.of[sender]
            if peer.voter_state is not None:  # its last HELLO was not refused: a copy may not know yet what it is (E8)
                self._membership.beat_answered(sender, answer, now)
            if self._heard(peer, answer.seq, now):
                self.reads.round_answered(peer, answer.seq)
            self.dispatchers[sender].peer_end_seen(answer.end_index, now)
        elif answer.code is ResponseCode.TERM_NOT_READY:
            self._beat_one(sender, member.next_seq())
        elif answer.code is ResponseCode.INCONSISTENT_LEADER:
            member.change_role(RoleEvent.DEPOSED, now, f"{sender} follows another leader of term {member.term}")
        elif answer.code in (ResponseCode.UNKNOWN_MEMBER, ResponseCode.UNEXPECTED_MEMBER):
            member.alarm("peer_refuses", f"{sender} answers {answer.code.name}", now, peer_id=sender)

    # --- heartbeats, time -------------------------------------------------------------------------------
    def _beat_one(self, peer_id: str, seq: int) -> None:
        member = self._member
        commit = member.committed_index
        chain = member.chain_at(commit)
        held = self._peers.held_by_all(member.safe_through())
        member.send(peer_id, HeartBeatRequest(seq, member.self_id, member.term, commit, chain, self.marks.sent, held))

    def add_peer(self, peer: Progress, now: int) -> None:
        """A member came: nothing is sent before it is connected."""
        self.dispatchers[peer.peer_id] = EntryDispatcher(self._member, peer, self._peers.last_epoch + 1, now, self.way)

    def remove_peer(self, peer_id: str) -> None:
        """A member is gone: what is under way for it comes to nothing, and keeps no other from its turn."""
        self.dispatchers.pop(peer_id).giving.stop()

    def voter_came(self, peer: Progress, now: int) -> None:
        """A learner became a voter: its silence begins now, as that of all did with the leadership (E6)."""
        peer.answered_at, peer.answered_tick = now, self.contact.ticks.count

    def peer_lost(self, peer_id: str) -> None:
        """Its connection closed; what it acknowledged is remembered for its next HELLO."""
        self.marks.lost(self._peers.of[peer_id])
        self.dispatchers[peer_id].lost_now()

    def beat(self, now: int) -> None:
        """One round of heartbeats, under one number for all peers."""
        seq = self._member.next_seq()
        self.marks.renew()
        for peer_id in self.dispatchers:
            self._beat_one(peer_id, seq)
        self.reads.round_sent(seq, now)
        self.beat_at = now + self._member.config.timing.heartbeat_ns

    def tick(self, now: int) -> None:
        member = self._member
        why = self.contact.lost(now)
        if why:
            member.change_role(RoleEvent.DEPOSED, now, why, silent=self.contact.in_words(now))
            return
        if now >= self.beat_at:
            self.beat(now)
            for dispatcher in self.dispatchers.values():
                dispatcher.push_commit(now)
        for dispatcher in self.dispatchers.values():
            dispatcher.tick(now)
        self.contact.tell(now)
        self.closures.expire(now, member.self_id, lambda: self._peers.slab_time_ns(member.configuration, now))
        self.reads.expire(now)

    def next_deadline(self) -> int:
        times = [self.beat_at, self.contact.due_at]
        waits = [self.closures.next_deadline(), self.reads.next_deadline()]
        waits += [dispatcher.next_deadline() for dispatcher in self.dispatchers.values()]
        return min([*times, *(at for at in waits if at is not None)])

    # --- reads --------------------------------------------------------------------------------------------------
    def read_index(self, deliver: Callable[[ResponseCode, int], None], now: int, way: ReadWay = ReadWay.USUAL) -> None:
        """A linearizable read that arrived here."""
        if way <= ReadWay.LEASE and (self.own_entry_committed and self.reads.lease_holds(now)):
            deliver(ResponseCode.SUCCESS, self._member.committed_index)
            return
        if way is ReadWay.LOG and self.reads.add_through_log(deliver, now):
            return
        if self.reads.add(deliver, now):
            self.beat(now)
        self._drain_reads(now)

    def _drain_reads(self, now: int) -> None:
        if self.reads.drain(self.own_entry_committed):
            self.beat(now)

    def handle_read_index(self, sender: str, request: ReadIndexRequest, now: int) -> None:
        """A follower's read, or a joining member's question for its target (SAFETY C1, E8)."""
        member = self._member

        def deliver(code: ResponseCode, index: int) -> None:
            dispatcher = self.dispatchers.get(sender)  # gone, perhaps, while the read waited
            if code is ResponseCode.SUCCESS and dispatcher is not None:
                dispatcher.push_commit(now, at_once=True)
            end = member.store.end_index
            member.send(sender, ReadIndexResponse(request.seq, member.term, code, index, end))

        self.read_index(deliver, now, request.way)

    # --- end ----------------------------------------------------------------------------------------------------
    def end(self, reason: str, now: int) -> None:
        """Steps down: the fate of what waits is unknown (E6)."""
        self.closures.fail_all(ResponseCode.TERM_CHANGED, None, f"leadership of term {self.term} ended: {reason}")
        self.reads.fail_all(ResponseCode.TERM_CHANGED)
        for peer_id, peer in self._peers.of.items():
            peer.end_leadership(self._member.config, now)
            for alarm in ("diverged", "fork", "needs_snapshot", "peer_disk_full", "read_failed"):
                self._member.clear_alarm(alarm, now, peer_id=peer_id)
