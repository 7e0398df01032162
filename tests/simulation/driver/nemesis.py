"""What is done to the driver's world: processes that end, machines that go dark or stall, links that break in a frame.

The fence: with flush async a power loss takes memory, so no second member loses its own before the first one votes
again (as `tests/simulation/nemesis` has it). Invariants: every fault that begins ends, by itself or in `heal`; after
`heal` nothing more happens.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from node.consensus.api import MS, SECOND
from node.protocol.codes import VoterState
from tests.simulation.driver.machine import Machine

if TYPE_CHECKING:
    from tests.simulation.driver.world import DriverWorld

OPS_AHEAD = 40
FAULTS = (
    "reset", "partition", "asymmetric", "isolate_leader", "unaware", "slow_link", "narrow_link", "pause", "stall",
    "stop", "crash", "crash_at_io", "power_loss", "fsync_error", "enospc",
)  # fmt: skip


class DriverNemesis:
    """One per world."""

    def __init__(self, world: DriverWorld, rng: random.Random) -> None:
        self._world, self._rng = world, rng
        self.active = True
        self._still_until_ns: dict[tuple[str, int], int] = {}  # by member and incarnation

    def start(self) -> None:
        for name in FAULTS:
            rate = getattr(self._world.config, name)
            if rate:
                self._again(rate, name, getattr(self, f"_{name}"))

    def _again(self, rate: float, name: str, act: Callable[[], bool]) -> None:
        delay_ns = int(self._rng.expovariate(rate) * SECOND) + 1
        self._world.timeline.schedule(delay_ns, self._act, rate, name, act)

    def _act(self, rate: float, name: str, act: Callable[[], bool]) -> bool:
        if not self.active:
            return False
        self._again(rate, name, act)
        done = act()
        if done:
            self._world.workload.count(name)
            self._world.tell.fault(name, "")
        return done

    def _later(self, mean_ms: float, call: Callable[..., object], *args: object) -> None:
        delay_ns = int(mean_ms * MS) // 2 + self._rng.randrange(int(mean_ms * MS) + 1)
        self._world.timeline.schedule(delay_ns, self._end, call, args)

    def _end(self, call: Callable[..., object], args: tuple[object, ...]) -> bool:
        return self.active and call(*args) is not False

    # --- whom -----------------------------------------------------------------------------------------------------
    def _victim(self) -> Machine | None:
        """One that runs: often the leader, where things are most delicate."""
        leader = self._world.leader()
        if leader is not None and self._rng.random() < 0.4:
            return leader
        member = self._world.members[self._rng.choice(self._world.ids)]
        return member if member.up else None

    def remembers(self, member: Machine) -> bool:
        """Whether this member certainly holds all that it ever acknowledged."""
        return not member.lost_memory and member.last_voter_state is VoterState.VOTER

    def _may_forget(self, member: Machine) -> bool:
        world = self._world
        others = sum(not self.remembers(world.members[one]) for one in world.ids if one != member.id)
        return others + 1 <= len(world.ids) - (len(world.ids) // 2 + 1)

    # --- the network ----------------------------------------------------------------------------------------------
    def _block(self, ways: list[tuple[str, str]]) -> bool:
        network = self._world.network
        fresh = [way for way in ways if way not in network.blocked]
        network.blocked.update(fresh)
        self._later(self._world.config.partition_ms, network.unblock, *fresh)
        return bool(fresh)

    def _between(self, some: list[str], others: list[str]) -> list[tuple[str, str]]:
        return [(one, other) for one in some for other in others] + [(other, one) for one in some for other in others]

    def _partition(self) -> bool:
        ids = list(self._world.ids)
        self._rng.shuffle(ids)
        cut = self._rng.randrange(1, len(ids))
        return self._block(self._between(ids[:cut], ids[cut:]))

    def _asymmetric(self) -> bool:
        one, other = self._rng.sample(self._world.ids, 2)
        return self._block([(one, other)])

    def _isolate_leader(self) -> bool:
        """From the members only: clients still reach it."""
        leader = self._world.leader()
        if leader is None:
            return False
        return self._block(self._between([leader.id], [one for one in self._world.ids if one != leader.id]))

    def _unaware(self) -> bool:
        """A leader is cut off from the others, first the way to it, and stands still until one of them leads; it goes
        on before it hears of that. What its clients asked meanwhile lies in its sockets, and what was answered to it
        before the cut arrives when the cut ends."""
        world, network, leader = self._world, self._world.network, self._world.leader()
        if leader is None or leader.paused or network.blocked:
            return False
        others = [one for one in world.ids if one != leader.id]
        back, out = [(one, leader.id) for one in others], [(leader.id, one) for one in others]
        election_ns, delay_ns = world.config.election_ms * MS, int(world.config.delay_ms * MS)
        network.blocked.update(back)
        world.timeline.schedule(self._rng.randrange(6 * delay_ns), self._end, network.blocked.update, (out,))
        still_ns = election_ns * 2 + self._rng.randrange(3 * election_ns)
        begins_ns = self._rng.randrange(election_ns // 2)
        world.timeline.schedule(begins_ns, self._end, self._stand_still, (leader, still_ns))
        hears_ns = begins_ns + still_ns + self._rng.randrange(election_ns)
        world.timeline.schedule(hears_ns, self._end, network.unblock, (*back, *out))
        return True

    def _narrow_link(self) -> bool:
        """A way between two members carries only so much for a while, or all ways from one of them do."""
        config, rates = self._world.config, self._world.network.bytes_per_s
        one, other = self._rng.sample(self._world.ids, 2)
        others = [other] if self._rng.random() < 0.5 else [each for each in self._world.ids if each != one]
        ways = [(one, each) for each in others]
        rates.update(dict.fromkeys(ways, config.narrow_bytes_per_s))
        self._later(config.partition_ms, self._wide_again, ways)
        return True

    def _wide_again(self, ways: list[tuple[str, str]]) -> None:
        for way in ways:
            self._world.network.bytes_per_s.pop(way, None)

    def _reset(self) -> bool:
        """One connection's pair of machines, clients' among them."""
        ends = [socket for socket in self._world.network.ends() if socket.dialled]
        if not ends:
            return False
        socket = ends[self._rng.randrange(len(ends))]
        self._world.network.break_between(socket.loop.machine, socket.other.loop.machine)
        return True

    def _slow_link(self) -> bool:
        one, other = self._rng.sample(self._world.ids, 2)
        slow = self._world.network.slow
        slow.add((one, other))
        self._later(self._world.config.partition_ms, slow.discard, (one, other))
        return True

    # --- processes and machines -----------------------------------------------------------------------------------
    def _pause(self) -> bool:
        member = self._victim()
        if member is None or member.paused:
            return False
        member.pause()
        self._later(self._world.config.pause_ms, member.resume)
        return True

    def _stall(self) -> bool:
        """The whole machine stands still, or all of them do: they go on a tenth of a time-out apart at most."""
        election_ns = self._world.config.election_ms * MS
        still_ns = int(election_ns * 0.4 * 25 ** self._rng.random())
        for member in self._world.members.values():
            if not member.paused or (member.id, member.incarnation) in self._still_until_ns:
                begins_ns = self._rng.randrange(election_ns // 10)
                self._world.timeline.schedule(begins_ns, self._end, self._stand_still, (member, still_ns))
        return True

    def _stand_still(self, member: Machine, still_ns: int) -> None:
        """One that stands still already does so for longer: else it would be awake while the others are not."""
        life = member.id, member.incarnation
        if member.up and (not member.paused or life in self._still_until_ns):
            member.pause()
            until_ns = self._world.now + still_ns
            self._still_until_ns[life] = max(until_ns, self._still_until_ns.get(life, 0))
            self._world.timeline.schedule(still_ns, self._end, self._go_on, (member, life))

    def _go_on(self, member: Machine, life: tuple[str, int]) -> None:
        if self._world.now >= self._still_until_ns.get(life, 0):
            self._still_until_ns.pop(life, None)
            if (member.id, member.incarnation) == life:
                member.resume()

    def _stop(self) -> bool:
        member = self._victim()
        if member is None:
            return False
        member.stop()
        return True

    def _crash(self) -> bool:
        member = self._victim()
        if member is None:
            return False
        member.crash()
        return True

    def _crash_at_io(self) -> bool:
        member = self._victim()
        if member is None or member.platform.faults.crash_at_op is not None:
            return False
        member.platform.faults.crash_at_op = member.platform.op_count + 1 + self._rng.randrange(OPS_AHEAD)
        return True

    def _power_loss(self) -> bool:
        member = self._victim()
        if member is None or (not self._world.config.flush_sync and not self._may_forget(member)):
            return False
        member.lose_power()
        self._later(self._world.config.down_ms, member.power_on)
        return True

    # --- disks ----------------------------------------------------------------------------------------------------
    def _fsync_error(self) -> bool:
        """Fsync fails and its pages are clean: what that process wrote last is as good as lost to a power loss."""
        member = self._victim()
        if member is None or (not self._world.config.flush_sync and not self._may_forget(member)):
            return False
        member.excused = True
        member.platform.faults.fsync_error_next = True
        return True

    def _enospc(self) -> bool:
        member = self._victim()
        if member is None:
            return False
        member.excused = True  # term and vote take a file of their own: without room for it the engine ends
        member.platform.faults.enospc = True
        self._later(self._world.config.pause_ms, setattr, member.platform.faults, "enospc", False)
        return True

    def heal(self) -> None:
        """Everything that began ends now."""
        self.active = False
        network = self._world.network
        network.slow.clear()
        network.bytes_per_s.clear()
        network.unblock(*list(network.blocked))
        for member in self._world.members.values():
            member.platform.faults.clear()
            member.resume()
            member.power_on()
