"""Faults in several acts: each is one chain of events that single faults meet too seldom.

- `cut_lease`: a leader first loses all but as many followers as its lease needs; then, at one moment, these start anew
  and the leader loses them too. Nobody writes meanwhile, so any of them could be elected. A follower that forgot what
  it granted could elect another leader at once (SAFETY E9).

- `restore`: now a member's directory is copied, now an older copy takes its place while the member is down. What no
  peer has on record nobody can see (SAFETY E8), so a copy is put back only where every other member durably knows
  better: a life that the copy does not know, or an entry that it does not hold. Until the member found out, nobody else
  forgets anything.

- `trim`: a member removes files from the front of its log, as far as it knows that everybody holds them, or
  (`left_behind`) all that it has committed; now and then a reader pins an entry for a while. What one lacks that all
  others removed, it has to do without: its log begins where theirs do. So this comes only where no member's bytes are
  damaged, which others were to mend.

- `lose_state`: a state machine loses what its log does not bring back any more; `lose_sender`: a leader is lost while
  it sends a snapshot.

- `narrow_link`: one way, or all ways from one member, carry only so much for a while: slow, and alive.

Invariants: as in `nemesis.py`, of which these are a part: what begins ends, by itself or in `heal`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from node.consensus.api import MS
from node.store.retention import FILES_MAX, plan_by_hand
from tests.simulation.lost_states import lose_state

if TYPE_CHECKING:
    from node.store.file_store import FileStore
    from tests.simulation.disk_files import Copy
    from tests.simulation.member import Member
    from tests.simulation.world import World

QUICK_START_NS = 5 * MS
COPIES_KEPT = 3
PINNED = 0.2  # share of trims that a reader is quicker than


class Copied:
    """A directory at some moment."""

    def __init__(self, store: FileStore, disk: int, tree: Copy) -> None:
        self.end_index, self.disk, self.tree = store.end_index, disk, tree
        self._life_ids, self._marks_from = store.hard_state.life_ids, store.hard_state.marks_from
        self._store_id = store.hard_state.store_id or store.store_id

    def shows(self, member_id: str, peer: FileStore) -> bool:
        """Whether what that peer has durably on record tells this copy from the directory of today."""
        life_id = peer.hard_state.peer_lives.get(member_id)
        same = peer.hard_state.store_ids.get(member_id) == self._store_id
        if same and life_id is not None and life_id not in self._life_ids:
            return True
        slot = peer.durability.checkpoint.last
        return slot is not None and any(
            mark.member_id == member_id and mark.index > self.end_index and mark.term >= self._marks_from
            for mark in slot.marks
        )


class Schemes:
    """The part of `Nemesis` that plays them."""

    _world: World
    _rng: random.Random
    _leader: Callable[[], Member | None]
    _later: Callable[..., None]
    _fault: Callable[[str, str], bool]
    remembers: Callable[[Member], bool]
    may_forget: Callable[[Member], bool]
    may_lose_state: Callable[[Member], bool]
    cut_off: Callable[[list[tuple[str, str]]], None]
    _any: Callable[[], Member]
    _copies: dict[str, list[Copied]]
    _cutting = False  # one at a time, or they spoil each other

    # --- a directory from a copy ------------------------------------------------------------------------------------
    def _restore(self) -> bool:
        world = self._world
        member = world.members[world.machine_ids[self._rng.randrange(len(world.machine_ids))]]
        copies = self._copies.setdefault(member.id, [])
        if not member.up or not self.remembers(member):
            return False
        if not copies or self._rng.random() < 0.5:
            assert member.store is not None
            copies.append(Copied(member.store, member.disks, member.platform.copy_of(member.directory)))
            del copies[:-COPIES_KEPT]
            return self._fault("copy", f"{member.id} up to {member.store.end_index}")
        copy = copies[self._rng.randrange(len(copies))]
        others = [world.members[one] for one in world.operator.group() if one != member.id]
        seen = all(self.remembers(one) and one.store is not None and copy.shows(member.id, one.store) for one in others)
        if copy.disk != member.disks or not seen or not self.may_forget(member):
            return False
        self._fault("restore", f"{member.id} to {copy.end_index}")
        member.crash()
        if not member.powered:  # the crash took the machine with it
            return True
        copies.clear()
        member.put_back(copy.tree)
        return True

    # --- a lease whose givers start anew ----------------------------------------------------------------------------
    def _cut_lease(self) -> bool:
        leader, world = self._leader(), self._world
        if leader is None or leader.replica is None or self._cutting:
            return False
        voters = [one for one in world.machine_ids if one in leader.replica.configuration.voters]
        if len(voters) < 3:
            return False
        self._cutting = world.workload.reads_only = True
        others = [one for one in voters if one != leader.id]
        givers = self._rng.sample(others, len(voters) // 2)
        cut = [way for one in others if one not in givers for way in ((leader.id, one), (one, leader.id))]
        world.network.block(cut, hold=False)
        self._later(3 * world.config.election_ms, self._cut_givers, leader, givers, cut)
        return self._fault("cut_lease", f"{leader.id} keeps {givers}")

    def _cut_givers(self, leader: Member, givers: list[str], cut: list[tuple[str, str]]) -> None:
        world = self._world
        rest = [way for one in givers for way in ((leader.id, one), (one, leader.id))]
        world.network.block(rest, hold=False)
        for one in givers:
            if world.members[one].up:
                world.members[one].crash()
                world.retuning.before_a_start(world.members[one])
                world.schedule(self._rng.randrange(1, QUICK_START_NS), world.members[one].boot)
        world.workload.reads_only = False
        self._later(4 * world.config.election_ms, self._lease_cut_ends, cut + rest)
        self._fault("cut_givers", f"{leader.id} {givers}")

    def _lease_cut_ends(self, ways: list[tuple[str, str]]) -> None:
        self._cutting = False
        self._world.network.unblock(ways)

    # --- the front of a log -----------------------------------------------------------------------------------------
    def _trim(self) -> bool:
        """As `engine/retention.py` does it; the store itself refuses what is pinned, and what is not applied."""
        member = self._any()
        process, replica, store = member.process, member.replica, member.store
        if process is None or replica is None or store is None or process.paused:
            return False
        if self._rng.random() < PINNED and store.end_index >= store.begin_index:
            index = self._rng.randrange(store.begin_index, store.end_index + 1)
            store.pin(index, "reader")
            self._later(member.world.config.partition_ms, store.release, "reader")
            return self._fault("pin", f"{member.id} from {index} on")
        through = replica.held.removable_through()
        left_behind = member.world.config.left_behind
        forced = left_behind > 0 and self._rng.random() < left_behind
        machine = member.state_machine
        if forced and machine is not None:  # what it starts from has to lie before: an operator has it save one first
            machine.save_now()
            through = min(through, -1 if machine.saved is None else machine.saved.meta.index)
        plan = plan_by_hand(through, store.survey(FILES_MAX), replica.held.needs(), through, forced=forced)
        if not plan.files:
            return bool(plan.kept_by) and self._fault("trim_kept", f"{member.id} for {plan.kept_by[0].owner}")
        process.jobs.remove_prefix(plan.through_index, forced=forced)
        kind = "trim_forced" if plan.forced else "trim"
        return self._fault(kind, f"{member.id} through {plan.through_index}")

    def _lose_state(self) -> bool:
        """All snapshots of a member rot at once."""
        world, member = self._world, self._any()
        others = [world.members[one] for one in world.operator.group() if one != member.id]
        may = member.id in world.operator.group() and self.may_lose_state(member)
        what = lose_state(member, others) if may else ""
        return bool(what) and self._fault("lose_state", what)

    def _lose_sender(self) -> bool:
        """A leader dies, or is cut off, while a snapshot of its is on its way."""
        leader = self._leader()
        leadership = None if leader is None or leader.replica is None else leader.replica.leadership
        if leader is None or leadership is None or leadership.way.holder_id is None or leader.paused:
            return False
        self._fault("lose_sender", f"{leader.id} sends one to {leadership.way.holder_id}")
        if self._rng.random() < 0.5:
            leader.crash()
        else:
            others = [one for one in self._world.machine_ids if one != leader.id]
            self.cut_off([way for one in others for way in ((leader.id, one), (one, leader.id))])
        return True

    def _retune(self) -> bool:
        """An operator's next step (`retuning.py`)."""
        done = self._world.retuning.act()
        return done is not None and self._fault("retune", done)

    def _narrow_link(self) -> bool:
        """A way carries only so much for a while, or all ways from one member do."""
        config, rates = self._world.config, self._world.network.bytes_per_s
        ids = self._world.machine_ids
        one, other = self._rng.sample(ids, 2)
        others = [other] if self._rng.random() < 0.3 else [each for each in ids if each != one]
        fresh = [(one, each) for each in others if (one, each) not in rates]
        for way in fresh:
            rates[way] = config.narrow_kb_per_s * 1000
            self._later(config.narrow_ms, rates.pop, way, None)
        return bool(fresh) and self._fault("narrow_link", " ".join(f"{one}>{other}" for one, other in fresh))
