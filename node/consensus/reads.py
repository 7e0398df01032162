"""Linearizable reads (SAFETY C1): from which index a read may be served.

Theory. A leader that heard from a quorum *after* the read arrived was still the leader then, so whatever anybody had
been answered as committed is at or below its committed index, provided an entry of its own term is committed. Frames
are numbered, so "sent after the read arrived" is "answered number > the number at arrival". With lease reads (off by
default) a recent quorum stands in for the round trip, as long as clocks drift apart by no more than a bounded share.
A read through the log rests on neither frames nor clocks: an entry that was appended after it came is committed. One
entry serves all that came before it; those that come while it is under way wait for the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from node.consensus.api import MS, ReadOutcome
from node.consensus.member_state import MemberState
from node.consensus.progress import Peers, Progress
from node.protocol.codes import ResponseCode, Role
from node.protocol.messages import ReadIndexRequest, ReadIndexResponse, ReadWay

Deliver = Callable[[ResponseCode, int], None]  # code, read index
ALWAYS = 1 << 62  # what the leader itself has "answered"
ROUNDS_KEPT = 64


@dataclass(slots=True)
class PendingRead:
    """A read at the leader that waits for its quorum."""

    after_seq: int
    deadline: int
    deliver: Deliver


class LeaderReads:
    """The leader's half; lives as long as the leadership."""

    def __init__(self, member: MemberState, peers: Peers, append: Callable[[int], None]) -> None:
        """`append` appends an entry of the leader's own, if it can."""
        self._member, self._peers, self._append = member, peers, append
        self.pending: deque[PendingRead] = deque()
        self._through_log: deque[PendingRead] = deque()  # they wait for the entry at `_entry_index` ...
        self._behind_it: deque[PendingRead] = deque()  # ... and these came later
        self._entry_index = -1
        self._round_seq = -1  # the last round of heartbeats
        self._rounds: dict[int, int] = {}  # seq -> when it was sent
        self.lease_void = False
        self.promised_until = 0  # the lease's end as others know it, and rely on: no take-leadership before (E7)

    def __len__(self) -> int:
        return len(self.pending) + len(self._through_log) + len(self._behind_it)

    def add(self, deliver: Deliver, now: int) -> bool:
        """Queues a read; True if a round of heartbeats should leave at once."""
        member = self._member
        self.pending.append(PendingRead(member.last_seq, now + member.config.timing.read_timeout_ns, deliver))
        return len(self.pending) == 1 or self._confirmed_seq() >= self._round_seq

    def add_through_log(self, deliver: Deliver, now: int) -> bool:
        """Queues a read for an entry; False where none may be appended now: it has to go another way."""
        member = self._member
        if self.lease_void or member.disk_full:  # E7: nothing is appended behind a take-leadership
            return False
        self._behind_it.append(PendingRead(-1, now + member.config.timing.read_timeout_ns, deliver))
        self._append_for_reads(now)
        return True

    def _append_for_reads(self, now: int) -> None:
        if self._behind_it and not self._through_log and not (self.lease_void or self._member.disk_full):
            self._through_log, self._behind_it = self._behind_it, self._through_log
            self._entry_index = self._member.store.end_index + 1
            self._append(now)

    def committed(self, index: int, now: int) -> None:
        """The committed index moved, to an entry of this leadership."""
        if self._through_log and index >= self._entry_index:
            done, self._through_log = self._through_log, deque()
            for read in done:
                read.deliver(ResponseCode.SUCCESS, index)
            self._append_for_reads(now)

    def round_sent(self, seq: int, now: int) -> None:
        """A heartbeat left to every peer under `seq`."""
        self._round_seq = seq
        self._rounds[seq] = now
        if len(self._rounds) > ROUNDS_KEPT:
            del self._rounds[next(iter(self._rounds))]

    def round_answered(self, peer: Progress, seq: int) -> None:
        """A peer that counts answered the heartbeat of round `seq`: it grants us a lease from when that left."""
        sent_at = self._rounds.get(seq)
        if sent_at is not None and sent_at > peer.lease_at and seq > peer.asked_before:  # by what it says now
            peer.lease_at = sent_at

    def _confirmed_seq(self) -> int:
        seqs = [peer.answered_seq if peer.counts else -1 for peer in self._peers.voters]
        return self._member.configuration.reached_by(self._member.self_id, ALWAYS, seqs)

    def drain(self, ready: bool) -> bool:
        """Delivers what a quorum confirmed, once an own entry is committed; True if the rest needs a new round."""
        if not ready or not self.pending:
            return False
        confirmed = self._confirmed_seq()
        index = self._member.committed_index
        before = len(self.pending)
        while self.pending and self.pending[0].after_seq < confirmed:
            self.pending.popleft().deliver(ResponseCode.SUCCESS, index)
        return bool(self.pending) and len(self.pending) < before

    def lease_holds(self, now: int) -> bool:
        """Whether a quorum cannot have given its vote away yet (never after a take-leadership, SAFETY E7)."""
        return self.lease_left_ns(now) > 0

    def promise_lease(self, now: int) -> int:
        """For how long others may rely on it; that cannot be taken back."""
        left_ns = self.lease_left_ns(now)
        self.promised_until = max(self.promised_until, now + left_ns)
        return left_ns

    def lease_left_ns(self, now: int) -> int:
        """For how long that is certain; 0: it is not."""
        config = self._member.config
        if not config.lease_reads or self.lease_void:
            return 0
        ends = [self._granted_until(peer) if peer.counts else -ALWAYS for peer in self._peers.voters]
        own = now + self._certain_ns(config.timing.election_min_ns)
        return max(0, self._member.configuration.reached_by(self._member.self_id, own, ends) - now)

    def _granted_until(self, peer: Progress) -> int:
        """For how long that voter keeps its vote, by what it says of its settings (E9), and no longer than we would."""
        own_ns, hello = self._member.config.timing.election_min_ns, peer.hello
        if hello is None or not hello.lease_reads:
            return -ALWAYS
        said_ns = own_ns if hello.election_min_ms is None else hello.election_min_ms * MS
        return peer.lease_at + self._certain_ns(min(own_ns, said_ns))

    def _certain_ns(self, lease_ns: int) -> int:
        """Of a lease, however far clocks drift apart."""
        return lease_ns - lease_ns // self._member.config.timing.lease_drift_divisor

    def expire(self, now: int) -> None:
        for queue in (self.pending, self._through_log, self._behind_it):
            while queue and queue[0].deadline <= now:
                queue.popleft().deliver(ResponseCode.TIMEOUT, -1)
        self._append_for_reads(now)

    def fail_all(self, code: ResponseCode) -> None:
        pending = [*self.pending, *self._through_log, *self._behind_it]
        self.pending, self._through_log, self._behind_it = deque(), deque(), deque()
        for read in pending:
            read.deliver(code, -1)

    def next_deadline(self) -> int | None:
        queues = (self.pending, self._through_log, self._behind_it)
        return min((queue[0].deadline for queue in queues if queue), default=None)


@dataclass(slots=True)
class AskedRead:
    """A read here that waits for the leader's answer, then for our own log to get there."""

    on_done: Callable[[ReadOutcome], None]
    deadline: int
    leader_id: str
    term: int
    read_index: int | None = None


class FollowerReads:
    """The follower's half: asks the leader for the index, then waits until it is committed here."""

    def __init__(self, member: MemberState) -> None:
        self._member = member
        self.asked: dict[int, AskedRead] = {}

    def __len__(self) -> int:
        return len(self.asked)

    def ask(self, on_done: Callable[[ReadOutcome], None], now: int, way: ReadWay = ReadWay.USUAL) -> None:
        """Starts one read."""
        member = self._member
        if member.role is not Role.FOLLOWER or member.leader_id is None:
            on_done(ReadOutcome(ResponseCode.NOT_LEADER, -1, member.term, None, "no leader is known here"))
            return
        seq = member.next_seq()
        deadline = now + member.config.timing.read_timeout_ns
        self.asked[seq] = AskedRead(on_done, deadline, member.leader_id, member.term)
        if way is ReadWay.USUAL:
            way = ReadWay.LEASE if member.config.lease_reads else ReadWay.INDEX
        member.send(member.leader_id, ReadIndexRequest(seq, member.term, way))

    def handle_answer(self, sender: str, answer: ReadIndexResponse) -> None:
        read = self.asked.get(answer.seq)
        if read is None or read.leader_id != sender:
            return
        if answer.code is not ResponseCode.SUCCESS:
            del self.asked[answer.seq]
            self._finish(read, ResponseCode(answer.code), -1, f"{sender} could not confirm its leadership")
            return
        read.read_index = answer.read_index
        self.progress()

    def progress(self) -> None:
        """The committed index may have moved."""
        committed = self._member.committed_index
        ready = [seq for seq, r in self.asked.items() if r.read_index is not None and r.read_index <= committed]
        for seq in ready:
            read = self.asked.pop(seq)
            assert read.read_index is not None
            self._finish(read, ResponseCode.SUCCESS, read.read_index, "")

    def tick(self, now: int) -> None:
        """Fails what took too long, and what was asked of a leader that is no more."""
        if not self.asked:
            return
        member = self._member
        for seq, read in list(self.asked.items()):
            if (read.leader_id, read.term) != (member.leader_id, member.term) and read.read_index is None:
                del self.asked[seq]
                self._finish(read, ResponseCode.TERM_CHANGED, -1, "the leader changed")
            elif now >= read.deadline:
                del self.asked[seq]
                self._finish(read, ResponseCode.TIMEOUT, -1, "no confirmation in time")

    def fail_all(self, code: ResponseCode) -> None:
        asked, self.asked = self.asked, {}
        for read in asked.values():
            self._finish(read, code, -1, "stopped")

    def _finish(self, read: AskedRead, code: ResponseCode, index: int, detail: str) -> None:
        read.on_done(ReadOutcome(code, index, self._member.term, self._member.leader_id, detail))

    def next_deadline(self) -> int | None:
        return min((read.deadline for read in self.asked.values()), default=None)
