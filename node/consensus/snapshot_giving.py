"""What a leader with a state machine gives a peer that needs entries which its log no longer holds: a snapshot (M6).

Theory. The state up to an entry stands for all entries up to it, so the peer's log may begin behind that entry. The
driver opens the newest snapshot from which this log goes on; it goes over in pieces, one at a time: the peer says how
far it has that very snapshot, and is given what comes next. What this side remembers is void with the connection; what
the peer has put together is not, so that a lost connection or a restart of either side costs one piece.

Invariants: one snapshot is under way in a leadership, whoever waits for another one; a piece goes where the peer said
that it ends, of the snapshot that it spoke of; whoever appends meanwhile comes first (`CatchUpQuota`).
"""

from __future__ import annotations

import json
from typing import Final, Protocol

from node.consensus.api import SECOND
from node.consensus.base_giving import BaseGiving
from node.consensus.effects import OpenSnapshot, ReadSnapshot
from node.consensus.member_state import MemberState
from node.consensus.own_caps import TAKES_SNAPSHOT
from node.consensus.progress import Progress
from node.consensus.push_window import CatchUpQuota
from node.consensus.status import SnapshotStatus
from node.protocol.codes import ResponseCode
from node.protocol.entry import SLAB_BYTES_MAX
from node.protocol.messages import PushResponse, SnapshotPart
from node.snapshots.directory import SnapshotMeta

PART_BYTES: Final = SLAB_BYTES_MAX
THIN_PART_BYTES: Final = 64 * 1024  # after a time-out the way may be thin


class Giving(Protocol):
    """What a peer is given whose log is to begin anew; a dispatcher asks for it whenever something may leave."""

    index: int  # behind which entry; -1: not known yet

    @property
    def obstacle(self) -> str:
        """Why its log cannot begin anew, and what to do; nothing where it can."""
        ...

    @property
    def patience_ns(self) -> int:
        """How much longer than ever the answer to what was sent may take."""
        ...

    def send(self, now: int) -> int | None:
        """What is next; its number. None: the driver, or another peer, comes first."""
        ...

    def went_on(self, answer: PushResponse, now: int) -> int | None:
        """An answer to what was sent: for how long to wait before the next; None: a refusal, or another matter."""
        ...

    def opened(self, order: OpenSnapshot, meta: SnapshotMeta | None, why: str, now: int) -> bool:
        """See `DiskReports.snapshot_opened`; whether it is of use."""
        ...

    def read(self, order: ReadSnapshot, piece: bytes | None, now: int) -> bool:
        """See `DiskReports.snapshot_read`; whether it is of use."""
        ...

    def stop(self) -> None:
        """The peer does not need it any more, or nobody can tell how far it is."""
        ...

    def status(self) -> SnapshotStatus | None:
        """How far it is, for observers."""
        ...


class SnapshotWay:
    """One per leadership: whose turn it is."""

    __slots__ = ("holder_id",)

    def __init__(self) -> None:
        self.holder_id: str | None = None

    def take(self, peer_id: str) -> bool:
        """Whether it is that peer's turn, from now on or already."""
        if self.holder_id is None:
            self.holder_id = peer_id
        return self.holder_id == peer_id

    def release(self, peer_id: str) -> None:
        if self.holder_id == peer_id:
            self.holder_id = None


class SnapshotGiving:
    """One per peer and leadership; a `Giving`."""

    def __init__(self, member: MemberState, peer: Progress, way: SnapshotWay, quota: CatchUpQuota) -> None:
        self._member, self._peer, self._way, self._quota = member, peer, way, quota
        self.index = self.least_index = -1
        self._meta: SnapshotMeta | None = None  # of the one that is open
        self._more = ""
        self._held_bytes: int | None = None  # of it, by the peer's word; None: it has not said
        self._data: bytes | None = None  # what comes next, as read
        self._is_out = False  # that was sent, and not answered
        self._waits_for_driver = False
        self._again_at = 0  # the driver is not asked to open one before
        # What the peer got of that one did not match its checksum, or it cannot be read: once, or again.
        self._unusable_once = self._not_through = -1

    @property
    def obstacle(self) -> str:
        hello = self._peer.hello
        if hello is None or TAKES_SNAPSHOT not in hello.caps:
            return "its release takes no snapshot: upgrade it, or give it a copy of another member's directory"
        return ""

    @property
    def patience_ns(self) -> int:
        sent_bytes = len(self._data) if self._data is not None and self._is_out else 0
        return sent_bytes * SECOND // max(1, self._member.config.pending_floor_bytes)

    def stop(self) -> None:
        self._way.release(self._peer.peer_id)
        self.index, self._meta, self._held_bytes = -1, None, None
        self._data, self._is_out, self._waits_for_driver = None, False, False

    # --- what is next -------------------------------------------------------------------------------------------
    def send(self, now: int) -> int | None:
        if self._waits_for_driver or now < self._again_at:
            return None
        if not self._way.take(self._peer.peer_id):
            self._peer.last_error = f"{self._way.holder_id} is sent a snapshot first"
            return None
        if self._meta is None:
            self._open()
            return None
        if self._held_bytes is None and not self._fits(self._meta, now):
            return None
        if self._held_bytes is None or self._held_bytes >= self._meta.data_bytes:
            return self._part(self._meta, self._held_bytes or 0, b"", now)
        if self._data is None:
            self._read(self._held_bytes, now)
            return None
        if self._is_out:  # no answer came to it in time
            self._data = self._data[:THIN_PART_BYTES]
        self._is_out = True
        return self._part(self._meta, self._held_bytes, self._data, now)

    def _fits(self, meta: SnapshotMeta, now: int) -> bool:
        """Whether it goes up to an entry of this very log. Raises ColdEntry: that is looked up first."""
        held = self._member.meta(meta.index)
        if held is not None and (held.term, held.chain) == (meta.term, meta.chain):
            self._member.clear_alarm("needs_snapshot", now, peer_id=self._peer.peer_id)
            return True
        self._forget()
        self._later(f"the snapshot up to entry {meta.index} is of another history than this log", now)
        return False

    def _open(self) -> None:
        self._waits_for_driver = True
        known_from = self._member.configurations.known_from
        from_index = max(self._member.store.base.index, self._not_through + 1, known_from, self.least_index)
        order = OpenSnapshot(self._peer.peer_id, self._peer.dispatch_epoch, from_index)
        self._member.effects.snapshots.append(order)

    def _read(self, offset: int, now: int) -> None:
        self._waits_for_driver = True
        pause_ns = self._quota.ask(now) if self._quota.holds(now) else 0
        order = ReadSnapshot(self._peer.peer_id, self._peer.dispatch_epoch, offset, PART_BYTES, pause_ns)
        self._member.effects.snapshots.append(order)

    def _part(self, meta: SnapshotMeta, offset: int, data: bytes, now: int) -> int:
        member, base = self._member, self._member.store.base_on_record
        assert meta.next_pos is not None and meta.data_crc is not None
        members = member.configurations.at(meta.index) or base.members  # who belonged to the group there (M1)
        part = SnapshotPart(
            member.next_seq(), member.self_id, member.term, self._peer.dispatch_epoch, member.committed_index,
            meta.index, meta.term, meta.chain, meta.next_pos, member.hard.group_id, members, meta.data_bytes,
            meta.data_crc, self._more, offset, data,
        )  # fmt: skip
        member.send(self._peer.peer_id, part)
        self._peer.order_sent(part.commit_index, now)
        return part.seq

    # --- what the driver says -------------------------------------------------------------------------------------
    def opened(self, order: OpenSnapshot, meta: SnapshotMeta | None, why: str, now: int) -> bool:
        """The newest one, or why there is none; whether that was asked for."""
        if not self._waits_for_driver or order.dispatch_epoch != self._peer.dispatch_epoch or self._meta is not None:
            return False
        self._waits_for_driver = False
        if meta is None:
            self._later(why, now)
            return False
        self._meta, self.index, self._held_bytes = meta, meta.index, None
        self._more = json.dumps(dict(meta.more))
        return True

    def read(self, order: ReadSnapshot, piece: bytes | None, now: int) -> bool:
        """The piece that was asked for; None: it cannot be read. Whether it is of use."""
        if not self._waits_for_driver or order.dispatch_epoch != self._peer.dispatch_epoch or self._meta is None:
            return False
        self._waits_for_driver = False
        if not piece:
            self._unusable(f"the snapshot up to entry {self._meta.index} cannot be read", now)
            return False
        self._data, self._is_out = piece, False
        return True

    def _unusable(self, why: str, now: int) -> None:
        """The open one; the second time a newer one has to be saved."""
        assert self._meta is not None
        index = self._meta.index
        if self._unusable_once == index:
            self._not_through = index
        self._unusable_once = index
        self._forget()
        self._later(why, now)

    def _forget(self) -> None:
        self._meta, self.index, self._held_bytes, self._data = None, -1, None, None

    def _later(self, why: str, now: int) -> None:
        """None can be given now; another try follows."""
        peer_id = self._peer.peer_id
        self._way.release(peer_id)
        self._peer.last_error = why
        self._again_at = now + SECOND
        self._member.alarm("needs_snapshot", f"{peer_id}: {why}", now, peer_id=peer_id)

    # --- what the peer says ---------------------------------------------------------------------------------------
    def went_on(self, answer: PushResponse, now: int) -> int | None:
        meta = self._meta
        if meta is None or answer.x_term != meta.index or not 0 <= answer.x_index <= meta.data_bytes:
            return None
        if answer.code == ResponseCode.INSTALL_SNAPSHOT_ERROR:
            self._unusable(f"the snapshot up to entry {meta.index} arrived, and it is damaged", now)
            return SECOND
        if answer.code != ResponseCode.SUCCESS:
            return None
        if self._data is not None and self._is_out and answer.x_index > (self._held_bytes or 0):
            self._quota.taken(answer.x_index - (self._held_bytes or 0), now)
        asked = self._held_bytes is None
        went_on = asked or answer.x_index != self._held_bytes
        self._held_bytes = answer.x_index
        self._data, self._is_out = None, False
        self._peer.last_error = None
        timing = self._member.config.timing
        return 0 if went_on and answer.x_index < meta.data_bytes else timing.busy_retry_ns

    def status(self) -> SnapshotStatus | None:
        if self._meta is None:
            return None
        return SnapshotStatus(self._meta.index, self._held_bytes or 0, self._meta.data_bytes)


def giving_of(member: MemberState, peer: Progress, way: SnapshotWay, quota: CatchUpQuota) -> Giving:
    """What that peer would be given: its base alone would bring a state machine no state."""
    return SnapshotGiving(member, peer, way, quota) if member.config.applies else BaseGiving(member, peer)
