"""The benches' arithmetic: what they print follows from what they measured. The runs themselves are `make bench`."""

from __future__ import annotations

import asyncio
import math
from typing import Any, cast

import pytest

from app.bench.append import AppendOptions, Case, cases_of, ratios_of, row
from app.bench.common import Sample, percentile
from app.bench.failover import Acknowledged, count_lost
from node.client import LedgerClient
from node.protocol.entry import Entry, Magic


class ReadOnlyLog:
    """What `count_lost` needs of a client: ranges of entries."""

    def __init__(self, bodies: dict[int, bytes]) -> None:
        self.entries = [Entry(Magic.NORMAL, index, 1, 0, body) for index, body in sorted(bodies.items())]

    async def read(self, from_index: int, limit: int) -> list[Entry]:
        return [entry for entry in self.entries if entry.index >= from_index][:2]


@pytest.mark.parametrize(
    ("log", "lost"),
    [
        ({1: b"a", 2: b"b", 3: b"noop", 5: b"c"}, 0),
        ({1: b"a", 5: b"c"}, 1),
        ({1: b"a", 2: b"changed", 5: b"c"}, 1),
        ({}, 3),
    ],
)
def test_every_acknowledged_entry_is_looked_for(log: dict[int, bytes], lost: int) -> None:
    promised = Acknowledged({1: b"a", 2: b"b", 5: b"c"})
    assert asyncio.run(count_lost(cast(LedgerClient, ReadOnlyLog(log)), promised)) == lost


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(n) for n in range(100)]
    assert percentile(values, 0.50) == 50.0
    assert percentile(values, 0.99) == 99.0
    assert percentile([7.0], 0.99) == 7.0
    assert math.isnan(percentile([], 0.5))


def test_rows_are_medians_and_ratios_compare_like_cases_only() -> None:
    singles, batches = Case(2048, 1), Case(4, 1000)
    ours = row("quorumscope", "async", 256, singles, [Sample(90.0, 2, 3), Sample(100.0, 1, 2), Sample(800.0, 9, 9)])
    assert (ours["entries_per_s"], ours["p50_ms"], ours["p99_ms"]) == (100.0, 2, 3)
    assert ours["mb_per_s"] == 0.03
    theirs = row("pysyncobj", "none", 256, singles, [Sample(50.0, 1, 1)])
    lonely = row("pysyncobj", "none", 256, batches, [Sample(50.0, 1, 1)])
    ratios: dict[str, Any] = ratios_of([ours, theirs, lonely])
    assert list(ratios.values()) == [2.0]
    assert "in memory" in next(iter(ratios))


def test_latency_is_always_one_of_the_cases() -> None:
    assert cases_of(AppendOptions(in_flight=7, batch=5)) == [Case(1, 1), Case(7, 1), Case(4, 5)]
