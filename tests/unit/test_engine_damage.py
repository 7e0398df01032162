"""Engines with damaged logs, over real sockets: they repair each other, refuse what is damaged, scrub when asked to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from node.config import load
from node.engine.access import Access
from node.engine.disk import Disk
from node.engine.engine import Engine
from node.engine.log_reads import LogReads
from node.engine.process import Process
from node.engine.scrubber import Scrubber
from node.protocol.codes import FlushMode, RequestCode, ResponseCode, Role
from node.store.errors import StoreCorrupt, StoreIOError
from node.store.faults.results import Fault, Mended, Scrubbed
from node.store.log_store import LogStore
from node.store.memory_store import MemoryStore
from node.transport.bodies import dump
from node.transport.bodies import load as load_body
from node.transport.connection import Connection, dial
from node.transport.remoting import Frame
from node.transport.slab_frames import ReadMode, ReadRequest, decode_read_answer, encode_read
from tests.ports import free_ports
from tests.unit.core_kit import store_of

IDS = ("n0", "n1", "n2")
TERMS = [1] * 20
TABLES = {"store.scrub_bytes_per_s": 0}


@contextlib.asynccontextmanager
async def group(tmp_path: Path, stores: dict[str, MemoryStore]) -> AsyncIterator[dict[str, Engine]]:
    peers = ";".join(f"{name}-127.0.0.1:{port}" for name, port in zip(stores, free_ports(len(stores)), strict=True))
    engines: dict[str, Engine] = {}
    running: list[asyncio.Task[int]] = []
    ready: list[int] = []
    for name, store in stores.items():
        data = tmp_path / name
        data.mkdir()
        settings = load({"node.id": name, "peers": peers, "node.data": str(data), **TABLES}, None, {})
        engines[name] = Engine(settings, store)
        running.append(asyncio.create_task(engines[name].run(ready.append)))
    await until(lambda: len(ready) == len(stores))
    try:
        yield engines
    finally:
        for engine in engines.values():
            engine.stop()
        assert await asyncio.gather(*running) == [0] * len(engines), [one.reason for one in engines.values()]


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never became so")


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 60))


def stores_of(count: int = 3) -> dict[str, MemoryStore]:
    stores = {name: store_of(TERMS) for name in IDS[:count]}
    for name, store in stores.items():
        store.store_id = f"s-{name}"
    return stores


def repairs(engine: Engine) -> list[dict[str, Any]]:
    return [one.detail or {} for one in engine.events.since(None).items or () if one.kind == "repair"]


async def ask(engine: Engine, code: RequestCode, body: bytes, host: str = "") -> bytes:
    """One request on a connection of its own."""
    answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    connection = Connection(lambda _one, frame: take(frame), lambda _one: None)

    def take(frame: Frame) -> None:
        if not answered.done():
            answered.set_result(frame.body)

    address, _, port = engine.settings.self_address.rpartition(":")
    before = set(engine.process.port.connections)
    await dial(connection, address, int(port))
    if host:
        await until(lambda: bool(set(engine.process.port.connections) - before))
        for one in set(engine.process.port.connections) - before:
            one.peer_host = host
    connection.send_body(code, 0, 7, [body])
    try:
        return await asyncio.wait_for(answered, 20)
    finally:
        connection.close()


async def operator_action(engine: Engine, host: str = "", **fields: Any) -> dict[str, Any]:
    fields = {"group": engine.settings.node.group, "remoteId": engine.settings.node.id, **fields}
    return dict(load_body(await ask(engine, RequestCode.OPERATOR_ACTION, dump(fields), host)).values)


def test_a_group_of_damaged_members_heals_and_then_elects(tmp_path: Path) -> None:
    async def work() -> None:
        stores = stores_of()
        stores["n0"].rot(1, known=True)
        stores["n1"].rot(5, 9, known=True)
        stores["n2"].rot(0, known=True)
        stores["n2"].rot(18, known=True)
        async with group(tmp_path, stores) as engines:
            await until(lambda: any(one.replica.role is Role.LEADER for one in engines.values()))
            assert all(store.faults == () for store in stores.values())
            assert [len(repairs(engines[name])) for name in IDS] == [1, 1, 2]
            assert repairs(engines["n1"])[0]["first_index"] == 5

    run(work)


def test_a_scrub_finds_the_rot_of_the_leader_it_steps_down_and_heals(tmp_path: Path) -> None:
    async def work() -> None:
        stores = stores_of()
        async with group(tmp_path, stores) as engines:
            await until(lambda: any(one.replica.role is Role.LEADER for one in engines.values()))
            name, leader = next((n, one) for n, one in engines.items() if one.replica.role is Role.LEADER)
            term = leader.replica.term
            stores[name].rot(3, 4)
            answer = await operator_action(leader, what="scrub")
            assert answer["code"] == 200 and answer["passNumber"] == 1
            await until(lambda: (last := leader.duties.scrubber.view().last) is not None and last.number == 1)
            await until(lambda: stores[name].faults == () and bool(repairs(leader)))
            await until(lambda: any(one.replica.role is Role.LEADER for one in engines.values()))
            assert max(one.replica.term for one in engines.values()) > term
            last = leader.duties.scrubber.view().last
            assert last is not None and last.faults == 1

    run(work)


def test_alone_nobody_can_help_and_the_member_says_so(tmp_path: Path) -> None:
    async def work() -> None:
        stores = stores_of(1)
        stores["n0"].rot(2, 3, known=True)
        async with group(tmp_path, stores) as engines:
            engine = engines["n0"]
            await until(lambda: len(engine.replica.member.alarms) == 2)
            state = engine.introspection.view("state", None, engine._status).model_dump(mode="json")
            assert [alarm["code"] for alarm in state["alarms"]] == ["log_damaged", "log_unrecoverable"]
            assert [(one["first_index"], one["last_index"]) for one in state["faults"]] == [(2, 3)]
            assert state["repair"]["hopeless"] == 1 and state["scrub"]["running"] is None
            assert str(engine.settings.store_directory) in state["alarms"][1]["text"]
            assert engine.replica.role is Role.CANDIDATE
            assert (await operator_action(engine, what="repairs"))["faults"] == 1

    run(work)


def test_what_is_damaged_is_not_read_and_what_is_around_it_is(tmp_path: Path) -> None:
    async def work() -> None:
        stores = stores_of(1)
        stores["n0"].rot(2, 3, known=True)
        async with group(tmp_path, stores) as engines:
            engines["n0"].replica.member.committed_index = 19

            async def read(index: int) -> tuple[int, int]:
                body = encode_read(ReadRequest(index, 1 << 20, ReadMode.UNSAFE))
                answer = decode_read_answer(await ask(engines["n0"], RequestCode.FAST_READ, body))
                return answer.code, answer.count

            assert await read(0) == (ResponseCode.SUCCESS, 2)
            assert await read(2) == (ResponseCode.DISK_ERROR, 0)
            assert await read(3) == (ResponseCode.DISK_ERROR, 0)
            assert await read(4) == (ResponseCode.SUCCESS, 16)

    run(work)


@pytest.mark.parametrize("code", [RequestCode.FAST_READ, RequestCode.AWAITED_READ])
def test_a_read_is_refused_in_the_form_of_its_answer(code: RequestCode, tmp_path: Path) -> None:
    async def work() -> None:
        async with group(tmp_path, stores_of(1)) as engines:
            answer = decode_read_answer(await ask(engines["n0"], code, b"short"))
            assert (answer.code, answer.count, len(answer.records)) == (ResponseCode.UNEXPECTED_ARGUMENT, 0, 0)

    run(work)


def test_operator_actions_need_the_right_group_the_token_and_a_known_word(tmp_path: Path) -> None:
    async def work() -> None:
        async with group(tmp_path, stores_of(1)) as engines:
            engine = engines["n0"]
            assert (await operator_action(engine, what="dance"))["code"] == ResponseCode.UNEXPECTED_ARGUMENT
            assert (await operator_action(engine, what="scrub", group="other"))["code"] == ResponseCode.UNKNOWN_GROUP
            far = await operator_action(engine, "192.0.2.7", what="scrub")
            assert far["code"] == ResponseCode.UNEXPECTED_MEMBER
            engine.client_requests._access = Access("secret", (), ())
            assert (await operator_action(engine, "192.0.2.7", what="scrub", token="secret"))["code"] == 200

    run(work)


# --- the scrubber -----------------------------------------------------------------------------------------------


class FakeDisk:
    """Steps happen at once."""

    def __init__(self, store: LogStore) -> None:
        self.store = store
        self.steps: list[int] = []
        self.cut_under_next = False

    def scrub(self, from_index: int, max_bytes: int, done: Callable[[Scrubbed | None, str], None]) -> None:
        self.steps.append(from_index)
        if self.cut_under_next:
            self.cut_under_next = False
            done(None, "cut")
        else:
            done(self.store.scrub(from_index, min(max_bytes, 200)), "")


class Watched:
    def __init__(self, store: MemoryStore, **changes: int) -> None:
        self.faults: list[Fault] = []
        self.finished = 0
        self.disk = FakeDisk(store)
        settings = {"bytes_per_s": 1 << 30, "pause_s": 1000, **changes}
        self.scrubber = Scrubber(
            store, self.disk, found=self.faults.extend, finished=self._count, **settings  # type: ignore[arg-type]
        )  # fmt: skip

    def _count(self) -> None:
        self.finished += 1


def test_a_pass_reads_everything_once_in_steps_and_reports_what_it_met() -> None:
    async def work() -> None:
        store = store_of(TERMS)
        store.rot(7)
        watched = Watched(store)
        assert watched.scrubber.ask("request") == 1
        assert watched.scrubber.ask("request") == 1, "one that runs already is as good"
        await until(lambda: watched.finished == 1)
        assert watched.disk.steps == sorted(set(watched.disk.steps)) and len(watched.disk.steps) > 3
        assert [(one.first_index, one.last_index) for one in watched.faults] == [(7, 7)]
        last = watched.scrubber.view().last
        assert last is not None
        assert (last.from_index, last.last_index, last.faults, last.reason) == (0, 19, 1, "request")
        assert watched.scrubber.ask("request") == 2
        watched.scrubber.stop()

    run(work)


def test_every_step_of_a_pass_reports_what_it_met() -> None:
    async def work() -> None:
        store = store_of(TERMS)
        for index in (2, 7, 15):
            store.rot(index)
        watched = Watched(store)
        watched.scrubber.ask("request")
        await until(lambda: watched.finished == 1)
        assert [one.first_index for one in watched.faults] == [2, 7, 15]
        watched.scrubber.stop()

    run(work)


def test_a_step_under_a_cut_is_done_again() -> None:
    async def work() -> None:
        watched = Watched(store_of(TERMS))
        watched.disk.cut_under_next = True
        watched.scrubber.ask("fork")
        await until(lambda: watched.finished == 1)
        assert watched.disk.steps[:2] == [0, 0]
        watched.scrubber.stop()

    run(work)


def test_a_log_that_was_cut_ends_the_pass_and_an_empty_one_has_nothing_to_read() -> None:
    async def work() -> None:
        store = store_of(TERMS)
        watched = Watched(store)
        watched.scrubber.ask("request")
        store._cut(3)
        await until(lambda: watched.finished == 1)
        empty = Watched(store_of())
        assert empty.scrubber.ask("request") == 1 and empty.finished == 1 and empty.disk.steps == []
        watched.scrubber.stop()

    run(work)


@pytest.mark.parametrize("rate", [0, 1 << 30])
def test_in_the_background_only_with_a_rate(rate: int) -> None:
    async def work() -> None:
        watched = Watched(store_of(TERMS), bytes_per_s=rate, pause_s=0)
        watched.scrubber.start()
        await asyncio.sleep(0.1)
        assert (watched.finished > 0) is (rate > 0)
        watched.scrubber.stop()
        finished = watched.finished
        await asyncio.sleep(0.05)
        assert watched.finished == finished

    run(work)


# --- the disk ---------------------------------------------------------------------------------------------------


class Broken(MemoryStore):
    """Raises what it is told to."""

    error: Exception = StoreCorrupt("nothing")

    def scrub(self, from_index: int, max_bytes: int) -> Scrubbed:
        raise self.error

    def read_slab(self, first_index: int, max_bytes: int) -> Any:
        raise self.error

    def mend(self, slab: Any) -> Mended:
        raise self.error


def test_what_a_scrub_meets_counts_only_in_the_same_log_epoch() -> None:
    async def work() -> None:
        epoch, met, failed = 1, [], []
        store = Broken()
        store.error = StoreCorrupt("rot", [Fault(0, 0, "crc_invalid")])
        process = Process()
        disk = Disk(
            store, FlushMode.SYNC, log_epoch=lambda: epoch, flushed=lambda *_: None, truncated=lambda *_: None,
            begun=lambda *_: None, mended=lambda *_: None,
            damaged=lambda error, _index: met.append(error), fail=failed.append, process=process,
        )  # fmt: skip
        answers: list[Scrubbed | None] = []
        disk.scrub(0, 100, lambda step, _text: answers.append(step))
        await until(lambda: len(answers) == 1)
        disk.scrub(0, 100, lambda step, _text: answers.append(step))
        epoch = 2
        await until(lambda: len(answers) == 2)
        assert [one is None for one in answers] == [False, True] and len(met) == 1
        store.error = StoreIOError("dead")
        disk.scrub(0, 100, lambda step, _text: answers.append(step))
        await until(lambda: len(failed) == 1)
        store.error = AssertionError("a bug")
        disk.scrub(0, 100, lambda step, _text: answers.append(step))
        await until(lambda: len(failed) == 2)
        disk.close()
        process.close()

    run(work)


def test_log_reads_end_before_the_first_damage_on_the_way() -> None:
    store = store_of(TERMS)
    store.rot(5, known=True)
    found: list[tuple[ResponseCode, int]] = []
    reads = LogReads(store, None)  # type: ignore[arg-type]
    for index in (0, 4, 5, 6):
        reads.committed(index, 1 << 20, 19, lambda code, count, _records: found.append((code, count)))
    ok, bad = ResponseCode.SUCCESS, ResponseCode.DISK_ERROR
    assert found == [(ok, 5), (ok, 1), (bad, 0), (ok, 14)]
