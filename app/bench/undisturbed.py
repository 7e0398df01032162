"""`bench undisturbed`: does looking at the log slow it down?

A paced load meets, in turn, nobody; a console that polls every member every 200 ms; a reader that takes the leader's
data files at 50 MB/s; and both. The visitors are processes that are stopped and continued, so that rounds interleave.
"""

from __future__ import annotations

import asyncio
import signal
import statistics
from asyncio.subprocess import Process
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from app.bench.cluster import BenchCluster
from app.bench.common import Sample, free_ports, say
from app.bench.load import Case, measure
from app.bench.machine import machine
from app.bench.paced import paced
from app.bench.running import measured
from node.children import apart, environment, python

POLL_MS: Final = 200
START_WITHIN_S: Final = 60.0
SETTLE_S: Final = 0.5
# What there is to read: so much is written first.
WRITTEN_FIRST_S: Final = 2.0


@dataclass(slots=True, frozen=True)
class UndisturbedOptions:
    """`rate`: single appends a second, evenly spaced; `segment_mb_per_s`: how fast files are read."""

    flush: str = "async"
    rate: float = 1000.0
    body_bytes: int = 256
    seconds: float = 5.0
    rounds: int = 3
    segment_mb_per_s: float = 50.0
    directory: Path | None = None


class Visitors:
    """The console and the reader of files. Both are paused until resumed."""

    def __init__(self, cluster: BenchCluster) -> None:
        self._cluster = cluster
        self.processes: dict[str, Process] = {}

    async def start_console(self) -> None:
        """The product's own console, without a browser; returns when it listens. Raises RuntimeError."""
        (port,) = free_ports(1)
        directory = self._cluster.directory
        command = ["-m", "app.cli", "console", "--listen", f"127.0.0.1:{port}"]
        command += ["--db", f"sqlite:///{directory / 'console.db'}", "--set", f"console.sample_interval_ms={POLL_MS}"]
        for control_port in self._cluster.control_ports.values():
            command += ["--node", f"http://127.0.0.1:{control_port}"]
        await self._start("console", command)
        async with asyncio.timeout(START_WITHIN_S):
            while True:
                try:
                    _reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    return
                except OSError:
                    if self.processes["console"].returncode is not None:
                        said = (directory / "console.log").read_text(errors="replace").strip().splitlines()[-3:]
                        raise RuntimeError(f"the console ended: {' / '.join(said)}") from None
                    await asyncio.sleep(0.1)

    async def start_reader(self, leader_id: str, mb_per_s: float) -> None:
        address = f"127.0.0.1:{self._cluster.control_ports[leader_id]}"
        await self._start("segments", ["-m", "app.bench.segment_reader", address, str(mb_per_s)])

    async def _start(self, name: str, arguments: list[str]) -> None:
        with (self._cluster.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = await asyncio.create_subprocess_exec(
                *python(*arguments),
                env=environment(),
                stdout=log,
                stderr=log,
                preexec_fn=apart(signal.SIGKILL),
            )

    def only(self, *names: str) -> None:
        """These go on, the others stand still."""
        for name, process in self.processes.items():
            process.send_signal(signal.SIGCONT if name in names else signal.SIGSTOP)

    def bytes_read(self) -> int:
        """What the reader has read by its own account."""
        lines = (self._cluster.directory / "segments.log").read_text(errors="replace").split()
        return int(lines[-1]) if lines and lines[-1].isdigit() else 0

    async def stop(self) -> None:
        for process in self.processes.values():
            if process.returncode is None:
                process.kill()
                await process.wait()


PHASES: Final[Mapping[str, tuple[str, ...]]] = {
    "nobody": (), "console": ("console",), "segments": ("segments",), "both": ("console", "segments"),
}  # fmt: skip


async def _run(options: UndisturbedOptions) -> dict[str, Any]:
    samples: dict[str, list[Sample]] = {phase: [] for phase in PHASES}
    read_mb_per_s: list[float] = []
    cluster = BenchCluster(options.flush, parent=options.directory, with_control=True)
    on = machine(cluster.directory)
    async with cluster, AsyncExitStack() as stack:
        client = await stack.enter_async_context(cluster.using())
        visitors = Visitors(cluster)
        stack.push_async_callback(visitors.stop)
        say("starting a console and a reader of data files")
        await measure(client, Case(4, 1000), options.body_bytes, WRITTEN_FIRST_S)
        await visitors.start_console()
        await visitors.start_reader(await client.leader(), options.segment_mb_per_s)
        await asyncio.sleep(SETTLE_S * 4)  # the console finds the members
        for number in range(options.rounds):
            for phase, names in PHASES.items():
                visitors.only(*names)
                await asyncio.sleep(SETTLE_S)
                before = visitors.bytes_read()
                sample = await paced(client, options.rate, options.body_bytes, options.seconds)
                samples[phase].append(sample)
                if "segments" in names:
                    read_mb_per_s.append((visitors.bytes_read() - before) / options.seconds / 1e6)
                round_ = f"round {number + 1}/{options.rounds}"
                say(f"{round_}: {phase}: p50 {sample.p50_ms:.3f} ms, p99 {sample.p99_ms:.3f} ms")
    results = [phase_row(phase, rounds, samples["nobody"]) for phase, rounds in samples.items()]
    return {
        "results": results, "flush": options.flush, "rate_per_s": options.rate, "body_bytes": options.body_bytes,
        "console_poll_ms": POLL_MS, "segment_mb_per_s": round(statistics.median(read_mb_per_s), 1), "machine": on,
    }  # fmt: skip


def phase_row(phase: str, rounds: list[Sample], quiet: list[Sample]) -> dict[str, Any]:
    """Medians, and by how much the p99 grew over the same round's undisturbed one: median, least and most."""
    growth = sorted(sample.p99_ms / alone.p99_ms for sample, alone in zip(rounds, quiet, strict=True))
    return {
        "with": phase,
        "p50_ms": round(statistics.median(sample.p50_ms for sample in rounds), 3),
        "p99_ms": round(statistics.median(sample.p99_ms for sample in rounds), 3),
        "p99_ratio": round(statistics.median(growth), 2),
        "p99_ratio_spread": [round(growth[0], 2), round(growth[-1], 2)],
    }


def run(options: UndisturbedOptions) -> dict[str, Any]:
    """Starts three engines with control planes and a console, measures, and returns what `--json` prints."""
    return measured(_run(options))
