"""Who does all this to the world: faults at random moments, each with an end, and the fences around them.

A fence keeps a run inside what SAFETY promises; each is written down with its reason:

- Memory. A member whose history may be gone (wiped, damaged, or, with flush async, without power) neither votes nor
  counts until it holds everything again (E8, S6). Two quorums meet in a member that remembers only while at most
  n - quorum members do not; so no fault takes another member's memory while as many are without it already.
  With flush async this is the promise's own limit: what was acknowledged lies in page caches.
- Rot anywhere in a member's files, misdirected and lost writes, and a lost tail count as a loss of memory: a hard state
  that cannot be read is a member that does not start, and a log whose end is not what its checkpoint says is one that
  does not vote (E2, S6, E8). Writes are lost in index and checkpoint only, a tail only up to what the checkpoint says:
  nothing on a disk could tell more lost writes from a log that was never longer.
- Rot inside entries, below the end, is allowed on every member at once, as long as somebody who remembers holds each of
  them intact: only what is intact on one reachable replica can be recovered (S6). What is damaged so is a loss of
  memory to the first fence, or a wiped disk could have been the last copy.
- A state that is lost behind a trimmed log: who alone has one for that log keeps it (`lost_states.py`).
- Lease reads and clocks: see `swarm.fenced`.

Invariants: every fault that begins ends, by itself or in `heal`; after `heal` nothing more happens.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from node.consensus.api import MS, SECOND
from node.protocol.codes import Role, VoterState
from tests.simulation.lost_files import lose_a_file
from tests.simulation.lost_states import can_give, has_lost_state, meta_of
from tests.simulation.member import Member
from tests.simulation.network import SLOW_FACTOR
from tests.simulation.process import Process
from tests.simulation.schemes import Copied, Schemes

if TYPE_CHECKING:
    from tests.simulation.world import World

OPERATOR_NS = 300 * MS  # how long an operator needs, about
PATROL_NS = 200 * MS
OPS_AHEAD = 40  # a crash at an I/O boundary comes within so many calls


class Nemesis(Schemes):
    """One per world."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world, self._rng = world, rng
        self.active = True
        self._takes_power: dict[str, bool] = {}
        self._copies: dict[str, list[Copied]] = {}
        self._operator_calls: list[str] = []
        self._still_until_ns: dict[Process, int] = {}

    def start(self) -> None:
        """Each kind of fault comes at its own rate."""
        config = self._world.config
        for name in (
            "slow_link", "reset", "partition", "asymmetric", "bridge", "ring", "isolate_leader", "clock_jump", "pause",
            "stop", "crash", "crash_at_io", "power_loss", "fsync_error", "enospc", "rot", "misdirected_write",
            "lost_write", "lost_tail", "lost_checkpoint",
            "scrub", "wipe", "cut_lease", "stall", "lost_file", "restore", "learner",
            "narrow_link", "trim", "membership", "retune", "lose_state", "lose_sender",
        ):  # fmt: skip
            rate = getattr(config, name)
            if rate:
                self._again(rate, getattr(self, f"_{name}"))

    def _again(self, rate: float, act: Callable[[], bool]) -> None:
        self._world.schedule(int(self._rng.expovariate(rate) * SECOND) + 1, self._act, rate, act)

    def _act(self, rate: float, act: Callable[[], bool]) -> bool:
        if not self.active:
            return False
        self._again(rate, act)
        return act()

    def _later(self, mean_ms: float, call: Callable[..., object], *args: object) -> None:
        """The end of a fault; skipped when everything was healed before."""
        delay_ns = int(mean_ms * MS) // 2 + self._rng.randrange(int(mean_ms * MS) + 1)
        self._world.schedule(delay_ns, self._end, call, args)

    def _end(self, call: Callable[..., object], args: tuple[object, ...]) -> bool:
        if not self.active:
            return False
        call(*args)
        return True

    def _fault(self, kind: str, detail: str) -> bool:
        self._world.tell.fault(kind, detail)
        return True

    # --- whom ------------------------------------------------------------------------------------------------------
    def _any(self) -> Member:
        world = self._world
        return world.members[world.machine_ids[self._rng.randrange(len(world.machine_ids))]]

    def _victim(self) -> Member | None:
        """A member that runs: often the leader, where things are most delicate."""
        leader = self._leader()
        member = leader if leader is not None and self._rng.random() < 0.3 else self._any()
        return member if member.up else None

    def _leader(self) -> Member | None:
        for member_id in self._world.machine_ids:
            member = self._world.members[member_id]
            if member.replica is not None and member.replica.role is Role.LEADER:
                return member
        return None

    def remembers(self, member: Member) -> bool:
        """Whether this member certainly holds all that it ever acknowledged."""
        if member.lost_memory or member.is_refused or member.damage.anywhere or member.damage.entries:
            return False
        return member.last_voter_state is VoterState.VOTER

    def may_forget(self, member: Member) -> bool:
        """The fence of memory; see the module's docstring."""
        world = self._world
        if any(one.is_old_copy for one in world.members.values()):  # what it acknowledged, the others must know
            return False
        if not self.keeps_states(member):
            return False
        if world.spare_ids:
            return world.operator.may_forget(member)
        others = sum(not self.remembers(world.members[one]) for one in world.ids if one != member.id)
        return others + 1 <= len(world.ids) - (len(world.ids) // 2 + 1)

    def keeps_states(self, without: Member) -> bool:
        """The fence of states: who has lost its own can be given it without that member, too."""
        group = [self._world.members[one] for one in self._world.operator.group()]
        lost = [one for one in group if one is not without and self.remembers(one) and has_lost_state(one)]
        return all(self._has_giver(one, without) for one in lost)

    def may_lose_state(self, member: Member) -> bool:
        """The same fence, for a member whose state is to be lost."""
        return self.keeps_states(member) and self._has_giver(member, member)

    def _has_giver(self, member: Member, without: Member) -> bool:
        voters = (self._world.members[one] for one in self._world.operator.voters())
        givers = (one for one in voters if one is not member and one is not without and self.remembers(one))
        return any(can_give(one, member) for one in givers)

    # --- the network -----------------------------------------------------------------------------------------------
    def _partition_off(self, kind: str, directions: list[tuple[str, str]]) -> bool:
        if not directions:
            return False
        network, rng, config = self._world.network, self._rng, self._world.config
        network.block(directions, hold=rng.random() < config.hold)
        self._later(config.partition_ms, network.unblock, directions)
        return self._fault(kind, " ".join(f"{one}>{other}" for one, other in directions))

    def cut_off(self, directions: list[tuple[str, str]]) -> None:
        """By somebody else's scheme."""
        self._partition_off("isolate_leader", directions)

    def _directions(self, apart: Callable[[str, str], bool]) -> list[tuple[str, str]]:
        ids = self._world.machine_ids
        return [(one, other) for one in ids for other in ids if one != other and apart(one, other)]

    def _partition(self) -> bool:
        ids = self._world.machine_ids
        side = self._rng.sample(ids, self._rng.randrange(1, len(ids)))
        return self._partition_off("partition", self._directions(lambda one, other: (one in side) != (other in side)))

    def _asymmetric(self) -> bool:
        share = self._rng.choice((0.2, 0.5))
        cut = self._directions(lambda _one, _other: self._rng.random() < share)
        return self._partition_off("asymmetric", cut)

    def _bridge(self) -> bool:
        ids = list(self._world.machine_ids)
        self._rng.shuffle(ids)
        left, right = ids[1 : (len(ids) + 1) // 2], ids[(len(ids) + 1) // 2 :]
        apart = self._directions(lambda a, b: (a in left and b in right) or (a in right and b in left))
        return self._partition_off("bridge", apart)

    def _ring(self) -> bool:
        ids = list(self._world.machine_ids)
        self._rng.shuffle(ids)
        count = len(ids)
        far = self._directions(lambda a, b: (ids.index(a) - ids.index(b)) % count not in (1, count - 1))
        return self._partition_off("ring", far)

    def _isolate_leader(self) -> bool:
        leader = self._leader()
        if leader is None:
            return False
        way = self._rng.choice(("both", "to", "from"))
        share = self._rng.choice((0.6, 1.0))
        peers = [one for one in self._world.machine_ids if one != leader.id and self._rng.random() < share]
        out = [(leader.id, peer) for peer in peers] if way != "from" else []
        back = [(peer, leader.id) for peer in peers] if way != "to" else []
        return self._partition_off("isolate_leader", out + back)

    def _slow_link(self) -> bool:
        one, other = self._rng.sample(self._world.machine_ids, 2)
        slow = self._world.network.slow
        slow[one, other] = SLOW_FACTOR
        self._later(self._world.config.partition_ms, slow.pop, (one, other), None)
        return self._fault("slow_link", f"{one}>{other}")

    def _reset(self) -> bool:
        one, other = self._rng.sample(self._world.machine_ids, 2)
        self._world.network.break_between(one, other)
        return self._fault("reset", f"{one} {other}")

    # --- clocks, processes, machines -------------------------------------------------------------------------------
    def _clock_jump(self) -> bool:
        member = self._any()
        forward_ms = self._rng.choice((5, 50, 300, 2000))
        member.clock.jump(forward_ms * MS)
        return self._fault("clock_jump", f"{member.id} {forward_ms} ms")

    def _pause(self) -> bool:
        member = self._victim()
        process = member.process if member is not None else None
        if member is None or process is None or process.paused:
            return False
        process.pause()
        self._later(self._world.config.pause_ms, self._resume, process)
        return self._fault("pause", member.id)

    def _resume(self, process: Process) -> None:
        if process.alive:
            process.resume()

    def _stall(self) -> bool:
        """The whole machine stands still, or all of them do: they go on a tenth of a time-out apart at most."""
        election_ns = self._world.config.election_ms * MS
        still_ns = int(election_ns * 0.4 * 25 ** self._rng.random())
        processes = [one.process for one in self._world.members.values() if one.process is not None]
        for process in processes:
            begins_ns = self._rng.randrange(election_ns // 10)
            self._world.schedule(begins_ns, self._end, self._stand_still, (process, still_ns))
        return self._fault("stall", f"{len(processes)} members for {still_ns / MS:.1f} ms")

    def _stand_still(self, process: Process, still_ns: int) -> None:
        """One that stands still already does so for longer: else it would be awake while the others are not."""
        if process.alive and (not process.paused or process in self._still_until_ns):
            process.pause()
            until_ns = self._world.now + still_ns
            self._still_until_ns[process] = max(until_ns, self._still_until_ns.get(process, 0))
            self._world.schedule(still_ns, self._end, self._go_on, (process,))

    def _go_on(self, process: Process) -> None:
        if self._world.now >= self._still_until_ns.get(process, 0):
            self._still_until_ns.pop(process, None)
            self._resume(process)

    def _stop(self) -> bool:
        member = self._victim()
        if member is None or member.paused:
            return False
        self._fault("stop", member.id)
        member.stop()
        return True

    def _crash(self) -> bool:
        member = self._victim()
        if member is None:
            return False
        self._fault("crash", member.id)
        member.crash()
        return True

    def _may_lose_power(self, member: Member) -> bool:
        if not member.up and member.damage.has_no_checkpoint:  # what its torn tail leaves would pass for damage
            return False
        return self._world.config.always_sync or self.may_forget(member)

    def _power_loss(self) -> bool:
        member = self._any()
        if not member.powered or not self._may_lose_power(member):
            return False
        self._fault("power_loss", member.id)
        member.lose_power()
        return True

    def lights_out(self, member: Member) -> None:
        """A machine without power gets it back some time later."""
        self._later(self._world.config.down_ms, member.power_on)

    def _crash_at_io(self) -> bool:
        """The process dies at one of its next I/O calls: before, after or in the middle of it."""
        member = self._any()
        faults = member.platform.faults
        if faults.crash_at_op is not None:
            return False
        faults.crash_at_op = member.platform.op_count + self._rng.randrange(1, OPS_AHEAD)
        self._takes_power[member.id] = self._world.config.power_loss > 0 and self._rng.random() < 0.5
        return self._fault("crash_at_io", member.id)

    def boundary_takes_power(self, member: Member) -> bool:
        """Asked when that moment has come: whether the machine goes with the process."""
        member.platform.faults.crash_at_op = None
        takes = self._takes_power.pop(member.id, False)
        return takes and self.active and self._may_lose_power(member)

    # --- who belongs to the group -----------------------------------------------------------------------------------
    def _learner(self) -> bool:
        """A learner comes or goes. Each member is told at its own moment, whatever it is doing then."""
        world = self._world
        learner = world.members[self._rng.choice(world.learner_ids)]
        if learner.joined and self._rng.random() < 0.3:
            if not learner.up:
                return False
            learner.crash()
            return self._fault("crash", learner.id)
        if learner.joined:
            learner.joined = False
            self._later(world.config.down_ms, learner.leave)  # it runs on for a while, and nobody knows it
        elif learner.up:
            return False
        else:
            learner.join()
        for member_id in world.ids:
            self._later(world.config.partition_ms / 2, world.members[member_id].tell_of_learner, learner)
        return self._fault("learner", f"{learner.id} {'joins' if learner.joined else 'leaves'}")

    def _membership(self) -> bool:
        """An operator changes the members; see `member_operator.py`."""
        return self._world.operator.change()

    # --- disks ------------------------------------------------------------------------------------------------------
    def _fsync_error(self) -> bool:
        member = self._victim()
        if member is None:
            return False
        member.platform.faults.fsync_error_next = True
        return self._fault("fsync_error", member.id)

    def _enospc(self) -> bool:
        member = self._any()
        faults = member.platform.faults
        faults.enospc = True
        self._later(self._world.config.partition_ms, self._space_again, member)
        return self._fault("enospc", member.id)

    def _space_again(self, member: Member) -> None:
        member.platform.faults.enospc = False

    def _rot(self) -> bool:
        """Bits flip at rest: in an entry, or anywhere in a file of the store."""
        member = self._any()
        return self._rot_entry(member) if self._rng.random() < 0.6 else self._rot_anywhere(member)

    def _rot_anywhere(self, member: Member) -> bool:
        if not member.up and member.damage.has_no_checkpoint:  # nothing would tell rot from a torn tail
            return False
        spot = member.damage.any_spot(self._rng) if self.may_forget(member) else None
        if spot is None:
            return False
        member.damage.flip(*spot, 1 << self._rng.randrange(8))
        return self._fault("rot", f"{member.id} {spot[0]} {spot[1]}")

    def _rot_entry(self, member: Member) -> bool:
        """Some bytes in a few entries in a row, each of them intact on somebody else."""
        store = member.store
        if store is None or member.replica is None or member.lost_memory:
            return False
        last = min(member.replica.committed_index, store.durable_index, store.end_index - 2)
        if last < store.begin_index:
            return False
        first = self._rng.randrange(store.begin_index, last + 1)
        hit = []
        for index in range(first, min(last, first + self._rng.choice((0, 0, 1, 5))) + 1):
            spot = member.damage.spot_of(store, index, self._rng) if self._intact_elsewhere(member, index) else None
            if spot is not None:
                member.damage.flip(*spot, 1 << self._rng.randrange(8), index)
                hit.append(index)
        return bool(hit) and self._fault("rot", f"{member.id} entries {hit}")

    def _intact_elsewhere(self, member: Member, index: int) -> bool:
        """That very entry: a member that was away may hold another one there, which its leader cuts soon."""
        others = (self._world.members[one] for one in self._world.ids if one != member.id)
        known = meta_of(member, index)
        return known is not None and any(
            one.store is not None
            and one.store.durable_index >= index
            and meta_of(one, index) == known
            and not (one.lost_memory or one.damage.anywhere)
            and one.last_voter_state is VoterState.VOTER
            and index not in one.damage.entries
            for one in others
        )

    def _misdirected_write(self) -> bool:
        """One write lands somewhere else in the same file."""
        member = self._any()
        if not self.may_forget(member):
            return False
        member.damage.misdirected = True
        member.platform.faults.misdirect_next = True
        return self._fault("misdirected_write", member.id)

    def _lost_write(self) -> bool:
        """A disk says that it wrote, and did not; it shows when the power has been off."""
        member = self._any()
        if not self.may_forget(member):
            return False
        member.damage.misdirected = True
        member.platform.faults.lose_writes_of = self._rng.choice(("/index/", "/checkpoint"))
        return self._fault("lost_write", member.id)

    def _lost_checkpoint(self) -> bool:
        """A member crashes, and its checkpoint is gone, or the one of before a cut is back."""
        member = self._any()
        if not member.up or member.damage.anywhere or not self.may_forget(member):
            return False
        what = member.damage.lose_checkpoint(self._rng)
        member.lost_memory = True  # it may have to join again (E8); its next start says whether
        self._fault("lost_checkpoint", f"{member.id} {what}")
        member.crash()
        return True

    def _lost_tail(self) -> bool:
        """A member crashes, and its disk has lost the last entries that its checkpoint calls durable."""
        member = self._any()
        if member.store is None or not self.may_forget(member):
            return False
        lost = member.damage.lose_tail(member.store, self._rng)
        if not lost:
            return False
        self._fault("lost_tail", f"{member.id} from entry {lost} on")
        member.crash()
        return True

    def _lost_file(self) -> bool:
        """A member crashes, and one of its files is gone or was shortened: an old data file, or an index file."""
        member = self._any()
        if not self.may_forget(member):
            return False
        lost = lose_a_file(member, self._rng, lambda index: self._intact_elsewhere(member, index))
        if lost:
            self._fault("lost_file", f"{member.id} {lost}")
            member.crash()
        return bool(lost)

    def _scrub(self) -> bool:
        """Not a fault, but what finds one."""
        member = self._any()
        if member.process is None or member.paused:
            return False
        member.process.jobs.scrub()
        return True

    def _wipe(self) -> bool:
        """A disk is replaced."""
        member = self._any()
        if not self.may_forget(member) or not member.powered:
            return False
        self._fault("wipe", member.id)
        if member.up:
            member.crash()
        if member.powered:
            member.wipe()
        return True

    # --- the operator ----------------------------------------------------------------------------------------------
    def refused(self, member: Member) -> None:
        """A store that does not open needs an operator: where enough others remember, its disk is replaced."""
        if member.id not in self._operator_calls:
            self._operator_calls.append(member.id)
            self._world.schedule(self._rng.randrange(OPERATOR_NS) + 1, self._operator, member)

    def _operator(self, member: Member) -> bool:
        self._operator_calls.remove(member.id)
        if member.up or not member.is_refused:
            return False
        if not member.powered or not self.may_forget(member):
            self.refused(member)
            return False
        self._fault("operator_wipe", member.id)
        member.wipe()
        return True

    def _patrol(self) -> bool:
        """When the faults have stopped, every log is scrubbed until each was read once."""
        for member_id in self._world.all_ids:
            process = self._world.members[member_id].process
            if process is not None and process.jobs.scrubs <= 0:
                process.jobs.scrub()
        self._world.operator.tidy_up()
        self._world.schedule(PATROL_NS, self._patrol)
        return True

    # --- the end ----------------------------------------------------------------------------------------------------
    def heal(self) -> None:
        """No fault from now on; what stood still goes on."""
        self.active = False
        world = self._world
        world.retuning.finish()
        world.network.heal()
        world.workload.reads_only = False
        for learner in (world.members[one] for one in world.learner_ids):
            learner.leave()
            for member_id in world.ids:
                world.members[member_id].tell_of_learner(learner)
        for member_id in world.all_ids:
            member = world.members[member_id]
            member.platform.faults.clear()
            if member.process is not None:
                member.process.jobs.count_scrubs_anew()
                if member.paused:
                    member.process.resume()
            member.power_on()
            if not member.up and not member.is_refused:
                member.boot()
        self._patrol()
