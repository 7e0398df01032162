"""A throw-away group of real engines on loopback, for measuring: started, watched, killed by process id, removed.

Engines run without their control planes unless a bench asks for them, so that what is measured is the log.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from asyncio.subprocess import Process
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from app.bench.common import free_ports
from app.bench.usage import children_of
from app.bench.views import leaders_watermarks
from app.demo.relay import Links
from node.children import apart, environment, python
from node.client import LedgerClient, LedgerError
from node.client.kv import KvClient
from node.config import format_peers, parse_peers, split_address
from node.message_client import ClientError, MessageProducer, OutgoingMessage

GROUP = "bench"
START_WITHIN_S = 30.0
READY = b"bench: ready?"
READY_TOPIC: Final = "BenchReady"


KILL: Final = signal.SIGKILL


@dataclass(slots=True)
class BenchCluster:
    """`size` engines in a new directory under `parent`; use as an async context manager."""

    flush: str
    size: int = 3
    parent: Path | None = None
    with_control: bool = False
    settings: tuple[str, ...] = ()
    with_kv: bool = False  # a key-value store is its state machine; then there are no plain appends
    with_brokers: bool = False  # a broker group, its brokers beside the engines and each other's name servers
    directory: Path = field(init=False)
    processes: dict[str, Process] = field(default_factory=dict)
    controls: dict[str, Process] = field(default_factory=dict)
    control_ports: dict[str, int] = field(default_factory=dict)
    brokers: dict[str, Process] = field(default_factory=dict)
    broker_ports: dict[str, int] = field(default_factory=dict)
    peers: str = ""
    # How a member reaches the others, where that is not the straight way: its whole `peers` text, by its id.
    routes: dict[str, str] = field(default_factory=dict)
    # Members reach each other over relays that can be slowed; clients reach them directly.
    over_relays: bool = False
    links: Links | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="quorumscope-bench-", dir=self.parent))

    async def __aenter__(self) -> BenchCluster:
        ports = free_ports(self.size * 3)
        ids = [f"n{number}" for number in range(self.size)]
        self.peers = ";".join(f"{node_id}-127.0.0.1:{port}" for node_id, port in zip(ids, ports, strict=False))
        self.control_ports = dict(zip(ids, ports[self.size : 2 * self.size], strict=True))
        self.broker_ports = dict(zip(ids, ports[2 * self.size :], strict=True))
        try:
            if self.over_relays:
                await self._lay_relays()
            await asyncio.gather(*(self.start(node_id) for node_id in ids))
            if self.with_control:
                await asyncio.gather(*(self.start_control(node_id) for node_id in ids))
            if self.with_brokers:
                await asyncio.gather(*(self.start_broker(node_id) for node_id in ids))
            await self.wait_for_leader()
            async with self.using() as client:
                await self.wait_for_all(client)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def _lay_relays(self) -> None:
        addresses = parse_peers(self.peers)
        self.links = Links({node_id: split_address(address) for node_id, address in addresses.items()})
        await self.links.start()
        self.routes = {
            node_id: format_peers(self.links.peers_of(node_id, address)) for node_id, address in addresses.items()
        }

    async def __aexit__(self, *_: object) -> None:
        for process in self.all_processes():
            if process.returncode is None:
                process.kill()
                await process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)
        if self.links is not None:
            await self.links.stop()

    def all_processes(self) -> list[Process]:
        """Engines, and control planes and brokers where there are any."""
        return [*self.processes.values(), *self.controls.values(), *self.brokers.values()]

    def pids_by_name(self) -> dict[str, int]:
        """Of engines and brokers."""
        found = {f"engine {node_id}": process.pid for node_id, process in self.processes.items()}
        return found | {f"broker {node_id}": process.pid for node_id, process in self.brokers.items()}

    @property
    def name_servers(self) -> list[str]:
        """The brokers: a client that knows them finds the master."""
        return [f"127.0.0.1:{port}" for port in self.broker_ports.values()]

    def pids(self) -> list[int]:
        return [process.pid for process in self.all_processes()]

    def machine_pids(self) -> list[int]:
        """The state machines' processes, as they are now."""
        return [pid for process in self.processes.values() for pid in children_of(process.pid)]

    async def start(self, node_id: str, *, joins: bool = False) -> None:
        """Starts one engine, or starts it again. `joins`: as a new member of this group."""
        self.processes[node_id] = await self._run("node.server", node_id, "--join" if joins else "--init")

    async def start_control(self, node_id: str) -> None:
        """Starts one control plane; it is ready a second later."""
        self.controls[node_id] = await self._run("node.control", node_id)

    async def start_broker(self, node_id: str) -> None:
        """Starts one broker beside its engine, or starts it again."""
        self.brokers[node_id] = await self._run("node.broker", node_id)

    async def _run(self, module: str, node_id: str, begins: str = "--init") -> Process:
        data = self.directory / node_id
        data.mkdir(exist_ok=True)
        command = python("-m", module, "--id", node_id, "--group", GROUP)
        command += ["--peers", self.routes.get(node_id, self.peers)]
        command += ["--data", str(data), "--flush", self.flush, begins]
        command += ["--control", f"127.0.0.1:{self.control_ports[node_id]}"]
        if self.with_kv:
            command += ["--state-machine", "kv"]
        if self.with_brokers:
            command += ["--broker", f"127.0.0.1:{self.broker_ports[node_id]}"]
            command += ["--set", f"broker.name_servers={';'.join(self.name_servers)}"]
        for setting in self.settings:
            command += ["--set", setting]
        # A group that the caller's own variables describe is another one; a token file of it would shut the bench out.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("QUORUMSCOPE_")}
        with (self.directory / f"{node_id}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *command, stdout=log, stderr=log, env=environment(inherited), preexec_fn=apart(signal.SIGKILL)
            )

    def signal(self, node_id: str, number: signal.Signals) -> None:
        """SIGSTOP and SIGCONT: a member that is there and says nothing."""
        self.processes[node_id].send_signal(number)

    async def kill(self, node_id: str, number: int = KILL) -> None:
        """Ends the process, which is gone on return."""
        process = self.processes[node_id]
        if process.returncode is None:
            process.send_signal(number)
            await process.wait()

    async def kill_broker(self, node_id: str) -> None:
        """Ends it; it is gone on return."""
        process = self.brokers[node_id]
        if process.returncode is None:
            process.send_signal(KILL)
            await process.wait()

    async def wait_for_leader(self) -> str:
        """The leader's id, once one accepts appends. Raises LedgerError with the engines' last words."""
        async with asyncio.timeout(START_WITHIN_S), self.using(deadline_s=1.0) as client:
            while True:
                try:
                    if self.with_brokers:
                        await self._send_one()
                    elif self.with_kv:
                        await KvClient(client, deadline_s=1.0).put(READY, b"")
                    else:
                        await client.append(READY)
                    return await client.leader()
                except (LedgerError, ClientError):
                    await self._complain_if_dead()
                    await asyncio.sleep(0.05)

    async def _send_one(self) -> None:
        """Raises ClientError while no broker is master."""
        async with MessageProducer(self.name_servers, deadline_s=1.0) as producer:
            await producer.send(OutgoingMessage(READY_TOPIC, READY))

    async def wait_for_all(self, client: LedgerClient) -> None:
        """Until the leader sees every other member answer and in step: only then is one failure survivable again."""
        async with asyncio.timeout(START_WITHIN_S):
            while True:
                try:
                    marks = await leaders_watermarks(client)
                    others = [peer.match_index for peer in marks.peers or () if peer.id != marks.leader_id]
                    if len(others) == self.size - 1 and all(match is not None and match >= 0 for match in others):
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

    def using(self, deadline_s: float = 30.0) -> ClientInUse:
        """The same, for `async with`."""
        return ClientInUse(self.client(deadline_s))


@dataclass(slots=True)
class ClientInUse:
    """Closes its client at the end."""

    client: LedgerClient

    async def __aenter__(self) -> LedgerClient:
        return self.client

    async def __aexit__(self, *_: Any) -> None:
        await self.client.close()
