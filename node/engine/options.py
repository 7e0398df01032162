"""Translates the configuration into the core's options."""

from __future__ import annotations

from node.access_rows import rows_of
from node.config import Settings, read_token
from node.consensus.api import MS, ReplicaConfig, Timing
from node.engine.access import Access
from node.engine.member_handshake import Trust
from node.engine.member_port import TlsFiles
from node.member_secret import read_secrets
from node.protocol.group_kind import PLAIN, GroupKind


def replica_config(
    settings: Settings, api_url: str, *, applies: bool = False, kind: GroupKind = PLAIN
) -> ReplicaConfig:
    """The core's configuration. Raises ValueError."""
    node, timing = settings.node, settings.timing
    peers, learners = dict(settings.peers), {}
    if node.join:  # whoever comes later learns first (SAFETY M4)
        learners = {node.id: peers.pop(node.id)}
    return ReplicaConfig(
        group=node.group,
        self_id=node.id,
        peers=peers,
        learners=learners,
        flush=node.flush,
        timing=Timing(
            heartbeat_ns=timing.heart_beat_time_interval_ms * MS,
            election_min_ns=timing.election_timeout_min_ms * MS,
            election_max_ns=timing.election_timeout_max_ms * MS,
            vote_retry_min_ns=timing.min_vote_interval_ms * MS,
            vote_retry_max_ns=timing.max_vote_interval_ms * MS,
            push_timeout_ns=timing.max_push_time_out_ms * MS,
            closure_timeout_ns=timing.max_wait_ack_time_ms * MS,
            transfer_deadline_ns=timing.leadership_transfer_wait_timeout_ms * MS,
        ),
        lease_reads=node.lease_reads,
        applies=applies,
        kind=kind,
        preferred_leaders=tuple(node.preferred_leaders),
        api_url=api_url,
        proof_wanted=node.secret_file is not None,
        store_directory=str(settings.store_directory),
        pending_requests_max=node.max_pending_requests_num,
        pending_entries_max=node.max_pending_entries,
        pending_bytes_max=node.max_pending_bytes,
        unsynced_bytes_max=settings.store.max_unsynced_bytes,
        catch_up_bytes_per_s=node.peer_push_quota_bytes_per_s,
        max_transfer_wait_index=node.max_leadership_transfer_wait_index,
    )


def member_trust(settings: Settings) -> Trust:
    """What makes a member one. Raises ConfigError."""
    node = settings.node
    secrets = () if node.secret_file is None else read_secrets(node.secret_file)
    return Trust(node.tls, secrets, node.secret == "required")


def tls_files(settings: Settings) -> TlsFiles | None:
    """Certificate, key and authority of the member port; None: it speaks plain TCP."""
    node = settings.node
    if node.tls_cert_file is None or node.tls_key_file is None or node.tls_ca_file is None:
        return None
    return node.tls_cert_file, node.tls_key_file, node.tls_ca_file


def client_access(settings: Settings) -> Access:
    """What clients may do. Raises ConfigError."""
    path, rows = settings.node.token_file, rows_of(settings.access.rows)
    tokens = [read_token(row.path) for row in rows if row.kind == "token"]
    return Access(None if path is None else read_token(path), rows, tokens)
