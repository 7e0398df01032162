"""A whole group of real engines, real clients and real control planes on one machine-less clock.

One queue of events in simulated time drives everything; one seed decides everything that is left to chance, also what
the product itself asks of `random`. The observers are those of the core's simulator: to them a `Machine` is a member.

Invariants: a run is a pure function of seed, steps and swarm; a promise that is found broken anywhere, in whatever
callback, ends the run with the step in which it was found.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

from node.consensus.api import MS, SECOND
from node.store.log_store import ORIGIN
from tests.simulation.clock import MemberClock
from tests.simulation.driver.loop import Timeline
from tests.simulation.driver.machine import FIRST_PORT, Machine
from tests.simulation.driver.nemesis import DriverNemesis
from tests.simulation.driver.sockets import Network
from tests.simulation.driver.swarm import DriverSwarm
from tests.simulation.driver.wire import Wire
from tests.simulation.driver.workload import ClientProcess, Workload
from tests.simulation.history import History
from tests.simulation.observer import Broadcast, Observer, Violation
from tests.simulation.settling import describe, is_settled, leader_of, run_until
from tests.simulation.touched import take_touched

CALM_LOOK_NS = 50 * MS
ANSWERED_WITHIN_NS = 2 * SECOND


class _Reported:
    """A broadcast whose violations are written down: the product would take one for an error of its own."""

    def __init__(self, world: DriverWorld, broadcast: Broadcast) -> None:
        self._world, self._broadcast = world, broadcast

    def __getattr__(self, name: str) -> Callable[..., None]:
        hook: Callable[..., None] = getattr(self._broadcast, name)

        def tell(*args: Any) -> None:
            before, self._world.observing = self._world.observing, True
            try:
                hook(*args)
            except Violation as violation:
                self._world.violate(violation)
            finally:
                self._world.observing = before

        setattr(self, name, tell)
        return tell


class _Ports(Network):
    world: DriverWorld

    def machine_of_port(self, port: int) -> str:
        return self.world.machine_of_port(port)


class DriverWorld:
    """See the module's docstring."""

    def __init__(self, seed: int, config: DriverSwarm, observers: Iterable[Observer] = ()) -> None:
        self.seed, self.config = seed, config
        self.born_at = config.born_at()
        self.base = ORIGIN if self.born_at is None else self.born_at.meta
        self.timeline = Timeline()
        self.rng = self._random("world")
        self.steps = 0
        self.faulty = True
        self.observing = False  # what is read now is read by those who look on
        self.violation: Violation | None = None
        self.also_calm: list[Callable[[], bool]] = []  # what else has to hold once the faults are over
        self.graveyard: list[Any] = []
        self.ids = [f"n{number}" for number in range(config.members)]
        self.all_ids, self.learner_ids = self.ids, ()  # nobody comes or goes here
        self.history = History()
        self.network = _Ports(self.timeline, self._random("network"), int(config.delay_ms * MS), config.piece_bytes)
        self.network.world = self
        self.client_clock = MemberClock(lambda: self.now)
        self.wire = Wire(self)
        self.network.watchers.append(self.wire.written)
        self.tell: Any = _Reported(self, Broadcast(observers))
        self.members = {one: self._machine(one) for one in self.ids}
        self.touched: list[Machine] = []  # by the last step
        self.nemesis, self.workload = self._nemesis(), self._workload()
        self._product = self._random("product").getstate()  # of the module `random`, while the product runs
        self._started = False

    def _random(self, name: str) -> random.Random:
        return random.Random(f"driver {name} {self.seed}")

    # --- what it is made of -----------------------------------------------------------------------------------------
    def _machine(self, member_id: str) -> Machine:
        return Machine(self, member_id, self._random(member_id))

    def _nemesis(self) -> DriverNemesis:
        return DriverNemesis(self, self._random("nemesis"))

    def _workload(self) -> Workload:
        return Workload(self, self._random("workload"))

    def machine_of_port(self, port: int) -> str:
        """Whose port that is, also while nobody listens."""
        return f"n{port - FIRST_PORT}"

    @property
    def now(self) -> int:
        return self.timeline.now

    def violate(self, violation: Violation) -> None:
        """The first one counts."""
        if self.violation is None:
            self.violation = violation

    # --- time -----------------------------------------------------------------------------------------------------
    def start(self) -> None:
        if self._started:
            return
        self._started = True
        self.tell.started(self)
        for one in self.ids:
            self.timeline.schedule(self.rng.randrange(5 * MS), self.members[one].boot)
        self.workload.start()
        self.nemesis.start()

    def step(self) -> None:
        """The next thing that happens. Raises Violation."""
        self.start()
        self.timeline.step()
        self.steps += 1
        self.touched = take_touched(self.members.values(), self.steps)
        self.tell.stepped(self)
        if self.violation is not None:
            raise self.violation

    def run(self, steps: int) -> None:
        with seeded(self):
            for _ in range(steps):
                self.step()

    # --- the end --------------------------------------------------------------------------------------------------
    def all_answered(self) -> bool:
        """Whether every request, transfers too, has had its answer: one may be on its way when the group is calm."""
        work = self.workload
        ended = work.transfers_done + work.transfers_lost
        asked = not self.history.open_count and work.transfers_started == ended
        return asked and all(holds() for holds in self.also_calm)

    def heal_and_settle(self) -> None:
        """Faults and clients stop; runs until all is calm, then everybody is asked once more. Raises Violation."""
        with seeded(self):
            self.faulty = False
            self.workload.running = False
            self.nemesis.heal()
            self._until(lambda: self.calm() and self.all_answered(), "the group does not settle")
            last = ClientProcess(self.workload, "last", self._random("last"))
            last.start()
            said = len(self.history)
            last.last_words(len(self.ids))
            wanted = said + 1 + len(self.ids)
            self._until(
                lambda: len(self.history) >= wanted and self.all_answered() and self.calm(),
                "the group does not answer",
            )
            self._close_books()

    def _close_books(self) -> None:
        """In a calm world: all that was asked is answered, and the checks have their last word. Raises Violation."""
        bound = self.now + ANSWERED_WITHIN_NS  # a question that nobody waits for may be under way
        while self.wire.waiting() is not None and self.now < bound:
            self.step()
        self.wire.settled()
        self.tell.healed(self)
        if self.violation is not None:
            raise self.violation

    def _until(self, condition: Callable[[], bool], otherwise: str) -> None:
        run_until(self, condition, otherwise, CALM_LOOK_NS)

    def leader(self) -> Machine | None:
        """The one of the highest term among those who believe that they lead."""
        leader: Machine | None = leader_of(self)
        return leader

    def present(self) -> list[Machine]:
        """Who belongs to the group."""
        return list(self.members.values())

    def calm(self) -> bool:
        """Settled, and no disk job is slow any more; appends that wait may still be under way."""
        return is_settled(self) and all(self.now >= one.slow_until for one in self.members.values())

    def describe(self) -> str:
        """Every member on one line."""
        return describe(self)


class seeded:
    """The product's own `random` belongs to the seed, and only while the world runs."""

    def __init__(self, world: DriverWorld) -> None:
        self._world = world

    def __enter__(self) -> None:
        self._outside = random.getstate()
        random.setstate(self._world._product)

    def __exit__(self, *_: object) -> None:
        self._world._product = random.getstate()
        random.setstate(self._outside)
