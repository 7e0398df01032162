"""A real engine feeds a state machine: from memory, from disk, with damage in the way, again after it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from node.client import LedgerClient
from node.config import load
from node.consensus.api import Applied, Outcome, Proposal
from node.engine.applier import Batch, Reports
from node.engine.engine import Engine
from node.protocol.entry import Entry, Magic, unpack_record
from node.store.memory_store import MemoryStore
from node.transport.connection import Connection
from tests.ports import free_ports
from tests.unit.engine_kit import running, until


class Upper:
    """A state machine on the same loop, which answers a little later; its state outlives its engine."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.batches: list[Batch] = []
        self.reports: Reports | None = None
        self.life = 0
        self.held = False  # it takes batches and does nothing
        self.fails_at = -1
        self.stopped = False

    def start(self, reports: Reports) -> None:
        self.reports = reports
        asyncio.get_running_loop().call_soon(self.stand)

    def stand(self) -> None:
        assert self.reports is not None
        last = self.entries[-1] if self.entries else None
        self.life = self.reports.stands(-1 if last is None else last.index, None if last is None else last.term)

    def apply(self, batch: Batch) -> None:
        self.batches.append(batch)
        if not self.held:
            asyncio.get_running_loop().call_soon(self.take, batch)

    def take(self, batch: Batch) -> None:
        results, offset, records = [], 0, bytes(batch.records)
        error = ""
        while offset < len(records):
            entry = unpack_record(records, offset)
            if entry.index == self.fails_at:
                error = "it does not like that"
                break
            assert entry.index == len(self.entries)
            self.entries.append(entry)
            results.append(bytes(entry.body).upper())
            offset += entry.size
        assert self.reports is not None
        self.reports.applied(batch.life, batch.first_index + len(results) - 1, results, error)

    def stop(self) -> None:
        self.stopped = True

    @property
    def bodies(self) -> list[bytes]:
        return [bytes(one.body) for one in self.entries if one.magic == Magic.NORMAL]


Work = Callable[[Engine, LedgerClient], Awaitable[None]]


def run(tmp_path: Path, store: MemoryStore, applier: Upper | None, work: Work) -> None:
    """One engine, alone in its group, until `work` is done."""

    async def both() -> None:
        [port] = free_ports(1)
        peers = f"n0-127.0.0.1:{port}"
        settings = load({"node.id": "n0", "peers": peers, "node.data": str(tmp_path)}, None, {})
        engine = Engine(settings, store, applier=applier)
        async with running([engine]) as codes:
            client = LedgerClient(peers, deadline_s=5.0)
            try:
                await work(engine, client)
            finally:
                await client.close()
        assert codes == [0], engine.reason

    asyncio.run(both())


def caught_up(engine: Engine) -> bool:
    return engine.replica.applied_index == engine.replica.committed_index >= 0


def ask(engine: Engine, *bodies: bytes) -> asyncio.Future[Outcome]:
    """An append that waits for its result."""
    answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    engine.proposals.add(
        Connection(lambda *_: None, lambda _: None),
        Proposal(list(bodies), answer.set_result, at_apply=True),
        ordered=False,
    )
    engine.read_done()
    return answer


def test_everything_committed_is_applied_in_order_and_the_state_says_so(tmp_path: Path) -> None:
    machine = Upper()

    async def work(engine: Engine, client: LedgerClient) -> None:
        await asyncio.gather(*(client.append(b"%d" % number) for number in range(50)))
        await until(lambda: caught_up(engine))
        assert sorted(machine.bodies) == sorted(b"%d" % number for number in range(50))
        state = await client.state("n0")
        assert state["log"]["applied_index"] == state["log"]["committed_index"] == len(machine.entries) - 1
        assert (state["applier"]["life"], state["applier"]["failures"]) == (1, 0)
        outcome = await ask(engine, b"a", b"b")
        assert (outcome.applied, outcome.results) == (Applied.YES, (b"A", b"B"))

    run(tmp_path, MemoryStore(), machine, work)
    assert machine.stopped


def test_a_log_alone_says_that_it_has_none(tmp_path: Path) -> None:
    async def work(engine: Engine, client: LedgerClient) -> None:
        await client.append(b"x")
        state = await client.state("n0")
        assert state["applier"] is None and state["log"]["applied_index"] == state["log"]["committed_index"]
        outcome = await ask(engine, b"y")
        assert (outcome.applied, outcome.results) == (Applied.YES, ())

    run(tmp_path, MemoryStore(), None, work)


def test_until_it_says_where_it_stands_applied_is_unknown(tmp_path: Path) -> None:
    machine = Upper()
    machine.start = lambda reports: setattr(machine, "reports", reports)  # type: ignore[method-assign]

    async def work(engine: Engine, client: LedgerClient) -> None:
        await client.append(b"x")
        state = await client.state("n0")
        assert state["log"]["applied_index"] is None
        assert "log.applied_index" in [one["field"] for one in state["unknown"]]
        assert machine.batches == []
        machine.stand()
        await until(lambda: caught_up(engine))
        assert machine.bodies == [b"x"]

    run(tmp_path, MemoryStore(), machine, work)


def test_one_that_lags_is_fed_from_the_disk_in_bounded_batches(tmp_path: Path) -> None:
    """Nothing is kept for it: what memory does not hold any more is read again."""
    machine, store = Upper(), MemoryStore()

    async def work(engine: Engine, client: LedgerClient) -> None:
        machine.held = True
        for number in range(3):
            await client.append_many([b"%d" % number * 100_000] * 10)
        assert len(machine.batches) == 1  # one at a time
        store.recent_from = store.end_index + 1
        machine.held = False
        machine.take(machine.batches[0])
        await until(lambda: caught_up(engine))
        assert len(machine.bodies) == 30
        assert max(len(bytes(one.records)) for one in machine.batches) < 2 * 1024 * 1024

    run(tmp_path, store, machine, work)


def test_a_new_engine_feeds_it_from_where_it_stands(tmp_path: Path) -> None:
    machine, store = Upper(), MemoryStore()

    async def first(engine: Engine, client: LedgerClient) -> None:
        await client.append_many([b"a", b"b"])
        await until(lambda: caught_up(engine))

    async def second(engine: Engine, client: LedgerClient) -> None:
        await client.append(b"c")
        await until(lambda: caught_up(engine))

    run(tmp_path, store, machine, first)
    run(tmp_path, store, machine, second)
    assert machine.bodies == [b"a", b"b", b"c"]
    assert [one.index for one in machine.entries] == list(range(store.end_index + 1))


def test_one_that_ended_starts_again_and_a_late_word_of_it_counts_for_nothing(tmp_path: Path) -> None:
    machine = Upper()

    async def work(engine: Engine, client: LedgerClient) -> None:
        await client.append(b"a")
        await until(lambda: caught_up(engine))
        machine.held = True
        waiting = ask(engine, b"b")
        await until(lambda: machine.batches[-1].last_index == engine.store.end_index)
        late = machine.batches[-1]
        assert machine.reports is not None
        machine.reports.ended(machine.life, "killed")
        state = await client.state("n0")
        assert [one["code"] for one in state["alarms"]] == ["applier_down"]
        machine.held = False
        machine.stand()
        machine.reports.applied(late.life, late.last_index, [b"?"])
        outcome = await waiting
        assert outcome.results == (b"B",)
        await until(lambda: caught_up(engine))
        assert machine.bodies == [b"a", b"b"]
        assert (await client.state("n0"))["alarms"] == []

    run(tmp_path, MemoryStore(), machine, work)


def test_damage_stops_it_and_is_never_skipped(tmp_path: Path) -> None:
    machine, store = Upper(), MemoryStore()

    async def work(engine: Engine, client: LedgerClient) -> None:
        machine.held = True
        await client.append_many([b"a", b"b", b"c"])
        first = machine.batches[0]
        store.recent_from = store.end_index + 1
        store.rot(2)
        machine.held = False
        machine.take(first)
        await until(lambda: ("apply_failed", None) in engine.replica.member.alarms)
        state = await client.state("n0")
        assert state["log"]["applied_index"] == 1 and machine.bodies == [b"a"]
        assert "cannot be read" in state["applier"]["last_error"]

    run(tmp_path, store, machine, work)


def test_an_entry_that_it_refuses_is_given_again(tmp_path: Path) -> None:
    machine = Upper()

    async def work(engine: Engine, client: LedgerClient) -> None:
        await client.append(b"a")
        await until(lambda: caught_up(engine))
        machine.fails_at = len(machine.entries) + 1
        await client.append_many([b"b", b"poison", b"c"])
        await until(lambda: ("apply_failed", None) in engine.replica.member.alarms)
        assert machine.bodies == [b"a", b"b"]
        machine.fails_at = -1
        await until(lambda: caught_up(engine))
        assert machine.bodies == [b"a", b"b", b"poison", b"c"]
        assert engine.replica.member.alarms == {}

    run(tmp_path, MemoryStore(), machine, work)
