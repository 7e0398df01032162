"""Builds the observers' copy of a replica (`status.py`) in one go; reads only, keeps nothing."""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING

from node.consensus.api import MS
from node.consensus.entry_dispatcher import EntryDispatcher
from node.consensus.leadership import Leadership
from node.consensus.progress import PAUSED, Link
from node.consensus.status import (
    ClosuresStatus,
    DispatcherStatus,
    FaultStatus,
    LinkStatus,
    LogStatus,
    PeerStatus,
    ReplicaStatus,
    WatermarkStatus,
)
from node.protocol.codes import Role

if TYPE_CHECKING:
    from node.consensus.replica import Replica


def build_status(replica: Replica, now: int) -> ReplicaStatus:
    """The whole status, of one instant."""
    member, store, leadership = replica.member, replica.store, replica.leadership
    config = replica.config
    watermarks: tuple[WatermarkStatus, ...] = ()
    closures = ClosuresStatus(0, config.pending_requests_max, 0, 0, None, (), ())
    quorum_index: int | None = None
    contact_ms: int | None = None
    ready = False
    if leadership is not None:
        # What each voter contributes; -1 where it has no share in the quorum.
        marks = {one.peer_id: one.watermark_index if one.counts else -1 for one in replica.peers.voters}
        if member.self_id in member.configuration.voters:
            marks[member.self_id] = member.own_watermark()
        watermarks = (_own_watermark(replica), *_peer_watermarks(replica, leadership, now))
        closures = leadership.closures.status(marks, member.configuration, now)
        quorum_index = member.configuration.reached(marks.values())
        contact_ms = max(0, now - leadership.contact.at()) // MS
        ready = leadership.own_entry_committed and contact_ms * MS < config.timing.election_max_ns
    return ReplicaStatus(
        as_of_ns=now,
        group=config.group,
        group_id=member.hard.group_id,
        self_id=config.self_id,
        role=member.role,
        role_since_at_ns=member.role_since,
        term=member.term,
        leader_id=member.leader_id,
        voted_for=member.hard.voted_for,
        voter_state=member.voter_state,
        vote_floor=member.hard.vote_floor,
        flush=config.flush,
        lease_reads=config.lease_reads,
        store_id=member.store_id,
        sealed_from=store.sealed_from,
        disk_full=member.short_of_space,
        log=_log(replica),
        peers=tuple(_peer(replica, peer_id) for peer_id in sorted(member.configuration.members)),
        alarms=tuple(member.alarms.values()),
        transfer=replica.transfers.status(),
        quorum_index=quorum_index,
        quorum_needed=member.configuration.majority,
        watermarks=watermarks,
        dispatchers=() if leadership is None else tuple(map(dispatcher, leadership.dispatchers.values())),
        closures=closures,
        reads_pending=len(replica.follower_reads) + (len(leadership.reads) if leadership is not None else 0),
        leader_ready=ready and not member.short_of_space,
        quorum_contact_ms=contact_ms,
        faults=tuple(FaultStatus(one.first_index, one.last_index, one.kind, one.detail) for one in store.faults),
        repair=replica.repair.status(),
        applier=None if member.applying is None else member.applying.status(),
        configuration=member.configuration,
    )


def dispatcher(one: EntryDispatcher) -> DispatcherStatus:
    """One dispatcher, with its history."""
    peer = one.peer
    return DispatcherStatus(
        peer_id=peer.peer_id,
        state=peer.state,
        since_at_ns=peer.since,
        dispatch_epoch=peer.dispatch_epoch,
        in_flight=len(peer.window),
        in_flight_bytes=peer.window.size_bytes,
        write_index=peer.write_index,
        match_index=peer.match_index,
        resends=peer.resends,
        quota_bytes_per_s=one.quota.bytes_per_s,
        capacity_bytes_per_s=one.quota.capacity_bytes_per_s,
        last_error=peer.last_error,
        transitions=tuple(peer.transitions),
        snapshot=one.giving.status(),
    )


def _log(replica: Replica) -> LogStatus:
    member, store = replica.member, replica.store
    return LogStatus(
        begin_index=store.begin_index,
        end_index=store.end_index,
        end_term=store.end_term,
        durable_index=member.durable_index,
        committed_index=member.committed_index,
        applied_index=member.applied_index,
        verified_index=store.end_index if member.role is Role.LEADER else member.verified_index,
        committed_chain=member.chain_at(member.committed_index) if member.committed_index >= 0 else None,
        log_epoch=member.log_epoch,
        truncating_from_index=member.truncating_from,
    )


def _peer(replica: Replica, peer_id: str) -> PeerStatus:
    member, config = replica.member, replica.config
    address = member.configuration.members[peer_id]
    if peer_id == config.self_id:
        is_voter = member.self_id in member.configuration.voters
        store_id = member.store_id
        return PeerStatus(peer_id, address, config.api_url, True, member.voter_state, store_id, store_id, is_voter)
    view = replica.peers.of[peer_id]
    hello, link = view.hello, view.link
    return PeerStatus(
        id=peer_id,
        address=address,
        api_url=None if hello is None else hello.api_url,
        connected=view.connected,
        voter_state=view.voter_state,
        store_id=None if hello is None else hello.store_id,
        recorded_store_id=member.hard.store_ids.get(peer_id),
        is_voter=view.is_voter,
        link=None if link is None else link_status(link),
    )


def link_status(link: Link) -> LinkStatus:
    times = (link.in_since_ns, link.out_since_ns, link.heard_at_ns)
    return LinkStatus(*times, link.rtt_ns, link.unanswered_since_ns)


def _own_watermark(replica: Replica) -> WatermarkStatus:
    member, end = replica.member, replica.store.end_index
    return WatermarkStatus(member.self_id, True, end, end + 1, member.durable_index, member.own_watermark(), 0, 0, 0, 0)


def _peer_watermarks(replica: Replica, leadership: Leadership, now: int) -> list[WatermarkStatus]:
    end = replica.store.end_index
    found = []
    for peer_id, one in replica.peers.of.items():
        match = one.match_index
        known = one.last_ack_at is not None and one.state not in PAUSED
        found.append(
            WatermarkStatus(
                id=peer_id,
                counts=one.counts,
                match_index=match,
                write_index=one.write_index,
                durable_index=one.durable_index,
                watermark_index=one.watermark_index,
                lag_entries=end - match if known else None,
                lag_bytes=_lag_bytes(replica, match) if known else None,
                lag_ms=_lag_ms(leadership, match, end, now) if known else None,
                last_ack_ms=None if one.last_ack_at is None else (now - one.last_ack_at) // MS,
                faulty_from_index=None if one.faulty_from < 0 else one.faulty_from,
            )
        )
    return found


def _lag_bytes(replica: Replica, match_index: int) -> int | None:
    """From the positions of what is still in memory; None where it is not: observers never cause a disk read."""
    store = replica.store
    if match_index == store.end_index:
        return 0
    first = store.recent_slab(match_index + 1, 1)
    last = store.recent_slab(store.end_index, 1)
    return None if first is None or last is None else last.end_pos - first.pos


def _lag_ms(leadership: Leadership, match_index: int, end_index: int, now: int) -> int | None:
    """How long the oldest entry that the peer lacks has been in this log; None if it is older than what is kept."""
    if match_index == end_index:
        return 0
    kept = leadership.appended_at
    if not kept or match_index + 1 < leadership.own_term_from:
        return None
    if len(kept) >= 2048 and match_index < kept[0][0]:
        return None
    place = bisect_right(kept, match_index, key=itemgetter(0))
    return (now - kept[place][1]) // MS if place < len(kept) else None
