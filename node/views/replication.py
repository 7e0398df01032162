"""`GET watermarks` and `GET dispatchers`: what the leader knows of each member, and does for it.

On another member both are empty, with the reason and where the leader's control plane is.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AliasChoices, Field

from node.views.base import AnswerView, Flag, Number, OfMembers, Text, Unknowns, View, Whole


class WatermarkView(View):
    """How far one member is, as the leader knows it; a `match_index` of -1: nothing is vouched for yet."""

    id: Text
    counts: Flag | None = None
    match_index: Whole | None = None
    write_index: Whole | None = None
    durable_index: Whole | None = None
    watermark_index: Whole | None = None
    lag_entries: Whole | None = None
    lag_bytes: Number | None = None
    lag_ms: Number | None = None
    last_ack_ms: Number | None = None
    faulty_from_index: Whole | None = None


class WatermarksView(AnswerView):
    """All members' watermarks, and the leader's own marks at the very instant of them."""

    term: Whole | None = None
    leader_id: Text | None = None
    quorum_index: Whole | None = None
    needed: Whole | None = None
    end_index: Whole | None = None
    committed_index: Whole | None = None
    applied_index: Whole | None = None
    peers: Annotated[tuple[WatermarkView, ...], OfMembers] | None = None
    unknown: Unknowns | None = None
    reason: Text | None = None
    leader_control_url: Text | None = None

    def of(self, member_id: str) -> WatermarkView | None:
        return next((one for one in self.peers or () if one.id == member_id), None)


class QuotaView(View):
    """What may be sent a second."""

    bytes_per_s: Whole | None = None
    capacity_bytes_per_s: Whole | None = None


class TransitionView(View):
    """One step of a dispatcher."""

    at: Text
    from_state: Text = Field(validation_alias=AliasChoices("from", "from_state"), serialization_alias="from")
    to_state: Text = Field(validation_alias=AliasChoices("to", "to_state"), serialization_alias="to")
    reason: Text | None = None


class SnapshotSentView(View):
    """A state machine's snapshot that a member is sent: its last entry, and how much of it the member has."""

    index: Whole | None = None
    held_bytes: Whole | None = None
    total_bytes: Whole | None = None


class DispatcherView(View):
    """What the leader does for one peer, and why; the last 50 transitions, oldest first."""

    peer_id: Text
    state: Text
    since: Text | None = None
    dispatch_epoch: Whole | None = None
    in_flight: Whole | None = None
    in_flight_bytes: Whole | None = None
    write_index: Whole | None = None
    match_index: Whole | None = None
    resends: Whole | None = None
    quota: QuotaView | None = None
    last_error: Text | None = None
    snapshot: SnapshotSentView | None = None
    transitions: Annotated[tuple[TransitionView, ...], OfMembers] | None = None


class DispatchersView(AnswerView):
    """All of a leader's dispatchers."""

    term: Whole | None = None
    leader_id: Text | None = None
    items: Annotated[tuple[DispatcherView, ...], OfMembers] | None = None
    next: Text | None = None
    reason: Text | None = None
    leader_control_url: Text | None = None
    unknown: Unknowns | None = None

    def of(self, member_id: str) -> DispatcherView | None:
        return next((one for one in self.items or () if one.peer_id == member_id), None)
