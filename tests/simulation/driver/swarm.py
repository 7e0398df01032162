"""What one seed of the driver's world enables: the group's shape, the pace of things, and which faults come how often.

Fields mean what they mean in `tests/simulation/swarm.py`; the time scale is that of the product's own constants (dials
of two seconds, re-dials of up to one), so periods are longer here. Rates are events per simulated second.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from node.store.files.identity import Base
from node.store.log_store import EntryMeta
from tests.simulation.swarm import BORN_LATER, born_later
from tests.simulation.swarm import CALM as CORE_CALM

WITH_LANES: Final = 0.3  # share of the worlds
BROKERS: Final = 0.15  # the same: groups whose every entry is a record
_CORE_FIELDS = frozenset(one.name for one in fields(CORE_CALM))


@dataclass(slots=True, frozen=True)
class DriverSwarm:
    """See the module's docstring."""

    members: int = 3
    flush_sync: bool = True
    lease_reads: bool = False
    data_file_size: int = 16 * 1024
    index_file_size: int = 32 * 128
    ring_bytes: int = 0  # recent slabs kept in memory; 0: as many as the product keeps
    election_ms: int = 160
    ack_within_ms: int = 600  # an append that found no quorum by then has an unknown outcome
    sync_ms: float = 2.0
    slow_disk: float = 0.0  # share of disk jobs that take 20 times as long
    delay_ms: float = 0.5
    piece_bytes: int = 1448  # what the network carries at a time, at most
    reset: float = 0.0
    partition: float = 0.0
    asymmetric: float = 0.0
    isolate_leader: float = 0.0
    partition_ms: float = 500.0
    unaware: float = (
        0.0  # a leader is cut off and stands still until another one leads, and goes on before the cut ends
    )
    slow_link: float = 0.0
    narrow_link: float = 0.0  # a way between two machines carries only so much for a while
    narrow_bytes_per_s: int = 100_000
    clock_offset: bool = False
    pause: float = 0.0
    stall: float = 0.0  # every engine at once: the machine under them stands still
    pause_ms: float = 300.0
    stop: float = 0.0
    crash: float = 0.0
    crash_at_io: float = 0.0
    power_loss: float = 0.0
    down_ms: float = 300.0
    fsync_error: float = 0.0
    enospc: float = 0.0
    clients: int = 2
    bursts: float = 25.0  # of appends, per client
    timed_bursts: float = 5.0  # of appends, asked for by a timer's own callback
    burst_max: int = 4
    client_busy_ms: float = 0.0  # how long a client's process does other things in each turn of its loop, about
    body_bytes: int = 40
    in_flight_max: int = 1000
    deadline_s: float = 1.5
    expected_index: float = 0.1
    reads: float = 8.0
    whole_reads: float = 0.05  # share of reads that want the whole log
    transfers: float = 0.0
    client_loss: float = 0.0  # clients that are closed in the middle, and made anew
    ordered: int = 1  # producers that ask for order on a connection of their own
    lanes: int = 0  # appenders over lanes, each of which voids the others'
    broker: bool = False  # the group is a broker's: what does not come over a lane is refused
    looks: float = 8.0  # questions to the control planes
    followers: int = 0  # clients of the stream of committed positions
    applier: bool = False  # a state machine beside each log
    apply_ms: float = 2.0
    apply_fail: float = 0.0
    apply_restart: float = 0.0
    born_index: int = -1  # behind which entry of the past the group's log begins; -1: behind none
    born_term: int = 0  # of that entry, as is the next one
    born_chain: int = 0
    born_pos: int = 0  # where the first entry lies

    def born_at(self) -> Base | None:
        """What every member's log begins behind; None: at the beginning."""
        if self.born_index < 0:
            return None
        return Base(EntryMeta(self.born_index, self.born_term, self.born_chain), self.born_pos)

    def __getattr__(self, name: str) -> Any:
        """Faults that the core's world has and this one has not are off: the invariants ask for them."""
        if name in _CORE_FIELDS:
            return getattr(CORE_CALM, name)
        raise AttributeError(name)

    @property
    def always_sync(self) -> bool:
        """Nobody changes the flush mode here."""
        return self.flush_sync

    @property
    def retune(self) -> float:
        """Nor any other settings."""
        return 0.0

    @classmethod
    def from_seed(cls, seed: int, **overrides: Any) -> DriverSwarm:
        """The one this seed enables, with fields replaced by `overrides`."""
        chosen = {**_choose(random.Random(f"driver {seed}")), **_state_machines(random.Random(f"machines {seed}"))}
        follows = random.Random(f"followers {seed}")
        followers = follows.randrange(1, 3) if follows.random() < 0.4 else 0
        appends = random.Random(f"lanes {seed}")
        lanes = appends.randrange(1, 4) if appends.random() < WITH_LANES else 0
        drawn = cls(**chosen, followers=followers, lanes=lanes)
        begins = random.Random(f"born {seed}")
        if begins.random() < BORN_LATER:
            drawn = replace(drawn, **born_later(begins, drawn.data_file_size))
        drawn = replace(drawn, broker=random.Random(f"broker {seed}").random() < BROKERS)
        return _fenced(replace(drawn, **overrides))


CALM = DriverSwarm()


def _fenced(swarm: DriverSwarm) -> DriverSwarm:
    """A broker group's log has no state machine beside it, is written over lanes, and begins with a data file."""
    if not swarm.broker:
        return swarm
    born_pos = swarm.born_pos // swarm.data_file_size * swarm.data_file_size
    return replace(swarm, applier=False, lanes=max(1, swarm.lanes), born_pos=born_pos)


def _choose(rng: random.Random) -> dict[str, Any]:
    """Everything is drawn in a fixed order, so that one field's chances do not move another's."""
    chosen: dict[str, Any] = {
        "members": rng.choice((3, 3, 3, 4, 5)),
        "flush_sync": rng.random() < 0.75,
        "lease_reads": rng.random() < 0.2,
        "data_file_size": rng.choice((8, 16, 64)) * 1024,
        "index_file_size": rng.choice((64, 256)) * 32,
        "ring_bytes": rng.choice((0, 0, 512, 4096)),
        "sync_ms": rng.choice((0.5, 2.0, 10.0)),
        "delay_ms": rng.choice((0.1, 0.5, 3.0)),
        "piece_bytes": rng.choice((64, 536, 1448, 65536)),
        "narrow_bytes_per_s": rng.choice((30_000, 100_000, 1_000_000)),
        "ack_within_ms": rng.choice((150, 600)),
        "partition_ms": rng.choice((150.0, 500.0, 1500.0)),
        "pause_ms": rng.choice((50.0, 300.0, 900.0)),
        "down_ms": rng.choice((50.0, 300.0, 900.0)),
        "clock_offset": rng.random() < 0.5,
        "clients": rng.randrange(1, 4),
        "bursts": rng.choice((8.0, 25.0, 60.0)),
        "burst_max": rng.choice((1, 4, 12)),
        "body_bytes": rng.choice((12, 40, 400, 2000)),
        "in_flight_max": rng.choice((3, 20, 1000)),
        "deadline_s": rng.choice((0.4, 1.5, 4.0)),
        "reads": rng.choice((4.0, 15.0)),
        "client_busy_ms": rng.choice((0.0, 0.0, 0.2, 2.0)),
    }
    for name, chance, intensity in FAULTS:
        on, value = rng.random() < chance, intensity(rng)
        chosen[name] = value if on else 0.0
    return chosen


def _state_machines(rng: random.Random) -> dict[str, Any]:
    """A generator of their own: what a seed meant without them it still means."""
    chosen = {
        "applier": rng.random() < 0.35,
        "apply_ms": rng.choice((0.2, 2.0, 20.0)),
        "apply_fail": rng.choice((0.0, 0.02)),
        "apply_restart": rng.choice((0.0, 0.5)),
    }
    return chosen if chosen["applier"] else {}


def _between(low: float, high: float) -> Callable[[random.Random], float]:
    return lambda rng: round(low * (high / low) ** rng.random(), 4)


FAULTS: tuple[tuple[str, float, Callable[[random.Random], float]], ...] = (
    ("slow_disk", 0.3, _between(0.02, 0.3)),
    ("reset", 0.4, _between(0.2, 3.0)),
    ("partition", 0.3, _between(0.2, 1.0)),
    ("asymmetric", 0.2, _between(0.2, 1.0)),
    ("isolate_leader", 0.4, _between(0.2, 1.5)),
    ("unaware", 0.25, _between(0.2, 1.0)),
    ("slow_link", 0.2, _between(0.2, 1.0)),
    ("narrow_link", 0.3, _between(0.2, 2.0)),
    ("pause", 0.3, _between(0.2, 1.5)),
    ("stall", 0.25, _between(0.2, 1.0)),
    ("stop", 0.2, _between(0.1, 0.7)),
    ("crash", 0.4, _between(0.2, 1.5)),
    ("crash_at_io", 0.3, _between(0.2, 1.5)),
    ("power_loss", 0.35, _between(0.2, 1.0)),
    ("fsync_error", 0.15, _between(0.1, 0.7)),
    ("enospc", 0.15, _between(0.1, 0.7)),
    ("transfers", 0.4, _between(0.2, 2.0)),
    ("client_loss", 0.3, _between(0.2, 1.0)),
)
