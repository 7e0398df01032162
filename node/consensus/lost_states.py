"""A state machine's state that is lost where the own log begins behind it: who sends another one (M6).

Theory. A log that was trimmed begins behind a snapshot. Where that one rots the entries up to it are nowhere here, so
the state machine can be fed nothing, while the log itself, and with it the vote, is as sound as ever. So such a member
says with its answers to heartbeats from which entry on it needs a state, and its leader sends it a snapshot beside the
entries, piece by piece as to a member whose log begins anew. A leader whose own state is lost serves nobody: it hands
over to a member that does not say so. Where nothing is committed, because a peer that it has no snapshot for is needed
for a quorum, it cannot hand over either (E7): it steps down, and whoever is elected has a snapshot to send.

Invariants: nothing of the log changes on either side; one snapshot is under way in a leadership (`SnapshotWay`); what
an earlier connection or leadership was about is void.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from node.consensus.api import SECOND, TransferOutcome
from node.consensus.effects import OpenSnapshot, ReadSnapshot
from node.consensus.handover import Handover
from node.consensus.leadership import Leadership
from node.consensus.leadership_transfer import LeadershipTransfer
from node.consensus.member_state import MemberState
from node.consensus.office import Office
from node.consensus.progress import Peers, Progress
from node.consensus.push_window import CatchUpQuota
from node.consensus.roles import RoleEvent
from node.consensus.snapshot_giving import SnapshotGiving
from node.protocol.codes import ResponseCode
from node.protocol.messages import HeartBeatResponse, PushResponse
from node.snapshots.directory import SnapshotMeta
from node.store.errors import ColdEntry


@dataclass(slots=True)
class OnItsWay:
    """One snapshot, to one peer, in one connection and leadership."""

    giving: SnapshotGiving
    leadership: Leadership
    dispatch_epoch: int
    asked_seq: int | None = None
    asked_at: int = 0
    retry_at: int = 0


class LostStates:
    """One per replica."""

    def __init__(
        self, member: MemberState, peers: Peers, office: Office, handover: Handover, transfers: LeadershipTransfer
    ) -> None:
        self._member, self._peers, self._office = member, peers, office
        self._handover, self._transfers = handover, transfers
        self._to: dict[str, OnItsWay] = {}
        self._hand_over_at = 0
        self._stuck_at: int | None = None  # the committed index under which handing over failed

    # --- the leader's side --------------------------------------------------------------------------------------
    def beat_answered(self, sender: str, answer: HeartBeatResponse, now: int) -> None:
        """A peer says from which entry on it needs a state, or that it needs none."""
        leadership, peer = self._office.leadership, self._peers.of.get(sender)
        if leadership is None or peer is None or answer.term != self._member.term or not self._member.config.applies:
            return
        if answer.code is not ResponseCode.SUCCESS:
            return
        peer.needs_state_from = answer.needs_state_from
        if peer.needs_state_from < 0:
            self._drop(sender)
        elif self._valid(sender, leadership, peer) is None and not peer.installing:
            giving = SnapshotGiving(self._member, peer, leadership.way, CatchUpQuota(self._member.config))
            if not giving.obstacle:
                giving.least_index = peer.needs_state_from
                self._to[sender] = OnItsWay(giving, leadership, peer.dispatch_epoch)
                self._pump(sender, now)

    def _valid(self, peer_id: str, leadership: Leadership, peer: Progress) -> OnItsWay | None:
        """What is under way to it, unless it is void by now."""
        one = self._to.get(peer_id)
        if one is None:
            return None
        same = one.leadership is leadership and one.dispatch_epoch == peer.dispatch_epoch
        if not same or peer.installing or not peer.connected:
            self._drop(peer_id)
            return None
        return one

    def _drop(self, peer_id: str) -> None:
        one, peer = self._to.pop(peer_id, None), self._peers.of.get(peer_id)
        if one is not None and (peer is None or not peer.installing):  # else its dispatcher has the way
            one.giving.stop()

    def _present(self, peer_id: str) -> OnItsWay | None:
        leadership, peer = self._office.leadership, self._peers.of.get(peer_id)
        if leadership is None or peer is None:
            self._drop(peer_id)
            return None
        return self._valid(peer_id, leadership, peer)

    def _pump(self, peer_id: str, now: int) -> None:
        one = self._present(peer_id)
        if one is None or now < one.retry_at:
            return
        timing = self._member.config.timing
        if one.asked_seq is not None and now < one.asked_at + timing.push_timeout_ns + one.giving.patience_ns:
            return
        with suppress(ColdEntry):  # it is looked up, and asked again with the next tick
            one.asked_seq, one.asked_at = one.giving.send(now), now

    def answered(self, sender: str, answer: PushResponse, now: int) -> None:
        """A peer has another piece; answers to anything else are others' affair."""
        one = self._present(sender) if sender in self._to else None
        if one is None or answer.seq != one.asked_seq or answer.term != self._member.term:
            return
        wait_ns = one.giving.went_on(answer, now)
        one.asked_seq = None
        one.retry_at = now + (SECOND if wait_ns is None else wait_ns)
        if wait_ns is None:
            one.giving.stop()  # another peer's turn
        self._pump(sender, now)

    def opened(self, order: OpenSnapshot, meta: SnapshotMeta | None, why: str, now: int) -> None:
        """See `DiskReports.snapshot_opened`."""
        one = self._present(order.peer_id)
        if one is not None and one.giving.opened(order, meta, why, now):
            self._pump(order.peer_id, now)

    def read(self, order: ReadSnapshot, piece: bytes | None, now: int) -> None:
        """See `DiskReports.snapshot_read`."""
        one = self._present(order.peer_id)
        if one is not None and one.giving.read(order, piece, now):
            self._pump(order.peer_id, now)

    @property
    def under_way(self) -> bool:
        """Whether a state is on its way to a peer, or this member's own is lost."""
        applying = self._member.applying
        return bool(self._to) or (applying is not None and applying.needs_state_from >= 0)

    def tick(self, now: int) -> None:
        for peer_id in list(self._to):
            self._pump(peer_id, now)
        self._leave(now)

    def _leave(self, now: int) -> None:
        """This member leads, and its own state is lost."""
        member, applying = self._member, self._member.applying
        stuck_at, self._stuck_at = self._stuck_at, None
        if applying is None or applying.needs_state_from < 0 or self._office.leadership is None:
            return
        if (
            stuck_at is not None
            and now >= self._hand_over_at
            and stuck_at == member.committed_index < member.store.end_index
        ):
            text = "its state machine's state is lost, and nothing is committed while it leads"
            member.change_role(RoleEvent.DEPOSED, now, text)
            return
        if now < self._hand_over_at or self._transfers.transferee_id is not None:
            return
        best = self._handover.transferees.best()
        if best is not None:
            self._hand_over_at = now + member.config.timing.transfer_deadline_ns
            ended = partial(self._handed_over, member.committed_index)
            self._handover.ask(best, now, ended, reason="its state machine's state is lost")

    def _handed_over(self, committed_index: int, outcome: TransferOutcome) -> None:
        """Or not; then the next tick judges whether it was for want of commits."""
        if outcome.code is not ResponseCode.SUCCESS:
            self._stuck_at = committed_index
