"""The bytes of a topic's queues: counted where they are few, estimated where they are many, and read seldom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from node.broker.topic_sizes import KEPT_S, PIECES, SAMPLE, TopicSizes

COUNT = 10 * SAMPLE


class Queue:
    """Units by number; `low`: the first that is there; `per_file`: a read ends with a file."""

    def __init__(self, sizes: list[int], low: int = 0, per_file: int = 1 << 30) -> None:
        self.sizes, self.low, self.per_file, self.read = sizes, low, per_file, 0

    def min_offset(self, topic: str, queue_id: int) -> int:
        return self.low

    def max_offset(self, topic: str, queue_id: int) -> int:
        return len(self.sizes)

    def units(self, topic: str, queue_id: int, first: int, count: int) -> list[tuple[int, int, int]]:
        count = min(count, self.per_file - first % self.per_file)
        self.read += count
        return [(0, one, 0) for one in self.sizes[first : first + count]]


def sizes_of(queue: Any, clock: Callable[[], float] = lambda: 0.0) -> tuple[int, bool]:
    return TopicSizes(queue, clock).of("T", 0)


@pytest.mark.parametrize(
    ("queue", "found"),
    [
        (Queue([]), (0, False)), (Queue([7] * 5, low=5), (0, False)), (Queue([100, 300]), (400, False)),
        (Queue([100, 300, 5], low=1), (305, False)),
        (Queue(list(range(SAMPLE)), per_file=7), (SAMPLE * (SAMPLE - 1) // 2, False)),
        (Queue([250] * COUNT), (250 * COUNT, True)), (Queue([250] * COUNT, low=COUNT - 3), (750, False)),
    ],
)  # fmt: skip
def test_a_short_queue_is_counted_and_a_long_one_estimated(queue: Queue, found: tuple[int, bool]) -> None:
    assert sizes_of(queue) == found


def test_an_estimate_looks_at_all_parts_of_a_queue_and_reads_little() -> None:
    queue = Queue([100] * (COUNT // 2) + [300] * (COUNT // 2))
    assert sizes_of(queue) == (200 * COUNT, True)
    assert queue.read == SAMPLE // PIECES * PIECES


def test_what_did_not_change_is_not_read_again_and_nothing_is_often() -> None:
    now = [0.0]
    queue: Any = Queue([100] * COUNT)
    sizes = TopicSizes(queue, lambda: now[0])
    assert sizes.of("T", 0) == sizes.of("T", 0) == (100 * COUNT, True)
    queue.sizes += [900] * COUNT
    assert queue.read == SAMPLE and sizes.of("T", 0) == (200 * COUNT, True), "the new ones count as the others do"
    now[0] += KEPT_S
    assert sizes.of("T", 0)[0] > 700 * COUNT and queue.read == 2 * SAMPLE
    queue.sizes = [10]
    assert sizes.of("T", 0) == (10, False), "a topic that began anew"
