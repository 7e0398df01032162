"""Clients that follow the stream of committed positions, at the leader or at one member, and hold it to its word.

Invariants checked: `stream_committed`, `stream_lease` (here), `stream_one_pending` (off the wire); and in the end every
follower knows all that is committed.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from node.client import CommittedPosition, LedgerClient, LedgerError
from node.protocol.codes import Role
from tests.simulation.driver.loop import SimulatedLoop
from tests.simulation.invariants_log import Logs
from tests.simulation.observer import Observer, Violation

if TYPE_CHECKING:
    from tests.simulation.driver.world import DriverWorld

LAST_WITHIN_S = 5.0


class Followers(Observer):
    """All of one world; as many as its swarm says. Comes after `Logs`."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._world: DriverWorld | None = None
        self._leases: dict[str, tuple[int, str, int]] = {}  # follower -> (term, leader, until when in world time)
        self._last: dict[str, int] = {}
        self.positions = 0
        self.leases = 0

    def started(self, world: Any) -> None:
        self._world = world
        world.also_calm.append(self.know_all)
        for number in range(world.config.followers):
            name = f"f{number}"
            rng = random.Random(f"follower {number} {world.seed}")
            loop = world.workload.loop(name, rng)
            loop.run_here(loop.create_task, self._follow(name, loop, rng))

    async def _follow(self, name: str, loop: SimulatedLoop, rng: random.Random) -> None:
        """For ever; what cannot be had is asked for again."""
        world = self._world
        assert world is not None
        client = LedgerClient(world.workload.members, group="g", deadline_s=2.0)
        while True:
            at = rng.choice((None, None, *world.ids)) if world.faulty else None
            positions = client.committed(at, interval_ms=rng.choice((1, 5, 50)), keep_alive_ms=rng.choice((50, 200)))
            left = rng.randrange(1, 200) if world.faulty else 1 << 30
            try:
                async for position in positions:
                    self._told(name, position, loop.time())
                    left -= 1
                    if left <= 0 or (at is not None and not world.faulty):
                        break
                    if rng.random() < 0.1:
                        await self._pause(loop, rng)
            except LedgerError:
                await self._pause(loop, rng)
            await positions.aclose()

    def know_all(self) -> bool:
        """Whether everybody was told of all that is committed."""
        assert self._world is not None
        return all(
            self._last.get(f"f{number}", -1) >= self._logs.committed.index
            for number in range(self._world.config.followers)
        )

    @staticmethod
    async def _pause(loop: SimulatedLoop, rng: random.Random) -> None:
        done = loop.create_future()
        loop.call_later(rng.random() * 0.3, done.set_result, None)
        await done

    def _told(self, name: str, position: CommittedPosition, now_s: float) -> None:
        world = self._world
        assert world is not None
        self.positions += 1
        members = world.members.values()
        here = max((one.replica.committed_index for one in members if one.replica is not None), default=-1)
        if position.committed_index > max(self._logs.committed.reported, self._logs.committed.index, here):
            world.violate(Violation("stream_committed", f"{name} was told {position}, nobody has committed that"))
        self._last[name] = position.committed_index
        if position.lease_until_s > now_s:
            self.leases += 1
            until = world.now + int((position.lease_until_s - now_s) * 1e9)
            self._leases[name] = position.term, position.member_id, until

    def stepped(self, world: Any) -> None:
        if not self._leases:
            return
        leading = [one.replica.term for one in world.members.values()
                   if one.replica is not None and one.replica.role is Role.LEADER]  # fmt: skip
        newest = max(leading, default=-1)
        for name, (term, leader_id, until) in list(self._leases.items()):
            if world.now >= until:
                del self._leases[name]
            elif newest > term:
                text = f"{name} was told that {leader_id} leads term {term} alone for {until - world.now} ns more"
                raise Violation("stream_lease", f"{text}; term {newest} has a leader")
