"""Progress: all that this member knows of one peer, in one place.

Theory. A peer is known for three different lengths of time, and each fact has its own:
- while it belongs to the group: what its HELLO said, whether it is connected, and whether it counts in a quorum;
- for one leadership of this member: how far its log goes, what is on its way to it, and when it answered last;
- for one connection in that leadership (`dispatch_epoch`): what matches. A new connection knows nothing (SAFETY R1).

`EntryDispatcher` decides what to send to the peer, and notes it here; `Membership` decides whether it counts. What the
driver knows of its connections to the peer is the driver's: `link` refers to it, for observers only.

Invariants: match_index < write_index; `watermark_index` <= match_index, and below `faulty_from` where the peer says
that its log is damaged; a learner never counts; nothing of one leadership is left in the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final, Protocol

from node.consensus.api import SECOND, ReplicaConfig
from node.consensus.configuration import Configuration
from node.consensus.push_window import InFlight, PushWindow
from node.consensus.quorum_ack_checker import watermark
from node.consensus.status import TransitionStatus
from node.protocol.codes import DispatcherState, FlushMode, VoterState
from node.protocol.dispatcher import TRANSITIONS, DispatcherEvent
from node.protocol.messages import Hello, MemberMark, PushResponse

VERSION_MIN: Final = 1  # of HELLO: what this release speaks (docs/operations.md: how far back it goes)
VERSION_MAX: Final = 2
TRANSITIONS_KEPT: Final = 50
NEVER_NS: Final = 1 << 62  # ago
UNMEASURED: Final = 1 << 62  # bytes a second: slows no quorum down
# Replication is paused: nothing that a peer in these states says counts.
PAUSED: Final = frozenset({DispatcherState.DIVERGED, DispatcherState.INSTALL_SNAPSHOT})


class Link(Protocol):
    """What the driver knows of its two connections to a peer; moments are CLOCK_BOOTTIME, None is "not known"."""

    in_since_ns: int | None  # the connection that it opened to us
    out_since_ns: int | None  # ours to it
    heard_at_ns: int | None
    rtt_ns: float | None

    @property
    def unanswered_since_ns(self) -> int | None: ...  # the heartbeat that is timed now


class Progress:
    """See the module's docstring."""

    __slots__ = (
        "acknowledged",
        "answered_at",
        "answered_seq",
        "answered_tick",
        "asked_before",
        "commit_sent",
        "connected",
        "counts",
        "dispatch_epoch",
        "durable_index",
        "faulty_from",
        "held_index",
        "hello",
        "installing",
        "is_voter",
        "last_ack_at",
        "last_error",
        "lease_at",
        "link",
        "match_index",
        "needs_state_from",
        "peer_id",
        "pushed_at",
        "resends",
        "silent_since",
        "since",
        "slow_at",
        "state",
        "transitions",
        "voter_state",
        "watermark_index",
        "window",
        "write_index",
    )  # fmt: skip

    def __init__(self, peer_id: str, is_voter: bool, config: ReplicaConfig) -> None:
        self.peer_id = peer_id
        self.is_voter = is_voter  # by the configuration; a learner is not
        self.link: Link | None = None
        # --- while it belongs to the group
        self.hello: Hello | None = None  # the last one accepted
        self.asked_before = -1  # the last frame that had been sent to it when that came
        self.connected = False
        self.voter_state: VoterState | None = None  # what it says of its store (E8)
        self.counts = False  # whether its votes and acknowledgements have a share in a quorum
        # --- of one leadership
        self.dispatch_epoch = 0  # counts what is known of its log; never goes down within a process
        self._forget(config, 0, -1)

    def _forget(self, config: ReplicaConfig, now: int, end_index: int) -> None:
        self.state = DispatcherState.COMPARE
        self.needs_state_from = -1  # by its last answer to a heartbeat: its state machine's state is lost
        self.installing = False  # it is to begin where our log begins; else INSTALL_SNAPSHOT is a dead end
        self.since = now
        self.transitions: deque[TransitionStatus] = deque(maxlen=TRANSITIONS_KEPT)
        self.match_index = -1  # the highest index known to be equal; all above in its log is equal, too, or must go
        self.watermark_index = -1  # what it counts with
        self.durable_index: int | None = None
        self.faulty_from = -1  # its lowest damaged entry, as its newest answer said (S6)
        self.held_index = -1  # it showed that it holds our log up to here, durable and sound; also while it is away
        self.write_index = end_index + 1  # the next entry to send
        self.window = PushWindow(config)
        self.commit_sent = -1  # the committed index that was last sent to it
        self.pushed_at = now
        self.last_ack_at: int | None = None
        self.last_error: str | None = None
        self.resends = 0
        # The last entry that it acknowledged on a connection that is closed since (E8).
        self.acknowledged: MemberMark | None = None
        # Its answers in this leadership, where it counts: check-quorum (E6); to heartbeats: reads and leases (C1).
        self.answered_at = now
        self.answered_tick = 0  # how many ticks of the leadership had passed then
        self.answered_seq = -1
        self.lease_at = now - config.timing.election_max_ns  # when the heartbeat left that it answered last
        # What was reported of it (silent_peers.py): since when it is silent; when a push last waited too long.
        self.silent_since: int | None = None
        self.slow_at: int | None = None

    # --- who it is ----------------------------------------------------------------------------------------------
    @property
    def proven(self) -> bool:
        """Whether TLS or C11 proved the peer that said hello last."""
        return self.hello is not None and self.hello.proven

    @property
    def version(self) -> int:
        """The highest version of HELLO that both ends speak."""
        return 0 if self.hello is None else min(VERSION_MAX, self.hello.version_max)

    def judged(self, voter_state: VoterState | None, *, counts: bool) -> None:
        """What it is, and whether it counts from now on; a learner never does (M4)."""
        self.voter_state = voter_state
        self.counts = counts and self.is_voter

    # --- one leadership -----------------------------------------------------------------------------------------
    def begin_leadership(self, first_epoch: int, config: ReplicaConfig, end_index: int, now: int) -> None:
        """Nothing is known of its log; our own ends at `end_index`."""
        self._forget(config, now, end_index)
        self.dispatch_epoch = first_epoch

    def end_leadership(self, config: ReplicaConfig, now: int) -> None:
        """Whatever was known of its log was known as a leader."""
        self._forget(config, now, -1)

    def step(self, event: DispatcherEvent, reason: str, now: int) -> TransitionStatus | None:
        """The dispatcher's next state; the transition, where the state or the connection is another one."""
        was, to = self.state, TRANSITIONS.get((self.state, event))
        if to is None:
            raise AssertionError(f"dispatcher of {self.peer_id}: {event} is impossible in {was}")
        self.state = to
        if to is was and event is not DispatcherEvent.RECONNECTED:
            return None
        self.since = now
        transition = TransitionStatus(now, was, to, reason)
        self.transitions.append(transition)
        return transition

    @property
    def is_paused(self) -> bool:
        """Whether nothing that it says counts: it cannot be replicated to, and nothing is done about that."""
        return self.state in PAUSED and not self.installing

    def compare_anew(self, from_index: int) -> None:
        """Nothing that was said of its log counts any more; COMPARE begins at `from_index`."""
        self.dispatch_epoch += 1
        self.match_index = self.watermark_index = -1
        self.durable_index = None
        self.window.clear()
        self.commit_sent = -1
        self.write_index = from_index + 1

    def pause(self, reason: str) -> None:
        """It cannot be replicated to now, and does not count."""
        self.last_error = reason
        self.match_index = self.watermark_index = -1
        self.window.clear()

    def in_step(self) -> None:
        """Its log is ours up to the match, and ends there."""
        self.write_index = self.match_index + 1
        self.window.probing = False
        self.last_error = None

    def disconnected(self) -> None:
        """The connection closed: nothing it said before counts any more."""
        self.watermark_index = -1
        self.last_error = "not connected"
        self.window.clear()

    def is_at_rest(self, end_index: int) -> bool:
        """Whether it has all of a log that ends there, as it said, and nothing has been reported of it."""
        in_step = self.state is DispatcherState.APPEND and self.connected and self.write_index > end_index
        return in_step and not len(self.window) and self.silent_since is None and self.slow_at is None

    # --- what it says -------------------------------------------------------------------------------------------
    def flush(self, config: ReplicaConfig) -> FlushMode:
        """What its answers prove here: what is not durable counts only where both of us say so (SAFETY R2)."""
        if config.flush is FlushMode.SYNC or self.hello is None:
            return config.flush
        return self.hello.flush

    def count_durable(self) -> None:
        """It counts with what is durable only: with what one of its answers said is both its leader's and durable."""
        self.watermark_index = min(self.watermark_index, self.held_index)

    def acknowledge(self, answer: PushResponse, flush: FlushMode, now: int) -> None:
        """An answer of the present epoch: how far its log is ours, and how safely."""
        verified, durable, faulty_from = answer.verified_index, answer.durable_index, answer.faulty_from
        if verified > self.match_index:
            self.match_index = verified
        # One answer's own pair: an earlier `durable` may have been cut since (R2).
        mark = watermark(verified, durable, flush, faulty_from)
        if mark > self.watermark_index:
            self.watermark_index = mark
        # Damaged or not: what was delivered was delivered.
        self.window.rate.taken(mark if faulty_from < 0 else watermark(verified, durable, flush), now)
        if faulty_from != self.faulty_from:
            self._faults_seen(faulty_from)
        self.durable_index = durable
        held = min(verified, durable) if faulty_from < 0 else min(verified, durable, faulty_from - 1)
        if held > self.held_index:
            self.held_index = held

    def _faults_seen(self, faulty_from: int) -> None:
        """A damaged peer does not count from there on: the record of it may go down, what is committed stays (S6)."""
        self.faulty_from = faulty_from
        if faulty_from >= 0:
            self.watermark_index = min(self.watermark_index, faulty_from - 1)
            self.held_index = min(self.held_index, faulty_from - 1)

    def ends_at(self, end_index: int) -> None:
        """Its log ends there: what it held beyond is gone (a replaced disk, a copy put back)."""
        self.held_index = min(self.held_index, end_index)

    @property
    def sound_match_index(self) -> int:
        """Up to here the peer holds our log, and every entry of it is intact."""
        return self._sound(self.match_index)

    def _sound(self, index: int) -> int:
        return index if self.faulty_from < 0 else min(index, self.faulty_from - 1)

    def answered(self, seq: int, tick: int, now: int) -> None:
        """An answer of our term to heartbeat `seq` (-1: to a push); only of a peer that counts."""
        self.answered_at = now
        self.answered_tick = tick
        if seq > self.answered_seq:
            self.answered_seq = seq

    # --- what it is sent ----------------------------------------------------------------------------------------
    def order_sent(self, commit_index: int, now: int) -> None:
        """An order without entries leaves."""
        self.commit_sent = commit_index
        self.pushed_at = now

    def sent(self, seq: int, carried: InFlight, commit_index: int) -> None:
        """An order to append leaves: an answer to it is to come."""
        self.commit_sent = commit_index
        self.pushed_at = carried.sent_at
        self.window.sent(seq, carried)
        self.write_index = carried.last_index + 1

    def resend(self) -> None:
        """From what is known to match, one slab at a time until an answer comes."""
        self.window.clear()
        self.write_index = self.match_index + 1
        self.window.probing = True


class Peers:
    """Every other member of the group, in step with the configuration; `of` by id, in the order of ids."""

    def __init__(self, config: ReplicaConfig, configuration: Configuration) -> None:
        self._config = config
        self._epochs_used = 0  # by peers that are gone
        self.of: dict[str, Progress] = {}
        self.voters: tuple[Progress, ...] = ()
        self.configure(configuration)

    def configure(self, configuration: Configuration, gone: Collection[str] = ()) -> None:
        """Whoever stays is known as before; whoever comes is not known at all, nor is one of `gone` that is back."""
        ids = sorted(one for one in configuration.members if one != self._config.self_id)
        self._epochs_used = self.last_epoch
        before = {one: peer for one, peer in self.of.items() if one not in gone}
        for one, peer in before.items():
            peer.is_voter = one in configuration.voters
            peer.counts = peer.counts and peer.is_voter
        self.of = {one: before.get(one) or Progress(one, one in configuration.voters, self._config) for one in ids}
        self.voters = tuple(peer for peer in self.of.values() if peer.is_voter)

    @property
    def last_epoch(self) -> int:
        """The highest dispatch epoch that any peer was ever spoken to in; a new leadership begins above it."""
        return max([self._epochs_used, *(peer.dispatch_epoch for peer in self.of.values())])

    def held_by_all(self, own_index: int) -> int:
        """Up to here every member is known to hold the log, if this one does up to `own_index`."""
        return min([own_index, *(peer.held_index for peer in self.of.values())])

    def connected(self) -> set[str]:
        """Who can answer now."""
        return {peer_id for peer_id, peer in self.of.items() if peer.connected}

    def connected_voters(self) -> set[str]:
        """Of whom a vote can come now."""
        return {peer.peer_id for peer in self.voters if peer.connected}

    def quorum_rate(self, configuration: Configuration, now: int) -> int | None:
        """How many bytes a second a commit can follow: what the slowest peer that it must wait for takes.

        None: nothing was measured of it yet, or a commit waits for no peer. 0: it is not there.
        """
        rates = []
        for peer in self.voters:
            there = peer.counts and peer.connected and peer.state is DispatcherState.APPEND
            measured = peer.window.rate.bytes_per_s(now) if there else 0
            rates.append(UNMEASURED if measured is None else measured)
        rate = configuration.reached_by(self._config.self_id, UNMEASURED, rates)
        return None if rate == UNMEASURED else rate

    def slab_time_ns(self, configuration: Configuration, now: int) -> int:
        """How long the longest slab that voters are being sent takes at that rate; 0: nobody knows."""
        sizes = [oldest.size_bytes for peer in self.voters if (oldest := peer.window.oldest()) is not None]
        rate = self.quorum_rate(configuration, now)
        return max(sizes) * SECOND // rate if sizes and rate else 0
