"""Faults in several acts: each is one chain of events that single faults meet too seldom.

- `cut_lease`: a leader first loses all but as many followers as its lease needs; then, at one moment, these start anew
  and the leader loses them too. Nobody writes meanwhile, so any of them could be elected. A follower that forgot what
  it granted could elect another leader at once (SAFETY E9).

Invariants: as in `nemesis.py`, of which these are a part: what begins ends, by itself or in `heal`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from node.consensus.api import MS

if TYPE_CHECKING:
    from tests.simulation.member import Member
    from tests.simulation.world import World

QUICK_START_NS = 5 * MS


class Schemes:
    """The part of `Nemesis` that plays them."""

    _world: World
    _rng: random.Random
    _leader: Callable[[], Member | None]
    _later: Callable[..., None]
    _fault: Callable[[str, str], bool]
    _cutting = False  # one at a time, or they spoil each other

    # --- a lease whose givers start anew ----------------------------------------------------------------------------
    def _cut_lease(self) -> bool:
        leader, world = self._leader(), self._world
        if leader is None or len(world.ids) < 3 or self._cutting:
            return False
        self._cutting = world.workload.reads_only = True
        others = [one for one in world.ids if one != leader.id]
        givers = self._rng.sample(others, len(world.ids) // 2)
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
                world.schedule(self._rng.randrange(1, QUICK_START_NS), world.members[one].boot)
        world.workload.reads_only = False
        self._later(4 * world.config.election_ms, self._lease_cut_ends, cut + rest)
        self._fault("cut_givers", f"{leader.id} {givers}")

    def _lease_cut_ends(self, ways: list[tuple[str, str]]) -> None:
        self._cutting = False
        self._world.network.unblock(ways)
