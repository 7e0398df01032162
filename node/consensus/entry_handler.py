"""The follower's side of replication: answers COMPARE, TRUNCATE, APPEND and COMMIT of its leader.

Invariants: every push is checked for term and leader before anything else (SAFETY R4); `verified_index` only grows
while leader and term stay (R1) and is never cut below, nor is what is committed (R5); answers carry absolute
watermarks. The cut itself is the driver's: until it reports back, everything but COMMIT is answered "busy".

With flush sync nothing but a durable entry counts, so one small slab at a time is answered when a sync is done, instead
of at the write and again after the sync (`_waits_for_sync`). Whatever else is answered meanwhile says it as well, and
the next tick does at the latest: no window waits for it, and no contact rests on it.
"""

from __future__ import annotations

from typing import Final

from node.consensus.contradictions import fork_found, two_leaders
from node.consensus.cuts import order_cut
from node.consensus.damaged_entries import DamagedEntries
from node.consensus.install_orders import InstallOrders
from node.consensus.member_state import MemberState
from node.consensus.overlap import behind_base, overlap_of
from node.consensus.own_entries import may_hold_change
from node.consensus.verdict import OK, OK_ONCE_DURABLE, Verdict
from node.protocol.codes import FlushMode, ResponseCode, Role
from node.protocol.entry import INDEX_UNIT_BYTES, EntryError, Slab
from node.protocol.messages import InstallRequest, PushKind, PushRequest, PushResponse, SnapshotPart
from node.snapshots.transfer import Taken
from node.store.errors import ColdEntry, StoreCorrupt, StoreFull
from node.store.faults.ranges import fault_at, in_words
from node.store.faults.results import Fault
from node.store.log_store import EntryMeta

BUSY = ResponseCode.PUSH_REQUEST_IS_FULL
REFUSED = ResponseCode.INCONSISTENT_INDEX
ANSWERED_ONCE_BYTES_MAX: Final = 64 * 1024  # a longer slab is one of many: its answer opens a window, and is measured
NO_TERM = 0  # no entry is of this term: a leader then looks right below the index that comes with it
Order = PushRequest | InstallRequest | SnapshotPart


class EntryHandler:
    """One per replica; what belongs to one leader is forgotten when another one speaks."""

    def __init__(self, member: MemberState, damaged: DamagedEntries) -> None:
        self._member, self._damaged, self._installs = member, damaged, InstallOrders(member)
        self._leader: tuple[int, str] | None = None  # (term, leader) that the fields below belong to
        self._dispatch_epoch = -1
        self._unasked_sent_at = 0  # when we last sent the leader an answer that it had not asked for
        self._early: dict[int, PushRequest] = {}  # APPENDs that came before what they follow, by first index
        self._unanswered_seq = -1  # the APPEND whose answer waits for its sync

    # --- entrance -----------------------------------------------------------------------------------------------
    def handle(self, sender: str, push: Order, now: int) -> None:
        """Checks (R4), renews the leader's lease, then acts by kind."""
        code = self.check(sender, push, now)
        if code is not ResponseCode.SUCCESS:
            self._answer(sender, push.seq, push.dispatch_epoch, Verdict(code))
            return
        if push.dispatch_epoch < self._dispatch_epoch:
            return  # an order from before the leader's present view of us
        if push.dispatch_epoch > self._dispatch_epoch:
            self._begin_epoch(push.dispatch_epoch)
        try:
            verdict = self._act(sender, push, now)
        except ColdEntry:  # the driver looks; the leader asks again (S9)
            verdict = Verdict(BUSY)
        if verdict is not None:
            self._commit(push.commit_index, now)
            if verdict is OK_ONCE_DURABLE:
                self._unanswered_seq = push.seq
            else:
                self._answer(sender, push.seq, push.dispatch_epoch, verdict)

    def _begin_epoch(self, dispatch_epoch: int) -> None:
        """What an earlier one sent is void."""
        self._dispatch_epoch = dispatch_epoch
        self._early.clear()
        self._unanswered_seq = -1

    def check(self, sender: str, push: Order, now: int) -> ResponseCode:
        """Term and leader before anything else (R4); a higher term is adopted."""
        member, knows = self._member, self._member.configurations.knows
        if not knows(sender) or (push.leader_id != sender and not knows(push.leader_id)):
            return ResponseCode.UNKNOWN_MEMBER
        if push.leader_id == member.self_id or push.leader_id != sender:
            return ResponseCode.UNEXPECTED_MEMBER
        if push.term < member.term:
            return ResponseCode.EXPIRED_TERM
        if push.term > member.term:
            member.adopt_term(push.term, now, f"{sender} leads term {push.term}")
        if member.role is Role.LEADER:
            two_leaders(member, sender, now)
            return ResponseCode.NOT_FOLLOWER
        if member.leader_id not in (None, sender):
            two_leaders(member, sender, now)
            return ResponseCode.INCONSISTENT_LEADER
        member.follow(sender, now)
        if self._leader != (member.term, sender):
            self._leader = (member.term, sender)
            self._begin_epoch(-1)
        return ResponseCode.SUCCESS

    def _act(self, sender: str, push: Order, now: int) -> Verdict | None:
        kind = push.kind if isinstance(push, PushRequest) else None
        if kind is PushKind.COMMIT:
            return OK
        if self._member.truncating_from is not None:
            return Verdict(BUSY)
        if not isinstance(push, PushRequest):
            code = self._installs.take(push, now)
            return None if code is None else Verdict(code)
        if kind is PushKind.APPEND:
            return self._append_in_order(sender, push, now)
        return self._compare(push, now) if kind is PushKind.COMPARE else self._truncate(sender, push, now)

    def _answer(self, to: str, seq: int, epoch: int, verdict: Verdict) -> None:
        member, store = self._member, self._member.store
        if epoch == self._dispatch_epoch:
            self._unanswered_seq = -1  # watermarks are absolute: this says it as well
        faulty_from = member.faulty_from() if store.faults else -1
        member.send(
            to,
            PushResponse(
                seq, verdict.code, epoch, member.term, member.verified_index, member.durable_index, store.end_index,
                verdict.x_term, verdict.x_index, faulty_from,
            ),
        )  # fmt: skip

    def _commit(self, leader_commit: int, now: int) -> None:
        """A follower commits what its leader has, never beyond what it verified (R3)."""
        self._member.advance_commit(min(leader_commit, self._member.verified_index), now)

    def durable_moved(self) -> None:
        """A sync is done: the leader that we follow learns it, in answer to the APPEND that waited or unasked."""
        member = self._member
        following = member.role is Role.FOLLOWER and self._leader == (member.term, member.leader_id)
        if following and member.leader_id is not None and self._dispatch_epoch >= 0:
            self._answer(member.leader_id, self._unanswered_seq, self._dispatch_epoch, OK)

    @property
    def owes_answer(self) -> bool:
        """Whether an APPEND's answer waits for its sync."""
        return self._unanswered_seq >= 0

    def tick(self) -> None:
        """A sync that takes so long is not waited for: what is verified is said now, what is durable later."""
        if self._unanswered_seq >= 0:
            self.durable_moved()

    def leader_bytes(self, now: int) -> None:
        """A long frame of the leader's is on its way: once a heartbeat it learns where we stand (E6)."""
        if now - self._unasked_sent_at >= self._member.config.timing.heartbeat_ns:
            self._unasked_sent_at = now
            self.durable_moved()

    def truncated(self) -> None:
        """The cut is durable: what arrived early followed a log that is no more."""
        self._early.clear()

    def part_taken(self, part: SnapshotPart, taken: Taken | None, now: int) -> None:
        """A piece of a snapshot was put to those before; None: the disk has no room for it."""
        leader = self._member.term, self._member.leader_id
        follows = self._leader == leader == (part.term, part.leader_id) and self._dispatch_epoch == part.dispatch_epoch
        code = self._installs.taken(part, taken, now, follows=follows)
        if code is not None:
            held_bytes = -1 if taken is None else taken.held_bytes
            self._answer(part.leader_id, part.seq, part.dispatch_epoch, Verdict(code, part.base_index, held_bytes))

    # --- COMPARE ------------------------------------------------------------------------------------------------
    def _compare(self, push: PushRequest, now: int) -> Verdict:
        member, store = self._member, self._member.store
        if push.prev_index > store.end_index:
            return Verdict(ResponseCode.INCONSISTENT_STATE)
        verdict = self._match(push, now)
        if verdict is OK:
            member.note_verified(push.prev_index)
            for alarm in ("order_refused", "fork"):  # the two logs agree again: somebody settled it
                member.clear_alarm(alarm, now, peer_id=push.leader_id)
        return verdict

    def _match(self, push: PushRequest, now: int) -> Verdict:
        """Whether our entry at `prev_index` <= end is the leader's (R6, R7)."""
        member, store = self._member, self._member.store
        index = push.prev_index
        if store.faults and self._member.damaged_at(index):
            return self._match_damaged(index, push, now)
        meta = member.meta(index)
        if meta is None:  # before our own first entry: committed long ago, and not here to compare
            return Verdict(ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN)
        if meta.term != push.prev_term:
            if index <= member.committed_index:
                self._refused(
                    f"entry {index} of term {push.prev_term} asked for, ours is of term {meta.term}", push, now
                )
                return Verdict(REFUSED)
            return self._conflict_at(index, meta.term)
        if push.prev_chain is not None and meta.chain is not None and push.prev_chain != meta.chain:
            self._fork(index, push, now)
            return Verdict(ResponseCode.INCONSISTENT_STATE, meta.term, index)
        return OK

    def _match_damaged(self, index: int, push: PushRequest, now: int) -> Verdict:
        """Nobody can say that the two are equal before ours is repaired; sometimes one can say that they are not."""
        member = self._member
        lost = self._damaged.unlinkable_at(index)
        if lost is not None:  # it will never be repaired: the leader is to look right below it
            return Verdict(ResponseCode.INCONSISTENT_STATE, NO_TERM, lost.first_index)
        lowest, highest = self._damaged.term_bounds(index)
        if lowest <= push.prev_term <= highest:
            better = self._damaged.heard_of(EntryMeta(index, push.prev_term, push.prev_chain))
            return Verdict(BUSY) if better is None else Verdict(ResponseCode.INCONSISTENT_STATE, NO_TERM, better + 1)
        if index <= member.committed_index:
            text = f"entry {index} of term {push.prev_term} asked for, ours is of a term in {lowest}..{highest}"
            self._refused(text, push, now)
            return Verdict(REFUSED)
        fault = fault_at(member.store.faults, index)
        assert fault is not None
        above = max(member.committed_index, member.verified_index) + 1
        return Verdict(ResponseCode.INCONSISTENT_STATE, lowest, max(fault.first_index, above))

    def _conflict_at(self, index: int, term: int) -> Verdict:
        """Where our entries of the conflicting term begin; never at or below what is committed or verified (R6)."""
        member = self._member
        lowest = max(member.committed_index, member.verified_index) + 1
        return Verdict(ResponseCode.INCONSISTENT_STATE, term, max(member.store.term_start(index), lowest))

    def _refused(self, text: str, push: PushRequest, now: int) -> None:
        member = self._member
        full = f"{push.leader_id} (term {push.term}) was refused: {text}; committed here up to {member.committed_index}"
        member.alarm("order_refused", full, now, peer_id=push.leader_id)

    def _fork(self, index: int, push: PushRequest, now: int) -> None:
        text = f"entry {index} has the term of {push.leader_id}'s but another chain; both logs are scrubbed"
        fork_found(self._member, text, now, push.leader_id)

    # --- TRUNCATE -----------------------------------------------------------------------------------------------
    def _truncate(self, sender: str, push: PushRequest, now: int) -> Verdict:
        member, store = self._member, self._member.store
        cut = push.first_index
        if cut > store.end_index:
            return OK
        lost = self._damaged.unlinkable_at(cut)
        ours, conflict = self._conflict(cut, push)
        if conflict is None and lost is None:
            return Verdict(BUSY)
        if not conflict and lost is None:
            return OK
        if cut <= max(member.verified_index, member.committed_index):
            self._refused(f"TRUNCATE from {cut}", push, now)
            return Verdict(REFUSED)
        if cut - 1 > member.verified_index:
            return Verdict(ResponseCode.INCONSISTENT_STATE)  # no COMPARE vouches for what would stay
        try:
            member.meta(cut - 1)
        except StoreCorrupt as error:  # it rotted since: where the cut begins is known again once it is repaired
            member.note_damage(error)
            return Verdict(BUSY)
        if lost is not None and conflict is not True:
            return self._give_up(lost, cut, push, now)
        reason = f"term {ours} here, " + (f"term {push.prev_term}" if push.prev_term != -1 else "nothing") + " there"
        order_cut(member, cut, sender, f"TRUNCATE from {sender} in term {push.term}: {reason}", now)
        return Verdict(BUSY)

    def _give_up(self, fault: Fault, cut: int, push: PushRequest, now: int) -> Verdict:
        """Cuts damage that no member's entries link, though nothing proves a conflict: a torn tail, a lost history.

        What goes may have been acknowledged here, so the vote goes first, durably (E8). The leader has committed what
        it holds there without this member: the group has a quorum without its vote.
        """
        if push.commit_index < cut:
            return Verdict(BUSY)
        member = self._member
        what = f"{in_words([fault])} cannot be linked by any member's entries"
        member.on_rejoin(f"{what}; everything from there on is given up", now)
        order_cut(member, cut, push.leader_id, f"{what}: given up under {push.leader_id} in term {push.term}", now)
        return Verdict(BUSY)

    def _conflict(self, cut: int, push: PushRequest) -> tuple[int, bool | None]:
        """Our term at the cut, and whether the leader's log conflicts there (R5); None: damage hides which it is.

        A cut through damage is right where even the highest term that the entry can have conflicts, and never where it
        may be the leader's own: that entry may be committed, and counts in our votes.
        """
        if not self._member.damaged_at(cut):
            meta = self._member.meta(cut)
            if meta is None:
                return -1, True
            return meta.term, meta.term != push.prev_term if push.prev_term != -1 else meta.term < push.term
        lowest, highest = self._damaged.term_bounds(cut)
        if push.prev_term == -1:
            sure = highest < push.term or lowest >= push.term
            return highest, highest < push.term if sure else None
        if not lowest <= push.prev_term <= highest:
            return highest, True
        return highest, False if lowest == highest else None

    # --- APPEND -------------------------------------------------------------------------------------------------
    def _append_in_order(self, sender: str, push: PushRequest, now: int) -> Verdict | None:
        """Appends, or keeps what came early; None: the answer comes later."""
        slab = push.slab
        if slab is None or slab.first_index != push.prev_index + 1 or push.prev_index < -1:
            return Verdict(ResponseCode.UNEXPECTED_ARGUMENT)
        if slab.count < 1 or len(slab.index_records) != slab.count * INDEX_UNIT_BYTES:
            return Verdict(ResponseCode.UNEXPECTED_ARGUMENT)
        if push.prev_index > self._member.store.end_index:
            return self._keep_early(push, slab)
        verdict = self._append(push, slab, now)
        if self._early and verdict in (OK, OK_ONCE_DURABLE):
            self._commit(push.commit_index, now)
            self._answer(sender, push.seq, push.dispatch_epoch, verdict)
            self._drain_early(sender, now)
            return None
        return verdict

    def _keep_early(self, push: PushRequest, slab: Slab) -> Verdict | None:
        if slab.first_index in self._early:
            return Verdict(ResponseCode.REPEATED_PUSH)
        if len(self._early) >= self._member.config.push_window_slabs:
            return Verdict(ResponseCode.INCONSISTENT_STATE)
        self._early[slab.first_index] = push
        return None

    def _drain_early(self, sender: str, now: int) -> None:
        """The gap is closed: what waited behind it, in order, each with its own answer."""
        store = self._member.store
        while True:
            ready = [first for first in self._early if first <= store.end_index + 1]
            if not ready:
                return
            push = self._early.pop(min(ready))
            assert push.slab is not None
            try:
                verdict = self._append(push, push.slab, now)
            except ColdEntry:
                verdict = Verdict(BUSY)
            self._commit(push.commit_index, now)
            self._answer(sender, push.seq, push.dispatch_epoch, verdict)

    def _append(self, push: PushRequest, slab: Slab, now: int) -> Verdict:
        """A slab that starts at or before our end."""
        member, store = self._member, self._member.store
        try:
            if push.prev_index < store.base.index:  # our front went while this was on its way
                if slab.last_index <= max(store.base.index, member.committed_index):
                    known = slab.last_index <= member.verified_index
                    return OK if known else Verdict(ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN)
                push, slab = behind_base(push, slab, store.base.index)
            verdict = self._match(push, now)
            if verdict is not OK:
                return verdict
            if push.prev_index > member.verified_index:
                member.note_verified(push.prev_index)
            if slab.first_index <= store.end_index:
                rest, verdict = self._beyond_overlap(slab, push, now)
                if rest is None:
                    return verdict
                slab = rest
            if member.unsynced.total > member.config.unsynced_bytes_max:
                member.effects.sync_wanted = True
                return Verdict(BUSY)
            changes = may_hold_change(member.config.kind, slab)
            if (changes or member.hard.group_id is None) and not member.may_append(slab):
                return Verdict(BUSY)  # what it says of the group is written down before it is in the log (C9, M1)
            store.append_slab(slab)
        except EntryError as error:
            member.event("bad_push", now, "warning", leader=push.leader_id, text=str(error))
            return Verdict(ResponseCode.UNEXPECTED_ARGUMENT)
        except StoreFull as error:
            member.no_space(str(error), now)
            return Verdict(ResponseCode.DISK_FULL)
        member.appended(len(slab.data))
        if changes:
            member.on_members(slab, now)
        return OK_ONCE_DURABLE if self._waits_for_sync(push, slab) else OK

    def _waits_for_sync(self, push: PushRequest, slab: Slab) -> bool:
        """Whether the next sync that ends says it: that under way, or else the one that begins with this batch.

        One slab at a time: what comes while another one waits is answered at the write, and says that one as well, for
        who sends so much lives by its window. So does a plain DLedger leader (no chain), which counts answers, one a
        push.
        """
        config = self._member.config
        if config.flush is not FlushMode.SYNC or config.push_window_slabs == 1:
            return False
        alone = self._unanswered_seq < 0 and not self._member.store.faults
        return alone and len(slab.data) <= ANSWERED_ONCE_BYTES_MAX and push.prev_chain is not None

    def _beyond_overlap(self, slab: Slab, push: PushRequest, now: int) -> tuple[Slab | None, Verdict]:
        """What of the slab is beyond our end, once the part that we hold proved equal; it extends `verified`."""
        member = self._member
        found = overlap_of(slab, member.store.end_index, member.damaged_at, member.meta)
        if found.equal_upto >= slab.first_index:
            member.note_verified(found.equal_upto)
        if found.differs is None:
            return found.rest, OK
        index, ours, other_term = found.differs
        if other_term:
            return None, self._conflict_at(index, -1 if ours is None else ours.term)
        self._fork(index, push, now)
        return None, Verdict(ResponseCode.INTERNAL_ERROR)
