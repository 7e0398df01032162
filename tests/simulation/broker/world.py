"""A group of real engines with a real broker beside each, and clients of RocketMQ's protocol, in simulated time.

The driver's world with more processes. What clients ask and what brokers answer is read off the bytes that they write
(`wire.py`); what is committed is known from the engines' logs, so that every answer is judged at the moment at which it
leaves. Invariants: a run is a pure function of seed, steps and swarm.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from node.broker import broker as broker_module
from node.broker import dispatched_log
from node.config import Settings, load
from node.consensus.api import MS
from node.protocol.group_kind import GroupKind
from tests.simulation.broker.books import Book, LaneBook
from tests.simulation.broker.nemesis import BrokerNemesis
from tests.simulation.broker.process import BROKER_PORT, BrokerProcess
from tests.simulation.broker.swarm import BrokerSwarm
from tests.simulation.broker.wire import BrokerWire
from tests.simulation.broker.workload import BrokerWorkload
from tests.simulation.broker_records import EPOCH_MS, kind_of
from tests.simulation.driver.machine import FIRST_PORT, Machine
from tests.simulation.driver.sockets import Socket
from tests.simulation.driver.world import ANSWERED_WITHIN_NS, DriverWorld, seeded
from tests.simulation.observer import Observer

DELAY_LEVELS = "1s 2s 3s"
TRANSACTION_TIMEOUT_MS = 300
TRANSACTION_CHECK_MS = 400


class BrokerMachine(Machine):
    """With a wall clock, which may be wrong, and a broker."""

    world: BrokerWorld

    def __init__(self, world: BrokerWorld, member_id: str, rng: random.Random) -> None:
        super().__init__(world, member_id, rng)
        apart = world.config.wall_apart_ms
        self.wall_offset_ms = rng.randrange(apart + 1) if apart else 0
        self.broker = BrokerProcess(self, random.Random(rng.getrandbits(64)))

    def wall_ms(self) -> int:
        return EPOCH_MS + self.world.now // MS + self.wall_offset_ms

    @property
    def log_begin(self) -> int:
        """Where its log begins now; 0 while its engine is down."""
        return 0 if self.store is None else self.store.files.begin_pos

    def pace(self) -> int:
        return self._pace()

    def _kind(self) -> GroupKind:
        return kind_of(True, lambda: (self.wall_ms() - EPOCH_MS) * MS)

    def _settings(self) -> Settings:
        said: dict[str, Any] = dict(self._values())
        said |= {
            "broker.address": f"127.0.0.1:{BROKER_PORT + int(self.id[1:])}",
            "broker.delay_levels": DELAY_LEVELS,
            "broker.transaction_timeout_ms": TRANSACTION_TIMEOUT_MS,
            "broker.transaction_check_interval_ms": TRANSACTION_CHECK_MS,
            "broker.transaction_check_max": 1000,
        }
        kept = self.world.config.kept_files
        if kept:
            said |= {
                "retention.enabled": True,
                "retention.max_log_bytes": kept * self.world.config.data_file_size,
                "retention.check_interval_s": 1,
            }
        return load(said, None, {})

    def lose_power(self) -> None:
        super().lose_power()
        self.world.network.dark.add(self.broker.id)
        self.broker.platform.lose_power()
        self.broker.crash()

    def power_on(self) -> bool:
        if self.powered:
            return False
        self.world.network.machine_back(self.broker.id)
        super().power_on()
        self.broker.boot()
        return True


class BrokerWorld(DriverWorld):
    """See the module's docstring."""

    config: BrokerSwarm
    members: dict[str, BrokerMachine]  # type: ignore[assignment]
    workload: BrokerWorkload  # type: ignore[assignment]

    def __init__(self, seed: int, config: BrokerSwarm, observers: Iterable[Observer], book: Book) -> None:
        self.book, self.lane_book = book, LaneBook()
        book.lanes = self.lane_book
        super().__init__(seed, config, observers)
        self.broker_wire = BrokerWire(self)
        self.wire.own_readers = frozenset("b" + one[1:] for one in self.ids)
        self.network.watchers[:] = [self._written]

    def _random(self, name: str) -> random.Random:
        return random.Random(f"broker world {name} {self.seed}")

    def _machine(self, member_id: str) -> Machine:
        return BrokerMachine(self, member_id, self._random(member_id))

    def _nemesis(self) -> BrokerNemesis:
        return BrokerNemesis(self, self._random("nemesis"))

    def _workload(self) -> Any:
        return BrokerWorkload(self, self._random("workload"))

    @property
    def brokers(self) -> list[BrokerProcess]:
        return [self.members[one].broker for one in self.ids]

    def _written(self, socket: Socket, pieces: Any) -> None:
        watch = self.broker_wire if socket.port >= BROKER_PORT else self.wire
        watch.written(socket, pieces)

    def machine_of_port(self, port: int) -> str:
        return f"b{port - BROKER_PORT}" if port >= BROKER_PORT else f"n{port - FIRST_PORT}"

    def start(self) -> None:
        before = self._started
        super().start()
        if not before:
            for one in self.brokers:
                self.timeline.schedule(self.rng.randrange(5 * MS), one.boot)

    def run(self, steps: int) -> None:
        with self._hurried():
            super().run(steps)

    @contextmanager
    def _hurried(self) -> Iterator[None]:
        """What the product does every few seconds happens within a run of a few seconds."""
        with (
            patch.object(dispatched_log, "SAVE_EVERY_S", self.config.save_s),
            patch.object(broker_module, "LOOK_AT_FILES_S", self.config.save_s),
        ):
            yield

    # --- the end --------------------------------------------------------------------------------------------------
    def heal_and_settle(self) -> None:
        """Faults and producers stop; consumers go on until all is delivered; then everything is read again."""
        with seeded(self), self._hurried():
            self.faulty = False
            self.workload.running = False
            self.nemesis.heal()
            self._until(self.all_delivered, "the brokers do not come to rest")
            self._close_books()

    def _close_books(self) -> None:
        """Not while a master writes down a moment later how far its groups are."""
        bound = self.now + ANSWERED_WITHIN_NS
        self._until(
            lambda: (self.wire.waiting() is None or self.now >= bound) and self.all_delivered(),
            "the brokers do not stay at rest",
        )
        super()._close_books()

    def all_delivered(self) -> bool:
        """One master, everybody has dispatched everything, nothing waits for its time or for a decision."""
        if self.workload.open_count or not self.calm():
            return False
        masters = 0
        for one in self.brokers:
            broker = one.broker
            if broker is None or broker.log.dispatched_index != self.book.index or one.clients is None:
                return False
            if broker.is_master:
                masters += 1
                transactions = one.clients.requests.transactions
                if broker.schedule.pending() or not transactions.is_known or transactions.open_count:
                    return False
                if one.machine is not self.leader():
                    return False
        return masters == 1 and self.workload.consumed()

    def describe(self) -> str:
        lines = [super().describe(), f"committed {self.book.index}, {self.workload.open_count} requests open"]
        for one in self.brokers:
            broker = one.broker
            if broker is None:
                lines.append(f"{one.id} down")
                continue
            log, roles, open_ones = broker.log, broker.roles, -1
            if one.clients is not None:
                open_ones = one.clients.requests.transactions.open_count
            last = roles.timeline[-1].as_said() if roles.timeline else {}
            lines.append(
                f"{one.id} {roles.role} term {roles.term} dispatched {log.dispatched_index} of {log.committed_index}"
                f" stopped by {log.stopped_by!r} waiting {broker.schedule.pending()} {broker.schedule.next_offsets}"
                f" open {open_ones}"
                f" {last.get('change')} {last.get('outcome')} {[each['step'] for each in last.get('steps', [])][-1:]}"
            )
        lines += self.workload.describe()
        return "\n".join(lines)
