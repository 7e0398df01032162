"""The operator who changes a group's members while it runs, beside every fault (SAFETY M1 to M7).

What he asks for is what `quorumscope members` asks for: a member comes (as a learner that becomes a voter, or stays
one; perhaps in another one's place), is promoted, leaves (the leader and one that is down too), has another address.
Sometimes two are asked for at one moment, or of two members that both believe that they lead; sometimes the leader is
cut off, or dies, right behind it. And he makes mistakes: he starts a new member late, one of another group in its
place, or one that had left with the directory that it had.

Fences. A change is not asked for, nor a disk replaced, where the group could not do without whoever has no memory then
(the first fence of `nemesis.py`): while anything may take a member's memory, there are three voters at least, and one
member at a time is without. Who is named by no configuration that may still hold is taken away, and comes back with an
empty disk.

Invariants: nothing is drawn where members do not change, so those worlds know nothing of him; in `tidy_up` whatever he
did wrong is put right.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from node.consensus.api import MS
from node.consensus.configuration import Configuration
from node.consensus.member_changes import ChangeOutcome, Kind, MemberChange
from node.protocol.codes import Role
from tests.simulation.observer import Violation
from tests.simulation.swarm import DAMAGE, FORGET

if TYPE_CHECKING:
    from tests.simulation.member import Member
    from tests.simulation.world import World

LATE_NS = 300 * MS  # a new member is started so much later than asked for, at most
BEHIND_NS = 40 * MS  # and a leader is lost so soon


class Operator:
    """One per world."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world, self._rng = world, rng
        self._settled: Configuration | None = None  # the newest that anybody called committed
        self._asked = 0
        self._open: dict[int, str] = {}  # number of a change -> who was asked

    # --- what he sees -----------------------------------------------------------------------------------------------
    def _seen(self) -> list[tuple[Configuration, bool]]:
        """The configuration in effect at each member, as it shows it, or showed it last; whether it is committed."""
        seen = []
        for member in self._world.members.values():
            replica = member.replica
            if replica is not None:
                seen.append((replica.configuration, replica.configuration.index <= replica.committed_index))
            elif member.last_configuration is not None:
                seen.append((member.last_configuration, False))
        return seen

    def configurations(self) -> list[Configuration]:
        """The newest committed one, and each that may follow it; empty: members never changed here."""
        seen = self._seen()
        for one, is_committed in seen:
            if is_committed and one.index > (-1 if self._settled is None else self._settled.index):
                self._settled = one
        floor = -1 if self._settled is None else self._settled.index
        newer = [one for one, _ in seen if one.index > floor]
        return newer if self._settled is None else [self._settled, *newer]

    def group(self) -> list[str]:
        """Whoever is a member by one of these."""
        world = self._world
        if not world.spare_ids:
            return list(world.ids)
        named = {one for configuration in self.configurations() for one in configuration.members}
        if self._settled is None:
            named |= set(world.ids)
        return [one for one in world.machine_ids if one in named]

    def _voters(self) -> list[set[str]]:
        """Of each configuration that may hold now or soon: who is to be promoted is, and whom it replaces goes."""
        found = []
        for one in self.configurations():
            promoted = {*one.voters, *one.learners}
            found += [set(one.voters), promoted - set(one.named.replacing.values())]
        return found or [set(self._world.ids)]

    def voters(self) -> list[str]:
        """Who has a vote by each of these."""
        return sorted(set.intersection(*self._voters())) if self._world.spare_ids else list(self._world.ids)

    def may_forget(self, member: Member) -> bool:
        """Whether this member may lose its memory, or have lost it: all others of the group have theirs."""
        remembers, members = self._world.nemesis.remembers, self._world.members
        if any(one.is_old_copy for one in members.values()):
            return False
        others = all(remembers(members[one]) for one in self.group() if one != member.id)
        return others and all(len(voters) >= 3 for voters in self._voters())

    def is_content(self) -> bool:
        """At the end: everybody has one configuration, and nothing of it is still to come."""
        world = self._world
        leader = world.leader() if world.spare_ids else None
        if leader is None or leader.replica is None:
            return not world.spare_ids
        configuration = leader.replica.configuration
        promoted_or_gone = configuration.named.to_leave() is None and not configuration.named.promoting
        alike = all(
            one.replica is not None and one.replica.configuration == configuration for one in self._world.present()
        )
        return leader.id in configuration.voters and promoted_or_gone and alike and not self._open

    # --- what he asks for -------------------------------------------------------------------------------------------
    def change(self) -> bool:
        """One change, or two at once."""
        self._housekeeping()
        leading = [one for one in self._world.members.values() if self._believes(one)]
        if self._rng.random() < 0.1:
            leading = [one for one in self._world.members.values() if one.up][-1:]  # who may not lead at all
        if not leading:
            return False
        for leader in leading if self._rng.random() < 0.5 else [self._rng.choice(leading)]:
            change = self._ask(leader)
            if self._rng.random() < 0.25:
                self._ask(leader)
            if change is not None and change.kind is Kind.REMOVE and change.member_id == leader.id:
                self._leaves_alone(leader)
            elif self._rng.random() < 0.3:
                self._world.schedule(int(BEHIND_NS * self._rng.random() ** 3), self._lose, leader)
        return True

    @staticmethod
    def _believes(member: Member) -> bool:
        return member.replica is not None and member.replica.role is Role.LEADER

    def _leaves_alone(self, leader: Member) -> None:
        """Sometimes nobody but itself gets to know that a leader removed itself, before it dies."""
        if self._rng.random() < 0.3:
            self._world.nemesis.cut_off(self._ways_of(leader))
            self._world.schedule(self._rng.randrange(BEHIND_NS), self._dies, leader)

    def _ask(self, leader: Member) -> MemberChange | None:
        process, replica = leader.process, leader.replica
        change = None if replica is None else self._choose(leader, replica.configuration)
        if process is None or change is None:
            return None
        number = self._asked = self._asked + 1
        self._open[number] = leader.id
        what = f"{change.kind} {change.member_id}" + (f" for {change.replaces}" if change.replaces else "")
        self._world.tell.fault("membership", f"{leader.id}: {what}")
        process.when_awake(process.change_members, change, lambda outcome: self._told(number, leader, change, outcome))
        return change

    def _choose(self, leader: Member, now: Configuration) -> MemberChange | None:
        rng, world = self._rng, self._world
        kind = rng.choice((Kind.ADD, Kind.ADD, Kind.ADD, Kind.PROMOTE, Kind.REMOVE, Kind.REMOVE, Kind.ADDRESS))
        if kind is Kind.ADD:
            return self._add(now)
        if kind is Kind.PROMOTE:
            ready = [one for one in sorted(now.learners) if one not in now.named.promoting] or sorted(now.learners)
            return MemberChange(kind, rng.choice(ready)) if ready else None
        if kind is Kind.ADDRESS:
            return MemberChange(kind, rng.choice(sorted(now.members)), f"127.0.0.1:{rng.randrange(40000, 60000)}")
        down = [one for one in sorted(now.members) if not world.members[one].up]
        gone = leader.id if rng.random() < 0.3 else rng.choice(down or sorted(now.members))
        if not self.may_leave(gone, now):
            return None
        if gone == leader.id:
            world.tell.fault("remove_leader", gone)
        elif not world.members[gone].up:
            world.tell.fault("remove_down", gone)
        return MemberChange(kind, gone)

    def _add(self, now: Configuration) -> MemberChange | None:
        rng, group = self._rng, self.group()
        away = [one for one in self._world.machine_ids if one not in group and one not in now.members]
        if not away or len(now.members) >= self._world.config.members_most:
            return None
        member = self._world.members[rng.choice(away)]
        if member.up or not member.powered:  # one that left runs on: it is not started beside itself
            return None
        replaced = rng.choice(sorted(now.voters)) if rng.random() < 0.35 else ""
        if replaced and not self.may_leave(replaced, now, more=1):
            replaced = ""
        self._start(member, now)
        return MemberChange(Kind.ADD, member.id, member.address, rng.random() < 0.7, replaced)

    def _start(self, member: Member, now: Configuration) -> None:
        """At once or late; sometimes what must not be let in."""
        rng, tell = self._rng, self._world.tell
        wrong = rng.random()
        if wrong < 0.4 and member.id in now.named.removed:
            tell.fault("old_directory", member.id)
            member.start_again()
        elif rng.random() < 0.3:
            self._world.schedule(rng.randrange(LATE_NS), self._start_late, member, now)
        else:
            if wrong > 0.9:
                tell.fault("foreign_member", member.id)
            member.start_beside(now.voters, is_foreign=wrong > 0.9)

    @staticmethod
    def _start_late(member: Member, now: Configuration) -> bool:
        if member.up or member.joined or not member.powered:
            return False
        member.start_beside(now.voters)
        return True

    def may_leave(self, gone: str, now: Configuration, *, more: int = 0) -> bool:
        """`more`: how many come for it first."""
        config = self._world.config
        forgets = not config.always_sync or any(getattr(config, name) for name in (*DAMAGE, *FORGET))
        fewest = 3 if forgets else 1
        left = [voters - {gone} for voters in (*self._voters(), set(now.voters))]
        if gone in now.voters and any(len(voters) + more < fewest for voters in left):
            return False
        nemesis, members = self._world.nemesis, self._world.members
        if not nemesis.keeps_states(members[gone]):
            return False
        return fewest == 1 or all(nemesis.remembers(members[one]) for one in self.group() if one != gone)

    def _lose(self, leader: Member) -> bool:
        """Whoever was asked is cut off, or dies."""
        nemesis = self._world.nemesis
        if not nemesis.active or not leader.up:
            return False
        if self._rng.random() < 0.5:
            leader.crash()
            return True
        nemesis.cut_off(self._ways_of(leader))
        return True

    def _dies(self, leader: Member) -> bool:
        if not self._world.nemesis.active or not leader.up:
            return False
        leader.crash()
        return True

    def _ways_of(self, member: Member) -> list[tuple[str, str]]:
        others = [one for one in self._world.machine_ids if one != member.id]
        return [way for one in others for way in ((member.id, one), (one, member.id))]

    # --- what he is told --------------------------------------------------------------------------------------------
    def _told(self, number: int, leader: Member, change: MemberChange, outcome: ChangeOutcome) -> None:
        if self._open.pop(number, None) is None:
            raise Violation("closure_once", f"change {number} of the members was reported twice, or by nobody's word")
        self._world.tell.members_changed(leader, change, outcome)

    def member_gone(self, member_id: str) -> None:
        """Its process ended: nobody will tell."""
        for number in [number for number, at in self._open.items() if at == member_id]:
            del self._open[number]

    # --- order ------------------------------------------------------------------------------------------------------
    def _housekeeping(self) -> None:
        """Now and then who left is taken away, and who belongs to the group is started."""
        group = self.group()
        for member in (self._world.members[one] for one in self._world.machine_ids):
            if self._rng.random() < 0.3:
                self._put_right(member, group)

    def _put_right(self, member: Member, group: list[str], *, at_last: bool = False) -> None:
        settled = self._settled
        if member.id not in group:
            if member.joined and not self._believes(member):  # a leader that left hands over first
                member.joined = False
                if member.up:
                    member.crash("left")
        elif settled is not None and member.id in settled.members and member.powered:
            if not member.joined:
                member.start_beside(settled.voters)
            elif self._is_out_of_place(member, settled) and (at_last or self._rng.random() < 0.1):
                if member.up:
                    member.crash("left")
                if member.powered:
                    member.start_beside(settled.voters)

    def _is_out_of_place(self, member: Member, settled: Configuration) -> bool:
        """A member that was started with what nobody lets in."""
        store = member.store
        if member.is_foreign:
            return True
        store_id = None if store is None else store.hard_state.store_id or store.store_id
        return store_id is not None and settled.named.removed.get(member.id) == store_id

    def tidy_up(self) -> None:
        """The faults have stopped: everybody who belongs to the group runs as he should, and nobody else does."""
        if self._world.spare_ids:
            group = self.group()
            for one in self._world.machine_ids:
                self._put_right(self._world.members[one], group, at_last=True)
