"""Builds what `GET members` says from a replica's status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from node.consensus.status import ReplicaStatus, WatermarkStatus
from node.engine.clock import wall_text
from node.protocol.codes import Role
from node.views.base import UnknownView
from node.views.members import MembersView, MemberView, PendingView

LEADERS_ONLY: Final = ("lag_entries", "lag_bytes", "caught_up", "catch_up_s_at_most")
NOT_HERE: Final = "only the leader knows"


def members_view(
    status: ReplicaStatus, boot_id: str, *, size_bytes: int | None = None, bytes_per_s: int = 0
) -> MembersView:
    """The configuration in effect at this member. `size_bytes`: of the whole log here; `bytes_per_s`: so fast a member
    is brought up at most."""
    configuration = status.configuration
    named = configuration.named
    marks = {one.id: one for one in status.watermarks}
    items = []
    for peer in status.peers:
        mark = marks.get(peer.id)
        lag_bytes = _lag_bytes(status, mark, size_bytes)
        items.append(
            MemberView(
                id=peer.id,
                address=peer.address,
                kind="voter" if peer.is_voter else "learner",
                joined_index=configuration.joined[peer.id],
                voter_index=configuration.voting.get(peer.id),
                connected=peer.connected,
                promoting=peer.id in named.promoting,
                replaces=named.replacing.get(peer.id),
                lag_entries=None if mark is None else mark.lag_entries,
                lag_bytes=lag_bytes,
                caught_up=None if mark is None or mark.lag_entries is None else mark.lag_entries == 0,
                catch_up_s_at_most=None if lag_bytes is None or not bytes_per_s else round(lag_bytes / bytes_per_s, 1),
            )
        )
    leads = status.role is Role.LEADER
    committed = configuration.index <= status.log.committed_index
    of_leader = LEADERS_ONLY if committed else (*LEADERS_ONLY, "pending.waits_for", "pending.needed")
    return MembersView(
        as_of=wall_text(),
        engine="ok",
        boot_id=boot_id,
        term=status.term,
        leader_id=status.leader_id,
        index=configuration.index,
        needed=configuration.majority,
        items=tuple(items),
        pending=None if committed else _pending(status, marks, leads=leads),
        removed=tuple(named.removed),
        ended=named.ended,
        unknown=_unheard(items)
        if leads
        else tuple(UnknownView(field=one, reason=NOT_HERE, since=None) for one in of_leader),
    )


def _unheard(items: Sequence[MemberView]) -> tuple[UnknownView, ...]:
    silent = [one.id for one in items if one.lag_entries is None]
    return tuple(
        UnknownView(field=f"items.{one}.lag_entries", reason=f"{one} has not answered yet", since=None)
        for one in silent
    )


def _lag_bytes(status: ReplicaStatus, mark: WatermarkStatus | None, size_bytes: int | None) -> int | None:
    """As positions say; else as much of the log as of its entries, which is no more than that where they are alike."""
    if mark is None or mark.lag_bytes is not None:
        return None if mark is None else mark.lag_bytes
    log = status.log
    lag = log.end_index - mark.match_index if mark.lag_entries is None else mark.lag_entries
    entries = log.end_index - log.begin_index + 1
    return None if size_bytes is None or entries <= 0 else size_bytes * min(max(lag, 0), entries) // entries


def _pending(status: ReplicaStatus, marks: Mapping[str, WatermarkStatus], *, leads: bool) -> PendingView:
    """Whom the newest configuration waits for: voters that are not known to hold its entry safely."""
    configuration = status.configuration
    if not leads:
        return PendingView(index=configuration.index)
    holding = [
        one for one in configuration.voters if one in marks and marks[one].watermark_index >= configuration.index
    ]
    waits_for = tuple(sorted(configuration.voters.keys() - set(holding)))
    return PendingView(
        index=configuration.index, waits_for=waits_for, needed=configuration.still_needed(len(holding))
    )  # fmt: skip
