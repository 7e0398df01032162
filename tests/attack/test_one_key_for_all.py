"""Messages that all have one key, or thousands each: where one of them lies is said without a walk along that key.

Whoever may send chooses the keys. Which ones, and in what order they were dispatched, comes from a printed seed.
"""

from __future__ import annotations

import random
from typing import Final

import pytest

from node.message_store.index_file import ENTRY, HEAD_BYTES, SLOT_BYTES, IndexFile, IndexHead, encode_head, file_bytes
from tests.attack.remoting_kit import drawn

SLOTS: Final = 8


def a_file(entries: list[tuple[int, int]]) -> IndexFile:
    """Of (hash, offset), as a broker links them."""
    slots, rows = [0] * SLOTS, [bytes(ENTRY.size)]
    for number, (key_hash, offset) in enumerate(entries, 1):
        rows.append(ENTRY.pack(key_hash, offset, 0, slots[key_hash % SLOTS]))
        slots[key_hash % SLOTS] = number
    begin, end = (entries[0][1], entries[-1][1]) if entries else (0, 0)
    head = encode_head(IndexHead(1_000, 1_000, begin, end, SLOTS, len(entries) + 1))
    data = head + b"".join(one.to_bytes(SLOT_BYTES, "big") for one in slots) + b"".join(rows)
    assert len(head) == HEAD_BYTES
    return IndexFile(data.ljust(file_bytes(SLOTS, len(entries) + 1), b"\0"), SLOTS)


def drawn_entries(rng: random.Random) -> list[tuple[int, int]]:
    """In the order of offsets, but for a part that was dispatched a second time."""
    found, offset = [], rng.randrange(1 << 40)
    for _ in range(rng.randrange(200)):
        offset += rng.randrange(100, 10_000)
        found += [(rng.randrange(20), offset) for _ in range(rng.choice([1, 1, 2, 50]))]
    if rng.random() < 0.3 and found:
        begin = rng.randrange(len(found))
        found = [*found, *found[begin:]]
    return found


def test_it_is_found_as_by_a_walk_along_its_keys() -> None:
    rng = drawn("index files")
    for _ in range(60):
        entries = drawn_entries(rng)
        file = a_file(entries)
        places = [offset for _, offset in entries] or [7]
        for _ in range(60):
            offset = rng.choice(places) + rng.choice([0, 0, 0, 1])
            hashes = set(rng.sample(range(25), rng.randrange(4)))
            walked = any(offset in file.places(one) for one in hashes)
            assert file.has(offset, hashes) is walked


def test_nobody_walks_along_a_key_that_all_messages_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a million with one key, the oldest was the last of a million entries: 32 of them took 43 s of a thread."""
    file = a_file([(1, 100 * number) for number in range(50_000)])
    looked_at = 0
    unpack = ENTRY.unpack_from

    class Counted:
        size = ENTRY.size

        @staticmethod
        def unpack_from(data: bytes, at: int) -> tuple[int, ...]:
            nonlocal looked_at
            looked_at += 1
            return unpack(data, at)

    monkeypatch.setattr("node.message_store.index_file.ENTRY", Counted)
    assert file.has(0, {1}) and file.has(100 * 49_999, {1}) and not file.has(100, {2})
    assert looked_at < 100


def test_a_message_without_keys_is_compared_with_no_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in no index: of a full file 20 million entries were compared with it, for each one of a page."""
    file = a_file([(1, 100 * number) for number in range(50)])
    monkeypatch.setattr(IndexFile, "entries", property(lambda _: pytest.fail("all entries are compared")))
    assert not file.has(150, set())
