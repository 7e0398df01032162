"""The follower's side of a snapshot that comes in pieces: put together, checked, and only then installed.

Theory. As with a base alone (`base_install.py`), but the state up to that entry comes along: the driver puts its pieces
together beside the log, which stays as it is and in use until all of it is there and matches its checksum. Then the log
begins behind it by the same order, with which the snapshot becomes one of this store's; the state machine loads it, and
says where it stands.

Invariants: whatever comes is judged as an order to begin behind that entry, before it is written and again before it is
obeyed, so nothing goes over newer state; one piece is with the driver at a time; what ends under another leader, or in
another connection of its, orders nothing. Where only the state is lost, and the log holds that entry, the log stays
(`lost_states.py`).
"""

from __future__ import annotations

import json

from node.consensus.base_install import HELD, BaseInstall
from node.consensus.effects import TakePart
from node.consensus.member_state import MemberState
from node.protocol.codes import ResponseCode
from node.protocol.messages import SnapshotPart
from node.snapshots.directory import SnapshotMeta
from node.snapshots.transfer import Taken


def meta_of(part: SnapshotPart) -> SnapshotMeta:
    """The snapshot of which that is a piece."""
    more = json.loads(part.more)
    return SnapshotMeta(
        part.base_index, part.base_term, part.base_chain, part.base_pos, part.total_bytes, part.data_crc, more
    )


class SnapshotInstall:
    """One per replica."""

    def __init__(self, member: MemberState, base: BaseInstall) -> None:
        self._member, self._base = member, base
        self._with_driver: TakePart | None = None

    def take(self, part: SnapshotPart, now: int) -> ResponseCode | None:
        """What to answer; None: once the driver has it. Raises ColdEntry: asked again later."""
        if self._member.applying is None:
            return ResponseCode.UNSUPPORTED
        refused = self._base.refusal(part, now)
        keeps = refused is HELD and self._brings_lost_state(part)
        if refused is not None and not keeps:
            return refused.code
        if self._with_driver is not None:
            return ResponseCode.PUSH_REQUEST_IS_FULL
        self._with_driver = TakePart(part, keeps)
        self._member.effects.snapshots.append(self._with_driver)
        return None

    def _brings_lost_state(self, part: SnapshotPart) -> bool:
        """Whether the log is to stay as it is, and the state up to that entry of it is what is missing here."""
        applying = self._member.applying
        return applying is not None and 0 <= applying.needs_state_from <= part.base_index

    def taken(self, part: SnapshotPart, taken: Taken | None, now: int, *, follows: bool) -> ResponseCode | None:
        """The driver has it, or (None) no room for it: what to answer, if somebody still waits. Raises ColdEntry.

        `follows`: this member still follows whoever sent it, as it did then.
        """
        order = self._with_driver
        if order is None or part is not order.part:
            return None
        self._with_driver = None
        if order.keeps and taken is not None and taken.is_whole and self._member.applying is not None:
            self._member.applying.log_replaced(now)  # whoever it came from: it lies among this store's
        if not follows:
            return None
        if taken is None:
            return ResponseCode.DISK_FULL
        if taken.error:
            self._member.event("snapshot_refused", now, "warning", leader=part.leader_id, text=taken.error)
            return ResponseCode.INSTALL_SNAPSHOT_ERROR
        if taken.is_whole and not order.keeps and self._member.truncating_from is None:
            refused = self._base.refusal(part, now)
            if refused is not None:
                return refused.code
            self._base.begin(part, now)
        return ResponseCode.SUCCESS
