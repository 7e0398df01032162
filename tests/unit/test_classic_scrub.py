"""The background reading of a classic broker's log: what it finds, what it passes over, and when a finding ends."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from node.broker.classic.scrub import DAMAGES_MAX, Damage, LogScrub
from node.message_store.local_log import LocalCommitLog
from tests.unit.classic_kit import story, two
from tests.unit.engine_kit import until
from tests.unit.ha_kit import FILE_BYTES, put

Notes = list[tuple[str, str, str]]


def patch(log: LocalCommitLog, offset: int, data: bytes) -> bytes:
    """As a disk does it, behind everybody's back; what was there."""
    start = offset - offset % FILE_BYTES
    with os.fdopen(os.open(log.root / "commitlog" / f"{start:020}", os.O_RDWR), "r+b") as file:
        file.seek(offset - start)
        before = file.read(len(data))
        file.seek(offset - start)
        file.write(data)
    return before


def log_of(root: Path, count: int = 60) -> LocalCommitLog:
    """Of several files, flushed."""
    log = LocalCommitLog(root, FILE_BYTES)
    put(log, *range(count))
    log.flush()
    assert len(log.starts) > 2
    return log


async def slept(_seconds: float) -> None:
    await asyncio.sleep(0)


def scrub_of(log: LocalCommitLog) -> tuple[LogScrub, Notes]:
    notes: Notes = []
    return LogScrub(log, 1 << 30, 0, lambda *said: notes.append(said), lambda: False, slept), notes


@story
async def test_a_byte_that_was_changed_is_found_where_it_is_until_it_is_right_again(tmp_path: Path) -> None:
    log, rng = log_of(tmp_path), random.Random(5)
    scrub, notes = scrub_of(log)
    await scrub.look()
    assert (scrub.passes, scrub.damages, scrub.place) == (1, [], log.max_offset)
    for record in rng.sample(log.last_records(20), 8):
        place = record.offset + rng.choice((0, 4, 8, 30, 90, 100))  # size, magic, CRC, place, body
        [old] = patch(log, place, b"\0")
        patch(log, place, bytes([old ^ 0x41]))
        await scrub.look()
        [found] = scrub.damages
        assert (found.offset, found.end) == (record.offset, record.offset + record.size_bytes), place
        [problem] = scrub.problems()
        assert problem["code"] == "log_damaged" and problem["about"] == str(record.offset)
        await scrub.look()
        assert scrub.damages == [found] and len(notes) == 1  # an alarm once
        patch(log, place, bytes([old]))
        await scrub.look()
        assert scrub.damages == [] and scrub.as_said()["damaged"] == []
        notes.clear()


@story
async def test_the_last_record_of_a_file_and_what_is_lost_whole(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    begin = log.starts[1]
    patch(log, begin, bytes(FILE_BYTES))
    scrub, _notes = scrub_of(log)
    await scrub.look()
    assert [(one.offset, one.end) for one in scrub.damages] == [(begin, begin + FILE_BYTES)]
    last = log.last_record
    patch(log, last.offset + last.size_bytes - 3, b"\xff\xff\xff")  # no CRC covers these; the head's lengths do
    patch(log, last.offset, b"\0\0\0\1")
    await scrub.look()
    assert [one.offset for one in scrub.damages] == [begin, last.offset]
    assert scrub.damages[1].end == log.flushed_offset


@story
async def test_what_is_cut_or_expires_meanwhile_is_no_damage(tmp_path: Path) -> None:
    for what in ("cut", "expire"):
        log = log_of(tmp_path / what)
        scrub, notes = scrub_of(log)
        second, step = log.starts[1], scrub._step

        def meanwhile(
            place: int, upto: int, log: LocalCommitLog = log, step=step, what: str = what, at: int = second
        ) -> tuple[int, Damage | None]:  # fmt: skip
            if place == at and len(log.starts) > 2:
                if what == "cut":
                    log.cut(at)
                else:
                    log.remove_below(log.starts[-1])
            return step(place, upto)

        scrub._step = meanwhile  # type: ignore[method-assign]
        await scrub.look()
        assert scrub.damages == [] and notes == [], what
        assert scrub.place == log.max_offset


@story
async def test_findings_are_bounded_and_a_log_that_is_cut_is_waited_for(tmp_path: Path) -> None:
    log = log_of(tmp_path, DAMAGES_MAX * 3)
    for record in log.last_records(DAMAGES_MAX * 3)[::2]:
        patch(log, record.offset + 95, b"\xff\x00\xff")
    cutting = [True]
    scrub = LogScrub(log, 1 << 30, 0, lambda *_said: None, lambda: cutting[0], slept)
    looking = asyncio.create_task(scrub.look())
    for _ in range(50):
        await asyncio.sleep(0)
    assert scrub.place == log.min_offset and not scrub.damages
    cutting[0] = False
    await looking
    assert len(scrub.damages) <= DAMAGES_MAX
    assert all(one.end > one.offset for one in scrub.damages)


@story
async def test_a_broker_says_what_of_its_log_is_damaged(tmp_path: Path) -> None:
    async with two(tmp_path, **{"store.scrub_pause_s": "1"}) as (master, slave), master.client() as client:
        await client.send(*[b"message %d" % number for number in range(5)])
        log = slave.broker.store.log
        await until(lambda: log.max_offset == log.flushed_offset == master.broker.store.log.max_offset)
        third = log.last_records(3)[0]
        path = log.root / "commitlog" / f"{0:020}"
        data = bytearray(path.read_bytes())
        data[third.offset + 92] ^= 0xFF
        path.write_bytes(data)
        await until(lambda: bool(slave.broker._scrub.damages))
        said = await slave.broker._ha({})
        assert [one["code"] for one in said["problems"]] == ["log_damaged"]
        assert said["scrub"]["damaged"][0]["from_offset"] == third.offset
        assert "ha_log_damaged" in {kind for kind, _severity, _text in slave.notes}
        assert not (await master.broker._ha({}))["scrub"]["damaged"]


def test_a_rate_of_zero_reads_nothing(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    scrub = LogScrub(log, 0, 0, lambda *_said: None, lambda: False, slept)

    async def run() -> None:
        running = asyncio.create_task(scrub.run())
        for _ in range(50):
            await asyncio.sleep(0)
        running.cancel()

    asyncio.run(run())
    assert scrub.passes == 0 and scrub.place == log.min_offset


@pytest.mark.parametrize("bytes_per_s", [0, 1 << 30])
def test_what_a_read_met_is_damage_until_the_place_is_sound(bytes_per_s: int, tmp_path: Path) -> None:
    log, notes = log_of(tmp_path), Notes()
    scrub = LogScrub(log, bytes_per_s, 0, lambda *said: notes.append(said), lambda: False, slept)
    record = log.last_records(20)[0]
    before = patch(log, record.offset + 95, b"\xff\x00\xff")
    scrub.met(record.offset, log.read(record.offset, record.size_bytes))
    scrub.met(record.offset, log.read(record.offset, record.size_bytes))
    [found] = scrub.damages
    assert (found.offset, found.end) == (record.offset, record.offset + record.size_bytes)

    async def run(goes_on: Callable[[], bool]) -> None:
        running = asyncio.create_task(scrub.run())
        await until(lambda: scrub.passes > 1 or not bytes_per_s)
        await until(lambda: not goes_on())
        running.cancel()

    asyncio.run(run(lambda: False))
    assert len(scrub.damages) == 1 and len(notes) == 1
    patch(log, record.offset + 95, before)
    asyncio.run(run(lambda: bool(scrub.damages)))
    assert scrub.damages == [] and len(notes) == 1


@story
async def test_what_has_expired_takes_no_finding_s_place_where_there_are_no_passes(tmp_path: Path) -> None:
    """Of so many findings the next one was not said any more."""
    log = log_of(tmp_path, DAMAGES_MAX * 3)
    scrub = LogScrub(log, 0, 0, lambda *_said: None, lambda: False, slept)
    records = log.last_records(DAMAGES_MAX * 3)
    last = records[-1]
    for record in [*records[:DAMAGES_MAX], last]:
        patch(log, record.offset + 95, b"\xff\x00\xff")
    for record in records[:DAMAGES_MAX]:
        scrub.met(record.offset, log.read(record.offset, record.size_bytes))
    log.remove_below(log.starts[-1])
    await scrub._look_again()
    scrub.met(last.offset, log.read(last.offset, last.size_bytes))
    assert [one.offset for one in scrub.damages] == [last.offset]


@story
async def test_a_consumer_of_a_pair_gets_no_body_that_is_not_what_was_sent(tmp_path: Path) -> None:
    """It got what lay on the disk, until a pass of the background reading, an hour later, said that it was damaged."""
    async with two(tmp_path, **{"store.scrub_bytes_per_s": "0"}) as (master, _slave), master.client() as client:
        await client.send(*[b"message %d" % number for number in range(5)])
        log = master.broker.store.log
        await until(lambda: log.max_offset == log.flushed_offset)
        records = log.last_records(3)
        patch(log, records[0].offset + 92, b"\xff")
        got = [master.broker.reads.record(one.offset, one.size_bytes) for one in records]
        assert [one is None for one in got] == [True, False, False], (records, log.max_offset)
        [problem] = (await master.broker._ha({}))["problems"]
        assert problem["code"] == "log_damaged"
