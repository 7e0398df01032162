"""The demo itself: starts everything, says where it is, feeds, watches, and takes all of it down again.

Invariants: every way out (Ctrl-C, SIGTERM, `--for`, an error while starting) goes through `Demo.stop`, which ends
within three seconds and leaves no process; the data of a demo goes with it unless `--keep` was given.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from app.commands.endings import Exit, Failure
from app.commands.group import ask_group, pressing_of
from app.commands.output import say
from app.commands.standing import StatusView
from app.commands.targets import Target
from app.demo.breaks import MEND_AFTER_S, Breaker
from app.demo.brokers import GROUPS, DemoBrokers
from app.demo.control import DemoControl
from app.demo.feeder import Appends, Feeder
from app.demo.message_feed import MessageFeed
from app.demo.messages import Flights, Lines
from app.demo.ports import Ports
from app.demo.processes import Processes
from app.demo.relay import Links
from app.demo.state import DemoMember, DemoState, process_start_ticks, write_note
from app.health.recall import Recall
from node.background import Background, reason_of
from node.children import how_ended
from node.client import LedgerClient
from node.config import format_peers, split_address
from node.guardian import Guardian
from node.message_client import MessageProducer
from node.private_files import keep_files_private
from node.protocol.group_id import group_id_of

GROUP: Final = "demo"
MEMBER_PORT: Final = 20911
CONSOLE_PORT: Final = 8421
CONTROL_PORT: Final = 8431
START_WITHIN_S: Final = 60.0
WATCH_EVERY_S: Final = 1.0
INDEX_FILE_SIZE: Final = "store.mapped_file_size_for_entry_index_bytes="
# Smaller than DLedger's gigabyte, so that one sees files roll.
STORE_SETTINGS: Final = (
    "store.mapped_file_size_for_entry_data_bytes=67108864",
    f"{INDEX_FILE_SIZE}8388608",
    "store.scrub_bytes_per_s=0",  # a flipped bit waits for whoever looks for it
)


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of `quorumscope demo`. `directory` None: one of its own, gone afterwards unless `keep`.

    `noted`: other commands find it, which a bench's demo does without. `messages`: a broker group (brokers.py).
    """

    rate_per_s: float = 200.0
    body_bytes_max: int = 256_000_000
    file: Path | None = None
    members: int = 3
    flush: str = "sync"
    console: bool = True
    live_table: bool = False
    for_s: float | None = None
    directory: Path | None = None
    keep: bool = False
    mend_after_s: float = MEND_AFTER_S
    noted: bool = True
    messages: bool = False

    @property
    def removes_data(self) -> bool:
        """Whether the end of the demo takes its data with it."""
        return self.directory is None and not self.keep

    @property
    def ending(self) -> str:
        """What Ctrl-C does, as the demo says when it is up."""
        return "Ctrl-C stops everything" + (" and removes the data." if self.removes_data else "; the data stay.")


def demo_directory(wanted: Path | None) -> Path:
    """A fresh directory: the one that was named, or one beside the others, where dead demos' leavings are removed.

    Raises Failure.
    """
    if wanted is not None:
        if wanted.exists() and any(wanted.iterdir()):
            raise Failure(Exit.USAGE, f"--data {wanted}: the demo wants a fresh directory, this one is not empty")
        wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
        return wanted.resolve()
    home = Path(".quorumscope").resolve()
    for left in home.glob("demo-*"):
        # Its name says whose it is: a demo that only just starts has left no note yet.
        pid = left.name.removeprefix("demo-")
        lives = pid.isdigit() and process_start_ticks(int(pid)) is not None
        if left.is_dir() and not lives and not (left / "keep").exists():
            shutil.rmtree(left, ignore_errors=True)
    directory = home / f"demo-{os.getpid()}"
    shutil.rmtree(directory, ignore_errors=True)  # of one that had our process id
    directory.mkdir(mode=0o700, parents=True)
    return directory


@dataclass(slots=True)
class Demo:
    """One running demo."""

    options: DemoOptions
    directory: Path
    remark: Callable[[str], None]
    processes: Processes = field(init=False)
    ports: Ports = field(default_factory=Ports)
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    addresses: dict[str, str] = field(init=False)
    controls: dict[str, str] = field(init=False)
    links: Links = field(init=False)
    group_id: str = field(init=False)
    client: LedgerClient = field(init=False)
    members: dict[str, DemoMember] = field(default_factory=dict)
    brokers: DemoBrokers | None = None
    producer: MessageProducer | None = None
    breaker: Breaker | None = None
    control: DemoControl | None = None
    feeder: Feeder | None = None
    note: Path | None = None
    console_url: str | None = None
    login_link: str | None = None
    summary: StatusView | None = None
    recall: Recall = field(default_factory=Recall)
    background: Background = field(init=False)
    # What outlives its parent by itself, such as an audit's job that the console started, ends with the demo too.
    guardian: Guardian = field(default_factory=Guardian)

    def __post_init__(self) -> None:
        ids = [f"n{number}" for number in range(self.options.members)]
        logs = self.directory / "logs"
        logs.mkdir()
        self.processes = Processes(logs)
        self.background = Background(lambda name, error: self.remark(f"{name}: {reason_of(error)}"))
        member_ports = self.ports.claim(MEMBER_PORT, len(ids))
        control_ports = self.ports.claim(CONTROL_PORT, len(ids))
        self.addresses = {one: f"127.0.0.1:{port}" for one, port in zip(ids, member_ports, strict=True)}
        self.controls = {one: f"127.0.0.1:{port}" for one, port in zip(ids, control_ports, strict=True)}
        if self.options.messages:
            flights = self.options.file is None
            self.brokers = DemoBrokers(ids, self.ports, self.processes, self.directory, flights=flights)
        self.links = Links({one: split_address(address) for one, address in self.addresses.items()})
        self.group_id = group_id_of(self.token, GROUP)
        self.client = LedgerClient(dict(self.addresses), group=GROUP, group_id=self.group_id, deadline_s=10.0)

    @property
    def target(self) -> Target:
        """The group as a client outside sees it: the members' real addresses, not the relays'."""
        return Target(self.addresses, GROUP, group_id=self.group_id)

    async def start(self) -> None:
        """Brings everything up; returns when the group has a leader and, if wanted, the console listens."""
        await self.links.start()
        for member_id in self.addresses:
            await self._start_member(member_id)
        self.breaker = Breaker(self.members, self.links, self.leader, self.remark, self.options.mend_after_s)
        self.control = DemoControl(self.breaker, self.state)
        await self.control.start()
        source = asyncio.create_task(asyncio.to_thread(self._source))
        if self.options.console:
            await self._start_console()
        await self._wait_for_leader()
        client: Appends = self.client
        if self.brokers is not None:
            client = await self._start_messages(self.brokers)
        if self.options.noted:
            self.note = write_note(self._note())
        self.feeder = Feeder(client, await source, self.options.rate_per_s, self.options.body_bytes_max, self.remark)
        self.background.keep("the feeder", self.feeder.run)
        self.background.keep("the watch", self._watch)

    async def _start_messages(self, brokers: DemoBrokers) -> MessageFeed:
        """Consumers, once there is a master; what feeds it."""
        self.producer = brokers.producer()
        await brokers.wait_for_master(self.producer)
        for group in GROUPS:
            self.background.keep(f"consumer group {group.name}", partial(brokers.keep, group, self.remark))
        return MessageFeed(self.producer, flights=self.options.file is None)

    def _source(self) -> Iterable[bytes]:
        return Flights() if self.options.file is None else Lines(self.options.file)

    async def _start_member(self, member_id: str) -> None:
        data = self.directory / member_id
        data.mkdir()
        peers = format_peers(self.links.peers_of(member_id, self.addresses[member_id]))
        again = ["--id", member_id, "--group", GROUP, "--peers", peers, "--data", str(data)]
        again += ["--control", self.controls[member_id], "--flush", self.options.flush]
        again += ["--secret-file", str(self.directory / "member-secret")]
        for setting in STORE_SETTINGS:
            if self.brokers is not None and setting.startswith(INDEX_FILE_SIZE):
                continue  # in a broker group it is RocketMQ's
            again += ["--set", setting]
        if self.brokers is not None:
            again += self.brokers.arguments(member_id)
        first = ["--init", "--group-token", self.token, "--make-secret"]
        process = await self.processes.start(member_id, ["-m", "node", *again, *first])
        control_url = f"http://{self.controls[member_id]}"
        self.members[member_id] = DemoMember(
            member_id, self.addresses[member_id], control_url, str(data), process.pid,
            started_with=shlex.join(["quorumscope", "node", *again]),
            broker=self.brokers.addresses[member_id] if self.brokers is not None else "",
        )  # fmt: skip

    async def _start_console(self) -> None:
        from app.security.links import issue_async

        db = f"sqlite:///{self.directory / 'console.db'}"
        path = await issue_async(db, "admin", "admin")
        (port,) = self.ports.claim(CONSOLE_PORT, 1)
        assert self.control is not None
        command = ["-m", "app.cli", "console", "--listen", f"127.0.0.1:{port}", "--db", db]
        for member in self.members.values():
            command += ["--node", member.control_url]
        await self.processes.start("console", command, {"QUORUMSCOPE_DEMO_URL": self.control.url})
        self.console_url = f"http://127.0.0.1:{port}"
        self.login_link = self.console_url + path
        await until_it_listens(self.processes, "console", port)

    async def _wait_for_leader(self) -> None:
        deadline = time.monotonic() + START_WITHIN_S
        while await self.leader() is None:
            for member_id in self.members:
                process = self.processes.running[member_id]
                if process.returncode is not None:
                    words = self.processes.last_words(member_id)
                    raise Failure(Exit.UNREACHABLE, f"{member_id} {how_ended(process.returncode)}: {words}")
            if time.monotonic() > deadline:
                raise Failure(Exit.UNREACHABLE, f"no leader within {START_WITHIN_S:.0f} s; see {self.processes.logs}")
            await asyncio.sleep(0.1)

    async def leader(self) -> str | None:
        """Who leads now, as the members themselves say it."""
        self.summary = await ask_group(self.target, self.recall)
        return self.summary.leader_id

    def _note(self) -> DemoState:
        assert self.control is not None
        pid = os.getpid()
        return DemoState(
            pid, process_start_ticks(pid) or 0, GROUP, format_peers(self.addresses), tuple(self.members.values()),
            str(self.directory), self.console_url, self.control.url, str(Path.cwd().resolve()),
            self.group_id, self.brokers.name_servers if self.brokers is not None else "",
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        """What `GET state` answers."""
        return {
            "feed": asdict(self.feeder.fed) if self.feeder else None,
            "leader_id": self.summary.leader_id if self.summary else None,
            "members": [asdict(member) for member in self.members.values()],
            "consumed": self.brokers.consumed() if self.brokers is not None else None,
        }

    async def _watch(self) -> None:
        """Remarks on what changes: who leads, who answers, what members complain about, which process ended."""
        known: set[tuple[str, str | None]] = set()
        gone: set[str] = set()
        leader = self.summary.leader_id if self.summary else None
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            await self.leader()
            assert self.summary is not None
            if self.summary.leader_id not in (leader, None):
                leader = self.summary.leader_id
                self.remark(f"{leader} leads in term {self.summary.term}")
            found = pressing_of(self.summary)
            problems = {(one.code, one.member) for one in found}
            for one in found:
                if (one.code, one.member) not in known:
                    self.remark(one.text)
            if known and not problems:
                self.remark("all members answer, and none says that anything is wrong")
            known = problems
            ended = self.processes.ended()
            for name in ended.keys() - gone:
                self.remark(f"{ended[name]}; its output is in {self.processes.logs}/{name}.log")
            gone |= ended.keys()

    async def stop(self, *, keep_data: bool = False) -> None:
        """Takes everything down; within three seconds, and whatever failed before."""
        if self.note is not None:
            self.note.unlink(missing_ok=True)
        ending = [self.background.stop(), self.processes.stop()]
        if self.breaker is not None:
            ending.append(self.breaker.stop())
        if self.control is not None:
            ending.append(self.control.stop())
        await asyncio.gather(*ending, return_exceptions=True)
        clients = [self.client.close()] + ([self.producer.close()] if self.producer is not None else [])
        await asyncio.gather(*clients, self.links.stop(), return_exceptions=True)
        await asyncio.to_thread(self.guardian.close)
        self.ports.release()
        if self.options.removes_data and not keep_data:
            shutil.rmtree(self.directory, ignore_errors=True)


async def listens(port: int) -> bool:
    """Whether anything does, on loopback."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def until_it_listens(processes: Processes, name: str, port: int) -> None:
    """Until that process does. Raises Failure: it ended, or took too long."""
    deadline = time.monotonic() + START_WITHIN_S
    while not await listens(port):
        words = processes.last_words(name)
        if processes.running[name].returncode is not None:
            raise Failure(Exit.UNREACHABLE, f"{name} ended: {words}")
        if time.monotonic() > deadline:
            where = f"see {processes.logs}" + (f" ({words})" if words else "")
            raise Failure(Exit.UNREACHABLE, f"{name} does not listen within {START_WITHIN_S:.0f} s; {where}")
        await asyncio.sleep(0.1)


async def run_demo(options: DemoOptions, announce: Callable[[Demo], None], remark: Callable[[str], None]) -> int:
    """Runs a demo until a signal or `for_s`; returns the exit code."""
    stopping = asyncio.Event()
    interrupted = starting_was_cut = failed = False

    def interrupt() -> None:
        nonlocal interrupted
        interrupted = True
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, interrupt)
    keep_files_private()
    demo = Demo(options, demo_directory(options.directory), remark)
    if options.keep:
        (demo.directory / "keep").touch()
    try:
        starting = asyncio.create_task(demo.start())
        waiting = asyncio.create_task(stopping.wait())
        await asyncio.wait([starting, waiting], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting_was_cut = True
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        else:
            starting.result()
            announce(demo)
            await _until(waiting, options.for_s)
    except Failure:
        failed = True  # it says where the logs are: the next demo removes them
        raise
    finally:
        say("stopping")
        await demo.stop(keep_data=failed)
    if demo.feeder is not None:
        fed = demo.feeder.fed
        unsure = f", {fed.unknown} of unknown outcome" if fed.unknown else ""
        last = f", the last at index {fed.last_index:,}" if fed.last_index >= 0 else ""
        say(f"{fed.appended:,} messages were appended{last}{unsure}")
    if demo.directory.exists() and not starting_was_cut:
        say(f"data and logs stay in {demo.directory}")
    code = Exit.INTERRUPTED if interrupted and options.for_s is not None else Exit.FINE
    if starting_was_cut:
        # A thread may still be loading messages or migrating the database that is gone already: nobody waits for it.
        if not options.keep and options.directory is None:
            shutil.rmtree(demo.directory, ignore_errors=True)
        sys.stdout.flush()
        os._exit(code)
    return code


async def _until(waiting: asyncio.Task[Any], for_s: float | None) -> None:
    await asyncio.wait([waiting], timeout=for_s)
    waiting.cancel()
