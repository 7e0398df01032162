"""Builds what `GET members` says from a replica's status."""

from __future__ import annotations

from node.consensus.status import ReplicaStatus
from node.engine.clock import wall_text
from node.protocol.codes import Role
from node.views.base import UnknownView
from node.views.members import MembersView, MemberView, PendingView


def members_view(status: ReplicaStatus, boot_id: str) -> MembersView:
    """The configuration in effect at this member."""
    configuration = status.configuration
    named = configuration.named
    marks = {one.id: one for one in status.watermarks}
    items = []
    for peer in status.peers:
        mark = marks.get(peer.id)
        items.append(
            MemberView(
                id=peer.id,
                address=peer.address,
                kind="voter" if peer.is_voter else "learner",
                joined_index=configuration.joined[peer.id],
                connected=peer.connected,
                promoting=peer.id in named.promoting,
                replaces=named.replacing.get(peer.id),
                lag_entries=None if mark is None else mark.lag_entries,
                lag_bytes=None if mark is None else mark.lag_bytes,
            )
        )
    leads = status.role is Role.LEADER
    committed = configuration.index <= status.log.committed_index
    return MembersView(
        as_of=wall_text(),
        engine="ok",
        boot_id=boot_id,
        term=status.term,
        leader_id=status.leader_id,
        index=configuration.index,
        needed=configuration.majority,
        items=tuple(items),
        pending=None if committed else PendingView(index=configuration.index),
        removed=tuple(named.removed),
        unknown=() if leads else (UnknownView(field="lag_entries", reason="only the leader knows", since=None),),
    )
