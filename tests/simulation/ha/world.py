"""A simulated HA group: nodes, links between them, an operator, faults, and what must hold at every moment.

Each step lets some time go by, moves bytes in pieces of any length, and does one thing: a put, a flush, a fault, an act
of the operator's. The operator restarts what crashed, and promotes the slave that has most when the master is gone;
sometimes an old master comes back as master, and slaves that heard of the newer one are sent to it.

What holds: a slave that is transferred to has a prefix of its master's log; a put that was answered PUT_OK is on as
many slaves as asked, on disk where the mode promises that; after each promotion and at the end nothing that was
answered PUT_OK is gone; a fenced master answers nothing PUT_OK; in the end every slave is in step, or says why not.
Of an ASYNC_MASTER what was answered may be missing in the log that goes on: it lies at the broker that took it then, in
its log or aside.
"""

from __future__ import annotations

import random
from collections import deque

from node.ha.client import State
from node.ha.connection import HAConnection, Phase
from node.ha.lineage import PROMOTION
from node.ha.promotion import Candidate, best, era_of
from node.ha.settings import BrokerRole
from node.message_store.errors import MessageStoreError
from tests.simulation.disk import SimulatedCrash
from tests.simulation.ha.node import Node, Put, content
from tests.simulation.observer import Violation

QUEUE_BYTES_MAX = 64 << 10


class Link:
    """One connection: bytes on their way, in order, each way by itself. `is_cut`: nothing arrives, nobody knows."""

    def __init__(self, slave: Node, master: Node, connection: HAConnection) -> None:
        self.slave, self.master, self.connection = slave, master, connection
        assert master.service is not None and slave.client is not None
        self.service, self.client = master.service, slave.client
        self.up: deque[bytes] = deque()
        self.down: deque[bytes] = deque()
        self.is_cut = False
        self.is_one_way = False
        self.is_old = False  # the slave connected anew; its master may not know yet
        self.checked = -1


class World:
    """See the module's docstring."""

    def __init__(
        self, seed: int, *, count: int = 0, in_sync: int = 0, faults: float = 0.04, pauses: float = 0.15,
        is_async: bool = False,
    ) -> None:  # fmt: skip
        """`faults`: how often a step is one; `pauses`: how many of them stop a process for a while."""
        self.rng = rng = random.Random(seed)
        self.seed, self.faults, self.pauses = seed, faults, pauses
        self.steps = 0
        self.now_ms = 1_000_000
        count = count or rng.choice([2, 2, 3, 3, 4])
        self.is_sync = rng.random() < 0.6  # else processes crash, and no power is lost
        in_sync = in_sync or min(count, rng.choice([2, 2, 3]))
        self.is_async = is_async
        self.needed = 0 if is_async else in_sync - 1
        role = BrokerRole.ASYNC_MASTER if is_async else BrokerRole.SYNC_MASTER
        self.nodes = [
            Node(f"n{n}", rng, lambda: self.now_ms, role, is_sync=self.is_sync, in_sync=in_sync) for n in range(count)
        ]  # fmt: skip
        self.master = self.nodes[0]
        self.links: list[Link] = []
        self.acknowledged: list[Put] = []
        self.number = 0
        self.calm = False
        for node in self.nodes:
            node.start(is_master=node is self.master)

    # --- what happens ---------------------------------------------------------------------------------------------
    def run(self, steps: int = 400) -> None:
        for _ in range(steps):
            self.step()
        self.settle()

    def step(self) -> None:
        rng = self.rng
        self.steps += 1
        self.now_ms += rng.choice([1, 3, 20, 150])
        roll = rng.random()
        if roll < 0.5:
            self.on(self.master, self._put_some)
        elif roll < 0.62:
            self.on(rng.choice(self.nodes), self._flush)
        elif roll < 0.66:
            self.on(rng.choice(self.nodes), lambda node: node.log.save() if node.log else None)
        elif roll < 0.66 + self.faults:
            self._fault()
        elif 0.70 <= roll < 0.72 and self.links:
            link = rng.choice(self.links)
            link.is_cut, link.is_one_way = rng.random() < 0.5, rng.random() < 0.5
        elif 0.72 <= roll < 0.74 and self.links:
            self.drop(rng.choice(self.links))
        elif 0.74 <= roll < 0.76:
            self.now_ms += rng.choice([5_000, 21_000])
        self._operate()
        self._connect()
        for _ in range(rng.randrange(1, 8)):
            self._move()
        self._look()

    def on(self, node: Node, act: object) -> None:
        """Something that a process does; where its disk ends it, it is gone."""
        if not node.runs:
            return
        try:
            act(node)  # type: ignore[operator]
        except (SimulatedCrash, MessageStoreError, OSError):
            self._end(node)

    def _put_some(self, node: Node) -> None:
        for _ in range(self.rng.randrange(1, 6)):
            if node.service is not None:
                self.number += 1
                node.put(self.number)

    def _flush(self, node: Node) -> None:
        """As a thread does it: what is written meanwhile is not part of it."""
        log = node.log
        assert log is not None
        found = log.begin_flush()
        if self.rng.random() < 0.3:
            self._put_some(node)
            self._move()
            if node.log is not log:
                return
        found.sync(log._disk)
        log.flushed(found)
        if not (log.next_file.is_ready or log.next_file.is_named) and self.rng.random() < 0.7:
            log.next_file.make(log._disk)
            log.next_file.is_ready = True

    def _fault(self) -> None:
        node = self.rng.choice(self.nodes)
        roll = self.rng.random()
        if roll < self.pauses:
            node.is_paused = node.is_up  # SIGSTOP, or a machine that hangs
        elif self.rng.random() < 0.3:
            node.platform.faults.crash_at_op = node.platform.op_count + self.rng.randrange(1, 12)
        elif self.rng.random() < 0.5 or not self.is_sync:
            self._end(node)
        else:
            self._end(node)
            node.platform.lose_power()

    def _end(self, node: Node) -> None:
        node.end()
        node.platform.faults.clear()
        for link in [one for one in self.links if node in (one.slave, one.master)]:
            if self.rng.random() < 0.5 and not self.calm:  # no word reaches the other end
                link.is_cut = True
            else:
                self.drop(link)

    def drop(self, link: Link) -> None:
        """Both ends that are still there hear that it ended."""
        if link in self.links:
            self.links.remove(link)
        if link.slave.client is link.client and not link.is_old:
            link.client.close("cut")
        if link.master.service is link.service:
            link.service.remove(link.connection)

    # --- the operator ---------------------------------------------------------------------------------------------
    def _operate(self) -> None:
        rng = self.rng
        for node in self.nodes:
            if node.is_paused and (self.calm or rng.random() < 0.05):
                node.is_paused = False
            if not node.is_up and node is not self.master and (self.calm or rng.random() < 0.1):
                self._start(node, is_master=not self.calm and node.wants_master and rng.random() < 0.5)
            elif node.runs and node.wants_master and node is not self.master and (node.is_fenced or self.calm):
                self._end(node)
                self._start(node, is_master=False)
        if not self.master.is_up:
            if self.calm or rng.random() < 0.05:
                self._start(self.master, is_master=True)
            elif rng.random() < 0.03:
                self._promote()
        elif (self.master.is_paused and rng.random() < 0.1) or (
            self._is_deposed() and (self.calm or rng.random() < 0.2)
        ):
            self._promote()

    def _start(self, node: Node, *, is_master: bool, is_promoted: bool = False, above: int = 0) -> None:
        try:
            node.start(is_master=is_master, is_promoted=is_promoted, above=above)
        except (SimulatedCrash, OSError):
            node.end()
            node.platform.faults.clear()
        except MessageStoreError as error:
            raise Violation(
                "broker_starts", f"{node.name} does not start after what may happen to any broker: {error}"
            ) from error

    def _is_deposed(self) -> bool:
        """A promotion was begun and did not end: the others promised to follow the master no more."""
        return self.master.runs and any(one.lineage.heard > self.master.lineage.epoch for one in self.nodes)

    def _promote(self) -> None:
        """The slave that has most, of all that could have acknowledged something since the last promotion: those that
        heard of it. An old master that came back is one of them. Who is down is started for that. Before it is promoted
        all of them promise to follow no older master: the old one may only have been stopped.
        """
        others = [one for one in self.nodes if one is not self.master or one.runs]
        for one in others:
            if not one.runs or one.wants_master:
                self._end(one)
                self._start(one, is_master=False)
        if not all(one.is_up for one in others):
            return
        above = max(one.known_epoch for one in self.nodes)
        for one in others:
            self.on(one, lambda node: node.promise(node.lineage.promoted_above(above)))
        if not all(one.is_up for one in others):
            return
        era = max(one.heard_epoch for one in self.nodes) // PROMOTION
        ends = [Candidate(one.name, one.lineage, one.log.max_offset if one.log else 0) for one in others]
        chosen = best(ends)
        if chosen is None or max(era_of(one.lineage) for one in ends) != era:
            return  # what was answered since, or before, the last promotion is lacking in all of them
        found = next(one for one in others if one.name == chosen.name)
        self._end(found)
        self._start(found, is_master=True, is_promoted=True, above=above)
        if found.is_up:
            self.master = found
            self._check_kept(found)

    def _connect(self) -> None:
        for node in self.nodes:
            client = node.client
            if client is None or client.state is not State.CLOSED or (not self.calm and self.rng.random() < 0.5):
                continue
            for link in [one for one in self.links if one.slave is node]:
                link.is_old = True
            target = self.master
            stale = [one for one in self.nodes if one.service is not None and one is not self.master]
            if stale and not self.calm and self.rng.random() < 0.3:
                target = stale[0]
            if target.service is None or target.is_paused or not node.runs:
                continue
            connection = target.service.accept(f"10.0.0.{self.nodes.index(node)}:{self.number}", self.now_ms)
            if connection is not None:
                client.connected(self.now_ms)
                self.links.append(Link(node, target, connection))

    # --- bytes ----------------------------------------------------------------------------------------------------
    def _move(self) -> None:
        for link in list(self.links):
            if link.master.service is link.service:
                self.on(link.master, lambda _node, link=link: self._from_master(link))
            if link.slave.client is link.client and not link.is_old:
                self.on(link.slave, lambda _node, link=link: self._from_slave(link))
            is_over = link.connection.is_closed or (link.client.is_closed and not link.is_old)
            is_heard = link.is_old and self.rng.random() < 0.2 and not link.is_cut
            if is_heard or (is_over and (not link.is_cut or link.is_old) and not link.master.is_paused):
                self.drop(link)
        for node in self.nodes:
            if node.keeping and (self.calm or self.rng.random() < 0.5):
                self.on(node, lambda node: node.keep_now())
            if node.service is not None and node.runs:
                node.service.tick(self.now_ms)

    def _piece(self, queue: deque[bytes]) -> bytes:
        data = queue.popleft()
        size = self.rng.choice([1, 8, 500, 5000, len(data)])
        if size < len(data):
            queue.appendleft(data[size:])
        return data[:size]

    def _from_master(self, link: Link) -> None:
        if sum(map(len, link.down)) < QUEUE_BYTES_MAX:
            data = link.connection.next_bytes(self.now_ms)
            if data:
                link.down.append(data)
        if link.up and not link.is_cut:
            link.connection.receive(self._piece(link.up), self.now_ms)

    def _from_slave(self, link: Link) -> None:
        data = link.client.next_bytes(self.now_ms)
        if data:
            link.up.append(data)
        if link.down and not link.is_cut and not link.is_one_way:
            link.client.receive(self._piece(link.down), self.now_ms)

    # --- what holds -----------------------------------------------------------------------------------------------
    def _look(self) -> None:
        for link in self.links:
            if (
                not link.is_old
                and link.client.state is State.TRANSFER
                and link.connection.phase is Phase.TRANSFER
                and link.slave.client is link.client
                and link.slave.log is not None
            ):
                self._check_prefix(link)
        for node in self.nodes:
            if node.runs and node.service is not None:
                for put in node.answered():
                    if node.is_fenced:
                        raise Violation("fenced_is_silent", f"{node.name} is fenced and answers {put.begin} PUT_OK")
                    self._check_on_slaves(node, put)
                    self.acknowledged.append(put)

    def _check_prefix(self, link: Link) -> None:
        """Of its master's, as long as that is the process that it connected to."""
        slave, master = link.slave.log, link.master.log
        if master is None or slave is None or link.master.service is not link.service:
            return
        begin = max(link.checked, slave.min_offset, master.min_offset)
        end = slave.max_offset
        if end > slave.min_offset and (
            end > master.max_offset or content(slave, begin, end) != content(master, begin, end)
        ):
            raise Violation(
                "slave_is_prefix", f"{link.slave.name} is no prefix of {link.master.name}: {begin} to {end}"
            )
        if link.checked < 0 and end > slave.min_offset and slave.min_offset != master.min_offset:
            raise Violation(
                "slave_begins_with_master",
                f"{link.slave.name} begins at {slave.min_offset}, its master at {master.min_offset}",
            )
        link.checked = end

    def _check_on_slaves(self, master: Node, put: Put) -> None:
        has = 0
        for one in self.nodes:
            if one is not master:
                has += one.holds(put)
        if has < self.needed:
            raise Violation(
                "answered_on_slaves",
                f"{put.begin} was answered PUT_OK and is on {has} slaves, {self.needed} were asked for",
            )

    def _check_kept(self, node: Node) -> None:
        assert node.log is not None
        for put in self.acknowledged:
            if node.log.crc_of(put.begin, put.end) != put.crc and not (self.is_async and put.by.keeps(put)):
                raise Violation(
                    "answered_is_kept",
                    f"{put.begin} was answered PUT_OK and is not in {node.name}'s log, which is the master's",
                )

    # --- the end --------------------------------------------------------------------------------------------------
    def settle(self) -> None:
        """All faults end: every slave gets in step, or says why it is not."""
        self.calm = True
        for node in self.nodes:
            node.platform.faults.clear()
        for link in list(self.links):
            self.drop(link)
        for _ in range(400):
            self.now_ms += 100
            self._operate()
            self._connect()
            for _ in range(4):
                self._move()
            for node in self.nodes:
                if node.log is not None and node.log.flushed_offset < node.log.max_offset:
                    self.on(node, self._flush_quietly)
            self._look()
            if self._is_settled():
                break
        else:
            said = {one.name: (one.client.state.value, one.client.trouble) for one in self.nodes if one.client}
            raise Violation("in_step_at_last", f"not in step with {self.master.name} after all faults ended: {said}")
        self._check_kept(self.master)

    def _flush_quietly(self, node: Node) -> None:
        assert node.log is not None
        node.log.flush()

    def _is_settled(self) -> bool:
        service = self.master.service
        if service is None or self.master.log is None:
            return False
        acks = service.acks()
        end = self.master.log.max_offset
        slaves = [one for one in self.nodes if one is not self.master]
        return all(acks.get(one.name, -1) == end or _says_why(one) for one in slaves)


def _says_why(node: Node) -> bool:
    """It was promoted, or its master was emptied by a power loss, before they had anything in common: never cut."""
    return node.client is not None and "nothing in this log agrees" in node.client.trouble
