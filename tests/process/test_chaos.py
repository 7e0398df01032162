"""`simulate --processes`: every kind of fault once, on a network of our own and behind relays; nothing is left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.process import chaos
from tests.process.chaos_faults import Faults
from tests.process.chaos_plan import BROKER_KINDS, KINDS, Step, make_plan, one_of_each, summary
from tests.process.net_proxy import ProxyNetwork

ROOT = Path(__file__).parents[2]
SECONDS = 12.0

pytestmark = pytest.mark.process


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "tests.process.chaos", *words]


def run(directory: Path, *words: str) -> tuple[dict[str, Any], str]:
    """The report of one run and what it said."""
    done = subprocess.run(
        command("--json", *words), cwd=ROOT, capture_output=True, text=True, timeout=540,
        env=os.environ | {"TMPDIR": str(directory)},
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout), done.stderr


def living(directory: Path) -> list[str]:
    """Command lines that name a directory: what a run may have left."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(directory) in words:
            found.append(words)
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("--mode", "auto", "--seed", "1"), id="own network"),
        pytest.param(("--mode", "proxy", "--disk", "quota", "--seed", "2"), id="relays", marks=pytest.mark.long),
    ],
)
def test_every_fault_once_and_everything_promised_is_there(tmp_path: Path, words: tuple[str, ...]) -> None:
    report, said = run(tmp_path, "--plan", "each", "--seconds", str(SECONDS), *words)
    assert report["violations"] == [], said
    wanted = {step["kind"] for step in report["plan"]}
    assert wanted >= set(KINDS) - BROKER_KINDS - {"reset", "slow"}
    assert set(report["faults"]) >= wanted - ({"slow"} if not report["slow_by"] else set()), said
    assert report["refusals"].get("DISK_FULL"), said
    assert report["acknowledged_entries"] > 10
    assert report["operations"]["read"]["ok"] > 5
    assert report["committed_index"] >= report["acknowledged_entries"]
    assert living(tmp_path) == []
    assert list(tmp_path.iterdir()) == [], "a run in which everything held leaves no files"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_fault_once_beside_brokers_and_every_message_is_where_it_was_promised(tmp_path: Path) -> None:
    report, said = run(tmp_path, "--brokers", "--plan", "each", "--seconds", str(2 * SECONDS), "--seed", "5")
    assert report["violations"] == [], said
    wanted = {step["kind"] for step in report["plan"]}
    assert wanted >= set(KINDS) - {"disk_full", "reset", "slow"}
    assert set(report["faults"]) >= wanted - ({"slow"} if not report["slow_by"] else set()), said
    done = {kind: outcomes["ok"] for kind, outcomes in report["operations"].items()}
    assert set(done) == {"single", "batch", "delayed", "transaction", "new topic"} and min(done.values()) > 0, done
    assert report["committed_index"] >= report["acknowledged_entries"] > 100
    assert living(tmp_path) == []
    assert list(tmp_path.iterdir()) == [], "a run in which everything held leaves no files"


@pytest.mark.long  # what is started ends with who started it: test_left_running.py; on Ctrl-C: test_demo.py
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_everything_that_it_started(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "app.cli", "simulate", "--processes", "--seconds", "60", "--seed", "3"],
        cwd=ROOT, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "nodes run" in line:
                break
        assert len(living(tmp_path)) >= 9, "three nodes of three processes each"
        process.send_signal(number)
        time.sleep(0.05)
        with suppress(ProcessLookupError):
            process.send_signal(number)  # somebody is impatient
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[number], said
    assert living(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


@pytest.mark.long  # what is killed takes everything with it in test_left_running.py, too
def test_a_killed_run_takes_its_nodes_with_it(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("--seconds", "60", "--seed", "4", "--mode", "proxy"), cwd=ROOT, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if "nodes run" in line:
            break
    process.kill()
    process.communicate(timeout=60)
    deadline = time.monotonic() + 60
    while living(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert living(tmp_path) == []
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


class LosesLeadership:
    """An operator's client, a disk and an appender, of a member that is deposed as soon as its disk is full once."""

    about = "a fake"

    def __init__(self) -> None:
        self.leader, self.fills, self.full, self.refused = "n1", 0, False, 0

    async def state(self, member: str) -> dict[str, Any]:
        return {"role": "LEADER" if member == self.leader else "FOLLOWER"}

    async def transfer(self, wanted: str, *, deadline_ms: int) -> dict[str, Any]:
        assert not self.full, "a full member cannot be made the leader"
        self.leader = wanted
        return {"code": 200, "leaderId": wanted}

    def fill(self) -> None:
        self.fills += not self.full
        self.full = True
        self.leader = "n0" if self.fills == 1 else self.leader
        self.refused += self.leader == "n1"

    def free(self) -> None:
        self.full = False


def test_a_full_disk_is_met_even_where_leadership_is_lost_first() -> None:
    fake, said = LosesLeadership(), list[str]()
    members: Any = dict.fromkeys(("n0", "n1", "n2"))
    faults = Faults(members, ProxyNetwork(), "n1", fake, fake, lambda: fake.refused, 1, said.append)  # type: ignore[arg-type]
    asyncio.run(faults.run(Step(0.0, "disk_full", "small", 0.0)))
    assert fake.refused and fake.fills == 2 and not fake.full, said


def test_a_seed_names_one_plan() -> None:
    plan = make_plan(7, 60.0, KINDS)
    assert plan == make_plan(7, 60.0, KINDS) != make_plan(8, 60.0, KINDS)
    assert set(summary(plan)) == set(KINDS)
    assert all(0.0 < step.at_s <= step.at_s + step.for_s <= 60.1 for step in plan)
    assert [step.at_s for step in plan] == sorted(step.at_s for step in plan)
    assert "reset" not in summary(make_plan(7, 60.0, set(KINDS) - {"reset"}))
    assert summary(one_of_each(KINDS, SECONDS)) == dict.fromkeys(KINDS, 1)


@pytest.mark.parametrize("words", [("--members", "4"), ("--seconds", "1"), ("--mode", "air"), ("--nodes",)])
def test_a_wrong_command_line_is_one_line_and_64(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        chaos.main(words)
    said = capsys.readouterr()
    assert (ended.value.code, said.out, len(said.err.splitlines())) == (64, "", 1)
