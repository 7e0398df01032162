"""A whole group of the real product in one thread, from one seed: members, network, clocks, clients and faults.

Theory. Everything that happens is an event in one queue, ordered by simulated time and then by number; every random
value comes from generators that are made of the seed and a name. So a seed is a run: a failing one is run again.

Invariants: the product is entered only from here, one call at a time; no real clock, no thread, no unordered iteration
decides anything; the same seed and the same swarm give the same trace, byte for byte.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Any

from node.consensus.api import MS
from node.store.log_store import ORIGIN
from tests.simulation.history import History
from tests.simulation.member import Member
from tests.simulation.member_operator import Operator
from tests.simulation.nemesis import Nemesis
from tests.simulation.network import Network
from tests.simulation.observer import Broadcast, Observer, Violation
from tests.simulation.retuning import Retuning
from tests.simulation.settling import describe, is_settled, leader_of, run_until
from tests.simulation.swarm import Swarm
from tests.simulation.touched import take_touched
from tests.simulation.trace import Trace
from tests.simulation.workload import Workload

CALM_LOOK_NS = 20 * MS
LAST_ROUNDS = 5
AT_ONCE_MAX = 10_000
SPARES = 2


class World:
    """One seed's. Observers are added before the first step."""

    def __init__(
        self, seed: int, config: Swarm, observers: Iterable[Observer] = (), *, keep_trace: bool = False
    ) -> None:
        self.seed, self.config = seed, config
        self.born_at = config.born_at()
        self.base = ORIGIN if self.born_at is None else self.born_at.meta
        self.now = 0
        self.steps = 0
        self.rng = random.Random(f"world {seed}")
        self.ids = tuple(f"n{number}" for number in range(config.members))  # the voters
        self.learner_ids = ("l0",) if config.learner else ()
        spares = SPARES if config.membership else 0  # who may become a member
        self.spare_ids = tuple(f"n{config.members + number}" for number in range(spares))
        self.machine_ids = self.ids + self.spare_ids  # where faults happen, and whom clients ask
        self.all_ids = self.machine_ids + self.learner_ids
        self.trace = Trace(keep=keep_trace)
        self.observers: list[Observer] = [self.trace, *observers]
        self.tell = Broadcast(())
        self.history = History()
        self.faulty = True
        self._queue: list[tuple[int, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._numbers = 0
        self._started = False
        self._at_once = 0
        self.network = Network(self, self._random("network"))
        self.nemesis = Nemesis(self, self._random("nemesis"))
        self.retuning = Retuning(self, self._random("retuning"))
        self.members: dict[str, Member] = {}
        self.touched: list[Member] = []  # by the last step
        for member_id in self.all_ids:
            self.members[member_id] = Member(self, member_id, self._random(member_id))
        self.workload = Workload(self, self._random("workload"))
        self.operator = Operator(self, self._random("operator"))

    @classmethod
    def from_seed(
        cls, seed: int, *, observers: Iterable[Observer] = (), keep_trace: bool = False, **overrides: Any
    ) -> World:
        """The world of this seed; `overrides` replace fields of its swarm."""
        return cls(seed, Swarm.from_seed(seed, **overrides), observers, keep_trace=keep_trace)

    def _random(self, name: str) -> random.Random:
        return random.Random(f"{name} {self.seed}")

    @property
    def transfers_started(self) -> int:
        return self.workload.transfers_started

    @property
    def transfers_done(self) -> int:
        """Reported by the product."""
        return self.workload.transfers_done

    @property
    def transfers_lost(self) -> int:
        """Asked of a process that is gone."""
        return self.workload.transfers_lost

    @property
    def first_index(self) -> int:
        """Of the group's log."""
        return self.base.index + 1

    # --- time ------------------------------------------------------------------------------------------------------
    def schedule(self, delay_ns: int, call: Callable[..., Any], *args: Any) -> None:
        """Calls in so many nanoseconds of true time. A call that returns False was no step: nobody was there."""
        self._numbers += 1
        heappush(self._queue, (self.now + delay_ns, self._numbers, call, args))

    def start(self) -> None:
        """Boots the members; done by the first step at the latest."""
        if self._started:
            return
        self._started = True
        self.tell = Broadcast(self.observers)
        self.tell.started(self)
        for member_id in self.ids:
            delay_ns = self.rng.randrange(300 * MS) if self.config.late_boot else self.rng.randrange(5 * MS)
            self.schedule(delay_ns, self.members[member_id].boot)
        self.workload.start()
        self.nemesis.start()

    def step(self) -> None:
        """The next thing that happens, with all that follows from it at once."""
        if not self._started:
            self.start()
        before = self.now
        while True:
            self.now, _, call, args = heappop(self._queue)
            if call(*args) is not False:
                break
        self.steps += 1
        self._at_once = self._at_once + 1 if self.now == before else 0
        if self._at_once > AT_ONCE_MAX:
            raise Violation("liveness", f"time stands still: {AT_ONCE_MAX} steps at one moment\n{self.describe()}")
        self.touched = take_touched(self.members.values(), self.steps)
        self.tell.stepped(self)

    def run(self, steps: int) -> None:
        """So many steps."""
        for _ in range(steps):
            self.step()

    # --- the end ---------------------------------------------------------------------------------------------------
    def heal_and_settle(self) -> None:
        """The faults and the clients stop; runs until all is calm, takes an append, and has everyone serve a full read.

        A preferred leader may take over in between, so some rounds of that are allowed. Raises Violation("liveness")
        where the group does not settle within a minute of simulated time, or no round goes well.
        """
        self.start()
        self.faulty = False
        self.workload.running = False
        self.nemesis.heal()
        for _ in range(LAST_ROUNDS):
            self._until(self.calm, "the group does not settle")
            said = len(self.history)
            self._last_words()
            self._until(self.calm, "the group does not answer")
            if all(one.result == "ok" for one in self.history.operations[said:]):
                break
        else:
            answers = "\n".join(one.describe() for one in self.history.operations[said:])
            raise Violation("liveness", f"a calm group does not answer well:\n{answers}\n{self.describe()}")
        self.tell.healed(self)

    def _until(self, condition: Callable[[], bool], otherwise: str) -> None:
        run_until(self, condition, otherwise, CALM_LOOK_NS)

    def _last_words(self) -> None:
        leader = self.leader()
        assert leader is not None
        self.workload.append(leader, plain=True)
        for member in (one for one in self.present() if one.id in self.machine_ids):
            begin = self.first_index if member.store is None else member.store.begin_index
            self.workload.read(member, max(self.first_index, begin))

    def present(self) -> list[Member]:
        """Who belongs to the group now: as its leader says, where members change by entries of its log."""
        leader = self.leader() if self.spare_ids else None
        if leader is not None and leader.replica is not None:
            return [self.members[one] for one in self.all_ids if one in leader.replica.configuration.members]
        return [member for member in self.members.values() if member.joined]

    def leader(self) -> Member | None:
        """The one of the highest term among those who believe that they lead."""
        leader: Member | None = leader_of(self)
        return leader

    def calm(self) -> bool:
        """Settled, scrubbed since the faults stopped, and nobody waits for an answer."""
        scrubbed = all(one.process is not None and one.process.jobs.scrubs > 0 for one in self.present())
        return scrubbed and not self.workload.open_count and is_settled(self) and self.operator.is_content()

    def describe(self) -> str:
        """Every member on one line."""
        return describe(self)
