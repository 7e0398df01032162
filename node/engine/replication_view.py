"""What a leader knows of its peers and does for them, as the views of `GET watermarks` and `GET dispatchers`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from node.consensus.status import DispatcherStatus, PeerStatus, SnapshotStatus, WatermarkStatus
from node.views.base import TEXT_MAX, UnknownView
from node.views.replication import DispatcherView, QuotaView, SnapshotSentView, TransitionView, WatermarkView


def shown(text: str) -> str:
    """A text that may have come from anywhere, as a view can hold it."""
    return text[:TEXT_MAX].encode("utf-8", "replace").decode()


def watermark(mark: WatermarkStatus) -> WatermarkView:
    """How far one member is."""
    return WatermarkView(
        id=mark.id,
        counts=mark.counts,
        match_index=mark.match_index,
        write_index=mark.write_index,
        durable_index=mark.durable_index,
        watermark_index=mark.watermark_index,
        lag_entries=mark.lag_entries,
        lag_bytes=mark.lag_bytes,
        lag_ms=mark.lag_ms,
        last_ack_ms=mark.last_ack_ms,
        faulty_from_index=mark.faulty_from_index,
    )


ONLY_A_LEADER_TIMES: Final = "only a leader sends heartbeats, by which links are timed"
# What is null of a member's marks where it is not known.
MEASURED: Final = ("durable_index", "lag_entries", "lag_bytes", "lag_ms", "last_ack_ms")


def unknown_of(mark: WatermarkStatus) -> Iterator[UnknownView]:
    """Each mark of a member that the leader does not know, and why."""
    for name in MEASURED:
        if getattr(mark, name) is None:
            yield UnknownView(field=f"peers.{mark.id}.{name}", reason=why_unknown(mark, name), since=None)


def unknown_of_peer(peer: PeerStatus, *, own: bool, leads: bool) -> Iterator[UnknownView]:
    """What this member does not know of a peer and of the links with it, and why. Its own control plane it knows."""
    values = {"voter_state": peer.voter_state, "store_id": peer.store_id}
    if not own:
        values["control_url"] = peer.api_url
    for name, value in values.items():
        if value is None:
            yield UnknownView(field=f"peers.{peer.id}.{name}", reason=f"{peer.id} has not said it", since=None)
    if peer.link is not None and peer.link.heard_at_ns is None:
        reason = f"{peer.id} has not been heard since this member started"
        yield UnknownView(field=f"links.{peer.id}.last_heard_ms", reason=reason, since=None)
    if peer.link is not None and peer.link.rtt_ns is None:
        reason = f"no heartbeat to {peer.id} was timed since it was connected" if leads else ONLY_A_LEADER_TIMES
        yield UnknownView(field=f"links.{peer.id}.rtt_ms", reason=reason, since=None)


def why_unknown(mark: WatermarkStatus, name: str) -> str:
    if mark.last_ack_ms is None:
        return f"{mark.id} has not answered yet"
    if name == "durable_index":
        return f"{mark.id} has not said it"
    if mark.lag_entries is None:
        return f"nothing is vouched for of {mark.id} at the moment"
    if name == "lag_bytes":
        return f"what {mark.id} lacks is not all in memory"
    return f"what {mark.id} lacks is older than what is timed"


def dispatcher(one: DispatcherStatus, wall: Callable[[int], str]) -> DispatcherView:
    """What the leader does for one peer."""
    return DispatcherView(
        peer_id=one.peer_id,
        state=one.state.value,
        since=wall(one.since_at_ns),
        dispatch_epoch=one.dispatch_epoch,
        in_flight=one.in_flight,
        in_flight_bytes=one.in_flight_bytes,
        write_index=one.write_index,
        match_index=one.match_index,
        resends=one.resends,
        quota=QuotaView(bytes_per_s=one.quota_bytes_per_s, capacity_bytes_per_s=one.capacity_bytes_per_s),
        last_error=None if one.last_error is None else shown(one.last_error),
        transitions=tuple(
            TransitionView(
                at=wall(step.at_ns),
                from_state=step.from_state.value,
                to_state=step.to_state.value,
                reason=shown(step.reason),
            )
            for step in one.transitions
        ),
        snapshot=None if one.snapshot is None else snapshot(one.snapshot),
    )


def snapshot(one: SnapshotStatus) -> SnapshotSentView:
    """How far a snapshot is."""
    return SnapshotSentView(index=one.index, held_bytes=one.held_bytes, total_bytes=one.total_bytes)
