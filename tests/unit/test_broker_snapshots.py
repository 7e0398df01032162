"""Snapshots that a broker writes into its log, what retention removes because of them, and what survives that."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from node.broker import broker as broker_module
from node.broker import dispatched_log
from node.broker.broker import Broker
from node.client.errors import Trimmed
from node.message_store.broker_tables import CONSUMER_OFFSETS, TOPICS
from node.message_store.consume_queue import PullStatus
from node.message_store.dispatch_mark import mark_path
from node.message_store.put_result import PutStatus
from node.message_store.recent_entries import Piece
from node.message_store.state_file import read_state, state_path
from tests.full_disks import HOWEVER_FULL
from tests.ports import free_ports
from tests.unit.broker_kit import broker_of, engine_of, message, settings_of
from tests.unit.engine_kit import until

SMALL = HOWEVER_FULL | {
    "retention.enabled": "true", "retention.max_log_bytes": "131072", "retention.check_interval_s": "1",
}  # fmt: skip
BODY = b"x" * 2000


async def fills(broker: Broker, count: int = 40) -> None:
    results = await asyncio.gather(*(broker.lane.put(message(BODY, topic="Filler")) for _ in range(count)))
    assert {one.status for one in results} == {PutStatus.PUT_OK}


def log_files(data: Path) -> list[str]:
    return sorted(path.name for path in (data / "n0/dledger-n0/data").iterdir() if path.name.isdigit())


def wipe(data: Path, *, keeps_state: bool = False) -> None:
    """All that follows from the log."""
    for name in ("consumequeue", "index", "config"):
        shutil.rmtree(data / "n0" / name, ignore_errors=True)
    mark_path(data / "n0").unlink()
    if not keeps_state:
        state_path(data / "n0").unlink()


@pytest.mark.parametrize("keeps_state", [False, True])
def test_a_queues_next_offset_and_metadata_outlive_all_that_the_log_had_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, keeps_state: bool
) -> None:
    monkeypatch.setattr(broker_module, "LOOK_AT_FILES_S", 0.2)

    async def story() -> None:
        settings = settings_of(tmp_path, free_ports(1), 0, **SMALL)
        async with engine_of(settings):
            async with broker_of(settings) as broker:
                for n in range(5):
                    assert (await broker.lane.put(message(b"%d" % n, topic="Old"))).queue_offset == n
                await broker.metadata.change({TOPICS: {"Old": {"perm": 6}}, CONSUMER_OFFSETS: {"Old@G": {"0": 4}}})
                assert broker.log.state is not None and broker.log.state.snapshot is None
                made_at = broker.log.state.index
                await fills(broker, 160)
                await until(lambda: "00000000000000000000" not in log_files(tmp_path))
                found = broker.log.state.snapshot
                assert found is not None and found.as_of_index > made_at and broker.snapshots.written > 0
                tables = dict(broker.log.state.tables)
            saved = read_state(tmp_path / "n0")
            assert saved is not None and saved.tables == tables and saved.is_whole
            async with broker_of(settings) as broker:  # with its queues
                assert (await broker.lane.put(message(b"5", topic="Old"))).queue_offset == 5
                await fills(broker, 160)
                await until(lambda: broker.reads.min_offset("Old", 0) == 6)
                queue = tmp_path / "n0/consumequeue/Filler/0"
                await until(lambda: not (queue / f"{0:020d}").exists())  # its messages have expired
                low = broker.reads.min_offset("Filler", 0)
                got = broker.reads.get("Filler", 0, low)
                assert got.status is PullStatus.FOUND and got.min_offset == low > 0
                assert broker.reads.get("Filler", 0, 0).next_offset == low
            wipe(tmp_path, keeps_state=keeps_state)
            async with broker_of(settings) as broker:  # with nothing but the log
                assert broker.log.next_offset("Old", 0) == 6 == broker.reads.max_offset("Old", 0)
                assert broker.log.state is not None and broker.log.state.tables == tables
                assert (await broker.lane.put(message(b"6", topic="Old"))).queue_offset == 6

    asyncio.run(story())


def test_no_snapshot_in_the_first_file_and_one_for_each_that_begins(tmp_path: Path) -> None:
    async def story() -> None:
        settings = settings_of(tmp_path, free_ports(1))
        async with engine_of(settings) as engine, broker_of(settings) as broker:
            await fills(broker, 10)
            assert broker.snapshots.written == 0 and not broker.snapshots.is_due
            await fills(broker, 30)
            await until(lambda: broker.snapshots.written == 1)
            state = broker.log.state
            assert state is not None and state.snapshot is not None
            first = state.snapshot
            assert engine.store.kept_for_snapshot(engine.replica.committed_index) == first.keep_from
            await fills(broker, 30)
            await until(lambda: broker.snapshots.written == 2)
            assert state.snapshot.as_of_index > first.last_index and not broker.snapshots.is_due

    asyncio.run(story())


def test_a_lane_that_ends_in_a_snapshot_makes_it_void_and_another_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        settings = settings_of(tmp_path, free_ports(1))
        async with engine_of(settings), broker_of(settings) as broker:
            await broker.metadata.change({TOPICS: {f"T{n}": {"note": "x" * 100} for n in range(300)}})  # several parts
            put = broker.snapshots._put
            cut: list[bytes] = []

            async def one_is_cut(part: bytes, lane: int) -> bool:
                if len(cut) < 3:
                    cut.append(part)
                    if len(cut) == 3:
                        broker.engine._client.link_of("n0").give_up("a test")
                return await put(part, lane)

            monkeypatch.setattr(broker.snapshots, "_put", one_is_cut)
            await fills(broker)
            await until(lambda: broker.snapshots.written == 1)
            assert len(cut) == 3 and broker.log.state is not None and broker.log.state.snapshot is not None
            assert broker.log.state.is_whole and len(broker.log.state.tables[TOPICS]) == 300

    asyncio.run(story())


def test_a_log_that_was_trimmed_past_what_is_dispatched_is_dispatched_anew(tmp_path: Path) -> None:
    """As for a broker that was away while the others went on, and whose member was given a base."""

    async def story() -> None:
        settings = settings_of(tmp_path, free_ports(1), 0, **SMALL)
        data, kept = tmp_path / "n0", tmp_path / "kept"
        async with engine_of(settings):
            async with broker_of(settings) as broker:
                await broker.lane.put(message(b"0", topic="Old"))
                await fills(broker, 2)
            for name in ("consumequeue", "index", "quorumscope"):
                if (data / name).exists():
                    shutil.copytree(data / name, kept / name)
            async with broker_of(settings) as broker:
                await broker.metadata.change({TOPICS: {"Late": {"perm": 6}}})
                await fills(broker, 160)
                await until(lambda: "00000000000000000000" not in log_files(tmp_path))
            for name in ("consumequeue", "index"):
                shutil.rmtree(data / name, ignore_errors=True)
            shutil.copytree(kept, data, dirs_exist_ok=True)
            async with broker_of(settings) as broker:
                assert broker.log.next_offset("Filler", 0) == 162 and broker.log.next_offset("Old", 0) == 1
                assert broker.metadata.table(TOPICS) == {"Late": {"perm": 6}}
                low = broker.reads.min_offset("Filler", 0)
                assert 2 < low < 162 and len(broker.reads.get("Filler", 0, low).records) > 0
                assert (await broker.lane.put(message(b"1", topic="Old"))).queue_offset == 1

    asyncio.run(story())


def test_a_crash_behind_a_topics_end_begins_its_queues_with_what_the_log_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic's files are gone then, and messages of before its end are dispatched again: what an old snapshot said
    of its queues is no place to go on from."""

    async def story() -> None:
        settings = settings_of(tmp_path, free_ports(1), 0, **SMALL)
        data, kept = tmp_path / "n0", tmp_path / "kept"
        async with engine_of(settings):
            async with broker_of(settings) as broker:
                await asyncio.gather(*(broker.lane.put(message(b"%d" % n, topic="Old")) for n in range(5)))
                await fills(broker, 160)
                await until(lambda: "00000000000000000000" not in log_files(tmp_path))
                assert broker.log.state is not None and broker.log.state.places["Old", 0] == 5
                await asyncio.gather(*(broker.lane.put(message(b"%d" % n, topic="Old")) for n in range(5, 8)))
            monkeypatch.setattr(dispatched_log, "SAVE_EVERY_S", 3600.0)
            async with broker_of(settings) as broker:
                assert (await broker.lane.put(message(b"8", topic="Old"))).queue_offset == 8
                await broker.metadata.change({TOPICS: {"Old": None}})
                assert not (data / "consumequeue/Old").exists()
                for name in ("consumequeue", "quorumscope"):
                    shutil.copytree(data / name, kept / name)
            for name in ("consumequeue", "quorumscope"):  # as a crash would have left them
                shutil.rmtree(data / name)
                shutil.copytree(kept / name, data / name)
            async with broker_of(settings) as broker:
                assert (broker.log.stopped_by, broker.reads.max_offset("Old", 0)) == ("", 0)
                assert (await broker.lane.put(message(b"new", topic="Old"))).queue_offset == 0

    asyncio.run(story())


def test_the_same_while_the_broker_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        settings = settings_of(tmp_path, free_ports(1))
        async with engine_of(settings), broker_of(settings) as broker:
            await fills(broker, 10)
            take = broker.log._take
            trimmed: list[int] = []

            def once_trimmed(piece: Piece) -> None:
                if not trimmed:
                    trimmed.append(piece.first_index)
                    raise Trimmed(piece.first_index, piece.first_index + 1, "n0")
                take(piece)

            monkeypatch.setattr(broker.log, "_take", once_trimmed)
            results = await asyncio.gather(*(broker.lane.put(message(BODY, topic="Filler")) for _ in range(10)))
            assert trimmed and [one.queue_offset for one in results] == list(range(10, 20))
            assert broker.reads.max_offset("Filler", 0) == 20
            assert len(broker.reads.get("Filler", 0, 0).records) > 0

    asyncio.run(story())
