"""`demo --ha`: a classic pair on this machine: one master, two slaves, a name server, sends running, the console.

Invariants: as of every demo (`app/demo/run.py`): every way out ends all processes, and the data goes with them unless
`--keep` or `--data` was given.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from app.commands.endings import Exit, Failure
from app.commands.output import say
from app.demo.feeder import Feeder
from app.demo.message_feed import FLIGHT_TOPICS, LINES_TOPIC, MessageFeed
from app.demo.messages import Flights, Lines
from app.demo.ports import Ports
from app.demo.processes import Processes, broker_of
from app.demo.run import CONSOLE_PORT, CONTROL_PORT, START_WITHIN_S, DemoOptions, demo_directory, until_it_listens
from node.background import Background, reason_of
from node.children import how_ended
from node.guardian import Guardian
from node.message_client import ClientError, MessageProducer
from node.private_files import keep_files_private

PAIR: Final = "pair"
ROLES: Final = {"m": "sync_master", "s1": "slave", "s2": "slave"}
BROKER_PORT: Final = 10911
APART: Final = 10
DERIVED: Final = (-2, 0, 1)  # VIP, the broker's own, HA
NAME_SERVER_PORT: Final = 9876
FILE_BYTES: Final = 67_108_864


@dataclass(slots=True)
class PairDemo:
    """One running demo of a pair."""

    options: DemoOptions
    directory: Path
    remark: Callable[[str], None]
    ports: Ports = field(default_factory=Ports)
    processes: Processes = field(init=False)
    background: Background = field(init=False)
    guardian: Guardian = field(default_factory=Guardian)
    brokers: dict[str, int] = field(init=False)
    controls: dict[str, str] = field(init=False)
    name_server: str = field(init=False)
    secret_file: Path = field(init=False)
    console_url: str | None = None
    login_link: str | None = None
    producer: MessageProducer | None = None
    feeder: Feeder | None = None

    def __post_init__(self) -> None:
        logs = self.directory / "logs"
        logs.mkdir()
        self.processes = Processes(logs)
        self.background = Background(lambda name, error: self.remark(f"{name}: {reason_of(error)}"))
        found = self.ports.claim_apart(BROKER_PORT, len(ROLES), APART, DERIVED)
        self.brokers = dict(zip(ROLES, found, strict=True))
        controls = self.ports.claim(CONTROL_PORT, len(ROLES))
        self.controls = {one: f"http://127.0.0.1:{port}" for one, port in zip(ROLES, controls, strict=True)}
        (port,) = self.ports.claim(NAME_SERVER_PORT, 1)
        self.name_server = f"127.0.0.1:{port}"
        self.secret_file = self.directory / "pair-secret"

    async def start(self) -> None:
        """Returns when the master takes messages and, if wanted, the console listens."""
        self.secret_file.touch(mode=0o600)
        self.secret_file.write_text(secrets.token_hex(32) + "\n")
        await self.processes.start("name-server", ["-m", "node.name_service", "--listen", self.name_server])
        for name in ROLES:
            await self.processes.start(name, ["-m", "node", *self.arguments(name)])
        source = asyncio.create_task(asyncio.to_thread(self._source))
        if self.options.console:
            await self._start_console()
        self.producer = MessageProducer([self.name_server], "demo")
        topic = FLIGHT_TOPICS[0] if self.options.file is None else LINES_TOPIC
        await self._until_it_takes_messages(self.producer, topic)
        for name, url in self.controls.items():
            await until_it_listens(self.processes, name, int(url.rpartition(":")[2]))
        feed = MessageFeed(self.producer, flights=self.options.file is None)
        self.feeder = Feeder(feed, await source, self.options.rate_per_s, self.options.body_bytes_max, self.remark)
        self.background.keep("the feeder", self.feeder.run)

    def arguments(self, name: str) -> list[str]:
        """What a broker's node is started with."""
        number = list(ROLES).index(name)
        data = self.directory / name
        data.mkdir(exist_ok=True)
        peers = ";".join(f"127.0.0.1:{port + 1}" for other, port in self.brokers.items() if other != name)
        port = self.brokers[name]
        settings = [
            f"broker.name_servers={self.name_server}", f"ha.broker_id={max(1, number)}",
            f"store.mapped_file_size_for_entry_data_bytes={FILE_BYTES}",
        ]  # fmt: skip
        return [
            "--id", name, "--group", PAIR, "--data", str(data), "--control", self.controls[name].removeprefix("http://"),
            "--flush", self.options.flush, "--role", ROLES[name], "--ha", f"127.0.0.1:{port + 1}", "--ha-peers", peers,
            "--broker", f"127.0.0.1:{port}", "--secret-file", str(self.secret_file),
            *(word for one in settings for word in ("--set", one)),
        ]  # fmt: skip

    def _source(self) -> Iterable[bytes]:
        return Flights() if self.options.file is None else Lines(self.options.file)

    async def _start_console(self) -> None:
        from app.security.links import issue_async

        db = f"sqlite:///{self.directory / 'console.db'}"
        path = await issue_async(db, "admin", "admin")
        (port,) = self.ports.claim(CONSOLE_PORT, 1)
        nodes = [word for url in self.controls.values() for word in ("--node", url)]
        command = ["-m", "app.cli", "console", "--listen", f"127.0.0.1:{port}", "--db", db, *nodes]
        await self.processes.start("console", command)
        self.console_url = f"http://127.0.0.1:{port}"
        self.login_link = self.console_url + path
        await until_it_listens(self.processes, "console", port)

    async def _until_it_takes_messages(self, producer: MessageProducer, topic: str) -> None:
        deadline = time.monotonic() + START_WITHIN_S
        while True:
            for name in ROLES:
                process = self.processes.running[name]
                if process.returncode is not None:
                    words = self.processes.last_words(name)
                    raise Failure(Exit.UNREACHABLE, f"{name} {how_ended(process.returncode)}: {words}")
            try:
                return await producer.reach(topic)
            except ClientError as error:
                if time.monotonic() > deadline:
                    where = self.processes.logs
                    text = f"the master takes no messages within {START_WITHIN_S:.0f} s ({error}); see {where}"
                    raise Failure(Exit.UNREACHABLE, text) from error
            await asyncio.sleep(0.1)

    async def stop(self, *, keep_data: bool = False) -> None:
        """Takes everything down; within three seconds, and whatever failed before."""
        await asyncio.gather(self.background.stop(), self.processes.stop(), return_exceptions=True)
        if self.producer is not None:
            await asyncio.gather(self.producer.close(), return_exceptions=True)
        await asyncio.to_thread(self.guardian.close)
        self.ports.release()
        if self.options.removes_data and not keep_data:
            shutil.rmtree(self.directory, ignore_errors=True)

    def announcement(self, command: str) -> str:
        """What is printed when everything is up."""
        lines = [""]
        if self.console_url is not None:
            lines += [f"  Console    {self.console_url}/clusters/{PAIR}", f"  Log in     {self.login_link}", ""]
        for name, role in ROLES.items():
            pid = self.processes.running[name].pid
            lines.append(
                f"  {name:<4} {role:<12} 127.0.0.1:{self.brokers[name]}   control {self.controls[name]}   pid {pid}"
            )
            lines.append(f"       {self.directory / name}")
        nodes = " ".join(f"--node {url}" for url in self.controls.values())
        slave, master = self.processes.running["s1"].pid, self.processes.running["m"].pid
        slave = broker_of(slave) or slave  # its supervisor does nothing that would be missed
        stores = " ".join(f"--store {name}={self.directory / name}" for name in ROLES)
        return "\n".join(
            [
                *lines, "", f"  Name server  {self.name_server}",
                f"  Feeding      {self.options.rate_per_s:g} messages/s",
                f"  Logs         {self.processes.logs}", "", "  Try, in another terminal:",
                f"    {command} ha status {nodes}",
                f"    {command} audit --ha {stores}",
                f"    kill -STOP {slave:<8}   a slave's broker hangs",
                f"    kill -CONT {slave:<8}   and goes on",
                f"    kill {master:<14}   the master ends; then make a slave the master:",
                f"    {command} ha promote --node {self.controls['s1']} --accept lacks_bytes",
                "", f"  {self.options.ending}",
            ]
        )  # fmt: skip


async def run_pair_demo(
    options: DemoOptions, announce: Callable[[PairDemo], None], remark: Callable[[str], None]
) -> int:
    """Runs until a signal or `for_s`; returns the exit code."""
    stopping = asyncio.Event()
    failed = False
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, partial(stopping.set))
    keep_files_private()
    demo = PairDemo(options, demo_directory(options.directory), remark)
    if options.keep:
        (demo.directory / "keep").touch()
    waiting = asyncio.create_task(stopping.wait())
    starting = asyncio.create_task(demo.start())
    try:
        await asyncio.wait([starting, waiting], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            announce(demo)
            await asyncio.wait([waiting], timeout=options.for_s)
    except Failure:
        failed = True  # it says where the logs are: the next demo removes them
        raise
    finally:
        say("stopping")
        starting.cancel()
        waiting.cancel()
        await asyncio.gather(starting, waiting, return_exceptions=True)
        await demo.stop(keep_data=failed)
    if demo.feeder is not None:
        say(f"{demo.feeder.fed.appended:,} messages were sent")
    return Exit.INTERRUPTED if stopping.is_set() and options.for_s is not None else Exit.FINE
