"""The values a driver exchanges with the core: configuration, proposals and their outcomes.

Times are integer nanoseconds of CLOCK_BOOTTIME. Every callback (`on_done`) is called exactly once, from inside a call
into the core, and must only hand its argument on; it must not call back into the core.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from hashlib import sha256
from typing import Any, Final, NamedTuple, Protocol

from node.consensus.configuration import Configuration
from node.protocol.codes import FlushMode, ResponseCode
from node.protocol.group_kind import NO_PATCH, PLAIN, GroupKind
from node.protocol.packed_bodies import size_of

MS = 1_000_000
SECOND = 1_000 * MS


class Randomness(Protocol):
    """What the core needs of a `random.Random`; it is passed in, so that one seed gives one run."""

    def randrange(self, start: int, stop: int, /) -> int: ...

    def getrandbits(self, k: int, /) -> int: ...


@dataclass(slots=True, frozen=True)
class Timing:
    """Every period and time-out of the core, in nanoseconds."""

    heartbeat_ns: int = 100 * MS
    # A follower's lease of its leader is `election_min_ns`; it campaigns after a random time in [min, max).
    election_min_ns: int = 500 * MS
    election_max_ns: int = 1_000 * MS
    # Silence is counted in ticks; a leader that no quorum answered for so long by the clock steps down in any case.
    quorum_silence_max_ns: int = 10 * SECOND
    # How long a round waits for answers of connected peers: two durable writes and the way there, also on a busy disk.
    vote_round_ns: int = 500 * MS
    # Pause before another round of votes.
    vote_retry_min_ns: int = 30 * MS
    vote_retry_max_ns: int = 150 * MS
    # After the leader's connection closed (SAFETY E5).
    quick_election_min_ns: int = 5 * MS
    quick_election_max_ns: int = 50 * MS
    push_timeout_ns: int = 1_000 * MS
    busy_retry_ns: int = 20 * MS
    # A pure COMMIT to an idle peer that knows less than it may.
    commit_push_ns: int = 100 * MS
    diverged_backoff_min_ns: int = 1 * SECOND
    diverged_backoff_max_ns: int = 30 * SECOND
    closure_timeout_ns: int = 2 * SECOND
    read_timeout_ns: int = 2 * SECOND
    transfer_deadline_ns: int = 5 * SECOND
    preferred_check_ns: int = 2 * SECOND
    # After leadership came back from a preferred leader; it doubles each time, ten times that at most.
    preferred_again_ns: int = 30 * SECOND
    # Between two tries at an entry that could not be applied; it doubles.
    apply_retry_min_ns: int = 100 * MS
    apply_retry_max_ns: int = 5 * SECOND
    # A lease read trusts clocks to drift apart by no more than this share of the lease (one in `lease_drift_divisor`).
    lease_drift_divisor: int = 10

    @property
    def tick_ns(self) -> int:
        """How far the ticks are apart in which silence is counted."""
        return max(1, self.heartbeat_ns // 2)

    @property
    def rest_ns(self) -> int:
        """For how long after a frame of its leader's a follower need not look: until the next heartbeat is late."""
        return self.heartbeat_ns + self.heartbeat_ns // 8


@dataclass(slots=True)
class ReplicaConfig:
    """What one member of one group must know. A replica has its own, in which `take` alone changes anything.

    `peers` maps every voter's id, this one's too, to "host:port"; `learners` those who have no vote, at the start.
    """

    group: str
    self_id: str
    peers: Mapping[str, str]
    learners: Mapping[str, str] = field(default_factory=dict)
    flush: FlushMode = FlushMode.SYNC
    timing: Timing = field(default_factory=Timing)
    lease_reads: bool = False
    # Whether committed entries are applied to a state machine; else this is a log alone.
    applies: bool = False
    # What the log may hold; fixed at birth, the same on all members.
    kind: GroupKind = PLAIN
    preferred_leaders: tuple[str, ...] = ()
    api_url: str | None = None
    # Whether members prove a secret (SAFETY C11): one that does not is let in under an alarm, or not at all.
    proof_wanted: bool = False
    # The store's directory, for the commands that messages to operators name.
    store_directory: str = "DIR"
    pending_requests_max: int = 10_000
    pending_entries_max: int = 1_000_000
    pending_bytes_max: int = 256 * 1024 * 1024
    # So much may wait whatever was measured of the links, and with a quarter of it waiting a link counts as busy.
    pending_floor_bytes: int = 1024 * 1024
    unsynced_bytes_max: int = 64 * 1024 * 1024
    push_window_slabs: int = 32
    push_window_bytes: int = 8 * 1024 * 1024
    # What a peer far behind gets at least while others append; no limit while nobody does. 0: no limit, ever.
    catch_up_bytes_per_s: int = 64 * 1024 * 1024
    max_transfer_wait_index: int = 1000
    # For so long earlier settings promised to keep the vote; somebody may rely on it (`settings_change.py`).
    promised_ns: int = 0

    def __post_init__(self) -> None:
        if self.self_id not in self.peers and self.self_id not in self.learners:
            raise ValueError(f"member {self.self_id!r} is not among the peers {sorted(self.peers)}")
        if not 0 < self.timing.election_min_ns < self.timing.election_max_ns:
            raise ValueError("election_min_ns must be positive and below election_max_ns")

    def take(self, other: ReplicaConfig) -> None:
        """Whatever may change while a member runs."""
        for name in CHANGEABLE:
            setattr(self, name, getattr(other, name))

    @property
    def vote_kept_ns(self) -> int:
        """For how long after its leader spoke this member gives no vote to others (E4, C1)."""
        return max(self.timing.election_min_ns, self.promised_ns)

    @property
    def grants_leases(self) -> bool:
        """Whether somebody may rely on that as a lease (E5, E9)."""
        return self.lease_reads or self.promised_ns > 0

    @property
    def configuration(self) -> Configuration:
        """Who belongs to the group, at the start."""
        return Configuration(self.peers, self.learners)

    @property
    def peers_hash(self) -> str:
        """Equal on members that agree about who the members are. An address is not membership: a member may be
        reached under different ones (relays, several networks)."""
        return sha256(";".join(sorted(self.peers)).encode()).hexdigest()[:16]


# Fields of a configuration that change while a member runs.
CHANGEABLE: Final = (
    "flush", "timing", "lease_reads", "preferred_leaders", "pending_requests_max", "pending_entries_max",
    "pending_bytes_max", "unsynced_bytes_max", "catch_up_bytes_per_s", "max_transfer_wait_index",
)  # fmt: skip


class Appended(StrEnum):
    """What is known of a proposal's entries (SAFETY C2)."""

    YES = "yes"
    NOT_APPENDED = "not_appended"
    UNKNOWN = "unknown"


class Applied(StrEnum):
    """What is known of a proposal's result, where one was asked for (`Proposal.at_apply`)."""

    NOT_ASKED = "not_asked"
    YES = "yes"
    UNKNOWN = "unknown"  # it is committed, and this member cannot say what applying it answered


class Outcome(NamedTuple):
    """How a proposal ended. Indexes and term are -1 where nothing was appended."""

    code: ResponseCode
    first_index: int
    last_index: int
    term: int
    appended: Appended
    leader_id: str | None = None
    detail: str = ""
    retry_after_ns: int = 0  # of a refusal: when there will be room; 0: nobody can tell
    applied: Applied = Applied.NOT_ASKED
    results: Sequence[bytes] = ()  # of applying it, one an entry; none in a group that is a log alone


new_outcome: Callable[[tuple[Any, ...]], Outcome] = partial(tuple.__new__, Outcome)  # all fields; `Outcome()` is Python


class LaneTicket(NamedTuple):
    """What an append over a lane says of itself: `sequence` is that of its first entry (`consensus/lanes.py`)."""

    term: int
    lane: int
    sequence: int
    channel: int = 0  # of its entries
    patch_at: int = NO_PATCH  # where in each body its position is written


class Proposal:
    """Bodies to append as one contiguous run; one request, one outcome (SAFETY C3, C4).

    `expected_index` is the index that its first entry must get; None: any. `count` and `size_bytes` are of all bodies.
    `origin` is whom it came from, so that who is refused gets a turn of its own; None: nobody that comes back.
    `at_apply`: it ends when its entries are applied, with the result, and not when they are committed.
    `lane`: over which lane it comes; None: over none.
    """

    __slots__ = (
        "at_apply", "bodies", "count", "expected_index", "lane", "on_done", "origin", "size_bytes", "timeout_ns",
    )  # fmt: skip

    def __init__(
        self,
        bodies: Sequence[bytes],
        on_done: Callable[[Outcome], None],
        expected_index: int | None = None,
        timeout_ns: int | None = None,
        origin: Hashable | None = None,
        at_apply: bool = False,
        lane: LaneTicket | None = None,
    ) -> None:
        self.bodies, self.on_done, self.expected_index, self.timeout_ns = bodies, on_done, expected_index, timeout_ns
        self.count, self.size_bytes = len(bodies), size_of(bodies)
        self.origin, self.at_apply, self.lane = origin, at_apply, lane


@dataclass(slots=True, frozen=True)
class ReadOutcome:
    """From where a linearizable read may be served here: committed_index >= `read_index` holds when this is called."""

    code: ResponseCode
    read_index: int
    term: int
    leader_id: str | None = None
    detail: str = ""


@dataclass(slots=True, frozen=True)
class TransferOutcome:
    """How a leadership transfer ended; always reported (SAFETY E7)."""

    code: ResponseCode
    transferee_id: str | None
    leader_id: str | None
    term: int
    detail: str = ""
