"""The key-value store's events: the newest ones, in order and without a gap, whichever way they came."""

from __future__ import annotations

import random

import pytest

from node.state_machine import kv_events
from node.state_machine.kv_events import Events, Happened


@pytest.mark.parametrize("seed", range(20))
def test_what_is_kept_is_the_end_of_what_happened(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(f"events {seed}")
    most, most_bytes = rng.choice([1, 50, 300]), rng.choice([400, 2000, 10**6])
    monkeypatch.setattr(kv_events, "EVENTS_MAX", most)
    monkeypatch.setattr(kv_events, "EVENT_BYTES_MAX", most_bytes)
    monkeypatch.setattr(kv_events, "CHUNK_EVENTS", rng.choice([1, 7, 40]))
    monkeypatch.setattr(kv_events, "CHUNK_BYTES", rng.choice([30, 200]))
    events, every, index = Events(), list[Happened](), 0
    chunk_bytes_max = 2 * kv_events.CHUNK_BYTES
    events.clear(from_index=0)
    for _ in range(300):
        run: list[Happened] = []
        for _ in range(rng.choice([1, 1, 1, rng.randrange(1, 90)])):
            index += rng.choice([0, 1, 1, 3])  # one entry may expire several keys
            run.append((b"k%d" % index, rng.choice([None, b"value"]), index, 0))
        every += run
        sizes = [len(key) + len(value or b"") for key, value, _, _ in run]
        chunk_bytes_max = max(chunk_bytes_max, sum(sizes))
        if len(run) == 1:
            events.add(run[0], sizes[0])
        else:
            events.add_run(run, sum(sizes))
        kept = list(events)
        assert kept == every[-len(kept) :], "the newest ones, in order, none left out"
        assert events.size_bytes == sum(len(key) + len(value or b"") for key, value, _, _ in kept)
        if len(kept) < len(every):
            assert events.from_index == every[-len(kept) - 1][2] + 1
            assert len(kept) >= most or events.size_bytes + chunk_bytes_max > most_bytes
        asked = rng.randrange(events.from_index, index + 2)
        assert list(events.newer(asked)) == [one for one in kept if one[2] >= asked]


def test_what_was_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_events, "EVENTS_MAX", 100)
    monkeypatch.setattr(kv_events, "CHUNK_EVENTS", 10)
    events = Events()
    for index in range(1000):
        events.add((b"key", b"value", index, 0), 8)
        assert len(list(events)) < 100 + 2 * 10
    monkeypatch.setattr(kv_events, "EVENT_BYTES_MAX", 1000)
    monkeypatch.setattr(kv_events, "CHUNK_BYTES", 100)
    for index in range(1000, 2000):
        events.add((b"key", b"v" * 97, index, 0), 100)
    assert events.size_bytes <= 1000 + 100 and events.from_index > 1980


def test_nothing_of_a_cleared_history_is_left() -> None:
    events = Events()
    events.add_run([(b"key", b"value", index, 0) for index in range(5000)], 5000 * 8)
    events.add((b"key", None, 5000, 1), 3)
    events.clear(from_index=7)
    assert not list(events) and not events.size_bytes and events.from_index == 7
    assert not list(events.newer(0))
