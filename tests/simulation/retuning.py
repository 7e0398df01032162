"""An operator who changes the settings of a group that runs: flush, lease reads, election time-outs, one member each.

Now and then new ones are wanted; until all have them, each member gets them at a moment of its own: told while it runs,
as SIGHUP does, or by a new start. What is wanted next may come before all have what was wanted before. In `heal` the
operator ends what is begun.

Invariants: what a member was told is what it starts with, too; nothing is wanted that the product would refuse for its
timings (docs/operations.md: time-outs vary here, heartbeats do not).
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from node.consensus.api import MS, ReplicaConfig
from node.protocol.codes import FlushMode

if TYPE_CHECKING:
    from tests.simulation.member import Member
    from tests.simulation.world import World

BY_A_START = 0.3  # share of changes
HALVES = (1, 2, 4)  # of the election time-out that the world's other periods go by


class Retuning:
    """One per world."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world, self._rng = world, rng
        config = world.config
        self._flush = FlushMode.SYNC if config.flush_sync else FlushMode.ASYNC
        self._lease_reads, self._halves = config.lease_reads, 2
        self._waiting: list[str] = []  # members that have not heard of it yet

    def act(self) -> str | None:
        """The operator's next step; what it was, None: there was nobody to tell."""
        if not self._waiting or self._rng.random() < 0.1:
            return self._want()
        member = self._world.members[self._waiting[self._rng.randrange(len(self._waiting))]]
        if not member.up or member.paused:
            return None
        self._tell(member, by_a_start=self._rng.random() < BY_A_START)
        return f"{member.id}: {self}"

    def _want(self) -> str:
        what = self._world.config.retune_only or self._rng.choice(("flush", "lease_reads", "election"))
        if what == "flush":
            self._flush = FlushMode.ASYNC if self._flush is FlushMode.SYNC else FlushMode.SYNC
        elif what == "lease_reads":
            self._lease_reads = not self._lease_reads
        else:
            self._halves = self._rng.choice([one for one in HALVES if one != self._halves])
        self._waiting = list(self._world.all_ids)
        return f"wanted: {self}"

    def __str__(self) -> str:
        return f"{self._flush.value}, lease reads {self._lease_reads}, election time-out {self._halves}/2"

    def _tell(self, member: Member, *, by_a_start: bool) -> None:
        self._waiting.remove(member.id)
        member.config = self._changed(member.config)
        if member.process is None:
            return
        if by_a_start:
            member.stop()
        else:
            member.process.when_awake(member.process.change_settings, member.config)

    def before_a_start(self, member: Member) -> None:
        """It is down: what it starts with is what is wanted by now."""
        if member.id in self._waiting:
            self._waiting.remove(member.id)
            member.config = self._changed(member.config)

    def _changed(self, config: ReplicaConfig) -> ReplicaConfig:
        election_ns = self._world.config.election_ms * MS * self._halves // 2
        timing = replace(config.timing, election_min_ns=election_ns, election_max_ns=2 * election_ns)
        return replace(config, flush=self._flush, lease_reads=self._lease_reads, timing=timing)

    def finish(self) -> None:
        """Whoever was not told yet is, now; what starts later has it."""
        for member_id in list(self._waiting):
            self._tell(self._world.members[member_id], by_a_start=False)
