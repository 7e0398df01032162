"""What one seed enables: a random subset of faults with random intensities, and the shape of the group (swarm testing).

A run with every fault at once hides bugs that need a quiet moment; so each seed turns most faults off. A `Swarm` is a
frozen, JSON-able record: the same one gives the same run, and a shrinker may reset it field by field to `CALM`.

Periods are milliseconds of simulated time, sizes bytes, rates events per simulated second of the whole world, shares
0..1; 0 turns a fault off. What the safety rules promise nothing about is fenced off here and in `nemesis.py`, each with
its reason.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from node.consensus.api import MS, Timing
from node.protocol.entry import BLANK_BYTES
from node.store.files.identity import Base
from node.store.log_store import EntryMeta


@dataclass(slots=True, frozen=True)
class Swarm:
    """See the module's docstring."""

    # The group.
    members: int = 3
    flush_sync: bool = True
    lease_reads: bool = False
    preferred_leader: bool = False
    late_boot: bool = False  # members start at different times
    learner: float = 0.0  # a member without a vote joins, or leaves again, while the group runs (M4)
    membership: float = 0.0  # changes of who belongs to the group that an operator asks for (M1 to M7)
    members_most: int = 6  # and how many there may be then
    unnamed: bool = False  # made without a token: a leader gives the group its id (C9)
    data_file_size: int = 16 * 1024
    index_file_size: int = 32 * 128
    recheck_bytes: int = 0  # how much of the log's end a start reads again; 0: as much as the product does
    ring_bytes: int = 0  # recent slabs kept in memory; 0: as many as the product keeps
    election_ms: int = 80  # the shortest time-out; the longest is twice that
    push_window_slabs: int = 32
    born_index: int = -1  # behind which entry of the past the group's log begins; -1: behind none
    born_term: int = 0  # of that entry, as is the next one
    born_chain: int = 0
    born_pos: int = 0  # where the first entry lies
    broker: bool = False  # its log is a broker's: every entry a record, appended over lanes
    # The disk's pace.
    sync_ms: float = 2.0
    slow_disk: float = 0.0  # share of disk jobs that take 20 times as long
    # The network.
    delay_ms: float = 1.0
    drop: float = 0.0  # share of messages, as are the next two
    duplicate: float = 0.0
    reorder: float = 0.0
    link_kb_per_s: float = 0.0  # what each way carries of slabs; 0: no limit
    narrow_link: float = 0.0  # ways that carry only so much for a while: one, or all of a member's
    narrow_kb_per_s: float = 60.0  # of slabs
    narrow_ms: float = 600.0  # how long one is so, about
    slow_link: float = 0.0
    reset: float = 0.0  # connections that break
    partition: float = 0.0  # the members in two parts
    asymmetric: float = 0.0  # some directions only
    bridge: float = 0.0  # two parts that only one member reaches both of
    ring: float = 0.0  # everyone reaches two neighbours only
    isolate_leader: float = 0.0
    restore: float = 0.0  # a directory is copied, or put back from its copy
    cut_lease: float = 0.0  # a leader is cut off while the followers that granted its lease start anew
    partition_ms: float = 200.0  # how long one lasts, about
    hold: float = 0.5  # share of partitions that hold back what is sent, as TCP does; the others lose it
    # Clocks.
    clock_offset: bool = False
    clock_drift: float = 0.0  # largest deviation of a clock's rate
    clock_jump: float = 0.0
    # Processes and machines.
    pause: float = 0.0
    pause_ms: float = 150.0
    stall: float = 0.0  # all members stand still together, and go on a little apart
    stop: float = 0.0  # clean ends
    crash: float = 0.0
    crash_at_io: float = 0.0
    power_loss: float = 0.0
    down_ms: float = 150.0  # how long a machine without power stays so, about
    # Disks.
    fsync_error: float = 0.0
    enospc: float = 0.0
    rot: float = 0.0
    misdirected_write: float = 0.0
    lost_write: float = 0.0
    lost_tail: float = 0.0
    lost_checkpoint: float = 0.0
    scrub: float = 0.0  # passes over a whole log
    wipe: float = 0.0
    lost_file: float = 0.0
    trim: float = 0.0  # files go from the front of a log
    left_behind: float = 0.0  # share of those trims that take what other members lack
    lose_state: float = 0.0  # a state machine loses all its snapshots
    lose_sender: float = 0.0  # looks for a leader that sends a snapshot, which is lost then
    retune: float = 0.0  # steps of an operator who changes flush, lease reads and time-outs, member by member
    retune_only: str = ""  # of flush, lease_reads, election; empty: all of them
    # Clients.
    clients: int = 3
    appends: float = 60.0
    reads: float = 20.0
    read_ways: bool = False  # reads go each of the ways in turn: by lease, by a round trip, through the log
    transfers: float = 0.0
    batch_max: int = 1
    body_bytes: int = 40
    expected_index: float = 0.0  # share of appends, as are the next two
    ordered: float = 0.0
    client_loss: float = 0.0  # share of requests whose client loses its connection before the answer
    # State machines.
    applier: bool = False  # one beside each log; else these are logs alone
    apply_ms: float = 2.0  # how long a batch takes, about
    apply_fail: float = 0.0  # share of entries at which one fails, and is asked again
    apply_restart: float = 0.0  # ends of each
    at_apply: float = 0.0  # share of appends that wait for their result

    @property
    def always_sync(self) -> bool:
        """Whether nothing ever counts that is not durable: a power loss takes nobody's memory."""
        return self.flush_sync and not self.retune

    @classmethod
    def from_seed(cls, seed: int, **overrides: Any) -> Swarm:
        """The one this seed enables, with fields replaced by `overrides`."""
        unnamed = random.Random(f"unnamed {seed}").random() < 0.3
        chooses = random.Random(f"learner {seed}")
        learner = round(0.5 * 8 ** chooses.random(), 4) if chooses.random() < 0.15 else 0.0
        machines = _state_machines(random.Random(f"applier {seed}"))
        chosen = cls(**_choose(random.Random(f"swarm {seed}")), unnamed=unnamed, learner=learner, **machines)
        chosen = replace(chosen, read_ways=random.Random(f"reads {seed}").random() < READ_WAYS)
        changes = random.Random(f"membership {seed}")
        if changes.random() < CHANGED:
            chosen = replace(chosen, membership=round(2.0 * 5 ** changes.random(), 4))
        begin = random.Random(f"born {seed}")
        if begin.random() < BORN_LATER:
            chosen = replace(chosen, **born_later(begin, chosen.data_file_size))
        trims = random.Random(f"trim {seed}")
        if trims.random() < TRIMMED and may_trim(chosen):
            often = round(4.0 * 3 ** trims.random(), 4)
            left_behind = round(trims.random(), 4) if trims.random() < 0.5 else 0.0
            # Files of that size fill.
            chosen = replace(chosen, trim=often, left_behind=left_behind, data_file_size=4096, body_bytes=400)
        retunes = random.Random(f"retune {seed}")
        if retunes.random() < RETUNED:
            chosen = replace(chosen, retune=round(3.0 * 6 ** retunes.random(), 4))
        sends = random.Random(f"snapshots {seed}")
        if sends.random() < SENT:
            chosen = replace(chosen, **sent_snapshots(sends))
        chosen = replace(chosen, broker=random.Random(f"broker {seed}").random() < BROKERS)
        return fenced(replace(chosen, **overrides))

    def born_at(self) -> Base | None:
        """What every member's log begins behind, also on a new disk; None: at the beginning."""
        if self.born_index < 0:
            return None
        return Base(EntryMeta(self.born_index, self.born_term, self.born_chain), self.born_pos)

    def as_json(self) -> dict[str, Any]:
        """What `Swarm(**...)` takes back."""
        return asdict(self)

    def timing(self) -> Timing:
        """Every period of the core in proportion to the election time-out, so that a short run holds many elections."""
        election = self.election_ms * MS
        return Timing(
            heartbeat_ns=election // 4,
            election_min_ns=election,
            election_max_ns=2 * election,
            quorum_silence_max_ns=20 * election,
            vote_round_ns=election,
            vote_retry_min_ns=election // 8,
            vote_retry_max_ns=election // 2,
            quick_election_min_ns=election // 40,
            quick_election_max_ns=election // 8,
            push_timeout_ns=election * 3 // 2,
            busy_retry_ns=election // 8,
            commit_push_ns=election // 4,
            diverged_backoff_min_ns=election // 2,
            diverged_backoff_max_ns=5 * election,
            closure_timeout_ns=4 * election,
            read_timeout_ns=4 * election,
            transfer_deadline_ns=5 * election,
            preferred_check_ns=3 * election,
            preferred_again_ns=3 * election,
            apply_retry_min_ns=election // 8,
            apply_retry_max_ns=election,
        )


CALM = Swarm()


def fenced(swarm: Swarm) -> Swarm:
    """Takes out what makes a promise void by its own terms.

    Lease reads (C1) trust that clocks drift apart by no more than a tenth of the lease, and do not jump. What all
    others removed from their logs cannot come back to a member whose copy is damaged.
    """
    if swarm.broker:  # nothing but the broker reads the log, and who comes is in the log
        born_pos = swarm.born_pos // swarm.data_file_size * swarm.data_file_size
        swarm = replace(swarm, applier=False, learner=0.0, born_pos=born_pos)
    left_bytes = -swarm.born_pos % swarm.data_file_size
    if 0 < left_bytes < BLANK_BYTES:  # no log begins there; another choice made the files shorter
        swarm = replace(swarm, born_pos=swarm.born_pos + left_bytes)
    if swarm.membership:
        # One learner of an operator that no log knows is another story. Who leaves may hold the last sound copy of
        # what rotted elsewhere: nobody who removes a member knows that.
        spoilt = dict.fromkeys(SPOIL_ENTRIES, 0.0)
        swarm = replace(swarm, members=min(swarm.members, 5), learner=0.0, **spoilt)
    if swarm.trim and not may_trim(swarm):
        swarm = replace(swarm, trim=0.0)
    if not swarm.applier:
        swarm = replace(swarm, lose_state=0.0, lose_sender=0.0)
    if swarm.left_behind and not swarm.trim:
        swarm = replace(swarm, left_behind=0.0)
    if swarm.lease_reads or swarm.retune:
        return replace(swarm, clock_jump=0.0, clock_drift=min(swarm.clock_drift, 0.02))
    return swarm


def may_trim(swarm: Swarm) -> bool:
    """Whether files may go from the fronts of logs: see `fenced`."""
    return not any(getattr(swarm, name) for name in DAMAGE)


def _choose(rng: random.Random) -> dict[str, Any]:
    """Everything is drawn in a fixed order, so that one field's chances do not move another's."""
    chosen: dict[str, Any] = {
        "members": rng.choice((3, 3, 3, 3, 4, 5, 5, 6, 7)),
        "flush_sync": rng.random() < 0.7,
        "lease_reads": rng.random() < 0.25,
        "preferred_leader": rng.random() < 0.2,
        "late_boot": rng.random() < 0.3,
        "data_file_size": rng.choice((4, 8, 16, 64)) * 1024,
        "index_file_size": rng.choice((16, 64, 256)) * 32,
        "ring_bytes": rng.choice((0, 0, 512, 4096)),
        "election_ms": rng.choice((60, 80, 80, 120)),
        "push_window_slabs": rng.choice((1, 4, 32, 32)),
        "sync_ms": rng.choice((0.3, 1.0, 2.0, 6.0)),
        "delay_ms": rng.choice((0.2, 0.5, 1.0, 3.0)),
        "partition_ms": rng.choice((60.0, 200.0, 500.0)),
        "hold": rng.choice((0.0, 0.5, 1.0)),
        "pause_ms": rng.choice((30.0, 150.0, 400.0)),
        "down_ms": rng.choice((20.0, 150.0, 400.0)),
        "clock_offset": rng.random() < 0.5,
        "clients": rng.randrange(1, 6),
        "appends": rng.choice((15.0, 40.0, 80.0, 150.0)),
        "reads": rng.choice((5.0, 15.0, 40.0)),
        "batch_max": rng.choice((1, 1, 3, 20)),
        "body_bytes": rng.choice((12, 40, 40, 400)),
    }
    for name, chance, intensity in FAULTS:
        on, value = rng.random() < chance, intensity(rng)
        chosen[name] = value if on else 0.0
    chosen["recheck_bytes"] = rng.choice((0, 1500, 4000))
    return chosen


def born_later(rng: random.Random, file_size: int) -> dict[str, Any]:
    """A group whose log goes on from another one's: at a file's start, or inside a file of any number."""
    inside = rng.choice((0, rng.randrange(1, file_size - BLANK_BYTES)))
    return {
        "born_index": rng.choice((0, 15, rng.randrange(1, 5000), 2**33)),
        "born_term": rng.randrange(20),
        "born_chain": rng.getrandbits(32),
        "born_pos": rng.choice((0, rng.randrange(1, 200))) * file_size + inside,
    }


def sent_snapshots(rng: random.Random) -> dict[str, Any]:
    """Logs beside state machines that are trimmed whoever lacks what goes: then snapshots go from member to member."""
    return {
        **dict.fromkeys(DAMAGE, 0.0), "applier": True, "apply_ms": 2.0, "apply_fail": 0.0, "trim": 12.0,
        "left_behind": 0.7, "data_file_size": 4096, "body_bytes": 400, "appends": 150.0, "partition": 3.0,
        "partition_ms": 500.0, "pause": 2.0, "wipe": rng.choice((0.0, 1.0)), "reset": rng.choice((0.0, 3.0)),
        "lose_state": rng.choice((0.0, 2.0)), "lose_sender": rng.choice((0.0, 150.0)),
    }  # fmt: skip


def _state_machines(rng: random.Random) -> dict[str, Any]:
    """A generator of their own: what a seed meant without them it still means."""
    chosen = {
        "applier": rng.random() < 0.35,
        "apply_ms": rng.choice((0.2, 2.0, 20.0, 80.0)),
        "apply_fail": rng.choice((0.0, 0.0, 0.02, 0.2)),
        "apply_restart": rng.choice((0.0, 1.0, 4.0)),
        "at_apply": rng.choice((0.2, 0.5, 1.0)),
    }
    return chosen if chosen["applier"] else {}


def _between(low: float, high: float) -> Callable[[random.Random], float]:
    return lambda rng: round(low * (high / low) ** rng.random(), 4)


BORN_LATER = 0.08  # share of seeds
BROKERS = 0.12  # the same
SENT = 0.06  # of those in which snapshots go from member to member
READ_WAYS = 0.4  # the same
CHANGED = 0.2  # of those whose members change
SPOIL_ENTRIES = ("rot", "misdirected_write", "lost_write", "lost_file")
RETUNED = 0.15  # share of seeds
TRIMMED = 0.4  # share of those seeds where it may be
FORGET = ("wipe", "restore", "learner")  # a member comes back with less, or new
DAMAGE = ("rot", "misdirected_write", "lost_write", "lost_tail", "lost_checkpoint", "lost_file")
FAULTS: tuple[tuple[str, float, Callable[[random.Random], float]], ...] = (
    ("slow_disk", 0.2, _between(0.02, 0.3)),
    ("drop", 0.35, _between(0.005, 0.2)),
    ("duplicate", 0.3, _between(0.005, 0.2)),
    ("reorder", 0.3, _between(0.01, 0.3)),
    ("slow_link", 0.2, _between(0.5, 3.0)),
    ("reset", 0.3, _between(0.5, 6.0)),
    ("partition", 0.3, _between(0.5, 3.0)),
    ("asymmetric", 0.2, _between(0.5, 3.0)),
    ("bridge", 0.1, _between(0.5, 2.0)),
    ("ring", 0.1, _between(0.5, 2.0)),
    ("isolate_leader", 0.35, _between(0.5, 4.0)),
    ("clock_drift", 0.3, _between(0.001, 0.1)),
    ("clock_jump", 0.2, _between(0.3, 3.0)),
    ("pause", 0.25, _between(0.5, 4.0)),
    ("stop", 0.2, _between(0.3, 2.0)),
    ("crash", 0.35, _between(0.5, 4.0)),
    ("crash_at_io", 0.35, _between(0.5, 4.0)),
    ("power_loss", 0.35, _between(0.5, 4.0)),
    ("fsync_error", 0.15, _between(0.3, 2.0)),
    ("enospc", 0.15, _between(0.3, 2.0)),
    ("rot", 0.2, _between(0.3, 2.0)),
    ("misdirected_write", 0.1, _between(0.3, 1.0)),
    ("lost_write", 0.15, _between(0.5, 4.0)),
    ("lost_tail", 0.1, _between(0.3, 1.0)),
    ("lost_checkpoint", 0.15, _between(0.5, 4.0)),
    ("scrub", 0.5, _between(0.5, 8.0)),
    ("wipe", 0.2, _between(0.3, 1.5)),
    ("transfers", 0.4, _between(0.5, 6.0)),
    ("expected_index", 0.3, _between(0.05, 0.5)),
    ("ordered", 0.3, _between(0.1, 1.0)),
    ("client_loss", 0.3, _between(0.02, 0.2)),
    # Drawn last, so that what a seed meant before it still means.
    ("cut_lease", 0.15, _between(0.5, 2.0)),
    ("stall", 0.2, _between(0.3, 2.0)),
    ("lost_file", 0.15, _between(0.5, 3.0)),
    ("restore", 0.2, _between(1.0, 6.0)),
    ("narrow_link", 0.2, _between(0.3, 2.0)),
)
