"""The members as processes: `quorumscope node` with its engine and control plane, started, signalled, started again.

Invariants: every signal goes to a process id that was started here or is a descendant of one; whatever is started dies
with this process (app/demo/processes.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from app.demo.processes import Processes, descendants_of, engine_of
from tests.process.net import Network

GROUP: Final = "chaos"
DATA_FILE_BYTES: Final = 128 * 1024  # files roll about once a second
_SETTINGS: Final = (
    f"store.mapped_file_size_for_entry_data_bytes={DATA_FILE_BYTES}",
    "store.mapped_file_size_for_entry_index_bytes=16384",
)
_STOP_WITHIN_S: Final = 60.0


@dataclass(slots=True)
class Member:
    """One node. `ordered_ends` counts how often we ended its engine: what is beyond that it did by itself."""

    id: str
    data: Path
    arguments: Sequence[str]
    prefix: Sequence[str]
    processes: Processes
    starts: int = 0
    _process: asyncio.subprocess.Process | None = None
    _paused: set[int] = field(default_factory=set)

    @property
    def store(self) -> Path:
        return self.data / f"dledger-{self.id}"

    @property
    def log(self) -> Path:
        """What its processes print."""
        return self.processes.logs / f"{self.id}.log"

    @property
    def pid(self) -> int | None:
        """The supervisor's process id while it lives."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def engine(self) -> int | None:
        """The engine's process id while there is one."""
        return engine_of(self.pid) if self.pid is not None else None

    async def start(self) -> None:
        """Starts it unless it runs."""
        if self.pid is None:
            self.starts += 1
            self._process = await self.processes.start(self.id, self.arguments, prefix=self.prefix)

    def kill_engine(self) -> bool:
        """SIGKILL of the engine alone; False where there is none right now."""
        return _signal(self.engine, signal.SIGKILL)

    async def kill(self) -> None:
        """SIGKILL of all three processes, the engine's first; the supervisor is held still so that it mends nothing."""
        pid = self.pid
        if pid is None or self._process is None:
            return
        _signal(pid, signal.SIGSTOP)
        for one in (*descendants_of(pid), pid):
            _signal(one, signal.SIGKILL)
        await self._process.wait()

    def wipe(self) -> None:
        """Its log and its vote are lost, as with a replaced disk; only while it does not run."""
        assert self.pid is None, f"{self.id} runs"
        shutil.rmtree(self.store)

    async def stop(self) -> int | None:
        """SIGTERM, and SIGKILL where that does not help; the exit code, None where it did not run or was killed."""
        if self.pid is None or self._process is None:
            return None
        self.resume()
        _signal(self.pid, signal.SIGTERM)
        try:
            return await asyncio.wait_for(self._process.wait(), _STOP_WITHIN_S)
        except TimeoutError:
            await self.kill()
            return None

    def pause(self) -> bool:
        """SIGSTOP of the engine; False where there is none right now."""
        engine = self.engine
        if engine is None or not _signal(engine, signal.SIGSTOP):
            return False
        self._paused.add(engine)
        return True

    def resume(self) -> None:
        """SIGCONT of what `pause` stopped and what still is this node's engine."""
        engine = self.engine
        if engine in self._paused:
            _signal(engine, signal.SIGCONT)
        self._paused.clear()


def _signal(pid: int | None, number: signal.Signals) -> bool:
    if pid is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def make_members(
    ids: Sequence[str], directory: Path, network: Network, token: Path, more: Sequence[str] = ()
) -> dict[str, Member]:
    """The members of one group, not started; `more` are settings as `--set` takes them."""
    logs = directory / "logs"
    logs.mkdir(parents=True)
    processes = Processes(logs)
    members: dict[str, Member] = {}
    for member_id in ids:
        peers = ";".join(f"{peer}-{address}" for peer, address in sorted(network.peers_of(member_id).items()))
        data = directory / member_id
        settings = [word for setting in (*_SETTINGS, *more, f"node.token_file={token}") for word in ("--set", setting)]
        arguments = [
            "-m", "node", "--id", member_id, "--group", GROUP, "--peers", peers, "--data", str(data),
            "--control", network.control_of(member_id), "--init",
            "--secret-file", str(directory / "member-secret"), "--make-secret", *settings,
        ]  # fmt: skip
        members[member_id] = Member(member_id, data, arguments, network.prefix_of(member_id), processes)
    return members
