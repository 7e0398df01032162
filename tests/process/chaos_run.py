"""One run: build the network, start the nodes, let clients work while a plan breaks things, mend, settle, judge.

Invariants: whatever ends a run (its time, a violation, an error, an interruption), every process that it started is
gone and everything that it mounted is unmounted when `run` returns; the directory stays where it shows something.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from node.client import LedgerClient, LedgerError
from tests.process.chaos_clients import Clients
from tests.process.chaos_disk import QuotaDisk, SmallDisk, TmpfsDisk
from tests.process.chaos_faults import Faults
from tests.process.chaos_messages import MessageClients, check_messages
from tests.process.chaos_nodes import DATA_FILE_BYTES, GROUP, PARTS, Member, make_members
from tests.process.chaos_plan import Step, make_plan, one_of_each
from tests.process.chaos_verdict import (
    Violation,
    check_equal,
    check_logs,
    ends_by_themselves,
    last_traceback,
    read_logs,
)
from tests.process.net import CLIENTS, Network
from tests.process.net_namespaces import NamespaceNetwork, ToolFailed, tool
from tests.process.net_proxy import ProxyNetwork

START_WITHIN_S: Final = 180.0
SETTLE_WITHIN_S: Final = 90.0
_ASK_EVERY_S: Final = 0.2
_DISK_BYTES: Final = 24 * 1024 * 1024
_DISK_BYTES_PER_S: Final = 1024 * 1024
_GRAVE: Final = frozenset({"fork", "order_refused", "two_leaders", "group_reformed", "log_unrecoverable", "bad_answer"})


class NotStarted(RuntimeError):
    """The group never came up: nothing was tested."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a run is asked for. `mounts`: this process may mount file systems of its own."""

    seed: int
    seconds: float
    members: int
    mode: str  # "netns" or "proxy"
    mounts: bool
    each: bool = False
    flush: str = "sync"
    lease_reads: bool = False
    brokers: bool = False

    @property
    def settings(self) -> list[str]:
        """Of the nodes, as `--set` takes them."""
        return [
            f"node.flush={self.flush}", f"node.lease_reads={str(self.lease_reads).lower()}", "node.log_format=json",
        ]  # fmt: skip


@dataclass(slots=True)
class Report:
    """What `--json` prints."""

    options: Options
    plan: Sequence[Step] = ()
    disk: str = ""
    small: str = ""
    slow_by: str = ""
    operations: dict[str, dict[str, int]] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    acknowledged_entries: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    committed_index: int = -1
    term: int = -1
    settled_s: float | None = None
    ends: dict[str, list[str]] = field(default_factory=dict)
    came_again: int = 0
    violations: list[Violation] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        unknown = sum(outcomes["unknown"] for outcomes in self.operations.values())
        return {
            "seed": self.options.seed, "seconds": self.options.seconds, "members": self.options.members,
            "mode": self.options.mode, "flush": self.options.flush,
            "lease_reads": self.options.lease_reads, "brokers": self.options.brokers,
            "disk": self.disk, "small_disk": self.small, "slow_by": self.slow_by,
            "plan": [step.as_json() for step in self.plan], "faults": self.faults, "operations": self.operations,
            "refusals": self.refusals,
            "unknown": unknown, "acknowledged_entries": self.acknowledged_entries,
            "committed_index": self.committed_index, "term": self.term, "settled_s": self.settled_s,
            "ends": self.ends, "came_again": self.came_again, "violations": [one.as_json() for one in self.violations],
        }  # fmt: skip


class Run:
    """See the module's docstring. `say` gets one line for everything that happens."""

    def __init__(self, options: Options, directory: Path, say: Callable[[str], None]) -> None:
        self.options, self.directory, self.say = options, directory, say
        self.report = Report(options)
        self.network: Network = NamespaceNetwork() if options.mode == "netns" else ProxyNetwork()
        self.members: dict[str, Member] = {}
        self._mounted: list[Path] = []

    async def run(self) -> Report:
        """Raises NotStarted, and what is a mistake of ours."""
        token = self.directory / "token"
        token.touch(0o600)
        token.write_text(secrets.token_hex(16))
        try:
            await self._run(token)
        finally:
            await asyncio.shield(self._clean_up())
        return self.report

    async def _run(self, token: Path) -> None:
        options, report = self.options, self.report
        ids = [f"n{number}" for number in range(options.members)]
        await self.network.start(ids)
        self.members = make_members(
            ids, self.directory, self.network, token, options.settings, brokers=options.brokers
        )  # fmt: skip
        report.small, report.slow_by = ids[options.seed % len(ids)], self.network.slow_by
        disk = None if options.brokers else await self._make_disk(self.members[report.small])
        report.disk = "not filled" if disk is None else disk.about
        peers = self.network.peers_of(CLIENTS)
        operator = LedgerClient(peers, group=GROUP, deadline_s=2.0, token=token.read_text())
        clients: Clients | MessageClients = (
            MessageClients([self.network.broker_of(one) for one in ids], options.seed)
            if options.brokers
            else Clients(peers, options.seed, lease_reads=options.lease_reads)
        )
        faults = Faults(
            self.members, self.network, report.small, disk, operator,
            lambda: clients.refusals().get("DISK_FULL", 0), options.seed, self.say,
        )  # fmt: skip
        make = one_of_each if options.each else None
        report.plan = (
            make(faults.kinds, options.seconds) if make else make_plan(options.seed, options.seconds, faults.kinds)
        )
        try:
            await self._start(clients)
            clients.start()
            await self._break(faults, clients)
            await faults.mend()
            await self._settle(operator, quiet=False)
            await clients.stop()
            await self._scrub(operator)
            await self._settle(operator, quiet=True)
            await self._ask_for_alarms(operator)
        finally:
            report.faults = {kind: faults.done[kind] for kind in faults.kinds if faults.done[kind]}
            await operator.close()
        await self._judge(clients, faults)

    async def _make_disk(self, member: Member) -> SmallDisk:
        if not self.options.mounts:
            return QuotaDisk(DATA_FILE_BYTES, lambda: member.pid)
        size_bytes = _DISK_BYTES + int(self.options.seconds * _DISK_BYTES_PER_S)
        disk = TmpfsDisk(member.data, size_bytes)
        await disk.make()
        self._mounted.append(member.data)
        return disk

    async def _start(self, clients: Clients | MessageClients) -> None:
        await asyncio.gather(*(member.start() for member in self.members.values()))
        why_not = await clients.begin(START_WITHIN_S)
        if why_not:
            words = "; ".join(f"{one}: {self.members[one].processes.last_words(one)}" for one in self.members)
            raise NotStarted(f"no leader within {START_WITHIN_S:.0f} s: {why_not}; {words}")
        self.say(f"{len(self.members)} nodes run ({self.network.mode}); clients begin")

    async def _break(self, faults: Faults, clients: Clients | MessageClients) -> None:
        """Starts every step when it is due; returns when all have ended."""
        began = time.monotonic()
        running: list[asyncio.Task[None]] = []
        try:
            for step in self.report.plan:
                await asyncio.sleep(max(0.0, began + step.at_s - time.monotonic()))
                clients.check()
                running.append(asyncio.ensure_future(faults.run(step)))
            await asyncio.sleep(max(0.0, began + self.options.seconds - time.monotonic()))
            await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        self.say("everything is mended; the group settles")

    async def _settle(self, operator: LedgerClient, *, quiet: bool) -> None:
        """Until one leads and all follow in APPEND; `quiet`, without clients: and all logs end committed alike."""
        began = time.monotonic()
        why = ""
        while time.monotonic() - began < SETTLE_WITHIN_S:
            try:
                why = await self._unsettled(operator, quiet)
            except LedgerError as error:
                why = str(error)
            if not why:
                self.report.settled_s = max(self.report.settled_s or 0.0, round(time.monotonic() - began, 2))
                return
            await asyncio.sleep(_ASK_EVERY_S)
        self.report.violations.append(Violation("never_settled", f"after {SETTLE_WITHIN_S:.0f} s: {why}"))

    async def _scrub(self, operator: LedgerClient) -> None:
        """Everybody reads its whole log once: what rotted is mended before the verdict, or stands as a fault."""
        for member in self.members:
            began, number, why = time.monotonic(), None, "it goes on"
            while time.monotonic() - began < SETTLE_WITHIN_S:
                try:
                    number = await operator.scrub(member) if number is None else number
                    last = ((await operator.state(member))["scrub"] or {}).get("last") or {}
                    if last.get("number", -1) >= number:
                        break
                except LedgerError as error:  # a busy machine's member may miss one deadline
                    why = str(error)
                await asyncio.sleep(_ASK_EVERY_S)
            else:
                self.report.violations.append(Violation("never_scrubbed", f"{member}: {why}"))

    async def _unsettled(self, operator: LedgerClient, quiet: bool) -> str:
        leader = await operator.leader()
        states = {member: await operator.state(member) for member in self.members}
        dispatchers = (await operator.introspect(leader, "dispatchers"))["items"]
        not_appending = [f"{one['peer_id']} in {one['state']}" for one in dispatchers if one["state"] != "APPEND"]
        if not_appending or len(dispatchers) != len(self.members) - 1:
            return f"{leader} leads, {', '.join(not_appending) or 'and lacks dispatchers'}"
        logs = {member: state["log"] for member, state in states.items()}
        ends = {(log["committed_index"], log["end_index"]) for log in logs.values()}
        leaders = [member for member, state in states.items() if state["role"] == "LEADER"]
        self.report.term = states[leader]["term"]
        if leaders != [leader]:
            return f"leaders: {leaders}"
        not_voting = [
            f"{one} is {state['voter_state']}" for one, state in states.items() if state["voter_state"] != "VOTER"
        ]
        if not_voting:
            return ", ".join(not_voting)
        damaged = [f"{one}: {state['faults']}" for one, state in states.items() if state["faults"]]
        if damaged:
            return ", ".join(damaged)
        if quiet and (len(ends) > 1 or any(committed != end for committed, end in ends)):
            return f"committed and end indexes: {sorted(ends)}"
        return ""

    async def _ask_for_alarms(self, operator: LedgerClient) -> None:
        for member in self.members:
            with suppress(LedgerError):
                for event in (await operator.introspect(member, "events"))["items"]:
                    if event["kind"] == "alarm" and event["detail"].get("code") in _GRAVE:
                        self.report.violations.append(Violation("alarm", f"{member}: {event['detail']}"))

    async def _judge(self, clients: Clients | MessageClients, faults: Faults) -> None:
        report = self.report
        report.operations, report.refusals = clients.count(), clients.refusals()
        report.acknowledged_entries = clients.acknowledged()
        codes = dict(zip(self.members, await self._stop_all(), strict=True))
        for member, code in codes.items():
            if code != 0:
                report.violations.append(Violation("unclean_stop", f"{member} ended with {code} at SIGTERM"))
        self._count_ends(faults)
        logs, unreadable = read_logs({one.id: one.store for one in self.members.values()})
        report.committed_index = min((len(log.entries) for log in logs), default=0) - 1
        report.violations += unreadable
        if isinstance(clients, MessageClients):
            report.came_again = clients.repeated
            report.violations += check_equal(logs)
            report.violations += check_messages(clients, {one.id: one.data for one in self.members.values()})
        else:
            report.violations += check_logs(logs, clients.recorder)
        if not report.acknowledged_entries:
            report.violations.append(Violation("nothing_tested", "nothing was acknowledged in the whole run"))

    async def _stop_all(self) -> list[int | None]:
        return list(await asyncio.gather(*(member.stop() for member in self.members.values())))

    def _count_ends(self, faults: Faults) -> None:
        """A process that ended without our order is a finding; its supervisor has written down how."""
        for member in self.members.values():
            said = member.log.read_text(errors="replace")
            found = ends_by_themselves(said, {part: faults.ordered_ends[member.id, part] for part in PARTS})
            if found:
                self.report.ends[member.id] = found
                self.report.violations.append(Violation("ended_by_itself", f"{member.id}: {'; '.join(found[-3:])}"))
            if (traceback := last_traceback(said)) is not None:
                self.report.violations.append(Violation("traceback", f"{member.id}: {traceback}"))

    async def _clean_up(self) -> None:
        for member in self.members.values():
            member.resume()
        for member in self.members.values():
            await member.kill()
        await self.network.stop()
        for path in self._mounted:
            if self.report.violations:
                await _keep_what_was_mounted(path)
            with suppress(ToolFailed):
                # At once, also while a killed child of a member still has it open: it is not waited for.
                await tool("umount", "--lazy", str(path))
            with suppress(OSError):
                kept = path.with_name(f"{path.name}-kept")
                if kept.exists():
                    path.rmdir()
                    kept.rename(path)


async def _keep_what_was_mounted(path: Path) -> None:
    """A copy on the real disk, for whoever looks at a violation."""
    with suppress(ToolFailed):
        await tool("cp", "-a", "--sparse=always", str(path), str(path.with_name(f"{path.name}-kept")))
