"""What was just written, kept for dispatch: pieces that follow each other, bounded, and files where they are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from node.message_store.dispatch_mark import DerivedSizes
from node.message_store.heads import Heads
from node.message_store.local_recent import RecentPieces
from node.message_store.local_store import LocalMessageStore, LocalSettings
from node.message_store.new_message import NewMessage
from node.message_store.record import Host

HOST = Host(bytes([10, 0, 0, 1]), 10911)


def test_pieces_are_taken_together_and_once() -> None:
    recent = RecentPieces()
    recent.add(100, b"aabb", (0, 2), (2, 2))
    recent.add(104, b"ccc", (0,), (3,))
    found = recent.take(100, 107, 1 << 20)
    assert found is not None
    batch, end = found
    assert (bytes(batch.data), batch.starts.tolist(), end) == (b"aabbccc", [0, 2, 4], 107)
    assert recent.take(100, 107, 1 << 20) is None


def test_what_reaches_behind_the_end_waits_and_what_is_between_is_not_given() -> None:
    recent = RecentPieces()
    recent.add(0, b"aa", (0,), (2,))
    recent.add(2, b"bb", (0,), (2,))
    assert recent.take(0, 1, 1 << 20) is None
    found = recent.take(0, 2, 1 << 20)
    assert found is not None and found[1] == 2
    assert recent.take(3, 4, 1 << 20) is None  # within a piece: from the file


def test_a_gap_and_a_bound_let_the_oldest_go() -> None:
    recent = RecentPieces(bytes_max=4)
    recent.add(0, b"aa", (0,), (2,))
    recent.add(10, b"bb", (0,), (2,))
    assert recent.take(0, 20, 1 << 20) is None
    recent.add(12, b"ccc", (0,), (3,))
    found = recent.take(12, 20, 1 << 20)
    assert found is not None and bytes(found[0].data) == b"ccc"


def test_a_large_piece_is_taken_alone_as_it_lies_with_the_fields_that_were_read() -> None:
    data = b"".join(bytes([number % 250]) * 10_000 for number in range(20))
    starts = np.arange(20) * 10_000
    heads = Heads(starts, starts + 10_000, *(starts for _ in range(6)))
    recent = RecentPieces()
    recent.add(5000, b"ab", (0,), (2,))
    recent.add(5002, data, starts.tolist(), [10_000] * 20, heads)
    recent.add(5002 + len(data), b"cd", (0,), (2,))
    found = []
    place = 5000
    while (taken := recent.take(place, 1 << 30, 1 << 20)) is not None:
        batch, place = taken
        found.append((bytes(batch.data), batch.offsets.tolist(), batch.heads is not None))
    large = (data, (starts + 5002).tolist(), True)
    assert found == [(b"ab", [5000], False), large, (b"cd", [5002 + len(data)], False)]


@pytest.mark.parametrize("kept_bytes", [0, 300, 1 << 20])
def test_queues_are_the_same_from_memory_and_from_files(tmp_path: Path, kept_bytes: int) -> None:
    """Over the ends of files, with some dispatch between."""

    def written(root: Path, bytes_max: int) -> list[bytes]:
        sizes = DerivedSizes(queue_file_bytes=320, index_slots=100, index_entries=400)
        store = LocalMessageStore(root, LocalSettings(4096, reserve_bytes=0, sizes=sizes), lambda: 1_795_000_000_000)
        store.log.recent = RecentPieces(bytes_max)
        store.become_master()
        for number in range(100):
            store.put(NewMessage("T", number % 3, b"x" * (number % 70), HOST, HOST), lambda _result: None)
            if number % 7 == 0:
                store.dispatch(200)
        while store.dispatch():
            pass
        store.close()
        return [path.read_bytes() for path in sorted(root.glob("consumequeue/**/*")) if path.is_file()]

    assert written(tmp_path / "one", kept_bytes) == written(tmp_path / "other", 0) != []
