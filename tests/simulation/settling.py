"""When a world of either kind is calm again, what to say where it is not, and one seed's run from begin to end.

The core's world and the driver's have members of the same shape (`tests/simulation/member`, `driver/machine`): the same
questions are asked of both. Invariant: nothing here changes a member.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Protocol

from node.consensus.api import SECOND
from node.protocol.codes import DispatcherState, Role, VoterState
from tests.simulation.disk_faults import SimulatedCrash
from tests.simulation.history import History
from tests.simulation.observer import Violation
from tests.simulation.report import SeedResult
from tests.simulation.trace import Trace

CALM_WITHIN_NS: Final = 60 * SECOND


class Settling(Protocol):
    """What a world of either kind is."""

    seed: int
    steps: int
    history: History
    members: dict[str, Any]

    @property
    def now(self) -> int: ...
    def present(self) -> list[Any]: ...
    def step(self) -> None: ...
    def run(self, steps: int) -> None: ...
    def heal_and_settle(self) -> None: ...


def leader_of(world: Settling) -> Any:
    """The one of the highest term among those who believe that they lead; None: nobody does."""
    leading = [one for one in world.members.values() if one.replica is not None and one.replica.role is Role.LEADER]
    return max(leading, key=lambda one: one.replica.term, default=None)


def is_settled(world: Settling) -> bool:
    """A leader; everyone connected, a voter, with space, in APPEND; sound and equal logs, all committed and applied."""
    leader = leader_of(world)
    if leader is None or leader.replica.leadership is None:
        return False
    end = (leader.replica.store.end_index, leader.replica.store.end_chain)
    for member in world.present():
        replica, store = member.replica, member.store
        if replica is None or store is None or store.faults or replica.member.short_of_space:
            return False
        if replica.member.voter_state is not VoterState.VOTER or replica.settings.under_way:
            return False
        if (store.end_index, store.end_chain) != end or replica.committed_index != store.end_index:
            return False
        machine = member.state_machine
        if machine is not None and (replica.applied_index != store.end_index or machine.at != store.end_index):
            return False
        if not all(peer.connected for peer in replica.peers.of.values()):
            return False
    return all(peer.state is DispatcherState.APPEND for peer in leader.replica.peers.of.values())


def run_until(world: Settling, condition: Callable[[], bool], otherwise: str, look_ns: int) -> None:
    """Until it holds, looked at every so often. Raises Violation("liveness") after CALM_WITHIN_NS."""
    bound, look_at = world.now + CALM_WITHIN_NS, world.now
    while world.now < bound:
        world.step()
        if world.now >= look_at:
            look_at = world.now + look_ns
            if condition():
                return
    raise Violation("liveness", f"{otherwise}:\n{describe(world)}")


def describe(world: Settling) -> str:
    """Every member on one line."""
    lines = [f"seed {world.seed} at {world.now / SECOND:.3f} s, {world.history.open_count} requests open"]
    for member in world.members.values():
        if member.replica is None or member.store is None:
            lines.append(
                f"{member.id} down, refused {member.is_refused}, powered {member.powered}: {member.last_error}"
            )
            continue
        core, leadership = member.replica.member, member.replica.leadership
        states = {one: peer.state.value for one, peer in member.replica.peers.of.items()} if leadership else {}
        lines.append(
            f"{member.id} {core.role.value} term {core.term} of {core.leader_id} end {member.store.end_index}"
            f" durable {core.durable_index} verified {core.verified_index} commit {core.committed_index}"
            f" {core.voter_state.value} alarms {sorted(code for code, _ in core.alarms)} {states}"
        )
    return "\n".join(lines)


def run_world(
    world: Settling,
    steps: int,
    trace: Trace,
    counts: Callable[[], Mapping[str, int]],
    recording: AbstractContextManager[object] | None = None,
) -> SeedResult:
    """So many steps of trouble, then peace. Never raises what the product raised."""
    began = time.perf_counter()
    violation: Violation | None = None
    try:
        with recording or nullcontext():
            world.run(steps)
            world.heal_and_settle()
    except Violation as found:
        violation = found
    except (Exception, SimulatedCrash) as error:  # a crash belongs to a process of the world, and ends there
        violation = Violation("no_exception", f"{type(error).__name__}: {error}")
        violation.__cause__ = error
    done = [one for one in world.history if one.result == "ok"]
    appends = sum(one.kind == "append" for one in done)
    return SeedResult(
        world.seed, min(world.steps, steps), world.now / SECOND, violation, trace.sha256(), dict(counts()),
        appends, len(done) - appends, time.perf_counter() - began,
    )  # fmt: skip
