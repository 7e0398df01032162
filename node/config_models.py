"""The configuration's tables: every key, its default, its unit and what it means.

What DLedger has keeps DLedger's name (in snake case) and default, with the unit added; two are different on purpose:
heartbeat and election times (100 ms and 500 to 1000 ms, so that a failover takes about a second and not ten).
Invariant: a value that got into a model is usable; what can only be judged across tables is `node.config`'s.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from node.access_rows import rows_of
from node.broker_table import BrokerTable
from node.config_table import Address, Table
from node.database_url import check_database
from node.ha_table import HaTable
from node.protocol.codes import FlushMode
from node.protocol.group_id import check_group_token
from node.protocol.peers import MEMBER_ID
from node.role_rows import role_rows_of
from node.state_machine.kind import kind_of

MIB: Final = 1024 * 1024
INDEX_UNIT_BYTES: Final = 32
RESERVED_HOURS_MAX: Final = 24 * 3660  # ten years
SESSION_S_MAX: Final = 10 * 365 * 24 * 3600
GROUP_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,255}")


def _group_token(text: str) -> str:
    if text:
        check_group_token(text)
    return text


def _state_machine(text: str) -> str:
    if text:
        kind_of(text)
    return text


def _listed(value: Any) -> Any:
    # Flags and variables are text: a list is written with commas.
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _named(pattern: re.Pattern[str], what: str) -> AfterValidator:
    def check(text: str) -> str:
        if text and not pattern.fullmatch(text):
            raise ValueError(f'"{text}" is no {what}: {pattern.pattern} is allowed')
        return text

    return AfterValidator(check)


def _hours(hours: tuple[str, ...]) -> tuple[str, ...]:
    for hour in hours:
        if not re.fullmatch(r"[01]\d|2[0-3]", hour):
            raise ValueError(f'"{hour}" is no hour of the day: "00" to "23"')
    return hours


Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]
Ratio = Annotated[float, Field(gt=0, le=1)]
Millis = Annotated[int, Field(ge=1, le=24 * 3600 * 1000)]
Bytes = Annotated[int, Field(ge=1, le=2**62)]


class NodeTable(Table):
    id: Annotated[str, _named(MEMBER_ID, "member id")] = ""
    """This member's id; one of [peers]."""
    group: Annotated[str, _named(GROUP_NAME, "group name"), Field(min_length=1)] = "default"
    """The group's name; all members and clients say the same one."""
    data: Path = Path("data")
    """The data directory; the log itself lies in <data>/dledger-<id>."""
    init: bool = False
    """Makes the store of a member of a NEW group. Harmless on one that exists; without it an empty directory
    is taken for a lost log, and the member does not vote before a leader has brought it back."""
    join: bool = False
    """Makes the store of a NEW member of a group that exists: empty, and a learner until the group makes it a voter
    (quorumscope members add). [peers] names the members that there are, and this one. Harmless later."""
    group_token: Annotated[str, AfterValidator(_group_token)] = ""
    """With init: the new group's id is made of this and its name, so that another group of that name is recognised from
    the first frame. 8 to 255 visible ASCII characters, the same on all members; no secret. Without it the first
    leader draws an id."""
    flush: FlushMode = FlushMode.SYNC
    """When a write counts: "sync" = on a quorum's disks, "async" = in a quorum's page caches. Belongs to the group."""
    state_machine: Annotated[str, AfterValidator(_state_machine)] = ""
    """What applies the group's entries, beside each member's engine: "kv" (a key-value store), or package.module:Class
    of one's own (docs/state-machines.md). Chosen when the group is born, the same on all members; its log then takes
    commands only. Empty: a log alone."""
    snapshot_entries: Annotated[int, Field(ge=1)] = 100_000
    """Behind each so many-th entry of the log a state machine saves a snapshot; after 1 GiB of them in any case."""
    snapshots_kept: Annotated[int, Field(ge=1, le=1000)] = 3
    """How many snapshots stay."""
    lease_reads: bool = False
    """Linearizable reads from the leader's lease instead of a round trip; trusts the members' clocks a little."""
    preferred_leaders: Names = ()
    """Members to which leadership moves by itself when they have caught up. Where it comes back from one, it is not
    given again for 30 s, then for twice as long each time (5 minutes at most), until one has kept it for ten
    minutes."""
    max_pending_requests_num: Annotated[int, Field(ge=1)] = 10_000
    """Requests that may wait for their quorum; more are answered LEADER_PENDING_FULL (503)."""
    max_pending_entries: Annotated[int, Field(ge=1)] = 1_000_000
    """The same limit in entries."""
    max_pending_bytes: Bytes = 256 * MIB
    """The same limit in bytes."""
    peer_push_quota_bytes_per_s: Annotated[int, Field(ge=0)] = 20 * MIB
    """What a member far behind gets each second at least, while clients append; it gets more where the machine leaves
    time, and everything while nobody appends. 0 means no limit, ever."""
    max_leadership_transfer_wait_index: Annotated[int, Field(ge=0)] = 1000
    """A transfer to a member that lags by more entries is refused."""
    token_file: Path | None = None
    """A file with the token that transfers, scrubs, repairs and introspection must show on the member port. Without it
    that is for this machine only; with it this machine has to show it too."""
    tls_cert_file: Path | None = None
    """Certificate of the member port (PEM), its name being the member's id. With a key and a CA, members prove who they
    are to each other."""
    tls_key_file: Path | None = None
    """Key of that certificate."""
    tls_ca_file: Path | None = None
    """The CA that signed the members' certificates."""
    secret_file: Path | None = None
    """A file with the secret that members share, one a line, readable by its owner only: without TLS, members prove to
    each other that they have it. They prove the first one and take any: so it is changed while the group runs."""
    secret: Literal["required", "optional"] = "required"
    """"optional" lets a member pass that proves nothing, under an alarm: while a group gets its first secret."""
    make_secret: bool = False
    """With init: makes secret_file, if there is none yet. The other members need a copy of it."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """What the member's processes say on stderr: this and what is graver."""
    log_format: Literal["console", "json"] = "console"
    """One line for each event: for people, or a JSON object for machines."""
    allow_plaintext: bool = False
    """Says in so many words that a member port beyond loopback may go without a proof while a running group gets its
    first secret: with secret_file and secret = "optional". Otherwise it needs TLS or a required secret."""

    @property
    def tls(self) -> bool:
        """Whether the member port speaks TLS."""
        return self.tls_cert_file is not None

    @model_validator(mode="after")
    def _whole_tls(self) -> NodeTable:
        given = [self.tls_cert_file, self.tls_key_file, self.tls_ca_file]
        if any(given) and not all(given):
            raise ValueError("TLS between members needs tls_cert_file, tls_key_file and tls_ca_file together")
        if self.join and self.init:
            raise ValueError("init is for a new group, join for a new member of one that exists: give one of them")
        if self.make_secret and not (self.init and self.secret_file):
            raise ValueError("make_secret makes secret_file for a new group: give init and secret_file as well")
        return self


class StoreTable(Table):
    mapped_file_size_for_entry_data_bytes: Annotated[int, Field(ge=4096, le=2**31 - 1)] = 1024 * MIB
    """Size of one data file (sparse); the same on all members. An entry has to fit into one."""
    mapped_file_size_for_entry_index_bytes: Annotated[int, Field(ge=1024, le=2**31 - 1)] = INDEX_UNIT_BYTES * 5 * MIB
    """Size of one index file (sparse), a multiple of 32; the same on all members."""
    max_unsynced_bytes: Bytes = 64 * MIB
    """What may be written but not yet on disk; more is answered LEADER_PENDING_FULL (503)."""
    page_cache_bytes: Annotated[int, Field(ge=0)] = 256 * MIB
    """How much of the newest data stays in the page cache, and an eighth as much of the newest index; what is older is
    dropped from there once it is on the disk, and read from the disk. 0: it stays as long as the kernel likes."""
    scrub_bytes_per_s: Annotated[int, Field(ge=0)] = 4 * MIB
    """How fast the log, and a state machine's snapshots, are read over and over in the background to find rot; 0 means
    they are not. What is found is named, and repaired from the peers, or saved again (in classic mode it is named)."""
    scrub_pause_s: Annotated[int, Field(ge=1, le=365 * 24 * 3600)] = 3600
    """How long the background scrub rests between two passes."""

    @model_validator(mode="after")
    def _whole_units(self) -> StoreTable:
        size = self.mapped_file_size_for_entry_index_bytes
        if size % INDEX_UNIT_BYTES:
            raise ValueError(f"mapped_file_size_for_entry_index_bytes: {size} is not a multiple of {INDEX_UNIT_BYTES}")
        return self


class RetentionTable(Table):
    """Which data files go from the front of a member's log, each member for itself; without `enabled` none does."""

    enabled: bool = False
    """Removes old data files by the rules below; without it a log only grows. What another member does not hold yet, or
    a pin keeps, stays in any case."""
    file_reserved_hours: Annotated[int, Field(ge=1, le=RESERVED_HOURS_MAX)] = 72
    """A data file goes so long after it was written last ..."""
    delete_when: Annotated[Names, AfterValidator(_hours)] = ("04",)
    """... in these hours of the day, local time ("00" to "23"), ..."""
    disk_space_ratio_to_check_expired: Ratio = 0.70
    """... or at any time while this share of the disk is used."""
    disk_space_ratio_to_force_clean: Ratio = 0.85
    """From this share on the oldest files go whatever their age, until less is used."""
    enable_disk_force_clean: bool = True
    """Whether they do."""
    disk_full_ratio: Ratio = 0.90
    """From this share on writes are refused (DISK_FULL), until less is used; 1: until the disk itself has no space."""
    max_log_bytes: Annotated[int, Field(ge=0, le=2**62)] = 0
    """The oldest files go, at any time, while the log is larger; 0: any size."""
    check_interval_s: Annotated[int, Field(ge=1, le=3600)] = 10
    """How often it is looked whether files should go."""

    @model_validator(mode="after")
    def _ordered(self) -> RetentionTable:
        ratios = [
            self.disk_space_ratio_to_check_expired, self.disk_space_ratio_to_force_clean, self.disk_full_ratio,
        ]  # fmt: skip
        if ratios != sorted(ratios):
            raise ValueError(
                "disk_space_ratio_to_check_expired, disk_space_ratio_to_force_clean and disk_full_ratio must ascend"
            )
        return self


class TimingTable(Table):
    heart_beat_time_interval_ms: Millis = 100
    """How often a leader says that it lives (DLedger: 2000)."""
    election_timeout_min_ms: Millis = 500
    """A follower that heard nothing for a random time from here ..."""
    election_timeout_max_ms: Millis = 1000
    """... to here campaigns (DLedger: three heartbeats of 2000 ms leaked)."""
    min_vote_interval_ms: Millis = 30
    """The pause before another round of votes is random, from here (DLedger: 300) ..."""
    max_vote_interval_ms: Millis = 150
    """... to here (DLedger: 1000)."""
    max_push_time_out_ms: Millis = 1000
    """A push without an answer is sent again after this."""
    max_wait_ack_time_ms: Millis = 2000
    """An append that found no quorum within this is answered WAIT_QUORUM_ACK_TIMEOUT (502): outcome unknown."""
    leadership_transfer_wait_timeout_ms: Millis = 1000
    """A transfer that names no deadline has this long; then writes go on and the outcome is reported."""

    @model_validator(mode="after")
    def _ordered(self) -> TimingTable:
        if self.election_timeout_min_ms >= self.election_timeout_max_ms:
            raise ValueError("election_timeout_min_ms must be below election_timeout_max_ms")
        if self.min_vote_interval_ms >= self.max_vote_interval_ms:
            raise ValueError("min_vote_interval_ms must be below max_vote_interval_ms")
        if 2 * self.heart_beat_time_interval_ms > self.election_timeout_min_ms:
            raise ValueError(
                "election_timeout_min_ms must be at least twice heart_beat_time_interval_ms, or one late"
                " heartbeat starts an election"
            )
        return self


class ControlTable(Table):
    address: Address = "127.0.0.1:8431"
    """Where the control plane listens. Beyond loopback it needs token_file or tokens_file, and TLS. On all addresses
    (0.0.0.0) others reach it at the host of this member in [peers]."""
    allowed_hosts: Names = ()
    """Names that a Host header may carry beside the address itself."""
    token_file: Path | None = None
    """A file with the bearer token that callers must show; [node] token_file where absent."""
    tokens_file: Path | None = None
    """A file with further tokens, each with a name, rights and an end (quorumscope access); read again when
    it changes. With it, callers must show one of them, or the one above."""
    tls_cert_file: Path | None = None
    """Certificate of the control plane (PEM)."""
    tls_key_file: Path | None = None
    """Key of that certificate."""

    @model_validator(mode="after")
    def _whole_tls(self) -> ControlTable:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("TLS needs both tls_cert_file and tls_key_file")
        return self


def _rows(texts: tuple[str, ...]) -> tuple[str, ...]:
    rows_of(texts)
    return texts


class AccessTable(Table):
    rows: Annotated[Names, AfterValidator(_rows)] = ()
    """Who may do what on the member port, a row each: "anonymous = append + read", "certificate NAME = …", "token FILE
    = …"; the rights are append, read, observe, operate, or nothing. With rows, who is in none may do nothing, and
    [node] token_file is needed: its token has all rights, and this member's control plane shows it. Without rows,
    everybody may append and read, and this machine all else while no token_file is in force (docs/security.md)."""


class ConsoleTable(Table):
    address: Address = "127.0.0.1:8421"
    """Where the console listens. Beyond loopback it needs TLS, or behind_proxy."""
    db_url: Annotated[str, AfterValidator(check_database)] = "sqlite:///.quorumscope/console.db"
    """The console's database: a SQLite file, or postgresql://…"""
    nodes: Names = ()
    """Control planes to watch from the start; one of each group is enough."""
    node_token_file: Path | None = None
    """A file with the token that the console shows to control planes."""
    node_ca_file: Path | None = None
    """The CA that signed the control planes' certificates."""
    tls_cert_file: Path | None = None
    """Certificate of the console (PEM)."""
    tls_key_file: Path | None = None
    """Key of that certificate."""
    behind_proxy: bool = False
    """A proxy in front ends TLS: browsers see HTTPS although the console speaks HTTP."""
    allowed_hosts: Names = ()
    """Names under which browsers reach the console, beside the address itself."""
    sample_interval_ms: Annotated[int, Field(ge=100, le=60_000)] = 500
    """How often each node is asked for its state."""
    session_idle_s: Annotated[int, Field(ge=60, le=SESSION_S_MAX)] = 12 * 3600
    """A login that was not used for this long ends."""
    session_max_s: Annotated[int, Field(ge=60, le=SESSION_S_MAX)] = 7 * 24 * 3600
    """A login ends after this in any case."""
    history_days: Annotated[int, Field(ge=1, le=3650)] = 30
    """How long history is kept."""
    trail_days: Annotated[int, Field(ge=1, le=36_500)] = 730
    """How long the rows of the admin trail are kept."""
    operations_days: Annotated[int, Field(ge=1, le=36_500)] = 90
    """How long operations and audits are kept that are over, and what an Idempotency-Key stands for; of each group the
    newest 50 audits stay."""
    second_factor: Literal["optional", "admins", "everyone"] = "optional"
    """Which local users must have a second factor; those of an OpenID provider are asked by it."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """What the console says on stderr: this and what is graver."""
    log_format: Literal["console", "json"] = "console"
    """One line for each event: for people, or a JSON object for machines."""


def _role_rows(texts: tuple[str, ...]) -> tuple[str, ...]:
    role_rows_of(texts)
    return texts


def _origin(url: str) -> str:
    if url and not re.fullmatch(r"https?://[^/?#@\s]+", url):
        raise ValueError(f'"{url}" is no address of a console, such as https://console.example')
    return url


class OidcTable(Table):
    issuer: str = ""
    """The OpenID provider that people may come from, as it writes itself: https, or http on this machine. Without it
    there are local users only."""
    client_id: str = ""
    """What the provider calls this console."""
    client_secret_file: Path | None = None
    """A file (0600) with the secret that the provider gave it; a public client has none."""
    ca_file: Path | None = None
    """The CA of the provider's certificate, where it is none that this machine knows."""
    roles: Annotated[Names, AfterValidator(_role_rows)] = ()
    """What groups at the provider give, a row each: "log-admins = admin", "sre = operator", "billing = operator on ID".
    The strongest counts; whoever is in no row's group is not let in (docs/people.md)."""
    groups_claim: Annotated[str, Field(min_length=1, max_length=128)] = "groups"
    """The claim of the ID token that lists somebody's groups."""
    name_claim: Annotated[str, Field(min_length=1, max_length=128)] = "preferred_username"
    """The claim that gives a new user their name here."""
    scopes: Names = ("openid", "profile", "groups")
    """What the provider is asked for."""
    label: Annotated[str, Field(max_length=40)] = "single sign-on"
    """What the login page calls it."""
    console_url: Annotated[str, AfterValidator(_origin)] = ""
    """The console's address as browsers and the provider know it, where it is not the one that the console derives."""
    session_max_s: Annotated[int, Field(ge=60, le=SESSION_S_MAX)] = 12 * 3600
    """A login by the provider ends after this; the next one reads the groups again."""
    tokens_days: Annotated[int, Field(ge=1, le=3650)] = 30
    """API tokens of its users rest once their last login is older than this."""

    @model_validator(mode="after")
    def _whole(self) -> OidcTable:
        if self.issuer and not re.fullmatch(r"https?://[^?#@\s]+", self.issuer):
            raise ValueError(f'"{self.issuer}" is no issuer, such as https://login.example')
        if self.issuer and not self.client_id:
            raise ValueError("issuer needs client_id: what the provider calls this console")
        if self.issuer and not self.roles:
            raise ValueError("issuer needs roles, or nobody could come in by it")
        if "openid" not in self.scopes:
            raise ValueError('scopes needs "openid"')
        return self


class AuditTable(Table):
    master: str = "local[*]"
    """The Spark master that audits run on."""
    depth: Literal["chain", "digest", "bytes"] = "bytes"
    """How much an audit reads where nothing else is said; only "bytes" trusts no node's word."""


TABLES: Final[dict[str, type[Table]]] = {
    "node": NodeTable,
    "store": StoreTable,
    "retention": RetentionTable,
    "timing": TimingTable,
    "control": ControlTable,
    "access": AccessTable,
    "broker": BrokerTable,
    "ha": HaTable,
    "console": ConsoleTable,
    "oidc": OidcTable,
    "audit": AuditTable,
}
