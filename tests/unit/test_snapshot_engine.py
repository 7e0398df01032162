"""The engine's threads move snapshots: what is open stays, what is behind it is pinned, each order has an outcome."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.consensus.effects import OpenSnapshot, ReadSnapshot, TakePart
from node.engine import snapshot_transfer
from node.engine.pin_leases import SENT
from node.engine.snapshot_transfer import SnapshotTransfer
from node.protocol.entry import crc32
from node.protocol.messages import SnapshotPart
from node.snapshots import directory as snapshots
from node.snapshots import transfer
from node.snapshots.directory import SnapshotMeta, SnapshotWriter
from node.store.memory_store import MemoryStore
from tests.unit.core_kit import store_of
from tests.unit.test_engine_retention import until
from tests.unit.test_snapshot_install import part

DATA = bytes(range(250)) * 20


def save(directory: Path, index: int, **changes: Any) -> None:
    writer = SnapshotWriter(directory)
    writer.write(DATA)
    writer.commit(replace(SnapshotMeta(index, 1, 7, 1000), **changes))


class Reported:
    """What came of the orders."""

    def __init__(self) -> None:
        self.outcomes: asyncio.Queue[tuple[Any, Any, str]] = asyncio.Queue()
        self.failed: list[str] = []
        self.saves: list[int] = []

    def snapshot_opened(self, order: OpenSnapshot, meta: SnapshotMeta | None, why: str) -> None:
        self.outcomes.put_nowait((order, meta, why))

    def snapshot_read(self, order: ReadSnapshot, piece: bytes | None) -> None:
        self.outcomes.put_nowait((order, piece, ""))

    def part_taken(self, order: TakePart, taken: Any) -> None:
        self.outcomes.put_nowait((order, taken, ""))

    def save(self, index: int) -> None:
        self.saves.append(index)


class Moving:
    """One transfer, and a question at a time."""

    def __init__(self, directory: Path, store: MemoryStore, readers: ThreadPoolExecutor) -> None:
        self.reported, self.store = Reported(), store
        reported = self.reported
        self.transfer = SnapshotTransfer(store, directory, readers, reported, reported.failed.append, reported.save)

    async def outcome(self, order: OpenSnapshot | ReadSnapshot | TakePart) -> Any:
        self.transfer.carry_out(order)
        found, value, self.why = await asyncio.wait_for(self.reported.outcomes.get(), 60)
        assert found is order
        return value


@asynccontextmanager
async def moving(directory: Path) -> AsyncIterator[Moving]:
    with ThreadPoolExecutor(2) as readers:
        one = Moving(directory, store_of([1] * 30), readers)
        yield one
        one.transfer.close()


def run(work: Callable[[], Any]) -> None:
    asyncio.run(work())


def test_what_is_open_for_a_peer_stays_although_newer_ones_are_kept_only(tmp_path: Path) -> None:
    async def work() -> None:
        save(tmp_path, 9)
        async with moving(tmp_path) as one:
            meta = await one.outcome(OpenSnapshot("n1", 1, 0))
            assert meta.index == 9 and (SENT, 10) in one.store.pins.held()
            assert await one.outcome(ReadSnapshot("n1", 1, 0, 1000)) == DATA[:1000]
            save(tmp_path, 20)
            snapshots.keep_newest(tmp_path, 1)
            again = await one.outcome(OpenSnapshot("n1", 2, 3))  # its connection broke
            assert again.index == 9, "it goes on with the one of which it has a part"
            for at in (1000, 2000, 500, 4500):
                assert await one.outcome(ReadSnapshot("n1", 2, at, 1000)) == DATA[at : at + 1000]
            other = await one.outcome(OpenSnapshot("n2", 1, 0))
            assert other.index == 20 and (SENT, 21) in one.store.pins.held()
            assert await one.outcome(ReadSnapshot("n1", 2, 0, 1000)) is None, "one at a time"
        assert not one.store.pins.held() and one.reported.failed == []

    run(work)


def test_what_is_open_and_does_not_go_far_enough_is_not_sent(tmp_path: Path) -> None:
    """The log was trimmed meanwhile: whoever takes the older one in finds nothing that goes on from it."""

    async def work() -> None:
        save(tmp_path, 9)
        async with moving(tmp_path) as one:
            assert (await one.outcome(OpenSnapshot("n1", 1, 0))).index == 9
            save(tmp_path, 20)
            assert (await one.outcome(OpenSnapshot("n1", 2, 15))).index == 20
            assert (SENT, 21) in one.store.pins.held()

    run(work)


def test_what_is_read_from_stays_open(tmp_path: Path) -> None:
    """Its time begins anew with each piece: a long one is sent for longer than nobody asks."""

    async def work() -> None:
        save(tmp_path, 9)
        async with moving(tmp_path) as one:
            await one.outcome(OpenSnapshot("n1", 1, 0))
            ends = []
            for at in (0, 1000):
                timer = one.transfer._close_timer
                assert timer is not None
                ends.append(timer.when())
                await one.outcome(ReadSnapshot("n1", 1, at, 1000))
            assert ends[1] > ends[0]

    run(work)


def test_what_is_read_from_is_closed_behind_its_last_read(tmp_path: Path) -> None:
    """Its descriptor may be another file's at once: a read that is under way would send that file's bytes."""
    save(tmp_path, 9)
    log: list[str] = []

    async def work() -> None:
        async with moving(tmp_path) as one:
            assert (await one.outcome(OpenSnapshot("n1", 1, 5))).index == 9
            opened, goes_on = one.transfer._open, threading.Event()
            assert opened is not None
            read, close = opened.read, opened.close

            def slowly(offset: int, most_bytes: int) -> bytes:
                goes_on.wait(30)
                found = read(offset, most_bytes)
                log.append("read")
                return found

            def closed() -> None:
                log.append("closed")
                close()

            opened.read, opened.close = slowly, closed  # type: ignore[method-assign]
            one.transfer.carry_out(ReadSnapshot("n1", 1, 0, 1000))
            one.transfer._close_open()  # its time is over, or another peer's turn has come
            assert log == []
            goes_on.set()
            await until(lambda: "closed" in log)

    run(work)
    assert log == ["read", "closed"]


def test_where_there_is_none_the_state_machine_is_asked_to_save_one(tmp_path: Path) -> None:
    async def work() -> None:
        save(tmp_path, 9)
        save(tmp_path, 12, chain=None)  # no log can begin behind that
        async with moving(tmp_path) as one:
            for _ in range(3):
                assert await one.outcome(OpenSnapshot("n1", 1, 10)) is None and "one is being saved" in one.why
            assert one.reported.saves == [10], "not again and again"
            assert (await one.outcome(OpenSnapshot("n1", 1, 9))).index == 9

    run(work)


def test_a_log_that_does_not_go_on_from_it_is_no_crash(tmp_path: Path) -> None:
    async def work() -> None:
        save(tmp_path, 9)
        async with moving(tmp_path) as one:
            one.store.begin_index = 20  # trimmed by force meanwhile
            assert await one.outcome(OpenSnapshot("n1", 1, 0)) is None and "begins at 20" in one.why

    run(work)


def test_pieces_come_to_the_disk_and_no_room_is_an_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with moving(tmp_path) as one:
            whole: SnapshotPart = part(total_bytes=len(DATA), data_crc=crc32(DATA))
            first = await one.outcome(TakePart(replace(whole, data=DATA[:3000])))
            assert (first.held_bytes, first.is_whole) == (3000, False)
            last = await one.outcome(TakePart(replace(whole, offset=3000, data=DATA[3000:])))
            assert last.is_whole and (tmp_path / "snapshot" / "install_tmp" / "quorumscope-meta").exists()
            monkeypatch.setattr(transfer, "ROOM_BYTES", 1 << 60)
            assert await one.outcome(TakePart(replace(whole, base_index=11))) is None

    run(work)


def test_what_is_never_finished_goes_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        monkeypatch.setattr(snapshot_transfer, "RECEIVED_KEPT_S", 0.01)
        async with moving(tmp_path) as one:
            await one.outcome(TakePart(part(total_bytes=len(DATA), data_crc=crc32(DATA), data=DATA[:3000])))
            await until(lambda: not (tmp_path / "snapshot" / "install_tmp").exists())
            assert one.reported.failed == []

    run(work)
