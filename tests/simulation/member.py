"""One simulated member: a machine with its disk and its clock, and the supervisor that keeps a process on it.

A member outlives its processes; each one that starts is an incarnation. An operator may replace its disk.

Invariants: at most one process runs; what a crash leaves behind is decided by the machine (`platform`), not here.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from node.consensus.api import MS, ReplicaConfig
from node.consensus.configuration import Configuration
from node.consensus.replica import Replica
from node.protocol.codes import FlushMode, VoterState
from node.protocol.group_id import group_id_of
from node.store.errors import StoreCorrupt, StoreError, StoreRefused
from node.store.file_store import FileStore
from node.store.log_store import EntryMeta, HardState
from node.store.recent_slabs import RecentSlabs
from node.store.recovery import log_recovery
from tests.simulation.applier import StateMachine
from tests.simulation.broker_records import kind_of
from tests.simulation.clock import MemberClock
from tests.simulation.damage import Damage
from tests.simulation.disk import SimulatedCrash, SimulatedPlatform
from tests.simulation.disk_files import Copy
from tests.simulation.observer import of_exception
from tests.simulation.process import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

GROUP_ID = group_id_of("simulation", "g")
OTHER_GROUP_ID = group_id_of("another one", "g")
SLOW_FLOOR_BYTES = 4096  # in proportion to what a slow link carries here in a closure's time
RESTART_NS_MIN = 20 * MS
OPERATOR_ERRORS = (StoreRefused, StoreCorrupt)


def number_of(member_id: str) -> int:
    return int(member_id[1:])


class Member:
    """See the module's docstring. `faults` of its machine are in `platform.faults`."""

    def __init__(self, world: World, member_id: str, rng: random.Random) -> None:
        self.world, self.id = world, member_id
        self._rng = rng
        config = world.config
        peers = {peer: f"127.0.0.1:{20911 + number}" for number, peer in enumerate(world.ids)}
        preferred = (world.ids[0],) if config.preferred_leader else ()
        self.address = f"127.0.0.1:{30911 + number_of(member_id)}"
        self.joined = member_id in world.ids  # whether it is to run as a member of the group; a learner comes and goes
        learners = {} if self.joined else {member_id: self.address}
        self.config = ReplicaConfig(
            "g", member_id, peers, learners, flush=FlushMode.SYNC if config.flush_sync else FlushMode.ASYNC,
            timing=config.timing(), lease_reads=config.lease_reads, preferred_leaders=preferred,
            push_window_slabs=config.push_window_slabs, applies=config.applier,
            kind=kind_of(config.broker, lambda: self.clock.now()),
            pending_floor_bytes=SLOW_FLOOR_BYTES if config.narrow_link or config.link_kb_per_s else 1024 * 1024,
        )  # fmt: skip
        self.clock = MemberClock(lambda: world.now, self._boot_offset(), self._drift_ppm())
        self.platform = SimulatedPlatform(random.Random(rng.getrandbits(64)), self.clock.now, member_id)
        self.directory = Path(f"/sim/{member_id}")
        self.init = True  # the supervisor's command line; an operator who replaces a disk starts without it
        self.powered = True
        self.touched = True  # something of it may be another thing than after the step before (`touched.py`)
        self.incarnation = 0
        self.process: Process | None = None
        self.replica: Replica | None = None
        self.store: FileStore | None = None
        self.last_error: BaseException | None = None
        self.is_refused = False
        self.last_voter_state: VoterState | None = None
        self._last_base = world.base  # of its log, when its process ended
        self.disks = 0  # how often its disk became another one
        self.disk_id = (
            f"{member_id}.0"  # other than its store's id, this one changes with the bytes, and only with them
        )
        self.is_old_copy = False  # its directory was put back from a copy, and it does not know that yet
        self.lost_memory = False  # history may be gone: no fault that takes another one's, before it is a voter again
        self.damage = Damage(self.platform, self.directory)
        self.state_machine: StateMachine | None = None
        if config.applier:
            beside = random.Random(f"state machine {member_id} {world.seed}")
            self.state_machine = StateMachine(self, beside, world.schedule, lambda: world.now)
        self._crash_loops = 0
        self.last_configuration: Configuration | None = None  # that was in effect when its process ended
        self.is_foreign = False  # the member of another group, that an operator started here

    def _boot_offset(self) -> int:
        return self._rng.randrange(10_000 * MS) if self.world.config.clock_offset else 0

    def _drift_ppm(self) -> int:
        most = int(self.world.config.clock_drift * 1_000_000)
        return self._rng.randrange(-most, most + 1) if most else 0

    @property
    def up(self) -> bool:
        """Whether its process runs, paused or not."""
        return self.process is not None

    @property
    def paused(self) -> bool:
        return self.process is not None and self.process.paused

    @property
    def base(self) -> EntryMeta:
        """The entry behind which its log begins."""
        return self._last_base if self.store is None else self.store.base

    # --- life -----------------------------------------------------------------------------------------------------
    def boot(self) -> bool:
        """The supervisor starts the process; False where there is nothing to start."""
        self.touched = True
        if self.up or not self.powered or not self.joined:
            return False
        self.incarnation += 1
        self.is_refused = False
        try:
            store = self._open()
            process = Process(self, store, random.Random(self._rng.getrandbits(64)))
        except SimulatedCrash:
            self.crash("io_boundary")
        except OPERATOR_ERRORS as error:
            self.last_error, self.is_refused = error, True
            self.platform.crash_process()
            self.world.tell.refused(self, error)
            self.world.nemesis.refused(self)
        except StoreError as error:
            self.last_error = error
            self.crash("store_error")
        except Exception as error:
            raise of_exception(f"opening {self.id}", error) from error
        else:
            self.process, self.store, self.replica = process, store, process.replica
            self._crash_loops = 0
            self.damage.started()
            self.note_voter_state(store.hard_state)
            self.world.tell.booted(self)
            process.start()
        return True

    def _open(self) -> FileStore:
        config = self.world.config
        with patch.object(log_recovery, "RECHECK_BYTES", config.recheck_bytes or log_recovery.RECHECK_BYTES):
            store = FileStore.open(
                self.directory, group="g", node_id=self.id, data_file_size=config.data_file_size,
                index_file_size=config.index_file_size, init=self.init, flush=self.config.flush,
                page_cache_bytes=config.ring_bytes, platform=self.platform, serving=True,
                group_id=self._group_id(), born_at=self.world.born_at, kind=self.config.kind.name,
            )  # fmt: skip
        if config.ring_bytes:  # and the page cache holds as little
            store.files.ring = RecentSlabs(config.ring_bytes)  # what is cold in earnest is cold here
        return store

    def _group_id(self) -> str | None:
        if self.is_foreign:
            return OTHER_GROUP_ID
        return None if self.world.config.unnamed else GROUP_ID

    def note_voter_state(self, state: HardState) -> None:
        """A voter holds all that it ever acknowledged, whatever happened to it before (E8)."""
        self.last_voter_state = state.voter_state
        if state.voter_state is not VoterState.VOTER:
            self.is_old_copy = False
        elif not self.is_old_copy:
            self.lost_memory = False

    def crash(self, how: str = "process") -> None:
        """The process ends between two instructions; the page cache stays, the supervisor starts it again."""
        if how == "io_boundary" and self.world.nemesis.boundary_takes_power(self):
            self.lose_power()
            return
        self.platform.crash_process()
        self._ended(how, notice=True)
        self._restart_later()

    def lose_power(self) -> None:
        """The machine goes dark: nobody is told, the page cache is gone."""
        self.powered = False
        self.lost_memory |= not self.world.config.always_sync
        self.platform.lose_power()
        self._ended("power_loss", notice=False)
        self.world.nemesis.lights_out(self)

    def power_on(self) -> None:
        """The machine starts: its clock anew, and its supervisor."""
        if not self.powered:
            self.powered = True
            self.clock.reboot(self._boot_offset())
            self.world.network.machine_back(self.id)
            self.boot()

    def stop(self) -> None:
        """SIGTERM; the supervisor starts it again."""
        assert self.process is not None
        self.process.guarded(self.process.stop)

    def _ended(self, how: str, *, notice: bool) -> None:
        self.touched = True
        if self.process is not None:
            self.process.alive = False
            self.last_configuration = self.process.replica.configuration
        self._last_base = self.base
        self.process = self.replica = self.store = None
        self.incarnation += 1
        if self.state_machine is not None:
            self.state_machine.engine_ended(power=how == "power_loss")
        self.world.network.member_gone(self.id, notice=notice)
        self.world.workload.member_gone(self.id)
        self.world.operator.member_gone(self.id)
        self.world.tell.crashed(self, how)

    def _restart_later(self) -> None:
        self._crash_loops += 1
        wait_ns = min(RESTART_NS_MIN << min(self._crash_loops, 6), 4 * self.config.timing.election_max_ns)
        self.world.schedule(wait_ns * self._rng.randrange(50, 151) // 100, self._restart, self.incarnation)

    def _restart(self, incarnation: int) -> bool:
        return incarnation == self.incarnation and self.boot()

    # --- learners ---------------------------------------------------------------------------------------------------
    def join(self) -> None:
        """This member is taken for a learner from now on; it starts with an empty disk."""
        self.joined = True
        if self.disks:
            self.wipe()
        else:
            self._other_disk()
            self.boot()

    def _other_disk(self) -> None:
        self.disks += 1
        self.disk_id = f"{self.id}.{self.disks}"

    def leave(self) -> None:
        """An operator takes a learner away that is to be forgotten, unless it is one again by now."""
        if self.up and not self.joined:
            self.crash("left")

    def start_beside(self, voters: Mapping[str, str], *, is_foreign: bool = False) -> None:
        """An operator starts a new member with an empty disk; it is told who votes, as `--join` tells it."""
        assert not self.up
        self.joined, self.is_foreign, self.last_configuration = True, is_foreign, None
        others = {one: at for one, at in voters.items() if one != self.id}
        self.config = replace(self.config, peers=others, learners={self.id: self.address})
        self.wipe()

    def start_again(self) -> None:
        """With the directory that it had when it left."""
        self.joined = True
        self.boot()

    def tell_of_learner(self, learner: Member) -> None:
        """The operator says here whether that learner belongs to the group; also what a start reads from now on."""
        known = learner.id in self.config.learners
        if known == learner.joined:
            return
        learners = {learner.id: learner.address} if learner.joined else {}
        self.config = replace(self.config, learners=learners)
        if self.process is not None:
            self.process.when_awake(self.process.tell_of_learner, learner.id, learner.address, learner.joined)

    def wipe(self) -> None:
        """An operator replaces the disk and starts the member without --init: it joins through the leader (E8)."""
        assert not self.up
        self.lost_memory, self.is_refused, self.is_old_copy = True, False, False
        self._other_disk()
        if self.state_machine is not None:
            self.state_machine.disk_replaced()
        self.damage = Damage(self.platform, self.directory)
        self.init = False
        self._no_fault_awaits_it()
        self.platform.remove_tree(self.directory)
        if self.platform.exists(self.directory.parent):  # another disk: nothing of the old one comes back
            self.platform.sync_directory(self.directory.parent)
        self.boot()

    def put_back(self, copy: Copy) -> None:
        """An operator puts an older copy of the directory in place of it; the supervisor starts the member."""
        assert not self.up
        self.lost_memory = self.is_old_copy = True
        self._other_disk()
        if self.state_machine is not None:
            self.state_machine.disk_replaced()
        self.damage = Damage(self.platform, self.directory)
        self._no_fault_awaits_it()
        self.platform.put_back(self.directory, copy)
        self.boot()

    def _no_fault_awaits_it(self) -> None:
        """What was to happen to a process, or to a write, was meant for those of the disk before."""
        faults = self.platform.faults
        faults.crash_at_op, faults.lose_writes_of, faults.misdirect_next = None, "", False
