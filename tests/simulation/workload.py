"""The clients of a simulated world: they append, read linearizably and move leadership, in the middle of faults.

Every request goes into the history when it is sent and when its outcome is told; what nobody told stays unknown. Bodies
are unique over the whole run, so that an entry tells whose it is.

Invariants: a callback of the product comes at most once per request (`closure_once`); nothing here is retried.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from node.consensus.api import SECOND, Appended, Outcome, Proposal, ReadOutcome, TransferOutcome
from node.protocol.codes import ResponseCode, Role
from node.protocol.entry import unpack_record
from node.protocol.messages import ReadWay
from tests.simulation.broker_records import words_of
from tests.simulation.broker_workload import BrokerAppends
from tests.simulation.history import History, Seen
from tests.simulation.member import Member
from tests.simulation.observer import Violation
from tests.simulation.process import Origin, Process

if TYPE_CHECKING:
    from tests.simulation.world import World

sys.setrecursionlimit(20_000)  # a read of a whole log from memory is one call inside the other
READ_BACK_MAX = 40
RESULTS = {Appended.YES: "ok", Appended.NOT_APPENDED: "fail", Appended.UNKNOWN: "unknown"}


class Request:
    """One of a client, under way at one process."""

    __slots__ = ("calls", "expected_index", "member_id", "number", "open", "origin", "seen")

    def __init__(self, number: int, member: Member) -> None:
        self.number, self.member_id = number, member.id
        self.calls = 0
        self.open = True
        self.seen: list[Seen] = []
        self.expected_index: int | None = None
        self.origin: OrderedOrigin | None = None  # of an ordered append


class OrderedOrigin(Origin):
    """Remembers the first ordered append that was not appended: none behind it may be (C4)."""

    __slots__ = ("first_refused", "name")

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.first_refused: int | None = None


def _process(member: Member) -> Process:
    assert member.process is not None
    return member.process


class Workload:
    """All clients of one world."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world, self._rng = world, rng
        self.history: History = world.history
        self.transfers_started = 0
        self.transfers_done = 0
        self.transfers_lost = 0  # the process that was asked is gone
        self.running = True
        self.reads_only = False
        self._broker = BrokerAppends(world, random.Random(f"broker appends {world.seed}"))
        self._bodies = 0
        self._connections = 0
        self._requests: dict[int, Request] = {}
        self._transfers: dict[int, str] = {}
        self._origins: dict[tuple[str, str], tuple[int, OrderedOrigin]] = {}

    @property
    def open_count(self) -> int:
        """Requests and transfers that nobody answered yet."""
        return len(self._requests) + len(self._transfers)

    def start(self) -> None:
        """Each kind of request comes at its own rate."""
        config = self._world.config
        for rate, act in ((config.appends, self._append), (config.reads, self._read), (config.transfers, self._move)):
            if rate:
                self._again(rate, act)

    def _again(self, rate: float, act: Callable[[], bool]) -> None:
        self._world.schedule(int(self._rng.expovariate(rate) * SECOND) + 1, self._act, rate, act)

    def _act(self, rate: float, act: Callable[[], bool]) -> bool:
        if not self.running:
            return False
        self._again(rate, act)
        return act()

    # --- whom to ask ----------------------------------------------------------------------------------------------
    def _leaders(self) -> list[Member]:
        members = (self._world.members[member_id] for member_id in self._world.machine_ids)
        return [one for one in members if one.replica is not None and one.replica.role is Role.LEADER]

    def _target(self, leader_share: float) -> Member | None:
        leaders = self._leaders() if self._rng.random() < leader_share else []
        pool = leaders or [self._world.members[member_id] for member_id in self._world.machine_ids]
        member = pool[self._rng.randrange(len(pool))]
        return member if member.up else None

    def _client(self) -> str:
        return f"c{self._rng.randrange(self._world.config.clients)}"

    def _origin(self, client: str, member: Member) -> OrderedOrigin:
        """The client's connection to this process; a broken one is opened anew by and by."""
        incarnation, origin = self._origins.get((client, member.id), (-1, None))
        if origin is None or incarnation != member.incarnation or (origin.order_broken and self._rng.random() < 0.3):
            self._connections += 1
            origin = OrderedOrigin(f"{client}>{member.id}#{self._connections}")
            self._origins[client, member.id] = (member.incarnation, origin)
        return origin

    def _open(self, number: int, member: Member) -> Request:
        request = self._requests[number] = Request(number, member)
        loss = self._world.config.client_loss
        if loss and self.running and self._rng.random() < loss:
            self._world.schedule(self._rng.randrange(member.config.timing.election_min_ns), self._lose, request)
        return request

    def _close(self, request: Request) -> bool:
        request.open = False
        return self._requests.pop(request.number, None) is not None

    def _lose(self, request: Request) -> bool:
        """The client's connection breaks: it will never know."""
        if not request.open:
            return False
        self._close(request)
        self.history.complete(request.number, "unknown")
        return True

    def member_gone(self, member_id: str) -> None:
        """A process ended: what waited there is unknown."""
        for request in [one for one in self._requests.values() if one.member_id == member_id]:
            self._lose(request)
        for number in [number for number, at in self._transfers.items() if at == member_id]:
            del self._transfers[number]
            self.transfers_lost += 1

    # --- appends --------------------------------------------------------------------------------------------------
    def _append(self) -> bool:
        member = None if self.reads_only else self._target(0.85)
        if member is not None:
            self.append(member)
        return member is not None

    def append(self, member: Member, *, plain: bool = False) -> None:
        """One append request at this member; a plain one has no conditions."""
        config, rng = self._world.config, self._rng
        assert member.store is not None
        bodies = []
        for _ in range(rng.randrange(1, config.batch_max + 1)):
            self._bodies += 1
            bodies.append((b"%d." % self._bodies).ljust(rng.randrange(config.body_bytes, 2 * config.body_bytes), b"x"))
        plain = plain or config.broker
        expected = None
        if not plain and rng.random() < config.expected_index:
            expected = member.store.end_index + 1 + (rng.random() < 0.2)
        client = self._client()
        origin = self._origin(client, member)
        ordered = not plain and rng.random() < config.ordered
        number = self.history.invoke(
            client, "append", member.id, bodies, expected_index=expected, connection=origin.name, ordered=ordered
        )
        request = self._open(number, member)
        request.expected_index = expected
        if ordered:
            request.origin = origin
        at_apply = config.applier and not plain and rng.random() < config.at_apply
        done = self._applied if at_apply else self._appended
        process = _process(member)
        if config.broker:
            process.when_awake(self._broker.append, process, bodies, partial(done, request))
            return
        proposal = Proposal(bodies, partial(done, request), expected, at_apply=at_apply)
        process.when_awake(process.propose, origin, proposal, ordered)

    def _called(self, request: Request, what: str) -> bool:
        """Whether anybody still wants to know."""
        request.calls += 1
        if request.calls > 1:
            raise Violation("closure_once", f"{what} #{request.number} at {request.member_id} was completed twice")
        return request.open

    def _appended(self, request: Request, outcome: Outcome) -> None:
        wanted = self._called(request, "append")
        self._judge(request, outcome)
        if wanted:
            self._close(request)
            self.history.complete(
                request.number, RESULTS[outcome.appended], code=int(outcome.code),  # type: ignore[arg-type]
                first_index=outcome.first_index, last_index=outcome.last_index, term=outcome.term,
            )  # fmt: skip

    def _applied(self, request: Request, outcome: Outcome) -> None:
        """Of one that waited for its result."""
        self._world.tell.answered(request.member_id, outcome)
        self._appended(request, outcome)

    @staticmethod
    def _judge(request: Request, outcome: Outcome) -> None:
        """What an append was promised beyond its place in the log (C3, C4)."""
        appended, origin = outcome.appended is Appended.YES, request.origin
        if appended and request.expected_index not in (None, outcome.first_index):
            text = f"append #{request.number} expected index {request.expected_index} and got {outcome.first_index}"
            raise Violation("expected_index", text)
        if origin is None:
            return
        if appended and origin.first_refused is not None and origin.first_refused < request.number:
            text = f"ordered append #{request.number} follows #{origin.first_refused}, which was not appended"
            raise Violation("ordered", text)
        if outcome.appended is Appended.NOT_APPENDED and origin.first_refused is None:
            origin.first_refused = request.number

    # --- reads ----------------------------------------------------------------------------------------------------
    def _read(self) -> bool:
        member = self._target(0.4)
        if member is not None:
            back = self._rng.randrange(READ_BACK_MAX)
            self.read(member, max(self._world.first_index, self.history.reported_index - back))
        return member is not None

    def read(self, member: Member, from_index: int) -> None:
        """Everything committed from `from_index` on, linearizably, at any member."""
        number = self.history.invoke(self._client(), "read", member.id, from_index=from_index)
        request = self._open(number, member)
        process = _process(member)
        way = ReadWay(number % len(ReadWay)) if self._world.config.read_ways else ReadWay.USUAL
        process.when_awake(process.read_index, partial(self._read_from, request, process, from_index), way)

    def _read_from(self, request: Request, process: Process, from_index: int, outcome: ReadOutcome) -> None:
        if self._called(request, "read"):
            if outcome.code is ResponseCode.SUCCESS:
                if process.member.state_machine is not None:
                    process.member.state_machine.ask(outcome.read_index)
                self._fetch(request, process, from_index, outcome.read_index)
            else:
                self._close(request)
                self.history.complete(request.number, "fail", code=int(outcome.code))

    def _fetch(self, request: Request, process: Process, at: int, read_index: int) -> None:
        if at > read_index:
            if self._close(request):
                self.history.complete(request.number, "ok", read_index=read_index, seen=request.seen)
            return

        def found(code: ResponseCode, count: int, records: bytes) -> None:
            if not request.open:
                return
            if code is not ResponseCode.SUCCESS or not count:
                self._close(request)
                self.history.complete(request.number, "fail", code=int(code))
                return
            offset = 0
            while offset < len(records):
                entry = unpack_record(records, offset)
                offset += entry.size
                request.seen.append((entry.index, words_of(process.store.kind, entry)))
            self._fetch(request, process, at + count, read_index)

        process.reads.committed(at, self._rng.choice((600, 100_000)), read_index, found)

    # --- transfers ------------------------------------------------------------------------------------------------
    def _move(self) -> bool:
        leaders = self._leaders()
        if not leaders:
            return False
        leader = leaders[self._rng.randrange(len(leaders))]
        to = self._rng.choice((None, *self._world.machine_ids))
        number = self.transfers_started
        self.transfers_started += 1
        self._transfers[number] = leader.id
        deadline_ns = self._rng.randrange(1, 4) * leader.config.timing.election_max_ns
        process = _process(leader)
        process.when_awake(process.transfer, to, deadline_ns, partial(self._moved, number))
        return True

    def _moved(self, number: int, outcome: TransferOutcome) -> None:
        if self._transfers.pop(number, None) is None:
            raise Violation("closure_once", f"transfer {number} to {outcome.transferee_id} was reported twice")
        self.transfers_done += 1
