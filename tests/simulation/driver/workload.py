"""Real clients over the simulated network, and what they were told.

A client is the product's own `LedgerClient` on a loop and a machine of its own. Several appends of one turn of its loop
travel in one frame, runs among them; each call is an operation of the history, so that each must name its own index.
An ordered producer speaks the same frames over one connection of its own (SAFETY C4).

Invariants: every call is recorded before it is made and when its outcome is known; nothing but the seed decides what is
asked.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from node.client import AppendResult, LedgerClient, LedgerError, NotAppended, OutcomeUnknown, Unreachable
from node.client.errors import Denied
from node.client.link import Lost, MemberLink
from node.consensus.api import MS
from node.message_store.record import PHYSICAL_OFFSET_AT
from node.protocol.codes import RemotingCode, RequestCode
from node.protocol.group_kind import BROKER_NAME, PLAIN_NAME
from node.transport.slab_frames import (
    AppendedByte,
    AppendRequest,
    decode_append_answer,
    encode_append,
)
from tests.simulation.broker_records import record_of, words_of
from tests.simulation.driver.lane_workload import LaneAppender, UsedLane
from tests.simulation.driver.loop import ITERATION_NS, SimulatedLoop
from tests.simulation.history import History, Result
from tests.simulation.observer import Violation

if TYPE_CHECKING:
    from tests.simulation.driver.world import DriverWorld

READ_LIMIT = 50
EVERYTHING = 1_000_000
REQUEST_S = 1.0  # an ordered producer waits so long for an answer


class Workload:
    """All clients of one world."""

    def __init__(self, world: DriverWorld, rng: random.Random) -> None:
        self.world, self._rng = world, rng
        self.running = True
        self.transfers_started = self.transfers_done = self.transfers_lost = 0
        self.counts: dict[str, int] = {}
        self.lanes: list[UsedLane] = []  # every one that was opened
        self._bodies = 0
        self._loops: list[SimulatedLoop] = []
        self.members = ";".join(f"{one}-{world.members[one].settings.peers[one]}" for one in world.ids)

    def start(self) -> None:
        config = self.world.config
        for number in range(config.clients):
            ClientProcess(self, f"c{number}", random.Random(self._rng.getrandbits(64))).start()
        for number in range(config.ordered):
            OrderedProducer(self, f"o{number}", random.Random(self._rng.getrandbits(64))).start()
        for number in range(config.lanes):
            LaneAppender(self, f"l{number}", random.Random(self._rng.getrandbits(64))).start()

    @property
    def history(self) -> History:
        return self.world.history

    def loop(self, name: str, rng: random.Random) -> SimulatedLoop:
        busy_ns = int(self.world.config.client_busy_ms * MS) or ITERATION_NS
        loop = SimulatedLoop(
            self.world.timeline, name, self.world.client_clock, self.world.network, rng, self._loop_error, busy_ns
        )
        self._loops.append(loop)
        return loop

    def _loop_error(self, loop: SimulatedLoop, context: dict[str, Any]) -> None:
        text = f"{loop.machine}: {context.get('message')}: {context.get('exception')!r}"
        self.world.violate(Violation("no_exception", text))

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def body(self, client: str, rng: random.Random) -> bytes:
        """Each one once in the world; now and then a long one, or one that no file could hold."""
        self._bodies += 1
        head = b"%s-%d." % (client.encode(), self._bodies)
        most = self.world.config.body_bytes
        size, kind = rng.randrange(most + 1), rng.random()
        if kind > 0.99:
            size = self.world.config.data_file_size
        elif kind > 0.95:
            size = min(5 * most, self.world.config.data_file_size // 2)
        return head.ljust(size, b"x")

    def invoke(self, client: str, kind: Any, bodies: Sequence[bytes] = (), **more: Any) -> int:
        return self.history.invoke(client, kind, "group", bodies, **more)

    def complete(self, number: int, result: Result, **more: Any) -> None:
        """The client hears how it went; a promise that was broken is the world's to know."""
        self.count(f"{self.history.operations[number].kind} {result}")
        try:
            self.history.complete(number, result, **more)
        except Violation as violation:
            self.world.violate(violation)
        except ValueError as error:
            self.world.violate(Violation("closure_once", str(error)))

    def appended(self, number: int, outcome: AppendResult | BaseException) -> None:
        """How an append ended, in the client's own words (C2)."""
        if isinstance(outcome, AppendResult):
            first, last, term = outcome
            self.complete(number, "ok", code=200, first_index=first, last_index=last, term=term)
        elif isinstance(outcome, OutcomeUnknown):
            indexes = {"first_index": outcome.first_index, "last_index": outcome.last_index, "term": outcome.term}
            self.complete(number, "unknown", code=int(outcome.code), **indexes)
        elif isinstance(outcome, (NotAppended, Unreachable, Denied)):
            self.complete(number, "fail", code=int(getattr(outcome, "code", 0)))
        else:
            self.complete(number, "unknown")
            text = f"an append ends with {type(outcome).__name__}: {outcome}"
            self.world.violate(Violation("no_exception", text))


class WatchedClient(LedgerClient):
    """The product's, which says when it goes the long way: then a later call may be in the log first (C4)."""

    def __init__(self, long_way: Callable[[], None], *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._long_way = long_way

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._long_way()
        super().spawn(work)


class ClientProcess:
    """One client machine: producers and readers over a LedgerClient, which may be closed and made anew."""

    def __init__(self, work: Workload, name: str, rng: random.Random) -> None:
        self._work, self.name, self._rng = work, name, rng
        self._loop = work.loop(name, random.Random(rng.getrandbits(64)))
        self._client: LedgerClient | None = None
        self._kind = BROKER_NAME if work.world.config.broker else PLAIN_NAME
        self._known_end = -1
        self._began_to_produce = False
        self._ordered_runs = 0  # calls that share one keep their order
        self._in_order: set[int] = set()  # of the present one, those under way

    def start(self) -> None:
        self._loop.run_here(self._begin)

    def _begin(self) -> None:
        self._client = self._new_client()
        tasks = [self._produce(), self._read()]
        config = self._work.world.config
        self._timed_burst()
        if config.transfers:
            tasks.append(self._transfer())
        if config.client_loss:
            tasks.append(self._lose())
        for task in tasks:
            self._loop.create_task(task)

    def _new_client(self) -> LedgerClient:
        config = self._work.world.config
        self._long_way()
        return WatchedClient(
            self._long_way,
            self._work.members,
            group="g",
            deadline_s=config.deadline_s,
            in_flight_max=config.in_flight_max,
        )

    def _long_way(self) -> None:
        """What is under way may be tried again, behind later calls: no order is promised between them."""
        for number in self._in_order:
            self._work.history.operations[number].connection = ""
        self._in_order.clear()
        self._ordered_runs += 1

    async def _sleep(self, rate: float) -> None:
        await asyncio.sleep(self._rng.expovariate(rate))

    # --- appends --------------------------------------------------------------------------------------------------
    async def _produce(self) -> None:
        config, rng, work = self._work.world.config, self._rng, self._work
        while work.running:
            await self._sleep(config.bursts)
            if not work.running:
                return
            calls = [self._one_append() for _ in range(rng.randrange(config.burst_max) + 1)]
            if rng.random() < 0.3:  # one that waits for its entries before it goes on
                await asyncio.wait(calls)

    def _timed_burst(self) -> None:
        """Asked for by a timer's own callback: before anything that the same turn of the loop finds due."""
        config = self._work.world.config
        if self._began_to_produce and self._work.running:
            for _ in range(self._rng.randrange(config.burst_max) + 1):
                self._one_append()
        self._began_to_produce = True
        if self._work.running and config.timed_bursts:
            self._loop.call_later(self._rng.expovariate(config.timed_bursts), self._timed_burst)

    def _one_append(self) -> asyncio.Future[AppendResult]:
        """Made at once; calls of one turn share a frame where the client merges them."""
        config, rng, work, client = self._work.world.config, self._rng, self._work, self._client
        assert client is not None
        kind = rng.random()
        many = rng.randrange(1, 6) if kind < 0.35 else 1
        bodies = [work.body(self.name, rng) for _ in range(many)]
        expected = self._known_end + 1 + (rng.random() < 0.1) if rng.random() < config.expected_index else None
        if expected is not None and rng.random() < 0.2:  # an index of long ago: the beginning, as a rule
            expected = rng.choice((0, 0, max(0, self._known_end)))
        order = f"{self.name}/{self._ordered_runs}" if expected is None else ""
        number = work.invoke(self.name, "append", bodies, expected_index=expected, connection=order)
        if order:
            self._in_order.add(number)
        answer: asyncio.Future[AppendResult]
        if many == 1 and expected is None:
            answer = client.submit(bodies[0])
        elif expected is None:
            answer = client._appends.submit_run(bodies)
        elif many == 1:
            answer = self._loop.create_task(client.append(bodies[0], expected_index=expected))
        else:
            answer = self._loop.create_task(client.append_many(bodies, expected_index=expected))
        answer.add_done_callback(lambda done: self._appended(number, done))
        return answer

    def _appended(self, number: int, done: asyncio.Future[AppendResult]) -> None:
        error = done.exception()
        self._in_order.discard(number)
        if error is None:
            self._known_end = max(self._known_end, done.result().last_index)
        self._work.appended(number, error or done.result())

    # --- reads and transfers --------------------------------------------------------------------------------------
    async def _read(self) -> None:
        config, rng, work = self._work.world.config, self._rng, self._work
        while work.running:
            await self._sleep(config.reads)
            if work.running:
                history = work.history
                first = work.world.base.index + 1
                floor = max(history.reported_index, first - 1)
                near = rng.random() < 0.8
                begin = (
                    max(first, floor - rng.randrange(8)) if near else rng.randrange(first, max(first + 1, floor + 3))
                )
                limit = rng.randrange(1, READ_LIMIT)
                if rng.random() < config.whole_reads:
                    begin, limit = first, EVERYTHING
                await self.read_once(begin, limit, rng.random() < 0.6)

    async def read_once(self, begin: int, limit: int, include_all: bool = True) -> bool:
        """A linearizable read: fewer entries than asked for only at the log's end, so that tells where that is.

        One that asks for clients' entries only says of all between them, and up to that end, that they are none.
        """
        work, client = self._work, self._client
        assert client is not None
        number = work.invoke(self.name, "read", from_index=begin)
        floor = work.history.operations[number].floor
        include_all = include_all or self._kind == BROKER_NAME  # else metadata would look like nobody's
        try:
            found = await client.read(begin, limit, include_all=include_all)
        except LedgerError:
            work.complete(number, "fail")
            return False
        if include_all:
            seen = [(one.index, words_of(self._kind, one)) for one in found]
        else:
            bodies = {one.index: bytes(one.body) for one in found}
            last = max(bodies, default=begin - 1)
            last = last if len(found) == limit else max(last, floor)
            seen = [(index, bodies.get(index)) for index in range(begin, last + 1)]
        end = begin + len(seen) - 1
        # Nothing found where the log cannot reach yet, or as much as was wanted: that tells nothing of its end.
        tells = len(found) < limit if seen else end < floor
        read_index = end if tells else max(end if seen else -1, floor)
        self._known_end = max(self._known_end, end)
        work.complete(number, "ok", read_index=read_index, seen=seen)
        return True

    async def _transfer(self) -> None:
        config, rng, work = self._work.world.config, self._rng, self._work
        while work.running:
            await self._sleep(config.transfers)
            if not work.running:
                return
            assert self._client is not None
            work.transfers_started += 1
            try:
                await self._client.transfer(rng.choice([None, *work.world.ids]))
            except LedgerError:
                work.transfers_lost += 1
            else:
                work.transfers_done += 1

    async def _lose(self) -> None:
        """The process that held the client ends in an orderly way, and another one begins."""
        config, work = self._work.world.config, self._work
        while work.running:
            await self._sleep(config.client_loss)
            if work.running:
                before, self._client = self._client, self._new_client()
                assert before is not None
                work.count("client closed")
                await before.close()

    # --- the end --------------------------------------------------------------------------------------------------
    def last_words(self, reads: int) -> None:
        """In a calm world: an append, and reads of the whole log."""
        self._loop.run_here(self._loop.create_task, self._last_words(reads))

    async def _last_words(self, reads: int) -> None:
        work, client = self._work, self._client
        assert client is not None
        body = b"the last words"
        number = work.invoke(self.name, "append", [body])
        try:
            work.appended(number, await self._append_last(client, body))
        except LedgerError as error:
            work.appended(number, error)
        for _ in range(reads):
            await self.read_once(work.world.base.index + 1, EVERYTHING)

    async def _append_last(self, client: LedgerClient, body: bytes) -> AppendResult:
        if self._kind != BROKER_NAME:
            return await client.append(body)
        lane = await client.open_lane()
        return await lane.append([record_of(body, lane.last_time_ms)], patch_at=PHYSICAL_OFFSET_AT)


class OrderedProducer:
    """Appends that keep their order, many in flight, over one connection to whoever leads; none is sent again."""

    def __init__(self, work: Workload, name: str, rng: random.Random) -> None:
        self._work, self.name, self._rng = work, name, rng
        self._loop = work.loop(name, random.Random(rng.getrandbits(64)))
        self._connections = 0
        self._broken: set[str] = set()  # connections on which an answer was heard that is no success

    def start(self) -> None:
        self._loop.run_here(self._loop.create_task, self._produce())

    async def _produce(self) -> None:
        work, rng, world = self._work, self._rng, self._work.world
        while work.running:
            member = rng.choice(world.ids)
            link = MemberLink(member, world.members[member].settings.peers[member], "g")
            try:
                await link.connect()
            except Lost:
                await asyncio.sleep(0.1)
                continue
            self._connections += 1
            await self._over(link, f"{self.name}/{self._connections}")
            link.close()

    async def _over(self, link: MemberLink, connection: str) -> None:
        """As long as it goes well, and a little longer: what follows a failure must fail."""
        work, rng = self._work, self._rng
        left = 100_000
        while work.running and left > 0 and link.open:
            left -= 1
            answer = self._send(link, connection)
            if rng.random() < 0.5 and not await answer:
                left = min(left, rng.choice((1, 1, 1, 5)))
                await asyncio.sleep(rng.random() * rng.choice((0.05, 0.5, 1.5)))
            elif rng.random() < 0.5:
                await asyncio.sleep(rng.random() * 0.1)

    def _send(self, link: MemberLink, connection: str) -> asyncio.Future[bool]:
        work, rng = self._work, self._rng
        bodies = [work.body(self.name, rng) for _ in range(rng.randrange(1, 3))]
        if rng.random() < 0.05:  # one that is refused at once, in the midst of others that are under way
            bodies[0] = bodies[0].ljust(work.world.config.data_file_size, b"x")
        number = work.invoke(self.name, "append", bodies, connection=connection, ordered=True)
        ended: asyncio.Future[bool] = self._loop.create_future()
        was_broken = connection in self._broken

        def answered(outcome: Any) -> None:
            good = self._reported(number, outcome)
            if good and was_broken:
                text = f"{work.history.operations[number].describe()} of {connection}, which had failed before"
                work.world.violate(Violation("ordered", text))
            if not good and not isinstance(outcome, Exception):
                self._broken.add(connection)
            if not ended.done():
                ended.set_result(good)

        opaque = link.call(RequestCode.FAST_APPEND, encode_append(AppendRequest(bodies, ordered=True)), answered)
        self._loop.call_later(REQUEST_S, link.fail_one, opaque, TimeoutError())
        return ended

    def _reported(self, number: int, outcome: Any) -> bool:
        work = self._work
        if isinstance(outcome, Lost) and not outcome.sent:
            work.complete(number, "fail")
            return False
        if isinstance(outcome, Exception) or outcome.code != RemotingCode.SUCCESS:
            work.complete(number, "unknown")
            return False
        answer = decode_append_answer(outcome.body)
        named = {"first_index": answer.first_index, "last_index": answer.last_index, "term": answer.term}
        if answer.appended is AppendedByte.YES:
            work.complete(number, "ok", code=answer.code, **named)
        elif answer.appended is AppendedByte.NOT_APPENDED:
            work.complete(number, "fail", code=answer.code)
        else:
            work.complete(number, "unknown", code=answer.code, **named)
        return answer.appended is AppendedByte.YES
