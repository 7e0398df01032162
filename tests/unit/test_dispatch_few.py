"""A few units and index entries are written one by one, many at once: the same bytes, wherever the pieces end."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from node.message_store import dispatch_index, dispatch_queues
from node.message_store.dispatch_batch import KEYED, QUEUED
from node.message_store.dispatch_index import IndexMark, IndexWriter
from node.message_store.dispatch_queues import QueueWriter
from node.message_store.recent_entries import pieces_of
from node.message_store.write_files import OsDisk
from node.protocol.entry import HEAD, HEAD_BYTES
from tests.unit.message_kit import CALM

SLOTS, ENTRIES, FILE_BYTES = 5, 17, 160  # many meet in a slot, and files end within a piece
HASHES = st.one_of(st.integers(0, 12), st.just(0x7FFFFFFF))
TIMES = st.one_of(st.integers(0, 20_000), st.integers(1_795_000_000_000, 1_795_000_100_000), st.just(1 << 45))
KEYS = st.lists(st.tuples(HASHES, TIMES), max_size=60)
QUEUES = st.lists(st.tuples(st.integers(0, 3), st.integers(-(1 << 40), 1 << 40)), max_size=60)
CUTS = st.lists(st.integers(1, 20), min_size=1, max_size=8)


def pieces(count: int, cuts: list[int]) -> list[tuple[int, int]]:
    found, at = [], 0
    while at < count:
        size = cuts[len(found) % len(cuts)]
        found.append((at, min(count, at + size)))
        at += size
    return found


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file()}


def indexed(few: int, keys: list[tuple[int, int]], cuts: list[int]) -> tuple[dict[str, bytes], IndexMark, int]:
    rows = np.array([(hashed, 1000 + 250 * at, time_ms) for at, (hashed, time_ms) in enumerate(keys)], KEYED)
    with tempfile.TemporaryDirectory() as folder, patch.object(dispatch_index, "FEW", few):
        disk = OsDisk()
        writer = IndexWriter(Path(folder), SLOTS, ENTRIES, disk)
        writer.open(IndexMark(), is_clean=True)
        for begin, end in pieces(len(rows), cuts):
            writer.append(rows[begin:end])
        writer.take_unsynced().sync(disk)
        disk.close()
        return files_in(Path(folder)), writer.mark, writer.written


@given(KEYS, CUTS)
@settings(CALM, max_examples=60)
def test_index_entries_are_the_same_both_ways(keys: list[tuple[int, int]], cuts: list[int]) -> None:
    one_by_one, at_once = indexed(1 << 30, keys, cuts), indexed(0, keys, cuts)
    assert one_by_one == at_once
    assert one_by_one[2] == len(keys)


def queued(few: int, queues: list[tuple[int, int]], cuts: list[int]) -> tuple[dict[str, bytes], list[object]]:
    ends: dict[int, int] = {}
    rows = np.zeros(len(queues), QUEUED)
    for at, (queue, code) in enumerate(queues):
        rows[at] = (queue, ends.get(queue, 0), 48 + 250 * at, 200, code)
        ends[queue] = ends.get(queue, 0) + 1
    names = [(f"T{number % 2}", number) for number in range(4)]
    touched: list[object] = []
    with tempfile.TemporaryDirectory() as folder, patch.object(dispatch_queues, "FEW", few):
        disk = OsDisk()
        writer = QueueWriter(Path(folder), FILE_BYTES, disk)
        touched += [list(writer.append(names, rows[begin:end]).items()) for begin, end in pieces(len(rows), cuts)]
        assert writer.next_offsets == {names[queue]: count for queue, count in ends.items()}
        disk.close()
        return files_in(Path(folder)), touched


@given(QUEUES, CUTS)
@settings(CALM, max_examples=60)
def test_units_are_the_same_both_ways(queues: list[tuple[int, int]], cuts: list[int]) -> None:
    assert queued(1 << 30, queues, cuts) == queued(0, queues, cuts)


@given(st.lists(st.tuples(st.integers(0, 90), st.sampled_from((0, 0, 0, 1, 3))), min_size=1, max_size=20))
@CALM
def test_a_piece_names_the_messages_in_it(entries: list[tuple[int, int]]) -> None:
    """Where each begins and ends, with and without entries that are no messages."""
    data, expected, position = b"", [], 4096
    for index, (size, channel) in enumerate(entries):
        head = HEAD.pack(1, HEAD_BYTES + size, index, 1, position + len(data), channel, 0, 0, size)
        if channel == 0:
            expected.append((len(data) + HEAD_BYTES, size, position + len(data) + HEAD_BYTES))
        data += head + bytes(size)
    [piece] = pieces_of(data, 0)
    batch = piece.messages()
    rows = zip(batch.starts.tolist(), batch.sizes.tolist(), batch.offsets.tolist(), strict=True)
    assert list(rows) == expected
