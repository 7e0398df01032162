"""The commands that problems print, run as they are printed: the problem closes.

A real group, a real break, the console's own eyes on it. What is run is `Problem.command`, in a shell, with
`quorumscope` standing for this checkout's.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from app.bench.observer import Observer
from app.commands.endings import Exit
from app.demo import run as demo
from app.demo.breaks import SLOW_BY_S
from app.demo.processes import descendants_of, engine_of
from app.health.advice import ADVICE, RESTART, RESTART_MACHINE
from app.health.audited import open_audit
from app.health.facts import ATTENTION, Finding
from app.health.group_view import AuditView, GroupView, Problem
from app.health.next_steps import next_step
from app.times import rfc3339, utc_now
from node.client.machine import MachineClient
from tests.ports import free_ports
from tests.process.test_sentence import WITHIN_S, Run, demo_in, flip, follower_of

pytestmark = [pytest.mark.process, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
NARROW_BYTES_PER_S = 3000.0
OF_OTHER_GROUPS = ("a-broker-is-not-well", "a-certificate-ends", "a-state-machine-does-not-apply")
TRIED_APART = ("{start}", RESTART, RESTART_MACHINE)


@pytest.fixture(scope="module")
def steps_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Whoever prints `quorumscope …` means the one that is installed, and here that is this checkout."""
    script = tmp_path_factory.mktemp("bin") / "quorumscope"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m app.cli "$@"\n')
    script.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, steps_path: None) -> Iterator[Run]:
    with demo_in(tmp_path_factory.mktemp("steps")) as made:
        yield made


async def problem(watcher: Observer, node: str | None, codes: set[str]) -> Problem:
    """The problem of that member, or of the group, once it is named."""

    def found(view: GroupView) -> list[Problem]:
        return [one for one in view.problems if one.member == node and one.code in codes]

    await watcher.until(f"{codes} of {node}", lambda view: bool(found(view)))
    return next(one for _, view in reversed(watcher.looks) for one in found(view))


async def shell(command: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_shell(
        command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(240):
        output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def curl(line: str | None) -> None:
    """The printed curl line is answered; where there is no curl, that cannot be tried."""
    assert line is not None
    code, output = await shell(f"{line} -f -o /dev/null --max-time 60")
    assert code == 0, (line, output)


async def healed_by_hand(watcher: Observer, one: Problem, node: str) -> None:
    """What is printed is run, and all is well."""
    assert one.command == f"quorumscope demo heal {node}"
    await curl(one.curl)
    code, output = await shell(one.command)
    assert code == 0, output
    await watcher.in_step()


async def started_by(command: str, well: Callable[[], Awaitable[object]]) -> None:
    """Runs a printed command that starts a node, until all is `well`; the node ends with this."""
    process = await asyncio.create_subprocess_shell(
        f"exec {command}", stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await well()
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def test_a_member_that_is_cut_off_is_healed(run: Run) -> None:
    async def work(watcher: Observer) -> None:
        assert watcher.demo.breaker is not None
        node = follower_of(watcher)
        await watcher.demo.breaker.do("partition", node)
        one = await problem(watcher, node, {"cut_off"})
        assert "one more failure stops them" in one.at_stake
        await healed_by_hand(watcher, one, node)
        await watcher.until("over", lambda _view: any(event.kind == "incident" for event in watcher.events))

    run(work)


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        pytest.param("slow", "slow_link", marks=pytest.mark.long),
        pytest.param("mute", "one_way", marks=pytest.mark.long),
        pytest.param("deafen", "one_way", marks=pytest.mark.long),
        pytest.param("narrow", "resends", marks=pytest.mark.long),
    ],
)
def test_a_link_that_is_slow_or_carries_one_way_only_is_healed(run: Run, what: str, kind: str) -> None:
    async def work(watcher: Observer) -> None:
        node = follower_of(watcher)
        if what == "slow":
            watcher.demo.links.slow(node, SLOW_BY_S)
        elif what == "narrow":  # so little passes that no heartbeat is answered in time to be timed
            for ends, relay in watcher.demo.links.relays.items():
                relay.bytes_per_s = NARROW_BYTES_PER_S if node in ends else 0
        else:
            watcher.demo.links.cut_way(node, inward=what == "deafen")
        one = await problem(watcher, node, {kind})
        await healed_by_hand(watcher, one, node)

    run(work)


def test_followers_without_a_connection_to_each_other_are_healed(run: Run) -> None:
    """The one that was there is lost, and a new one is not let through."""

    async def work(watcher: Observer) -> None:
        low, high = sorted(one for one in watcher.demo.members if one != watcher.view.leader_id)
        for way in ((low, high), (high, low)):
            watcher.demo.links.relays[way].cut()
            watcher.demo.links.relays[way].reset()
        one = await problem(watcher, low, {"not_connected"})
        await healed_by_hand(watcher, one, low)

    run(work)


@pytest.mark.parametrize("kind", [pytest.param("no_leader", marks=pytest.mark.long), "engines_silent"])
def test_what_is_wrong_with_the_whole_group_is_healed(run: Run, kind: str) -> None:
    """Nobody hears anybody; all engines are stopped."""

    async def work(watcher: Observer) -> None:
        assert watcher.demo.breaker is not None
        for node in watcher.demo.members:
            if kind == "no_leader":
                watcher.demo.links.isolate(node)
            else:
                await watcher.demo.breaker.do("pause", node)
        one = await problem(watcher, None, {kind})
        assert one.command == "quorumscope demo heal"
        code, output = await shell(one.command)
        assert code == 0, output
        await watcher.in_step()

    run(work)


def test_every_other_command_and_curl_line_runs_as_it_is_printed(run: Run) -> None:
    """Of all kinds of problems that a group of this kind may have; what starts a node and what audits have tests of
    their own here."""

    async def work(watcher: Observer) -> None:
        node, lines = follower_of(watcher), {}
        for code, advice in ADVICE.items():
            if advice.section not in OF_OTHER_GROUPS and advice.command not in TRIED_APART:
                for member in (node, None):
                    step = next_step(Finding(code, ATTENTION, "", member), watcher.view)
                    if not (step.command or "").startswith(("quorumscope audit", "quorumscope members address")):
                        lines[step.command] = step.curl
        assert {line.split()[1] for line in lines} >= {"status", "scrub", "members", "demo"}, lines
        for command, curl_line in lines.items():
            code, output = await shell(command)
            assert code in (Exit.FINE, Exit.FINDING, Exit.UNDETERMINED), (command, code, output)
            if curl_line is not None:
                await curl(curl_line)
        await watcher.in_step()

    run(work)


@pytest.mark.long
def test_an_engine_that_stands_still_is_started_again(run: Run) -> None:
    async def work(watcher: Observer) -> None:
        assert watcher.demo.breaker is not None
        node = follower_of(watcher)
        url = watcher.demo.members[node].control_url
        code, output = await shell(f"quorumscope restart --node {url}")
        assert code != 0 and "it does not hang" in output, output
        await watcher.demo.breaker.do("pause", node)
        one = await problem(watcher, node, {"replica_silent"})
        assert one.command == f"quorumscope demo heal {node}", "in a demo that is the next step"
        assert one.curl is not None and one.curl.startswith(f"curl -X POST {url}/api/v1/restart")
        code, output = await shell(RESTART.format(there=url))
        assert code == 0 and "another engine answers" in output, output
        await watcher.in_step()

    run(work)


async def audit(watcher: Observer, low: int | None = None, high: int | None = None) -> AuditView:
    """A real one, as the console would keep it; it starts a Spark of its own."""
    urls = [word for one in watcher.demo.members.values() for word in ("--node", one.control_url)]
    bounds = [] if low is None or high is None else ["--from", str(low), "--to", str(high)]
    _, output = await shell(shlex.join(["quorumscope", "audit", *urls, *bounds, "--json"]) + " 2>/dev/null")
    result = json.loads(output)
    found = [one for one in result["findings"] if one["severity"] == "critical"]
    return AuditView(
        id=str(low), state="done", verdict=result["verdict"], depth=result["depth"], from_index=low, to_index=high,
        finished_at=rfc3339(utc_now()), node_id=found[0]["replicas"][0] if found else None,
        found_from=min((one["from_index"] for one in found), default=None),
        found_to=max((one["to_index"] for one in found), default=None),
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_flipped_bit_that_an_audit_found_is_repaired(run: Run) -> None:
    async def work(watcher: Observer) -> None:
        node = follower_of(watcher)
        flipped = await flip(watcher, node)
        first = await audit(watcher)
        assert (first.verdict, first.found_from, first.found_to) == ("divergent", flipped.index, flipped.index)
        watcher.audits["demo"] = first
        one = await problem(watcher, node, {"audit_divergent"})
        assert one.command == f"quorumscope scrub --node {watcher.demo.members[node].control_url}"
        code, output = await shell(one.command)
        assert code == 0 and "repaired from its peers" in output, output
        await curl(one.curl)
        assert watcher.audits["demo"] is first, "the finding stands until somebody has looked there again"
        again = await audit(watcher, one.from_index, one.to_index)
        watcher.audits["demo"] = open_audit([again, first])
        await watcher.in_step()

    run(work)


def test_a_damaged_store_is_repaired(run: Run) -> None:
    """Found while no peer is in reach, so that it does not mend by itself before anybody has read of it."""

    async def work(watcher: Observer) -> None:
        assert watcher.demo.breaker is not None
        node = follower_of(watcher)
        flipped = await flip(watcher, node)
        await watcher.demo.breaker.do("partition", node)
        one = await problem(watcher, node, {"cut_off"})
        url = watcher.demo.members[node].control_url
        await curl(f"curl -s -X POST {url}/api/v1/scrub -H 'Content-Type: application/json'")
        one = await problem(watcher, node, {"log_damaged"})
        assert (one.from_index, one.to_index) == (flipped.index, flipped.index)
        assert one.command == f"quorumscope scrub --node {url}"
        await watcher.demo.breaker.heal(node)
        code, output = await shell(one.command)
        assert code == 0 and "nothing of it is damaged" in output, output
        await watcher.in_step()

    run(work)


@pytest.mark.long
def test_a_member_that_is_looked_for_elsewhere_is_found_again(run: Run) -> None:
    """Its leader goes to it without a relay from then on: no link of it can be broken after this."""

    async def work(watcher: Observer) -> None:
        node = follower_of(watcher)
        leader_url = watcher.demo.members[str(watcher.view.leader_id)].control_url
        (nowhere,) = free_ports(1)
        code, output = await shell(f"quorumscope members address {node} 127.0.0.1:{nowhere} --node {leader_url} --yes")
        assert code == 0, output
        one = await problem(watcher, node, {"wrong_address"})
        assert one.command is not None and watcher.demo.members[node].address in one.command
        code, output = await shell(one.command)
        assert code == Exit.USAGE and "give --yes" in output, "nobody is at a terminal here who could confirm it"
        code, output = await shell(f"{one.command} --yes")
        assert code == 0, output
        await watcher.in_step()

    run(work)


def test_a_node_that_was_killed_is_started_as_it_was(run: Run) -> None:
    """The last one here: the node that it starts ends with it."""

    async def work(watcher: Observer) -> None:
        node = follower_of(watcher)

        def control_plane_is_away(view: GroupView) -> bool:
            one = view.member(node)
            return one is not None and one.problem is not None  # it may outlive its engine for one sample

        os.kill(watcher.demo.members[node].pid, signal.SIGKILL)
        await problem(watcher, node, {"replica_silent"})
        await watcher.until("without its control plane", control_plane_is_away)
        one = await problem(watcher, node, {"replica_silent"})
        assert one.command is not None and one.command.startswith("quorumscope node ") and "--init" not in one.command
        await curl(one.curl)
        await started_by(one.command, watcher.in_step)

    run(work)


@pytest.mark.long  # the one that raises is started again in the same way
def test_a_state_machine_that_hangs_is_started_again(
    tmp_path: Path, steps_path: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "STORE_SETTINGS", (*demo.STORE_SETTINGS, "node.state_machine=kv"))

    async def work(watcher: Observer) -> None:
        node = follower_of(watcher)
        engine = engine_of(watcher.demo.members[node].pid)
        leader_url = watcher.demo.members[str(watcher.view.leader_id)].control_url
        url = watcher.demo.members[node].control_url
        for found, command in (
            ("not_applying", f"quorumscope kv put key value --node {leader_url}"),
            ("alarm_applier_silent", f"curl -sf {url}/api/v1/kv/keys/key"),
        ):
            (pid,) = [one for one in descendants_of(engine or 0) if b"node.state_machine" in words_of(one)]
            os.kill(pid, signal.SIGSTOP)
            code, output = await shell(command)
            assert (code == 0) is (found == "not_applying"), output
            one = await problem(watcher, node, {found})
            assert one.command == f"quorumscope restart --state-machine --node {url}"
            code, output = await shell(one.command)
            assert code == 0 and "another state machine has applied" in output, output
            await watcher.in_step()

    with demo_in(tmp_path) as made:
        made(work)


@pytest.mark.long
def test_a_state_machine_that_raises_is_started_again_once_the_cause_is_mended(
    tmp_path: Path, steps_path: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = "node.state_machine=tests.process.raising_machine:RaisesWhile"
    monkeypatch.setattr(demo, "STORE_SETTINGS", (*demo.STORE_SETTINGS, machine))
    cause = tmp_path / "cause"

    async def work(watcher: Observer) -> None:
        cause.touch()
        client = watcher.demo.target.client(WITHIN_S)
        asked = asyncio.ensure_future(MachineClient(client, deadline_s=WITHIN_S).command(str(cause).encode()))
        try:
            nodes = list(watcher.demo.members)
            found = [await problem(watcher, node, {"alarm_apply_failed"}) for node in nodes]
            assert all("the file is there" in one.text for one in found), found
            cause.unlink()
            for node, one in zip(nodes, found, strict=True):
                url = watcher.demo.members[node].control_url
                assert one.command == f"quorumscope restart --state-machine --node {url}"
                code, output = await shell(one.command)
                assert code == 0 and "another state machine has applied" in output, output
            await watcher.in_step()
        finally:
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            await client.close()

    with demo_in(tmp_path) as made:
        made(work)


def words_of(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
