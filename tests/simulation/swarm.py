"""What one seed enables: a random subset of faults with random intensities, and the shape of the group (swarm testing).

A run with every fault at once hides bugs that need a quiet moment; so each seed turns most faults off. A `Swarm` is a
frozen, JSON-able record: the same one gives the same run, and a shrinker may reset it field by field to `CALM`.
Rates are per simulated second and member unless the name says otherwise; 0 turns a fault off.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(slots=True, frozen=True)
class Swarm:
    """See the module's docstring. Periods in milliseconds of simulated time, sizes in bytes, shares in 0..1."""

    # The group.
    members: int = 3
    flush_sync: bool = True
    lease_reads: bool = False
    preferred_leader: bool = False
    data_file_size: int = 16 * 1024
    index_file_size: int = 32 * 256
    election_ms: int = 80  # shortest; the longest is twice that, a heartbeat a fourth
    push_window_slabs: int = 32
    # The disk's pace.
    sync_ms: float = 2.0
    slow_disk: float = 0.0  # share of disk jobs that take 20 times as long
    # The network.
    delay_ms: float = 1.0
    drop: float = 0.0  # share of messages
    duplicate: float = 0.0
    reorder: float = 0.0
    slow_links: float = 0.0
    reset: float = 0.0  # connections that break
    partition: float = 0.0  # per second of the whole world, as are the next four
    asymmetric: float = 0.0
    bridge: float = 0.0
    ring: float = 0.0
    isolate_leader: float = 0.0
    # Clocks.
    clock_offset: bool = False
    clock_drift: float = 0.0  # largest deviation of a clock's rate
    clock_jump: float = 0.0
    # Processes and machines.
    pause: float = 0.0
    crash: float = 0.0
    crash_at_io: float = 0.0
    power_loss: float = 0.0
    # Disks.
    fsync_error: float = 0.0
    enospc: float = 0.0
    rot: float = 0.0
    misdirected_write: float = 0.0
    wipe: float = 0.0
    # Clients.
    clients: int = 3
    appends: float = 60.0  # requests per second of the whole world, as are the next two
    reads: float = 20.0
    transfers: float = 0.0
    batch_max: int = 1
    body_bytes: int = 40
    expected_index: float = 0.0  # share of appends
    ordered: float = 0.0

    @classmethod
    def from_seed(cls, seed: int, **overrides: Any) -> Swarm:
        """The one this seed enables, with fields replaced by `overrides`."""
        rng = random.Random(f"swarm {seed}")
        chosen = _choose(rng)
        return replace(cls(**chosen), **overrides)

    def as_json(self) -> dict[str, Any]:
        """What `Swarm(**...)` takes back."""
        return asdict(self)


CALM = Swarm()


def _choose(rng: random.Random) -> dict[str, Any]:
    return {"members": rng.choice((3, 3, 3, 4, 5, 5, 6, 7))}
