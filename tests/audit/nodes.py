"""Whole nodes (engine and control plane) of one group, for audits over HTTP: started, filled, ended by process id."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.audit.replicas import ControlPlane, ReplicaSpec
from app.audit.segments import ReadFailed
from node.children import apart
from node.client import LedgerClient
from tests.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
READY_WITHIN_S = 90.0
BATCH = 500


class Nodes:
    """Three nodes; `urls` are their control planes, `stores` their store directories."""

    def __init__(self, root: Path, size: int = 3, flush: str = "sync") -> None:
        ports = free_ports(size * 2)
        self.root = root
        self.last_index = -1
        self.peers = ";".join(f"n{n}-127.0.0.1:{ports[n]}" for n in range(size))
        self.urls = tuple(f"http://127.0.0.1:{ports[size + n]}" for n in range(size))
        self.stores = tuple(root / f"n{n}" / f"dledger-n{n}" for n in range(size))
        self._processes = [self._start(n, ports[size + n], flush) for n in range(size)]

    def _start(self, number: int, control_port: int, flush: str) -> subprocess.Popen[bytes]:
        data = self.root / f"n{number}"
        data.mkdir(parents=True)
        with (data / "process.log").open("wb") as log:
            return subprocess.Popen(
                [
                    sys.executable, "-m", "node", "--id", f"n{number}", "--group", "audit", "--peers", self.peers,
                    "--data", str(data), "--control", f"127.0.0.1:{control_port}", "--flush", flush, "--init",
                ],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=apart(signal.SIGTERM),
                # A node's own scrub finds a flipped byte, too, and heals it from the others before an audit sees it.
                env={**os.environ, "QUORUMSCOPE_STORE_SCRUB_BYTES_PER_S": "0"},
            )  # fmt: skip

    def fill(self, count: int, body_bytes: int) -> int:
        """Appends `count` bodies and waits until every node's durable end has reached them; the last index."""
        last = self.last_index = asyncio.run(self._append(count, body_bytes))
        for url in self.urls:
            self._until(url, lambda state: (state["log"]["committed_index"] or -1) >= last)
        return last

    async def _append(self, count: int, body_bytes: int) -> int:
        client = LedgerClient(self.peers, group="audit", deadline_s=READY_WITHIN_S)
        try:
            last = -1
            for start in range(0, count, BATCH):
                bodies = [f"{n:08d}".encode().ljust(body_bytes, b".") for n in range(start, min(start + BATCH, count))]
                last = (await client.append_many(bodies)).last_index
            return last
        finally:
            await client.close()

    def _until(self, url: str, wanted: Any) -> None:
        deadline = time.monotonic() + READY_WITHIN_S
        while True:
            plane = ControlPlane(ReplicaSpec("http", url))
            try:
                if wanted(plane.get_json("/state")):
                    return
            except (ReadFailed, TypeError):
                pass
            finally:
                plane.close()
            if time.monotonic() > deadline:
                logs = "\n".join(path.read_text()[-2000:] for path in sorted(self.root.glob("n*/process.log")))
                raise AssertionError(f"{url} did not get there:\n{logs}")
            time.sleep(0.05)

    def close(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def nodes(root: Path, **options: Any) -> Iterator[Nodes]:
    made = Nodes(root, **options)
    try:
        yield made
    finally:
        made.close()
