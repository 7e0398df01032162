"""Real engines on free loopback ports, for tests: started, watched, killed and ended by process id."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from node.children import apart
from node.client import Denied, LedgerClient, LedgerError
from tests.ports import free_ports

ROOT = Path(__file__).parents[2]
START_WITHIN_S = 60.0
SMALL_FILES = (
    "--set", "store.mapped_file_size_for_entry_data_bytes=4194304",
    "--set", "store.mapped_file_size_for_entry_index_bytes=1048576",
)  # fmt: skip


class Group:
    """Up to three engines of one group; `close` ends every process that is still alive."""

    def __init__(
        self, directory: Path, *, size: int = 3, flush: str = "sync", group: str = "g", module: str = "node.server"
    ) -> None:
        self.directory, self.flush, self.group, self.module = directory, flush, group, module
        self.environment: dict[str, str] = {}  # of what is started next, beside this process's
        # With it the group has its id from the start; without it its first leader appends one more entry (SAFETY C9).
        self.token: tuple[str, ...] = ("--group-token", f"test {directory}"[:200].replace(" ", "-"))
        self.kind: tuple[str, ...] = ()  # options that whoever joins has to have, too
        self.peers = {f"n{number}": f"127.0.0.1:{port}" for number, port in enumerate(free_ports(size))}
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def arguments(self, node_id: str, *more: str) -> list[str]:
        """The command line of one engine."""
        peers = ";".join(f"{member}-{address}" for member, address in self.peers.items())
        data = str(self.directory / node_id)
        return [
            "--id", node_id, "--group", self.group, "--peers", peers, "--data", data,
            "--flush", self.flush, *SMALL_FILES, "--init", *self.token, *self.kind, *more,
        ]  # fmt: skip

    def spawn(self, arguments: list[str], module: str | None = None) -> subprocess.Popen[str]:
        """Starts a process without waiting for it."""
        return subprocess.Popen(
            [sys.executable, "-m", module or self.module, *arguments],
            cwd=ROOT, env={**os.environ, **self.environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, preexec_fn=apart(signal.SIGKILL),
        )  # fmt: skip

    def start(self, *node_ids: str) -> None:
        """Starts engines and returns when their ports are open."""
        for node_id in node_ids:
            self.processes[node_id] = self.spawn(self.arguments(node_id))
        for node_id in node_ids:
            process = self.processes[node_id]
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, f"{node_id} ended: {process.communicate()[1]}"
            assert json.loads(line)["event"] == "ready"

    def start_all(self) -> None:
        self.start(*self.peers)

    def join(self, node_id: str, address: str) -> None:
        """Starts a member that the group does not know yet, beside those that there are."""
        self.peers[node_id] = address
        arguments = [word for word in self.arguments(node_id) if word not in ("--init", *self.token)]
        process = self.processes[node_id] = self.spawn([*arguments, "--join"])
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"{node_id} ended: {process.communicate()[1]}"
        assert json.loads(line)["event"] == "ready"

    def kill(self, node_id: str, number: int = signal.SIGKILL) -> int:
        """Signals one engine and waits for its end; returns its exit code."""
        process = self.processes.pop(node_id)
        process.send_signal(number)
        process.communicate(timeout=START_WITHIN_S)
        return process.returncode

    def signal(self, node_id: str, number: int) -> None:
        self.processes[node_id].send_signal(number)

    def client(self, **options: object) -> LedgerClient:
        """A client of this group; the caller closes it."""
        return LedgerClient(self.peers, group=self.group, **({"deadline_s": 30.0} | options))  # type: ignore[arg-type]

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=START_WITHIN_S)
        self.processes.clear()


async def append_surely(client: LedgerClient, body: bytes, within_s: float = START_WITHIN_S) -> int:
    """Appends until it is acknowledged (perhaps more than once); the index of the acknowledged entry.

    Raises Denied at once: who has no right to append has none a moment later, and is answered as fast as it asks.
    """
    deadline = time.monotonic() + within_s
    while True:
        try:
            return (await client.append(body)).first_index
        except Denied:
            raise
        except LedgerError:
            if time.monotonic() > deadline:
                raise


async def all_hold(client: LedgerClient, members: Iterable[str], index: int, within_s: float = START_WITHIN_S) -> None:
    """Returns once the log of every member goes up to `index`: an append is acknowledged by most of them."""
    deadline = time.monotonic() + within_s
    for member in members:
        while (await client.state(member))["log"]["end_index"] < index:
            assert time.monotonic() < deadline, f"{member} lacks entry {index}"
            await asyncio.sleep(0.02)


async def all_vote(client: LedgerClient, members: Iterable[str], within_s: float = START_WITHIN_S) -> None:
    """Returns once every member is a voter: one that started last may still have to join what the others began."""
    deadline = time.monotonic() + within_s
    waiting = list(members)
    while waiting:
        assert time.monotonic() < deadline, f"{waiting} are no voters"
        try:
            if (await client.state(waiting[-1]))["voter_state"] == "VOTER":
                waiting.pop()
                continue
        except LedgerError:
            pass
        await asyncio.sleep(0.02)
