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
from typing import Final, Literal

from app.demo.processes import Processes, broker_of, descendants_of, engine_of
from tests.process.net import Network

GROUP: Final = "chaos"
DATA_FILE_BYTES: Final = 128 * 1024  # files roll about once a second
_DATA_FILES: Final = f"store.mapped_file_size_for_entry_data_bytes={DATA_FILE_BYTES}"
_INDEX_FILES: Final = "store.mapped_file_size_for_entry_index_bytes=16384"  # a broker group's are as RocketMQ has them
_OF_BROKERS: Final = ("broker.transaction_timeout_ms=1000", "broker.transaction_check_interval_ms=500")
_STOP_WITHIN_S: Final = 60.0
Part = Literal["engine", "broker"]
PARTS: Final[tuple[Part, ...]] = ("engine", "broker")


@dataclass(slots=True)
class Member:
    """One node: a supervisor, its engine, its control plane and, where there is one, its broker."""

    id: str
    data: Path
    arguments: Sequence[str]
    prefix: Sequence[str]
    processes: Processes
    starts: int = 0
    _process: asyncio.subprocess.Process | None = None
    _paused: dict[Part, int] = field(default_factory=dict)

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

    @property
    def broker(self) -> int | None:
        """The broker's process id while there is one."""
        return broker_of(self.pid) if self.pid is not None else None

    def kill_part(self, part: Part) -> bool:
        """SIGKILL of that process alone; False where there is none right now."""
        return _signal(self._pid_of(part), signal.SIGKILL)

    async def kill(self) -> None:
        """SIGKILL of all its processes, the engine's first; the supervisor is held still so that it mends nothing."""
        pid = self.pid
        if pid is None or self._process is None:
            return
        _signal(pid, signal.SIGSTOP)
        for one in (*descendants_of(pid), pid):
            _signal(one, signal.SIGKILL)
        await self._process.wait()

    def wipe(self) -> None:
        """All its files are lost, as with a replaced disk; only while it does not run."""
        assert self.pid is None, f"{self.id} runs"
        shutil.rmtree(self.data)

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

    def pause(self, part: Part) -> bool:
        """SIGSTOP of that process; False where there is none right now."""
        pid = self._pid_of(part)
        if pid is None or not _signal(pid, signal.SIGSTOP):
            return False
        self._paused[part] = pid
        return True

    def resume(self, *parts: Part) -> None:
        """SIGCONT of what was paused (of all of it, where none is named) and still is this node's."""
        for part in parts or tuple(self._paused):
            if self._paused.pop(part, None) == self._pid_of(part):
                _signal(self._pid_of(part), signal.SIGCONT)

    def _pid_of(self, part: Part) -> int | None:
        return self.engine if part == "engine" else self.broker


def _signal(pid: int | None, number: signal.Signals) -> bool:
    if pid is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def make_members(
    ids: Sequence[str], directory: Path, network: Network, token: Path, more: Sequence[str] = (), *,
    brokers: bool = False,
) -> dict[str, Member]:  # fmt: skip
    """The members of one group, not started; `more` are settings as `--set` takes them."""
    logs = directory / "logs"
    logs.mkdir(parents=True)
    processes = Processes(logs)
    members: dict[str, Member] = {}
    for member_id in ids:
        peers = ";".join(f"{peer}-{address}" for peer, address in sorted(network.peers_of(member_id).items()))
        data = directory / member_id
        settings = [_DATA_FILES, *more, f"node.token_file={token}"]
        if brokers:
            name_servers = ";".join(network.broker_of(one) for one in ids)
            settings += [f"broker.address={network.broker_of(member_id)}", f"broker.name_servers={name_servers}"]
            settings += _OF_BROKERS
        else:
            settings.append(_INDEX_FILES)
        arguments = [
            "-m", "node", "--id", member_id, "--group", GROUP, "--peers", peers, "--data", str(data),
            "--control", network.control_of(member_id), "--init",
            "--secret-file", str(directory / "member-secret"), "--make-secret",
            *(word for setting in settings for word in ("--set", setting)),
        ]  # fmt: skip
        members[member_id] = Member(member_id, data, arguments, network.prefix_of(member_id), processes)
    return members
