"""The leader's side of replication to one peer: COMPARE, TRUNCATE, APPEND, INSTALL_SNAPSHOT, and what if they fail.

Theory. A dispatcher knows nothing about its peer until a COMPARE succeeded: then `match_index` is the highest index
known to be equal, and everything above it in the peer's log is either equal too or must go. The whole state machine is
a table (`protocol/dispatcher.py`: the console draws its diagram from the same one); an unlisted pair raises. What is
known of the peer is kept in its `Progress`; here is what follows from it, and what is asked of it next.

Invariants: whatever an answer of an earlier `dispatch_epoch` says counts for nothing (SAFETY R1). Unlike in the Java
original, no index survives a change of leadership or of connection (FORMATS 6.1).
"""

from __future__ import annotations

from contextlib import suppress

from node.consensus.api import SECOND
from node.consensus.contradictions import fork_found
from node.consensus.effects import ReadSlab
from node.consensus.log_backtracking import FOR_GOOD, is_fork, next_to_compare
from node.consensus.member_state import MemberState
from node.consensus.progress import PAUSED, Progress
from node.consensus.push_window import CatchUpQuota, InFlight
from node.consensus.snapshot_giving import SnapshotWay, giving_of
from node.protocol.codes import DispatcherState, ResponseCode
from node.protocol.dispatcher import DispatcherEvent
from node.protocol.entry import Slab
from node.protocol.messages import PushKind, PushRequest, PushResponse
from node.store.errors import ColdEntry
from node.store.log_store import EntryMeta

SUCCESS = ResponseCode.SUCCESS


class EntryDispatcher:
    """One per peer and leadership."""

    def __init__(self, member: MemberState, peer: Progress, first_epoch: int, now: int, way: SnapshotWay) -> None:
        self._member, self.peer, self.peer_id = member, peer, peer.peer_id
        peer.begin_leadership(first_epoch, member.config, member.store.end_index, now)
        self.quota = CatchUpQuota(member.config)
        self._far_behind = False  # it needed what is not in memory any more, and has not reached the end since
        self._compare_index = member.store.end_index
        self._asked_seq: int | None = None  # the COMPARE, TRUNCATE or order to begin anew that is out
        self._asked_at = now
        self._retry_at: int | None = None  # nothing is sent before
        self._backoff_ns = member.config.timing.diverged_backoff_min_ns
        self._reading = False
        self.giving = giving_of(member, peer, way, self.quota)

    # --- state --------------------------------------------------------------------------------------------------
    def _step(self, event: DispatcherEvent, reason: str, now: int) -> None:
        step = self.peer.step(event, reason, now)
        if step is not None:
            was, state = step.from_state.value, step.to_state.value
            self._member.event("dispatcher", now, peer=self.peer_id, was=was, state=state, reason=reason)
        self._asked_seq = None
        self._retry_at = None
        self.peer.installing = False
        self.giving.stop()

    def _compare_anew(self, event: DispatcherEvent, reason: str, from_index: int, now: int) -> None:
        """Forgets everything about the peer's log, under a new epoch."""
        self._step(event, reason, now)
        self._reading = False
        self._compare_index = min(from_index, self._member.store.end_index)
        self.peer.compare_anew(self._compare_index)
        self.pump(now)

    def connected_now(self, end_index: int, now: int) -> None:
        """A new connection; `end_index` is what its HELLO said."""
        self.peer.ends_at(end_index)
        if end_index < self.peer.match_index:
            self._note_regression(end_index, now)
        reason = f"connected; its log ends at {end_index}"
        self._compare_anew(DispatcherEvent.RECONNECTED, reason, max(end_index, -1), now)

    def lost_now(self) -> None:
        """The connection closed: nothing is sent until there is another."""
        self.peer.disconnected()
        self._asked_seq, self._reading = None, False
        self.giving.stop()

    def peer_end_seen(self, end_index: int, now: int) -> None:
        """By a heartbeat's answer: a log that ends below what had matched was wiped."""
        if -1 <= end_index < self.peer.match_index:
            self._log_regressed(end_index, now)

    def _log_regressed(self, end_index: int, now: int) -> None:
        self.peer.ends_at(end_index)
        reason = self._note_regression(end_index, now)
        self._compare_anew(DispatcherEvent.LOG_REGRESSED, reason, end_index, now)

    def _note_regression(self, end_index: int, now: int) -> str:
        text = f"its log ends at {end_index}, it had matched up to {self.peer.match_index}"
        self._member.event("peer_log_regressed", now, "warning", peer=self.peer_id, text=text)
        return text

    def _pause(self, event: DispatcherEvent, alarm: str, reason: str, now: int) -> None:
        self._step(event, reason, now)
        self.peer.pause(reason)
        self._retry_at = now + self._backoff_ns
        self._backoff_ns = min(self._backoff_ns * 2, self._member.config.timing.diverged_backoff_max_ns)
        self._member.alarm(alarm, f"{self.peer_id}: {reason}", now, peer_id=self.peer_id)

    def _back_in_append(self, event: DispatcherEvent, reason: str, now: int) -> None:
        self._step(event, reason, now)
        self.peer.in_step()
        self._backoff_ns = self._member.config.timing.diverged_backoff_min_ns
        for alarm in ("diverged", "fork", "needs_snapshot", "peer_disk_full"):
            self._member.clear_alarm(alarm, now, peer_id=self.peer_id)

    # --- sending ------------------------------------------------------------------------------------------------
    def pump(self, now: int) -> None:
        """Sends whatever the state, the window and the quota allow; for what is cold it is called again."""
        with suppress(ColdEntry):
            self._pump(now)

    def _pump(self, now: int) -> None:
        if not self.peer.connected or (self._retry_at is not None and now < self._retry_at):
            return
        self._retry_at = None
        if self._asked_seq is not None:
            return  # its answer comes first
        match self.peer.state:
            case DispatcherState.APPEND:
                self._pump_appends(now)
            case DispatcherState.COMPARE:
                self._send_compare(now)
            case DispatcherState.TRUNCATE:
                self._send_truncate(now)
            case DispatcherState.INSTALL_SNAPSHOT if self.peer.installing:
                self._asked_seq, self._asked_at = self.giving.send(now), now
            case DispatcherState.DIVERGED | DispatcherState.INSTALL_SNAPSHOT:
                self._compare_anew(DispatcherEvent.BACKOFF_OVER, "another try", self._member.store.end_index, now)

    def _send_compare(self, now: int) -> None:
        meta = self._member.meta(self._compare_index)
        if meta is not None:
            self._ask(PushKind.COMPARE, now, prev=(meta.index, meta.term, meta.chain))
        else:
            self._below_begin(f"it needs entries from {self._compare_index + 1} on", now)

    def _send_truncate(self, now: int) -> None:
        matched = self.peer.match_index
        meta = self._member.meta(matched + 1)
        self._ask(PushKind.TRUNCATE, now, prev=(matched, meta.term if meta else -1, None), first=matched + 1)

    def _ask(self, kind: PushKind, now: int, prev: tuple[int, int, int | None], first: int = -1) -> None:
        self._asked_seq, self._asked_at = self._push(kind, now, prev, first), now

    def _push(self, kind: PushKind, now: int, prev: tuple[int, int, int | None], first: int = -1) -> int:
        member = self._member
        seq, commit = member.next_seq(), member.committed_index
        push = PushRequest(seq, kind, member.self_id, member.term, self.peer.dispatch_epoch, commit, *prev, first)
        member.send(self.peer_id, push)
        self.peer.order_sent(commit, now)
        return seq

    def takes_new(self, slab: Slab, now: int) -> bool:
        """Whether a slab just appended may leave at once; else `pump` takes it up again when answers come."""
        peer = self.peer
        ready = peer.state is DispatcherState.APPEND and peer.connected and self._retry_at is None
        if ready and peer.write_index == slab.first_index and peer.window.is_open():
            return True
        self.quota.appended(now)
        return False

    def append_of(self, slab: Slab, prev_term: int) -> PushRequest:
        """The order to append `slab`, which any peer of the same `dispatch_epoch` can be sent."""
        member, first = self._member, slab.first_index
        return PushRequest(
            member.next_seq(), PushKind.APPEND, member.self_id, member.term, self.peer.dispatch_epoch,
            member.committed_index, first - 1, prev_term, slab.prev_chain, first, slab,
        )  # fmt: skip

    def _pump_appends(self, now: int) -> None:
        store = self._member.store
        while self.peer.write_index <= store.end_index and self.peer.window.is_open() and not self._reading:
            limited = self._far_behind and self.quota.holds(now)
            slab = store.recent_slab(self.peer.write_index, self.peer.window.slab_bytes_max)
            self._far_behind = slab is None or (self._far_behind and slab.last_index < store.end_index)
            if slab is None or (limited and self._far_behind):
                self._want_read(now)
                return
            if limited:
                self.quota.bytes_per_s = 0  # in step again
            self._push_read(slab, now)

    def _push_read(self, slab: Slab, now: int) -> None:
        before = self._member.meta(slab.first_index - 1)
        if before is None:
            self._below_begin(f"it needs entry {self.peer.write_index}", now)
        else:
            carried = InFlight(slab.first_index, slab.last_index, len(slab.data), now)
            push = self.append_of(slab, before.term)
            self._member.send(self.peer_id, push)
            self.peer.sent(push.seq, carried, push.commit_index)
            self._member.known_metas.keep(EntryMeta(slab.last_index, slab.last_term, slab.last_chain))  # for the next

    def _below_begin(self, what: str, now: int) -> None:
        """It needs what this log no longer holds: it is to begin where this one begins, if it can (M6)."""
        reason, obstacle = f"{what}, this log begins at {self._member.store.begin_index}", self.giving.obstacle
        if not obstacle:
            self._step(DispatcherEvent.BELOW_BEGIN, reason, now)
            self.peer.pause(reason)
            self.peer.installing = True
            self.pump(now)
        else:
            self._pause(DispatcherEvent.BELOW_BEGIN, "needs_snapshot", f"{reason}; {obstacle}", now)

    def _base_answered(self, answer: PushResponse, now: int) -> None:
        """Asked or not: whoever holds our base durably begins there; else it is busy with it, or refuses it."""
        index, asked = self.giving.index, answer.seq == self._asked_seq
        if index >= 0 and min(answer.verified_index, answer.durable_index) >= index:
            self._compare_anew(DispatcherEvent.INSTALLED, f"its log begins behind entry {index}", index, now)
        elif asked and answer.code == ResponseCode.INCONSISTENT_STATE:
            self._fork(index, now)
        elif asked:
            self._asked_seq = None
            wait_ns = self.giving.went_on(answer, now)
            if wait_ns is None:
                self._refused(answer, f"to begin behind {index}", now)
            else:
                self._retry_at = now + wait_ns
            self.pump(now)

    def _refused(self, answer: PushResponse, what: str, now: int) -> None:
        """For good: it would lose what is committed. Or now: it is busy, full, or a frame arrived damaged."""
        if answer.code in FOR_GOOD:
            reason = f"{what} refused ({int(answer.code)}): it would have to lose committed entries"
            self._pause(DispatcherEvent.REFUSED, "diverged", reason, now)
            return
        self.peer.last_error = f"{what} answered {int(answer.code)} {answer.code.name}"
        self._retry_at = now + self._member.config.timing.busy_retry_ns
        if answer.code == ResponseCode.DISK_FULL:
            self.giving.stop()  # another peer's turn
            self._retry_at = now + SECOND
            self._member.alarm("peer_disk_full", f"{self.peer_id}: its disk is full", now, peer_id=self.peer_id)

    def _want_read(self, now: int) -> None:
        """Asks the driver to read what is not in memory any more, within the quota."""
        member = self._member
        if self.peer.write_index < member.store.begin_index:
            self._below_begin(f"it needs entry {self.peer.write_index}", now)
            return
        member.meta(self.peer.write_index - 1)  # the slab's link to what is before it
        pause_ns = 0
        if self.quota.holds(now):
            if len(self.peer.window) > 0:
                return  # its answer comes first
            pause_ns = self.quota.ask(now)
        self._reading = True
        where = self.peer_id, self.peer.dispatch_epoch, member.log_epoch, self.peer.write_index
        member.effects.reads.append(ReadSlab(*where, self.peer.window.slab_bytes_max, pause_ns))

    def slab_read(self, request: ReadSlab, slab: Slab | None, now: int) -> None:
        """The driver read it; None: the disk could not give it."""
        if request.dispatch_epoch != self.peer.dispatch_epoch or not self._reading:
            return
        self._reading = False
        if self.peer.state is not DispatcherState.APPEND:
            return
        if slab is None:
            self.peer.last_error = f"entry {request.first_index} could not be read from this disk"
            self._retry_at = now + self._member.config.timing.diverged_backoff_min_ns
            self._member.alarm("read_failed", self.peer.last_error, now, peer_id=self.peer_id)
            return
        self._member.clear_alarm("read_failed", now, peer_id=self.peer_id)
        with suppress(ColdEntry):  # it is read again, then
            if slab.first_index == self.peer.write_index:
                self._push_read(slab, now)
        self.pump(now)

    def push_commit(self, now: int, *, at_once: bool = False) -> None:
        """Tells an idle peer the committed index; its answer carries its end (a wiped one shows up by it)."""
        if self.peer.state is not DispatcherState.APPEND or not self.peer.connected or len(self.peer.window) > 0:
            return
        behind = self.peer.commit_sent < self._member.committed_index
        idle = now - self.peer.pushed_at >= SECOND
        if (behind and (at_once or now - self.peer.pushed_at >= self._member.config.timing.commit_push_ns)) or idle:
            self._push(PushKind.COMMIT, now, (-1, -1, None))

    # --- answers ------------------------------------------------------------------------------------------------
    def answered(self, answer: PushResponse, now: int) -> bool:
        """Takes an answer of this term in; True if the watermark moved."""
        peer = self.peer
        if answer.dispatch_epoch != peer.dispatch_epoch:
            return False  # it speaks of a log that may not be there any more
        peer.last_ack_at = now
        if -1 <= answer.end_index < peer.match_index:
            self._log_regressed(answer.end_index, now)
            return False
        if answer.verified_index > self._member.store.end_index:
            text = f"{self.peer_id} says it verified {answer.verified_index}, beyond this leader's end"
            self._member.alarm("bad_answer", text, now, peer_id=self.peer_id)
            return False
        before = peer.watermark_index
        if peer.installing:
            self._base_answered(answer, now)
        elif peer.state not in PAUSED:
            peer.acknowledge(answer, peer.flush(self._member.config), now)
            if peer.state is DispatcherState.APPEND:
                self._append_answered(answer, now)
            elif answer.seq == self._asked_seq:
                self._asked_seq = None
                comparing = peer.state is DispatcherState.COMPARE
                (self._compare_answered if comparing else self._truncate_answered)(answer, now)
        return peer.watermark_index > before

    def _append_answered(self, answer: PushResponse, now: int) -> None:
        peer = self.peer
        sent = peer.window.answered(answer.seq, answer.verified_index, now)
        if self._far_behind and sent is not None and answer.code is SUCCESS:
            self.quota.taken(sent.size_bytes, now)
        peer.write_index = max(peer.write_index, peer.match_index + 1)
        if answer.code is SUCCESS:
            if sent is not None and peer.window.probing:
                peer.window.probing, peer.last_error = False, None
                self._member.clear_alarm("peer_disk_full", now, peer_id=self.peer_id)
            if peer.write_index <= self._member.store.end_index or self._retry_at is not None:
                self.pump(now)
        elif sent is not None or answer.code == ResponseCode.INCONSISTENT_INDEX:
            self._append_refused(answer, sent, now)

    def _append_refused(self, answer: PushResponse, sent: InFlight | None, now: int) -> None:
        if answer.code == ResponseCode.INCONSISTENT_STATE and sent is not None:
            self.peer.last_error = f"APPEND answered {int(answer.code)} {answer.code.name}"
            if is_fork(self._member.store, answer, sent.first_index - 1):
                self._fork(sent.first_index - 1, now)
                return
            upto = sent.first_index - 1 if answer.x_term == -1 else sent.last_index
            back = max(answer.verified_index, next_to_compare(self._member.store, answer, upto + 1))
            self._compare_anew(DispatcherEvent.INCONSISTENT, f"entry {sent.first_index} did not fit", back, now)
        else:
            if answer.code not in FOR_GOOD:
                self.peer.resend()
            self._refused(answer, "APPEND", now)

    def _compare_answered(self, answer: PushResponse, now: int) -> None:
        asked = self._compare_index
        if answer.code == ResponseCode.SUCCESS:
            if answer.end_index > self.peer.match_index:
                reason = f"matches up to {self.peer.match_index}, but its log ends at {answer.end_index}"
                self._step(DispatcherEvent.MATCHED_BELOW_END, reason, now)
            else:
                self._back_in_append(DispatcherEvent.MATCHED, f"matches up to {self.peer.match_index}", now)
            self.pump(now)
        elif answer.code == ResponseCode.INCONSISTENT_STATE:
            if is_fork(self._member.store, answer, asked):
                self._fork(asked, now)
                return
            self._compare_index = next_to_compare(self._member.store, answer, asked)
            self.peer.write_index = self._compare_index + 1
            self._step(DispatcherEvent.MISMATCHED, f"no match at {asked}", now)
            self.pump(now)
        else:
            self._refused(answer, f"COMPARE at {asked}", now)

    def _fork(self, index: int, now: int) -> None:
        reason = f"entry {index} has our term but another chain: one of the two logs is damaged"
        fork_found(self._member, f"{self.peer_id}: {reason}", now, self.peer_id)
        self._pause(DispatcherEvent.REFUSED, "fork", reason, now)

    def _truncate_answered(self, answer: PushResponse, now: int) -> None:
        cut = self.peer.match_index + 1
        if answer.code == ResponseCode.SUCCESS:
            self._back_in_append(DispatcherEvent.CUT, f"nothing conflicts from {cut} on", now)
            self.pump(now)
        elif answer.code == ResponseCode.INCONSISTENT_STATE:
            reason = f"TRUNCATE from {cut} did not fit"
            self._compare_anew(DispatcherEvent.INCONSISTENT, reason, self._member.store.end_index, now)
        else:
            self._refused(answer, f"TRUNCATE from {cut}", now)

    # --- time ---------------------------------------------------------------------------------------------------
    def tick(self, now: int) -> None:
        """Resends what was not answered in time, and takes up what had to wait."""
        if not self.peer.connected:
            return
        asked_until = self._asked_until()
        if asked_until is not None and now >= asked_until:
            self._asked_seq = None
            self.peer.resends += 1
        oldest = self.peer.window.late(now)
        if oldest is not None:
            self.peer.resends += 1
            self.peer.last_error = f"no answer to entry {oldest.first_index} in time"
            self.peer.resend()
        self.pump(now)

    def next_deadline(self) -> int | None:
        if not self.peer.connected:
            return None
        waits = (self._retry_at, self._asked_until(), self.peer.window.silent_from())
        return min((at for at in waits if at is not None), default=None)

    def _asked_until(self) -> int | None:
        if self._asked_seq is None:
            return None
        return self._asked_at + self._member.config.timing.push_timeout_ns + self.giving.patience_ns
