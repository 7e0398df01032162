"""The real demo: three members, a console, messages, one break of each kind that matters, and nothing left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import httpx2
import pytest

from app.demo.processes import descendants_of
from app.demo.state import DemoState, process_start_ticks, running_demo

pytestmark = [pytest.mark.process, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
ENOUGH_TO_FLIP = 50  # messages; the checkpoint follows within milliseconds
CUT_OFF_FOR_S = 25.0  # it is healed after 30
TRIES = 5
T = TypeVar("T")


def eventually(what: str, look: Callable[[], T | Literal[False] | None], seconds: float = 90.0) -> T:
    """What `look` finds, as soon as it finds something."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"never: {what}")


def gone(pids: list[int]) -> bool:
    return all(process_start_ticks(pid) is None for pid in pids)


def quorumscope(environment: dict[str, str], *arguments: str) -> tuple[int, Any]:
    """Exit code and JSON of another terminal's command."""
    command = [sys.executable, "-m", "app.cli", *arguments, "--json"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def found_demo(process: subprocess.Popen[str]) -> DemoState:
    def look() -> DemoState | None:
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        return running_demo()

    return eventually("a running demo", look)


def fed(state: DemoState) -> int:
    feed = httpx2.get(f"{state.demo_url}/state", trust_env=False, timeout=60).json()["feed"]
    return int(feed["appended"]) if feed else 0


def leader_of(state: DemoState) -> str | None:
    leader: str | None = httpx2.get(f"{state.demo_url}/state", trust_env=False, timeout=60).json()["leader_id"]
    return leader


def cut_off_and_named(state: DemoState, environment: dict[str, str]) -> Any:
    """Cuts off the leader: `status`, once another one leads and it is named; None where that took too long.

    The demo heals it after 30 seconds, which a busy machine may need for the commands alone.
    """
    leader = leader_of(state)
    code, broken = quorumscope(environment, "demo", "break", "partition")
    assert code == 0
    until = time.monotonic() + CUT_OFF_FOR_S
    while time.monotonic() < until:
        code, status = quorumscope(environment, "status")
        named = ("cut_off", leader) in {(one["code"], one["member"]) for one in status["problems"]}
        assert not named or code == 1
        if named and status["quorum"]["answering"] == 3 and status["leader_id"] not in (None, leader):
            assert broken["node"] == leader
            return status
    return None


def test_the_demo_lives_is_broken_and_leaves_nothing(
    demo: Callable[..., subprocess.Popen[str]], environment: dict[str, str]
) -> None:
    process = demo("--rate", "100")
    state = found_demo(process)
    assert state.console_url is not None
    assert httpx2.get(f"{state.console_url}/login", trust_env=False, timeout=60).status_code == 200
    before = eventually("messages flow", lambda: (count := fed(state)) > ENOUGH_TO_FLIP and count)

    def well() -> Any:
        code, status = quorumscope(environment, "status")
        return code == 0 and status

    status = eventually("all is well", well)
    assert status["leader_id"] in {"n0", "n1", "n2"}
    assert status["quorum"] == {"size": 3, "needed": 2, "answering": 3, "standing": 3, "stands": True}

    def flipped() -> Any:
        before = leader_of(state)
        code, broken = quorumscope(environment, "demo", "break", "flip")
        return code == 0 and leader_of(state) == before and (before, broken)  # else there is nothing to flip yet

    leader, broken = eventually("a bit is flipped", flipped)
    assert broken["node"] != leader
    assert str(broken["index"]) in broken["did"]
    assert broken["node"] in broken["did"]
    data = next(member.data for member in state.members if member.id == broken["node"])
    code, report = quorumscope(environment, "store", "verify", data)
    assert code == 1
    assert broken["index"] in {problem["index"] for problem in report["problems"]}

    for _ in range(TRIES):
        eventually("all is well", well)
        status = cut_off_and_named(state, environment)
        if status:
            break
    quorum = status["quorum"]
    assert (quorum["size"], quorum["needed"], quorum["answering"], quorum["stands"]) == (3, 2, 3, True)
    assert quorum["standing"] in (2, 3), "whom the new leader heard within two seconds counts still"
    behind = fed(state)
    eventually("messages flow under the new leader", lambda: fed(state) > behind >= before)

    everything = [process.pid, *descendants_of(process.pid)]
    assert len(everything) >= 1 + 3 * 3 + 1, "the demo, three supervisors with two processes each, the console"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 0
    eventually("no process is left", lambda: gone(everything))
    assert process.stdout is not None
    assert "/login/link/" in process.stdout.read()


@pytest.mark.long  # test_left_running.py kills one whose engine stands still
def test_a_killed_demo_takes_everything_with_it(demo: Callable[..., subprocess.Popen[str]]) -> None:
    process = demo("--headless")
    found_demo(process)
    everything = list(descendants_of(process.pid))
    assert len(everything) >= 9
    process.kill()
    process.wait()
    eventually("no process is left", lambda: gone(everything))
    assert running_demo() is None
