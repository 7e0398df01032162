"""An audit of running brokers of a pair: the same comparison, over their control planes."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from app.audit import pair_logs
from app.audit.fence import FenceError
from app.audit.pair_audit import excused, plan
from app.audit.pair_compare import Fact, Seen, compare_file
from app.audit.pair_logs import HttpBytes, PairLog, reader_of
from app.audit.pair_opening import master_first, opened
from app.audit.pair_result import result_of
from app.audit.pins import AuditPins
from app.audit.replicas import ControlPlane, ReplicaSpec
from app.audit.segments import LogChanged, SegmentGone
from node.config import Settings
from node.control.app import create_app
from node.rocketmq.codes import Answer
from tests.unit.classic_kit import Served, story, two
from tests.unit.engine_kit import until


@contextmanager
def served(settings: Settings) -> Generator[str, None, None]:
    """A control plane that other threads reach; its URL."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()  # who comes before the server does waits
    server = uvicorn.Server(uvicorn.Config(create_app(settings), log_level="error"))
    running = threading.Thread(target=server.run, args=([listening],))
    running.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        running.join()
        listening.close()


def specs_of(*urls: str) -> list[ReplicaSpec]:
    return [ReplicaSpec("http", url) for url in urls]


def audited(specs: list[ReplicaSpec]) -> dict[str, Any]:
    """What Spark does, in this thread."""
    named = master_first(specs)
    logs = opened(named)
    facts: list[Fact] = []
    records = same = 0
    for one in plan(logs):
        found = compare_file([(logs[at], reader_of(logs[at], named[at])) for at in one.logs], one.start)
        facts, records, same = facts + found.facts, records + found.records, same + found.same_bytes
    facts = excused(facts, logs, opened(named))
    return result_of(logs, facts, records=records, same_bytes=same, dropped=0, seconds=1.0)


async def fill(master: Served, slave: Served, count: int = 8) -> int:
    """Where both logs end."""
    async with master.client() as client:
        for number in range(count):
            [answer] = await client.send(bytes([65 + number]) * 20_000)
            assert answer.code == Answer.SUCCESS
    end = master.broker.store.log.max_offset
    await until(lambda: slave.broker.store.log.max_offset == end)
    return end


@story
async def test_running_brokers_are_compared_and_the_first_record_that_differs_is_shown(tmp_path: Path) -> None:
    async with two(tmp_path) as (master, slave):
        end = await fill(master, slave)
        with served(master.broker.settings) as m, served(slave.broker.settings) as s:
            result = await asyncio.to_thread(audited, specs_of(s, m))  # in whichever order
            assert (result["verdict"], result["same_bytes"]) == ("consistent", end), result["summary"]
            assert [(one["id"], one["role"]) for one in result["replicas"]] == [("m", "master"), ("s", "slave")]
            place = slave.broker.store.log.starts[1]
            path = slave.broker.store.root / "commitlog" / f"{place:020d}"
            with path.open("r+b") as file:
                file.seek(500)
                file.write(b"!")
            result = await asyncio.to_thread(audited, specs_of(m, s))
    [found] = result["findings"]
    assert (result["verdict"], found["class"], found["replicas"], found["from_index"], found["good"]) == (
        "divergent", "crc_invalid", ["s"], place, ["m"],
    )  # fmt: skip
    assert [(one["replicas"], one["differs_at"]) for one in found["sides"]] == [
        (["s"], place + 500),
        (["m"], place + 500),
    ]


@story
async def test_a_broker_that_goes_on_a_dead_one_and_one_named_twice(tmp_path: Path) -> None:
    async with two(tmp_path) as (master, slave):
        end = await fill(master, slave)
        with served(master.broker.settings) as m, served(slave.broker.settings) as s:
            logs = await asyncio.to_thread(opened, specs_of(m, s))
            await fill(master, slave, 2)  # what comes later is not looked at
            assert [(one.end, one.problem) for one in logs] == [(end, None), (end, None)]
            with pytest.raises(FenceError, match="m is named twice"):
                await asyncio.to_thread(opened, specs_of(m, m))
        result = await asyncio.to_thread(audited, specs_of("http://127.0.0.1:9", "http://127.0.0.1:9/b"))
        assert result["verdict"] == "unauditable" and "unreachable" in result["replicas"][0]["problem"]


@pytest.mark.parametrize(("end_offset", "file_bytes"), [(-1, 1024), (1 << 60, 1), (100, 0)])
def test_a_log_that_cannot_be_is_that_brokers_problem(
    monkeypatch: pytest.MonkeyPatch, end_offset: int, file_bytes: int
) -> None:
    """Each file would be a piece of work: a broker that claims any number of them costs no memory."""
    said = {"as_of": "t", "version": "1", "self_id": "m", "begin_offset": 0}
    said |= {"end_offset": end_offset, "file_bytes": file_bytes}
    monkeypatch.setattr(ControlPlane, "get_json", lambda *_: said)
    [log] = opened(specs_of("http://127.0.0.1:9"))
    assert log.problem == "what it says of its log cannot be"


@story
async def test_a_cut_beneath_an_audit_is_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_logs, "AGAIN_S", 0.0)
    async with two(tmp_path, "async_master") as (master, slave):
        end = await fill(master, slave)
        with served(master.broker.settings) as m:
            [log] = await asyncio.to_thread(opened, specs_of(m))
            reader = HttpBytes(log, specs_of(m)[0])
            data = await asyncio.to_thread(reader.read, 0, 100)
            assert data == master.broker.store.log.read(0, 100)
            with pytest.raises(SegmentGone):
                await asyncio.to_thread(reader.read, 1 << 40, 10)
            await until(lambda: master.broker.store.log.flushed_offset == end)
            master.broker.store.log.cut(master.broker.store.log.last_record.offset)
            with pytest.raises(LogChanged, match="m's log was cut, or its broker restarted"):
                await asyncio.to_thread(reader.read, 0, 100)
            found = await asyncio.to_thread(compare_file, [(log, HttpBytes(log, specs_of(m)[0]))], 0)
            assert [one.seen for one in found.facts] == [Seen.UNREAD]


@story
async def test_what_an_audit_reads_is_pinned_while_it_reads(tmp_path: Path) -> None:
    async with two(tmp_path) as (master, slave):
        await fill(master, slave)
        with served(master.broker.settings) as m, served(slave.broker.settings) as s:
            specs = specs_of(m, s)
            logs: list[PairLog] = await asyncio.to_thread(opened, specs)
            pins = AuditPins(specs, None, ha=True)
            await asyncio.to_thread(pins.hold, {one.source: one.begin for one in logs})
            for one in (master, slave):
                assert [held["owner"] for held in one.broker._pins.as_said()] == [pins.owner]
                assert one.broker._needed_from() == 0
            await asyncio.to_thread(pins.release)
            assert master.broker._pins.as_said() == slave.broker._pins.as_said() == []
