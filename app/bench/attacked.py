"""`bench attacked`: what a client with a right to be there notices while a stranger attacks the leader's member port.

A client appends at its own pace for a while, once beside the attack and once beside a control: the same attack, by the
same process, on the only member of another group on this machine. Both burn the same CPU, so that what differs is what
the attack does to the group and not what it takes from the machine; an election of the group's own shows in both.

Bounds, all on as few cores as asked: of the appends asked for 95 % are acknowledged in their time; the p99 is at most
three times the control's; leader and term stay unless the control's changed as well; the leader's private memory grows
by 64 MiB at most; and afterwards no connection is left and the engine is the same process.
"""

from __future__ import annotations

import asyncio
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any, Final

from app.bench.attacker import ATTACKS
from app.bench.busy import share_cores
from app.bench.cluster import GROUP, BenchCluster
from app.bench.common import Sample, say
from app.bench.leaderships import agreed
from app.bench.machine import machine
from app.bench.paced import paced
from app.bench.running import measured
from app.bench.usage import rss_anon_mb
from app.bench.views import state_of
from node.children import apart
from node.client import LedgerClient
from node.config import parse_peers

RATE_SHARE_MIN: Final = 0.95
P99_RATIO_MAX: Final = 3.0
GROWTH_MB_MAX: Final = 64 * 1.048576
P99_MS_MIN: Final = 5.0  # a control below this is taken for it: beside nothing else a ratio of two such says nothing
LOOK_EVERY_S: Final = 0.05
GONE_WITHIN_S: Final = 90.0
BODY_BYTES: Final = 256
OWN_CLIENTS: Final = 4  # connections of the bench's own client
SEED: Final = 12


@dataclass(slots=True, frozen=True)
class AttackedOptions:
    """`attacks`: parts of names; none: all of them."""

    seconds: float = 60.0
    rate_per_s: float = 1000.0
    attacks: tuple[str, ...] = ()
    cores: int = 2
    flush: str = "async"
    directory: Path | None = None


@dataclass(slots=True)
class Side:
    """One time beside an attack."""

    sample: Sample | None
    failed: str
    led_before: tuple[int, str]
    led_after: tuple[int, str]
    begun_mb: float
    most_mb: float

    @property
    def growth_mb(self) -> float:
        return self.most_mb - self.begun_mb

    @property
    def memory_ratio(self) -> float | None:
        """Of the leader's private memory at most to that at the begin; None where the system does not tell."""
        return round(self.most_mb / self.begun_mb, 3) if self.begun_mb > 0 else None

    @property
    def stayed(self) -> bool:
        return self.led_before == self.led_after


@asynccontextmanager
async def attacking(attack: str, address: str, group: str) -> AsyncIterator[Process]:
    """A process that attacks until the end of this."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "app.bench.attacker", attack, address, group, str(SEED),
        stdout=PIPE, preexec_fn=apart(SIGKILL),
    )  # fmt: skip
    try:
        assert process.stdout is not None
        await process.stdout.readline()
        yield process
        assert process.returncode is None, f"{attack} ended by itself"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def most_mb(pid: int) -> float:
    """The most private memory of that process, until this is cancelled."""
    most = rss_anon_mb(pid) or 0.0
    try:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            most = max(most, rss_anon_mb(pid) or 0.0)
    except asyncio.CancelledError:
        return most


async def beside(
    cluster: BenchCluster, client: LedgerClient, attack: str, target: tuple[str, str], options: AttackedOptions
) -> Side:
    """Appends at the client's pace while `target` (its address and its group) is attacked."""
    before = await agreed(cluster, client)
    pid = cluster.processes[before[1]].pid
    begun_mb = rss_anon_mb(pid) or 0.0
    watching = asyncio.create_task(most_mb(pid))
    sample, failed = None, ""
    async with attacking(attack, *target) as process:
        share_cores([*cluster.pids(), process.pid], options.cores)
        try:
            sample = await paced(client, options.rate_per_s, BODY_BYTES, options.seconds)
        except RuntimeError as error:
            failed = str(error)
    watching.cancel()
    return Side(sample, failed, before, await agreed(cluster, client), begun_mb, await watching)


async def all_gone(client: LedgerClient, node_id: str) -> bool:
    """Whether the attack's connections go in time."""
    deadline = time.monotonic() + GONE_WITHIN_S
    while True:
        connections = (await state_of(client, node_id)).connections
        assert connections is not None, "our own engines tell it"
        if not connections.unproven and (connections.clients or 0) <= OWN_CLIENTS:
            return True
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(LOOK_EVERY_S)


def row_of(attack: str, control: Side, attacked: Side, gone: bool, options: AttackedOptions) -> dict[str, Any]:
    """One attack's figures, and which bounds they are beyond."""
    row: dict[str, Any] = {
        "name": attack, "rate_kept": None, "leader_kept": attacked.stayed, "memory_ratio": attacked.memory_ratio,
        "growth_mb": round(attacked.growth_mb, 1),
    }  # fmt: skip
    beyond = [f"{name}: {side.failed}" for name, side in (("control", control), ("attacked", attacked)) if side.failed]
    if control.sample is not None and attacked.sample is not None:
        ratio = attacked.sample.p99_ms / max(control.sample.p99_ms, P99_MS_MIN)
        share = attacked.sample.entries_per_s / options.rate_per_s
        row |= {
            "rate_kept": round(share, 3), "control_rate_kept": round(
                control.sample.entries_per_s / options.rate_per_s, 3),
            "p50_ms": round(attacked.sample.p50_ms, 2), "p99_ms": round(attacked.sample.p99_ms, 2),
            "control_p50_ms": round(control.sample.p50_ms, 2), "control_p99_ms": round(control.sample.p99_ms, 2),
            "p99_ratio": round(ratio, 2),
        }  # fmt: skip
        if share < RATE_SHARE_MIN:
            beyond.append(f"{share:.1%} of its rate")
        if ratio > P99_RATIO_MAX:
            beyond.append(f"a p99 of {ratio:.1f} times the control's")
    if control.stayed and not attacked.stayed:
        beyond.append(f"leadership went from {attacked.led_before} to {attacked.led_after}")
    if attacked.growth_mb > GROWTH_MB_MAX:
        beyond.append(f"{attacked.growth_mb:.0f} MB more")
    if not gone:
        beyond.append("connections stayed")
    return row | {"control_leader_kept": control.stayed, "beyond": beyond}


async def _run(options: AttackedOptions) -> dict[str, Any]:
    attacks = [one for one in ATTACKS if not options.attacks or any(part in one for part in options.attacks)]
    cluster = BenchCluster(options.flush, parent=options.directory)
    other = BenchCluster(options.flush, size=1, parent=options.directory)
    on, rows = machine(cluster.directory), list[dict[str, Any]]()
    async with cluster, other, cluster.using() as client:
        cores = share_cores([*cluster.pids(), *other.pids()], options.cores)
        await paced(client, options.rate_per_s, BODY_BYTES, min(options.seconds, 5.0))  # what fills once has done so
        (elsewhere,) = parse_peers(other.peers).values()
        for attack in attacks:
            control = await beside(cluster, client, attack, (elsewhere, GROUP), options)
            _, leader = await agreed(cluster, client)
            process = cluster.processes[leader]
            attacked = await beside(cluster, client, attack, (parse_peers(cluster.peers)[leader], GROUP), options)
            gone = await all_gone(client, leader) and process.returncode is None
            rows.append(row_of(attack, control, attacked, gone, options))
            say(f"{attack}: {'; '.join(rows[-1]['beyond']) or 'within its bounds'}")
    return {
        "attacks": rows, "seconds": options.seconds, "rate_per_s": options.rate_per_s, "cores": cores,
        "beyond": sum(bool(row["beyond"]) for row in rows), "flush": options.flush, "machine": on,
    }  # fmt: skip


def run(options: AttackedOptions) -> dict[str, Any]:
    """Starts two groups, attacks one after the other, and returns what `--json` prints."""
    return measured(_run(options))
