"""`bench members`: a member is added and promoted under one writer; the longest gap between two acknowledgements.

Each round has a control of the same length right before it: the new process runs, and nothing is changed. Then the
member is added, catches up, is promoted by itself and votes; at the round's end it is removed again and its store
goes. Both gaps are of the same writer, which appends one by one and waits for each.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from app.bench.cluster import BenchCluster
from app.bench.common import free_ports, say
from app.bench.machine import machine
from app.bench.running import measured
from node.client import LedgerClient
from node.client import members as of_group
from node.views.members import MembersView
from node.views.reading import read

NEW: Final = "n9"
STARTED_S: Final = 2.0  # the new member's process has loaded what it needs
WITHIN_S: Final = 60.0
AROUND_S: Final = 0.3  # the writer goes on before and afterwards
BODY: Final = b"x" * 256


@dataclass(slots=True, frozen=True)
class MembersOptions:
    rounds: int = 10
    members: int = 3
    flush: str = "sync"
    directory: Path | None = None


async def longest_gap(client: LedgerClient, work: Callable[[], Awaitable[float]]) -> tuple[float, float]:
    """Of one writer while `work` goes on, and what that says of itself. Raises LedgerError."""
    stop, gaps_s = asyncio.Event(), [0.0]

    async def write() -> None:
        last = time.perf_counter()
        while not stop.is_set():
            await client.append(BODY)
            now = time.perf_counter()
            gaps_s.append(now - last)
            last = now

    writer = asyncio.create_task(write())
    try:
        await asyncio.sleep(AROUND_S)
        said = await work()
        await asyncio.sleep(AROUND_S)
    finally:
        stop.set()
        await writer
    return max(gaps_s), said


async def change(operator: LedgerClient, **fields: Any) -> None:
    """Raises RuntimeError where it is refused."""
    answer = await of_group.change_members(operator, fields)
    if answer.get("code") != 200:
        raise RuntimeError(f"{fields} was answered {answer.get('code')}: {answer.get('detail')}")


async def add(operator: LedgerClient, address: str) -> float:
    """Until it votes; the seconds that took."""
    began = time.perf_counter()
    await change(operator, kind="add", memberId=NEW, address=address)
    async with asyncio.timeout(WITHIN_S):
        while not await votes(operator):  # noqa: ASYNC110 - another process's
            await asyncio.sleep(0.05)
    return time.perf_counter() - began


async def votes(operator: LedgerClient) -> bool:
    view = read(MembersView, await of_group.members(operator))
    voter = any(one.id == NEW and one.kind == "voter" for one in view.items or ())
    return voter and view.pending is None


async def _run(options: MembersOptions) -> dict[str, Any]:
    gaps_s: list[float] = []
    control_s: list[float] = []
    took_s: list[float] = []
    cluster = BenchCluster(options.flush, options.members, options.directory)
    on = machine(cluster.directory)
    async with cluster, cluster.using() as client, cluster.using() as operator:
        for number in itertools.count(1):
            port, control_port = free_ports(2)
            address = f"127.0.0.1:{port}"
            cluster.control_ports[NEW] = control_port
            cluster.routes[NEW] = f"{cluster.peers};{NEW}-{address}"
            await cluster.start(NEW, joins=True)
            await asyncio.sleep(STARTED_S)
            window_s = statistics.median(took_s) if took_s else 1.0

            async def nothing(window_s: float = window_s) -> float:
                await asyncio.sleep(window_s)
                return window_s

            async def added(address: str = address) -> float:
                return await add(operator, address)

            control_s.append((await longest_gap(client, nothing))[0])
            gap_s, seconds = await longest_gap(client, added)
            gaps_s.append(gap_s)
            took_s.append(seconds)
            say(f"round {number}/{options.rounds}: {gap_s * 1000:.1f} ms, control {control_s[-1] * 1000:.1f} ms")
            await change(operator, kind="remove", memberId=NEW)
            await cluster.kill(NEW)
            shutil.rmtree(cluster.directory / NEW)
            if number == options.rounds:
                break
    return {
        "gaps_ms": in_ms(gaps_s), "control_ms": in_ms(control_s),
        "median_ms": in_ms([statistics.median(gaps_s)])[0], "max_ms": in_ms([max(gaps_s)])[0],
        "control_median_ms": in_ms([statistics.median(control_s)])[0], "control_max_ms": in_ms([max(control_s)])[0],
        "voter_after_s": [round(seconds, 3) for seconds in took_s], "rounds": options.rounds,
        "members": options.members, "flush": options.flush, "machine": on,
    }  # fmt: skip


def in_ms(seconds: list[float]) -> list[float]:
    return [round(one * 1000, 2) for one in seconds]


def run(options: MembersOptions) -> dict[str, Any]:
    """Starts a group in a temporary directory, adds and removes a member again and again: what `--json` prints."""
    return measured(_run(options))


def text(result: dict[str, Any]) -> list[str]:
    return [
        f"longest gap while a member comes: median {result['median_ms']} ms, worst {result['max_ms']} ms",
        f"without a change: median {result['control_median_ms']} ms, worst {result['control_max_ms']} ms",
        f"a voter after {statistics.median(result['voter_after_s']):.2f} s (median of {result['rounds']})",
    ]
