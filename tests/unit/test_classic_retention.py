"""Old files of a classic broker's log go by RocketMQ's rules, over real files; queues and index follow."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from node.broker.classic import retention
from node.broker.classic.retention import HOUR_S, Retention
from node.config_models import RetentionTable
from node.message_store.local_recovery import file_name
from node.rocketmq.codes import Answer, Request
from tests.unit.broker_kit import Client, pull_fields
from tests.unit.classic_kit import Served, classic, classic_settings, pair_ports, story, two
from tests.unit.engine_kit import until

BODY = bytes(20_000)  # three a file
NOW_S = time.mktime((2026, 11, 23, 12, 0, 0, 0, 0, -1))
AT_FOUR_S = time.mktime((2026, 11, 23, 4, 30, 0, 0, 0, -1))


def rule(served: Served, monkeypatch: pytest.MonkeyPatch, used: float = 0.1, **table: object) -> Retention:
    """`used`: of the disk."""
    monkeypatch.setattr(retention.shutil, "disk_usage", lambda _path: SimpleNamespace(total=1000, used=used * 1000))
    broker = served.broker
    given = RetentionTable.model_validate({"enabled": True} | table)
    return Retention(given, broker.store, broker.reads, broker.said, broker.pair.needed_from)


async def filled(served: Served, client: Client, count: int = 12) -> list[int]:
    """Where its files begin, all of them written 100 hours before NOW_S but the last two."""
    for number in range(count):
        await client.send(BODY, i=f"KEYS\x01k{number}\x02")
    log = served.broker.store.log
    for start in log.starts[:-2]:
        os.utime(log.root / "commitlog" / file_name(start), (NOW_S - 100 * HOUR_S,) * 2)
    for start in log.starts[-2:]:
        os.utime(log.root / "commitlog" / file_name(start), (NOW_S - HOUR_S,) * 2)
    return log.starts


async def left(served: Served) -> list[int]:
    """Where its files begin, as they are on disk."""
    return sorted(int(path.name) for path in (served.broker.store.root / "commitlog").iterdir())


@story
async def test_old_files_go_in_their_hour_and_consumers_go_on_behind_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    settings = classic_settings(tmp_path, "m", "async_master", pair_ports("m"))
    async with classic(settings) as master, master.client() as client:
        starts = await filled(master, client)
        keeping = rule(master, monkeypatch)
        assert await keeping.look(NOW_S) == 0  # not its hour
        await until(lambda: master.broker.store.log.flushed_offset == master.broker.store.log.max_offset)
        assert await keeping.look(AT_FOUR_S) == len(starts) - 2
        assert await left(master) == starts[-2:] and master.broker.store.log.min_offset == starts[-2]
        [answer] = await client.ask((Request.PULL_MESSAGE, pull_fields(0), b""))
        assert answer.code == Answer.PULL_OFFSET_MOVED
        first = int((answer.fields or {})["nextBeginOffset"])
        assert 0 < first < 12
        [answer] = await client.ask((Request.PULL_MESSAGE, pull_fields(first), b""))
        assert answer.code == Answer.SUCCESS
        assert await keeping.look(AT_FOUR_S) == 0
        await client.send(b"goes on")
    async with classic(settings) as master, master.client() as client:  # and a start finds nothing missing
        assert master.broker.store.log.min_offset == starts[-2]
        assert master.broker.store.next_offsets["TopicTest", 0] == 13


@story
async def test_what_a_connected_slave_lacks_stays_unless_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    async with two(tmp_path, "async_master") as (master, slave), master.client() as client:
        starts = await filled(master, client)
        await until(lambda: slave.broker.store.log.max_offset == master.broker.store.log.max_offset)
        await until(lambda: master.broker.store.log.flushed_offset == master.broker.store.log.max_offset)
        [connection] = master.broker.pair.service.connections
        await until(lambda: connection.slave_ack_offset == master.broker.store.log.max_offset)
        connection.slave_ack_offset = starts[1]
        assert await rule(master, monkeypatch).look(AT_FOUR_S) == 1
        assert await rule(master, monkeypatch, used=0.75).look(NOW_S) == 0
        assert await rule(master, monkeypatch, used=0.95, enable_disk_force_clean=False).look(NOW_S) == 0
        assert await rule(master, monkeypatch, used=0.95).look(NOW_S) > 0  # whatever its slaves lack
        assert await left(slave) == starts  # each broker by its own rules


@story
async def test_a_log_that_is_too_large_and_the_file_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    settings = classic_settings(tmp_path, "m", "async_master", pair_ports("m"))
    async with classic(settings) as master, master.client() as client:
        starts = await filled(master, client)
        log = master.broker.store.log
        await until(lambda: log.flushed_offset == log.max_offset)
        keeping = rule(master, monkeypatch, max_log_bytes=2 * log.file_bytes)
        assert await keeping.look(NOW_S) == len(starts) - 2
        assert await rule(master, monkeypatch, max_log_bytes=1).look(NOW_S) == 1
        assert await left(master) == starts[-1:]  # that one never
        assert (await client.send(b"goes on"))[0].code == Answer.SUCCESS
