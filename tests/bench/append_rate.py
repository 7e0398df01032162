"""Appends a second of three real engines, for whoever works on the hot path: `python -m tests.bench.append_rate`.

`--profile DIR` also leaves each engine's cProfile there. The product's own measure is `quorumscope bench append`.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from node.children import apart
from node.client import LedgerClient
from tests.ports import free_ports

CASES = {"one": (1, 1), "singles": (2048, 1), "batches": (4, 1000)}


async def measure(client: LedgerClient, in_flight: int, batch: int, seconds: float) -> tuple[float, float]:
    """Entries a second and the median latency in milliseconds."""
    stop = time.perf_counter() + seconds
    took: list[float] = []

    async def worker() -> None:
        bodies = [b"x" * 256] * batch
        while (began := time.perf_counter()) < stop:
            await (client.append(bodies[0]) if batch == 1 else client.append_many(bodies))
            took.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(in_flight)))
    return len(took) * batch / (time.perf_counter() - began), statistics.median(took) * 1000


async def run(peers: str, cases: list[str], seconds: float) -> None:
    client = LedgerClient(peers, deadline_s=20)
    try:
        await client.append(b"ready?")
        for name in cases:
            in_flight, batch = CASES[name]
            rate, median_ms = await measure(client, in_flight, batch, seconds)
            print(f"{name}: {rate:,.0f} entries/s, p50 {median_ms:.3f} ms", flush=True)
    finally:
        await client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flush", choices=("sync", "async"), default="async")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--profile", type=Path)
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="|".join(CASES))
    options = parser.parse_args()
    peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(free_ports(3)))
    with tempfile.TemporaryDirectory(prefix="append-rate-") as directory:
        processes = []
        for node_id in ("n0", "n1", "n2"):
            command = [sys.executable]
            if options.profile is not None:
                command += ["-m", "cProfile", "-o", str(options.profile / f"{node_id}.prof")]
            command += ["-m", "node.server", "--id", node_id, "--peers", peers, "--init", "--flush", options.flush]
            command += ["--data", f"{directory}/{node_id}"]
            processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=apart(signal.SIGKILL)))
        try:
            uvloop.run(run(peers, options.cases, options.seconds))
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()


if __name__ == "__main__":
    main()
