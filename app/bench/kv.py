"""`bench kv`: what the key-value store takes and answers, beside plain appends of the same size in the same run.

Two groups, one a log alone, one with the store, take their turns round by round: single appends, puts, and linearizable
gets of keys that are there. A ratio is the median of the rounds' own, to the singles of that round.

Invariant: a put and a get are made as a single append is, submitted, the next as soon as one ends, so that they differ
in nothing but what the group does with them.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from app.bench.append import WARM_UP_S, row
from app.bench.cluster import BenchCluster
from app.bench.common import Sample, say
from app.bench.load import Appender, Case, measure
from app.bench.machine import machine, python_step_ns, spread_of
from app.bench.running import measured
from app.bench.usage import cpu_s
from node.client.kv import KvClient

KEYS: Final = 20_000  # so many that a put finds another one's key, and a get what was put
FILLED_TOGETHER: Final = 500


@dataclass(slots=True, frozen=True)
class KvOptions:
    """`body_bytes`: of an append's body, and of a put's key and value together."""

    flush: str = "async"
    body_bytes: int = 256
    in_flight: int = 2048
    seconds: float = 3.0
    rounds: int = 5
    directory: Path | None = None


class Puts:
    """Puts of one value under keys in turn, key and value as long as a body of `body_bytes`; the body is not used."""

    def __init__(self, store: KvClient, keys: Sequence[bytes], body_bytes: int) -> None:
        self._store, self._keys, self._value = store, itertools.cycle(keys), b"v" * max(1, body_bytes - len(keys[0]))

    def submit(self, _body: bytes) -> asyncio.Future[Any]:
        return self._store.submit_put(next(self._keys), self._value)

    async def append(self, body: bytes) -> object:
        return await self.submit(body)

    async def append_many(self, bodies: Sequence[bytes]) -> object:
        return await asyncio.gather(*(self.append(body) for body in bodies))


class Gets:
    """Linearizable gets of keys in turn; the body is not used."""

    def __init__(self, store: KvClient, keys: Sequence[bytes]) -> None:
        self._store, self._keys = store, itertools.cycle(keys)

    def submit(self, _body: bytes) -> asyncio.Future[Any]:
        return self._store.submit_get(next(self._keys))

    async def append(self, body: bytes) -> object:
        return await self.submit(body)

    async def append_many(self, bodies: Sequence[bytes]) -> object:
        return await asyncio.gather(*(self.append(body) for body in bodies))


def keys_of(count: int) -> list[bytes]:
    return [b"key-%08d" % number for number in range(count)]


def ratios_to(singles: Sequence[Sample], others: Sequence[Sample]) -> list[float]:
    """Round by round."""
    pairs = zip(others, singles, strict=True)
    return [round(one.entries_per_s / single.entries_per_s, 3) for one, single in pairs]


async def _run(options: KvOptions) -> dict[str, Any]:
    case = Case(options.in_flight, 1)
    samples: dict[str, list[Sample]] = {"singles": [], "puts": [], "gets": []}
    steps_ns: list[float] = []
    plain = BenchCluster(options.flush, parent=options.directory)
    with_store = BenchCluster(options.flush, parent=options.directory, with_kv=True)
    on = machine(plain.directory)
    async with plain, with_store, AsyncExitStack() as stack:
        client = await stack.enter_async_context(plain.using())
        store = KvClient(await stack.enter_async_context(with_store.using()), deadline_s=30.0)
        keys = keys_of(KEYS)
        puts = Puts(store, keys, options.body_bytes)
        for _ in range(0, KEYS, FILLED_TOGETHER):
            await asyncio.gather(*(puts.submit(b"") for _ in range(FILLED_TOGETHER)))
        ways: dict[str, Appender] = {"singles": client, "puts": puts, "gets": Gets(store, keys)}
        pids = {name: plain.pids() for name in ways}
        pids["puts"] = pids["gets"] = [*with_store.pids(), *with_store.machine_pids()]
        for way in ways.values():
            await measure(way, case, options.body_bytes, WARM_UP_S)
        for number in range(options.rounds):
            steps_ns += python_step_ns()
            for name, way in ways.items():
                sample = await measure(way, case, options.body_bytes, options.seconds, partial(cpu_s, pids[name]))
                samples[name].append(sample)
                say(
                    f"round {number + 1}/{options.rounds}: {name}: {sample.entries_per_s:,.0f}/s,"
                    f" p50 {sample.p50_ms:.3f} ms"
                )
    per_round = {name: ratios_to(samples["singles"], samples[name]) for name in ("puts", "gets")}
    return {
        "results": [
            row("quorumscope", options.flush, options.body_bytes, case, rounds, what=name)
            for name, rounds in samples.items()
        ],
        "ratios": {name: round(statistics.median(found), 3) for name, found in per_round.items()},
        "ratio_spread": {name: [min(found), max(found)] for name, found in per_round.items()},
        "rounds": options.rounds, "machine": on | {"python_step_ns": spread_of(steps_ns)},
    }  # fmt: skip


def run(options: KvOptions) -> dict[str, Any]:
    """Starts both groups in temporary directories, measures, and returns what `--json` prints."""
    return measured(_run(options))
