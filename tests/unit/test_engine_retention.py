"""Engines that remove the front of their logs, over real sockets and files: by policy, by hand, and who keeps what."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.client import LedgerClient, NotAppended, Trimmed
from node.config import load
from node.engine.engine import Engine
from node.protocol.codes import ResponseCode, Role
from node.store.file_store import FileStore
from node.store.files.platform import OsPlatform
from tests.full_disks import HOWEVER_FULL
from tests.ports import free_ports
from tests.unit.test_engine_damage import operator_action

IDS = ("n0", "n1", "n2")
BODY = b"x" * 500
NONE: Mapping[str, str] = {}
SMALL = HOWEVER_FULL | {"retention.enabled": "true", "retention.check_interval_s": "1"}
SIZES = {
    "store.mapped_file_size_for_entry_data_bytes": 4096, "store.mapped_file_size_for_entry_index_bytes": 1024,
    "store.scrub_bytes_per_s": 0,
}  # fmt: skip


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(6000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never became so")


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 120))


@contextlib.asynccontextmanager
async def group(
    tmp_path: Path, *ids: str, platform: OsPlatform | None = None, tables: Mapping[str, str] = NONE
) -> AsyncIterator[Group]:
    peers = ";".join(f"{name}-127.0.0.1:{port}" for name, port in zip(ids, free_ports(len(ids)), strict=True))
    made = Group(tmp_path, peers, tables, platform or OsPlatform())
    for name in ids:
        await made.start(name)
    try:
        yield made
    finally:
        await made.client.close()
        for name in list(made.engines):
            await made.stop(name)


class Group:
    """Engines on real files, each with a store of small files."""

    def __init__(self, tmp_path: Path, peers: str, tables: Mapping[str, str], platform: OsPlatform) -> None:
        self.tmp_path, self.peers, self.tables, self.platform = tmp_path, peers, tables, platform
        self.engines: dict[str, Engine] = {}
        self.stores: dict[str, FileStore] = {}
        self.running: dict[str, asyncio.Task[int]] = {}
        self.client = LedgerClient(peers, deadline_s=10.0)

    async def start(self, name: str) -> None:
        data = self.tmp_path / name
        data.mkdir(exist_ok=True)
        settings = load(
            {"node.id": name, "peers": self.peers, "node.data": str(data), **SIZES, **self.tables}, None, {}
        )
        self.stores[name] = FileStore.open(
            settings.store_directory, group="default", node_id=name, data_file_size=4096, index_file_size=1024,
            init=True, serving=True, platform=self.platform,
        )  # fmt: skip
        ready: list[int] = []
        self.engines[name] = Engine(settings, self.stores[name])
        self.running[name] = asyncio.create_task(self.engines[name].run(ready.append))
        await until(lambda: bool(ready))

    async def stop(self, name: str) -> None:
        engine = self.engines.pop(name)
        engine.stop()
        assert await self.running.pop(name) == 0, engine.reason
        self.stores.pop(name).close()

    async def write(self, count: int) -> int:
        for _ in range(count):
            last = (await self.client.append(BODY)).last_index
        return last

    async def leader(self) -> str:
        """Whoever leads now; an election may be under way."""
        found: list[str] = []

        def leads() -> bool:
            found[:] = [name for name, one in self.engines.items() if one.replica.role is Role.LEADER]
            return bool(found)

        await until(leads)
        return found[0]

    def begin(self, name: str) -> int:
        return self.stores[name].begin_index

    def said_all(self, name: str) -> bool:
        """Whether an event says where the log begins now."""
        said = self.events(name)
        return bool(said) and said[-1]["begin_index"] == self.begin(name)

    def events(self, name: str) -> list[dict[str, Any]]:
        found = self.engines[name].events.since(None).items or ()
        return [one.detail or {} for one in found if one.kind == "prefix_removed"]


def test_without_the_table_a_log_only_grows(tmp_path: Path) -> None:
    async def work() -> None:
        async with group(tmp_path, "n0", tables={"retention.max_log_bytes": "4096"}) as one:
            await one.write(30)
            one.engines["n0"].retention.look()
            await asyncio.sleep(0.3)
            assert (one.begin("n0"), one.events("n0")) == (0, [])
            state = await one.client.state("n0")
            assert state["retention"] == {
                "enabled": False, "removing": False, "removed_files": 0, "removed_bytes": 0, "last_removed_at": None,
                "last_removed": None, "kept_by": [], "pins": [],
            }  # fmt: skip

    run(work)


def test_every_member_trims_its_own_log_to_the_size_that_is_allowed(tmp_path: Path) -> None:
    tables = SMALL | {"retention.max_log_bytes": "8192"}

    async def work() -> None:
        async with group(tmp_path, *IDS, tables=tables) as three:
            last = await three.write(60)
            await until(lambda: all(three.stores[name].size_bytes <= 8192 for name in IDS))
            await until(lambda: all(three.said_all(name) for name in IDS))
            assert all(0 < three.begin(name) < last for name in IDS)
            first = max(three.begin(name) for name in IDS)
            assert [one.body for one in await three.client.read(first, 3)] == [BODY] * 3
            with pytest.raises(Trimmed, match=r"index 0 is not kept any more: the log of n\d begins at \d+") as caught:
                await three.client.read(0, 1)
            assert 0 < caught.value.begin_index <= max(three.begin(name) for name in IDS)
            said = three.events("n1")
            assert said[0]["from_index"] == 0
            assert said[-1]["begin_index"] == said[-1]["to_index"] + 1
            assert said[0]["by"] == "the retention policy" and "8192 are allowed" in said[0]["reason"]
            state = await three.client.state("n1")
            # An election's own entries may have made one more file go meanwhile.
            assert said[-1]["begin_index"] <= state["log"]["begin_index"] <= three.begin("n1")
            assert state["retention"]["removed_files"] >= sum(one["files"] for one in said)
            for name in IDS:
                begin = three.begin(name)
                await three.stop(name)
                await three.start(name)
                assert three.begin(name) >= begin
            assert await three.write(1) > last

    run(work)


def test_a_voter_that_is_away_keeps_the_log_of_all_until_an_operator_forces(tmp_path: Path) -> None:
    tables = SMALL | {"retention.max_log_bytes": "4096"}

    async def work() -> None:
        async with group(tmp_path, *IDS, tables=tables) as three:
            await three.write(1)
            leader = await three.leader()
            gone = next(name for name in IDS if name != leader)
            await three.stop(gone)
            last = await three.write(60)
            here = [name for name in IDS if name != gone]

            def held(name: str) -> bool:
                return "retention_held" in {code for code, _ in three.engines[name].replica.member.alarms}

            await until(lambda: all(map(held, here)))
            assert [three.begin(name) for name in here] == [0, 0]
            while True:  # until it led for a whole look, whatever was elected meanwhile; bounded by `run`
                leader = await three.leader()
                kept = (await three.client.state(leader))["retention"]["kept_by"]
                if kept and kept[0]["owner"] == f"voter {gone}":
                    break
                await asyncio.sleep(0.1)
            assert "is not connected" in kept[0]["why"]
            asked = await operator_action(three.engines[leader], what="trim", throughIndex=last)
            assert (asked["files"], asked["removedFiles"], asked["beginIndex"]) == (0, 0, 0)
            assert asked["keptBy"], "whoever leads by now"
            await three.start(gone)
            await until(lambda: all(three.begin(name) > 0 for name in IDS))
            await until(lambda: not any(map(held, IDS)))

    run(work)


def test_by_hand_a_dry_run_says_what_goes_a_pin_keeps_it_and_force_says_whom_it_leaves(tmp_path: Path) -> None:
    async def work() -> None:
        async with group(tmp_path, "n0") as one:
            last = await one.write(60)
            engine = one.engines["n0"]
            await until(lambda: engine.replica.held.removable_through() == last)
            dry = await operator_action(engine, what="trim", throughIndex=last, dryRun=True)
            assert dry["files"] > 3 and dry["removedFiles"] == 0 and one.begin("n0") == 0
            pinned = await operator_action(engine, what="pin", owner="audit", fromIndex=20, forSeconds=3600)
            assert pinned["code"] == 200
            asked = await operator_action(engine, what="trim", throughIndex=last)
            assert 0 < one.begin("n0") == asked["beginIndex"] <= 20
            assert [need["owner"] for need in asked["keptBy"]] == ["audit"]
            gone = await operator_action(engine, what="pin", owner="late", fromIndex=0, forSeconds=60)
            assert gone["code"] == ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN
            assert gone["beginIndex"] == one.begin("n0")
            forced = await operator_action(engine, what="trim", throughIndex=last, force=True)
            assert one.begin("n0") > 20 and forced["forced"] is True
            assert one.events("n0")[-1]["left_behind"] == ["audit (from entry 20 on)"]
            again = await operator_action(engine, what="trim", throughIndex=last, force=True)
            assert again["removedFiles"] == 0, "the last file stays"
            await operator_action(engine, what="release", owner="audit")
            assert (await one.client.state("n0"))["retention"]["pins"] == []
            for bad in ({"what": "trim"}, {"what": "pin", "owner": "x", "fromIndex": last, "forSeconds": 0}):
                assert (await operator_action(engine, **bad))["code"] == ResponseCode.UNEXPECTED_ARGUMENT
            assert (await operator_action(engine, what="pin", owner="", fromIndex=last, forSeconds=5))["code"] == 411

    run(work)


def test_who_comes_to_need_a_file_while_others_are_removed_keeps_it(tmp_path: Path) -> None:
    """Between two files there is time for a pin: what was planned before it counts no more."""

    async def work() -> None:
        async with group(tmp_path, "n0") as one:
            last = await one.write(60)
            engine = one.engines["n0"]
            await until(lambda: engine.replica.held.removable_through() == last)
            trimming = asyncio.ensure_future(operator_action(engine, what="trim", throughIndex=last))
            await until(lambda: one.begin("n0") > 0)
            kept_from = one.begin("n0") + 8  # in one of the next files
            engine.retention.pins.pin("late", kept_from, 60)
            ended = await trimming
            assert ended["beginIndex"] == one.begin("n0") <= kept_from
            assert "late" in ended["detail"]

    run(work)


def test_nothing_goes_while_nobody_knows_what_the_state_machine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts, or starts again: what it will ask for is still to be said."""

    async def work() -> None:
        async with group(tmp_path, "n0") as one:
            last = await one.write(30)
            retention, replica = one.engines["n0"].retention, one.engines["n0"].replica
            await until(lambda: replica.held.removable_through() == last)
            assert retention._through_max() == last - 1
            monkeypatch.setattr(replica, "config", replace(replica.config, applies=True))
            for applied, through in ((None, -2), (7, 6), (last, last - 1)):
                monkeypatch.setattr(type(replica), "applied_index", applied)
                assert retention._through_max() == through

    run(work)


def test_a_pin_ends_at_its_time(tmp_path: Path) -> None:
    async def work() -> None:
        async with group(tmp_path, "n0") as one:
            await operator_action(one.engines["n0"], what="pin", owner="reader", fromIndex=0, forSeconds=1)
            assert one.stores["n0"].pins.held() == [("reader", 0)]
            await until(lambda: one.stores["n0"].pins.held() == [])

    run(work)


def test_from_the_full_ratio_on_writes_are_refused_until_less_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.engine.duties.DISK_FULL_RETRY_S", 0.2)

    class Ratio(OsPlatform):
        total, left = 1 << 40, 1 << 39

        def space_total_bytes(self, directory: Path) -> int | None:
            return self.total

        def space_left_bytes(self, directory: Path) -> int | None:
            return self.left

    disk = Ratio()
    tables = {"retention.enabled": "true", "retention.check_interval_s": "1"}

    async def work() -> None:
        async with group(tmp_path, "n0", platform=disk, tables=tables) as one:
            await one.write(2)
            disk.left = disk.total // 20
            await until(lambda: one.engines["n0"].replica.member.disk_full)
            with pytest.raises(NotAppended) as caught:
                await one.write(1)
            assert caught.value.code is ResponseCode.DISK_FULL
            assert len(await one.client.read(0, 10)) == 2
            disk.left = disk.total // 2
            await until(lambda: not one.engines["n0"].replica.member.disk_full)
            await one.write(1)
            await until(lambda: not one.engines["n0"].replica.member.alarms)

    run(work)
