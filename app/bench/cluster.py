"""A throw-away group of real engines on loopback, for measuring: started, watched, killed by process id, removed.

Engines run without their control planes, so that what is measured is the log.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from app.bench.common import free_ports
from node.client import LedgerClient, LedgerError

GROUP = "bench"
START_WITHIN_S = 20.0


@dataclass(slots=True)
class BenchCluster:
    """`size` engines; use as an async context manager."""

    flush: str
    size: int = 3
    directory: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="quorumscope-bench-")))
    processes: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    peers: str = ""

    async def __aenter__(self) -> BenchCluster:
        ports = free_ports(self.size)
        self.peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ports))
        try:
            await asyncio.gather(*(self.start(f"n{number}") for number in range(self.size)))
            await self.wait_for_leader()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self.processes.values():
            if process.returncode is None:
                process.kill()
                await process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    async def start(self, node_id: str) -> None:
        """Starts one engine, or starts it again."""
        data = self.directory / node_id
        data.mkdir(exist_ok=True)
        log = (self.directory / f"{node_id}.log").open("ab")
        command = [sys.executable, "-m", "node.server", "--id", node_id, "--group", GROUP, "--peers", self.peers]
        command += ["--data", str(data), "--flush", self.flush, "--init"]
        self.processes[node_id] = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        log.close()

    async def kill(self, node_id: str) -> None:
        """SIGKILL, and the process is gone on return."""
        process = self.processes[node_id]
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
            await process.wait()

    async def wait_for_leader(self) -> str:
        """The leader's id, once one accepts appends. Raises LedgerError with the engines' last words."""
        async with asyncio.timeout(START_WITHIN_S):
            client = self.client(deadline_s=1.0)
            try:
                while True:
                    try:
                        await client.append(b"bench: ready?")
                        return await client.leader()
                    except LedgerError:
                        await self._complain_if_dead()
                        await asyncio.sleep(0.05)
            finally:
                await client.close()

    async def wait_for_all(self, client: LedgerClient) -> None:
        """Until the leader sees every other member answer and in step: only then is one failure survivable again."""
        async with asyncio.timeout(START_WITHIN_S):
            while True:
                try:
                    marks = await client.introspect(await client.leader(), "watermarks")
                    others = [peer for peer in marks["peers"] if peer["id"] != marks["leader_id"]]
                    if len(others) == self.size - 1 and all(peer["match_index"] >= 0 for peer in others):
                        return
                except LedgerError:
                    await self._complain_if_dead()
                await asyncio.sleep(0.05)

    async def _complain_if_dead(self) -> None:
        for node_id, process in self.processes.items():
            if process.returncode is not None:
                said = (self.directory / f"{node_id}.log").read_text(errors="replace").strip().splitlines()[-3:]
                raise RuntimeError(f"the engine of {node_id} ended with {process.returncode}: {' / '.join(said)}")

    def client(self, deadline_s: float = 30.0) -> LedgerClient:
        """A client of this group; the caller closes it."""
        return LedgerClient(self.peers, group=GROUP, deadline_s=deadline_s)
