"""What one seed of the broker's world enables, beside what the driver's swarm says of its engines.

Rates are events per simulated second; what is said of clients is of each.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from tests.simulation.driver.swarm import DriverSwarm


@dataclass(slots=True, frozen=True)
class BrokerSwarm(DriverSwarm):
    """See the module's docstring."""

    broker: bool = True
    members: int = 3
    lease_reads: bool = True
    data_file_size: int = 16 * 1024
    save_s: float = 0.3  # how often derived files are saved, and expired ones removed
    producers: int = 2
    consumers: int = 1
    sends: float = 25.0
    pulls: float = 12.0
    questions: float = 8.0  # of producers: look-ups, ends of queues
    topics: int = 2
    queues: int = 2  # of a topic
    silences: bool = False  # the first queue is not sent to until all its messages have expired and masters changed
    batches: float = 0.1  # share of sends
    delayed: float = 0.0
    halves: float = 0.0  # sends that are half messages of a transaction
    broker_crash: float = 0.0
    broker_crash_at_io: float = 0.0
    broker_stop: float = 0.0
    broker_pause: float = 0.0
    broker_cut: float = 0.0  # from its own engine
    broker_narrow: float = 0.0  # what its engine sends it comes slowly for a while
    broker_reset: float = 0.0  # its connections to its engine break
    client_cut: float = 0.0  # clients from one broker
    kept_files: int = 0  # the log's oldest files go while it is larger; 0: none does
    broker_wiped: float = 0.0  # its queues and index are removed while it is down
    wall_back: float = 0.0  # a machine's wall clock is set back
    wall_apart_ms: int = 0  # wall clocks of machines are so far apart, at most

    @classmethod
    def from_seed(cls, seed: int, **overrides: Any) -> BrokerSwarm:
        """The one this seed enables, with fields replaced by `overrides`."""
        rng = random.Random(f"broker world {seed}")
        chosen: dict[str, Any] = {
            "lease_reads": rng.random() < 0.7,
            "data_file_size": rng.choice((8, 16, 64)) * 1024,
            "ring_bytes": rng.choice((0, 0, 4096)),
            "save_s": rng.choice((0.1, 0.5, 10.0)),
            "sync_ms": rng.choice((0.5, 2.0, 10.0)),
            "delay_ms": rng.choice((0.1, 0.5, 2.0)),
            "clock_offset": rng.random() < 0.5,
            "sends": rng.choice((10.0, 30.0, 60.0)),
            "batches": rng.choice((0.0, 0.1, 0.3)),
            "delayed": rng.choice((0.0, 0.1, 0.3)),
            "halves": rng.choice((0.0, 0.1, 0.3)),
            "body_bytes": rng.choice((12, 40, 400)),
            "kept_files": rng.choice((0, 0, 3, 6)),
            "wall_apart_ms": rng.choice((0, 0, 3000)),
            "down_ms": rng.choice((50.0, 300.0)),
            "pause_ms": rng.choice((50.0, 300.0, 900.0)),
            "partition_ms": rng.choice((150.0, 500.0, 1500.0)),
        }
        for name, chance in FAULTS:
            on, rate = rng.random() < chance, round(0.2 * 6.0 ** rng.random(), 3)
            chosen[name] = rate if on else 0.0
        chosen["slow_disk"] = 0.1 if rng.random() < 0.2 else 0.0
        chosen["silences"] = bool(chosen["kept_files"]) and rng.random() < 0.5
        return replace(cls(**chosen), **overrides)


FAULTS = (
    ("broker_crash", 0.4), ("broker_crash_at_io", 0.4), ("broker_stop", 0.2), ("broker_pause", 0.3),
    ("broker_cut", 0.3), ("broker_narrow", 0.3), ("client_cut", 0.2), ("wall_back", 0.3), ("crash", 0.3),
    ("power_loss", 0.3), ("pause", 0.3), ("isolate_leader", 0.3), ("partition", 0.2), ("unaware", 0.25), ("reset", 0.2),
    ("transfers", 0.4), ("broker_reset", 0.3), ("broker_wiped", 0.25),
)  # fmt: skip
