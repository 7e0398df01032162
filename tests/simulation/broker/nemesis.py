"""What is done to a broker's world, beside what is done to its engines: brokers that end, stand still or are cut off.

Invariants: as of `DriverNemesis`: every fault ends, and after `heal` nothing more happens.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.simulation.broker.process import BrokerProcess
from tests.simulation.driver.nemesis import OPS_AHEAD, DriverNemesis

if TYPE_CHECKING:
    from tests.simulation.broker.world import BrokerWorld

BROKER_FAULTS = (
    "broker_crash", "broker_crash_at_io", "broker_stop", "broker_pause", "broker_cut", "broker_narrow", "broker_reset",
    "broker_wiped", "client_cut", "wall_back",
)  # fmt: skip
BACK_MS_MAX = 4000


class BrokerNemesis(DriverNemesis):
    """One per world."""

    _world: BrokerWorld

    def __init__(self, world: BrokerWorld, rng: random.Random) -> None:
        super().__init__(world, rng)

    def start(self) -> None:
        super().start()
        for name in BROKER_FAULTS:
            rate = getattr(self._world.config, name)
            if rate:
                self._again(rate, name, getattr(self, f"_{name}"))

    def _broker(self) -> BrokerProcess | None:
        """Often the master."""
        masters = [one for one in self._world.brokers if one.broker is not None and one.broker.is_master]
        if masters and self._rng.random() < 0.6:
            return masters[0]
        found = self._world.brokers[self._rng.randrange(len(self._world.ids))]
        return found if found.up else None

    def _broker_crash(self) -> bool:
        found = self._broker()
        if found is not None:
            found.end()
        return found is not None

    def _broker_crash_at_io(self) -> bool:
        found = self._broker()
        if found is None or found.platform.faults.crash_at_op is not None:
            return False
        found.platform.faults.crash_at_op = found.platform.op_count + 1 + self._rng.randrange(OPS_AHEAD)
        return True

    def _broker_stop(self) -> bool:
        found = self._broker()
        if found is not None:
            found.stop()
        return found is not None

    def _broker_pause(self) -> bool:
        found = self._broker()
        if found is None or found.paused:
            return False
        found.pause()
        self._later(self._world.config.pause_ms, found.resume)
        return True

    def _broker_cut(self) -> bool:
        found = self._broker()
        return found is not None and self._block(self._between([found.id], [found.machine.id]))

    def _broker_narrow(self) -> bool:
        found = self._broker()
        if found is None:
            return False
        ways = [(found.machine.id, found.id)]
        self._world.network.bytes_per_s.update(dict.fromkeys(ways, self._world.config.narrow_bytes_per_s))
        self._later(self._world.config.partition_ms, self._wide_again, ways)
        return True

    def _broker_reset(self) -> bool:
        """Its connections to its own engine break, with what is under way on them."""
        found = self._broker()
        if found is not None:
            self._world.network.break_between(found.id, found.machine.id)
        return found is not None

    def _broker_wiped(self) -> bool:
        """It crashes, and its queues and index are removed before it starts again."""
        found = self._broker()
        if found is not None:
            found.is_wiped = True
            found.end()
        return found is not None

    def _client_cut(self) -> bool:
        found = self._broker()
        return found is not None and self._block(self._between([found.id], self._world.workload.machines))

    def _wall_back(self) -> bool:
        machine = self._world.members[self._rng.choice(self._world.ids)]
        machine.wall_offset_ms -= self._rng.randrange(BACK_MS_MAX)
        return True

    def heal(self) -> None:
        super().heal()
        for one in self._world.brokers:
            one.platform.faults.clear()
            one.resume()
            one.boot()
            if self._rng.random() < 0.3:  # what is read at last was recovered
                one.end()
