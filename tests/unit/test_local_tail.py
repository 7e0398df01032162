"""The last records of a log: the same ones from what was kept of their begins as from a walk of all files."""

from __future__ import annotations

import random
from pathlib import Path

from node.message_store.local_log import LocalCommitLog
from node.message_store.local_tail import KEPT
from tests.unit.test_local_log import FILE_BYTES, put


def walked(log: LocalCommitLog, count: int, end: int | None) -> list[object]:
    """By one who kept nothing."""
    log.flush()
    kept = log._tail._begins.copy()
    log._tail.clear()
    try:
        return list(log.last_records(count, end))
    finally:
        log._tail._begins = kept


def test_what_is_kept_finds_what_a_walk_finds_at_every_end_and_after_cuts(tmp_path: Path) -> None:
    rng = random.Random(5)
    log = LocalCommitLog(tmp_path, FILE_BYTES)
    places: list[int] = []
    for number in range(120):
        places.append(put(log, number, rng.randrange(400)))
        if rng.random() < 0.1:
            log.cut(end := rng.choice(places[-KEPT - 2 :]))
            places = [one for one in places if one < end]
        if rng.random() < 0.1:
            log.remove_below(log.max_offset - 3 * FILE_BYTES)
        for count in (1, 3, KEPT, KEPT + 4):
            for end in (None, *places[-KEPT - 2 :]):
                assert list(log.last_records(count, end)) == walked(log, count, end), (number, count, end)
    log.close()


def test_a_slave_that_connects_again_reads_its_last_records_and_not_their_file(tmp_path: Path) -> None:
    log = LocalCommitLog(tmp_path, 1 << 20)
    for number in range(1000):
        put(log, number)
    read_bytes = 0
    read = log._tail._read

    def counting(offset: int, length: int) -> bytes:
        nonlocal read_bytes
        found = read(offset, length)
        read_bytes += len(found)
        return found

    log._tail._read = counting
    found = log.last_records(KEPT)
    assert len(found) == KEPT and found[-1] == log.last_record
    assert read_bytes == sum(one.size_bytes for one in found) == log.max_offset - found[0].offset
    log.close()
