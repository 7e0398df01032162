"""Whatever a test run or a demo has started ends with it, also when it is killed and can do nothing about it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from node.children import apart
from node.guardian import Guardian, command_of

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
MARK = "TEST_LEFT_RUNNING"
WITHIN_S = 60.0

# A test of a run that will be killed: engines, one of them stopped; a supervisor with its two processes; a process with
# a session and a parent of its own, which no parent-death signal reaches; and one that starts others all the time.
RUN = """
import os, signal, subprocess, sys, time
from pathlib import Path
from tests.ports import free_ports
from tests.process.group import Group

def test_for_ever(tmp_path):
    group = Group(tmp_path)
    group.start_all()
    group.signal("n1", signal.SIGSTOP)
    ports = free_ports(2)
    peers = f"m0-127.0.0.1:{ports[0]}"
    control = f"127.0.0.1:{ports[1]}"
    data = str(tmp_path / "m0")
    group.spawn(["--id", "m0", "--peers", peers, "--control", control, "--data", data, "--init"], "node")
    subprocess.Popen(["sh", "-c", "setsid sleep 600 & exit 0"]).wait()
    subprocess.Popen(["sh", "-c", "while :; do sleep 1; done"], start_new_session=True)
    while not (Path(data) / "dledger-m0").exists():
        time.sleep(0.05)
    open(os.environ["READY"], "w").close()
    time.sleep(600)
"""


# A run with what brings processes of its own along: a browser, and a Spark session with its Java machine.
HELPERS = """
import os, time
from pathlib import Path
from playwright.sync_api import sync_playwright
from app.audit.session import start_session
from tests.prepare import find_chromium

def test_for_ever(tmp_path):
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox", "--disable-gpu"])
        browser.new_page().goto("about:blank")
        session = start_session("local[1]", work_dir=tmp_path)
        assert session.range(3).count() == 3
        open(os.environ["READY"], "w").close()
        time.sleep(600)
"""


def marked(value: str) -> dict[int, str]:
    """The processes that carry the test's own mark, with their command lines."""
    found = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                variables = (place / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"{MARK}={value}".encode() in variables:
                found[int(place.name)] = command_of(int(place.name))
    return found


def until(wanted: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not wanted():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


@contextmanager
def started(command: list[str], value: str, log: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose whole offspring carries a mark; nothing of it is left behind by this test either."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | {MARK: value} | variables, stdout=out, stderr=out,
            preexec_fn=apart(signal.SIGKILL),
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pid in marked(value):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("run", "held"),
    [
        (RUN, {"node.server": 4, "node.control": 1, "sleep 600": 1}),
        pytest.param(HELPERS, {"chromium/chromium ": 1, "bin/java ": 1}, marks=pytest.mark.long),
    ],
    ids=["engines", "chromium-and-spark"],
)
def test_a_test_run_that_is_killed_leaves_nothing_behind(tmp_path: Path, run: str, held: dict[str, int]) -> None:
    (tmp_path / "test_run.py").write_text(textwrap.dedent(run))
    ready, log = tmp_path / "ready", tmp_path / "log"
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", os.devnull, "--rootdir", str(tmp_path)]
    command += ["-o", "addopts=", str(tmp_path / "test_run.py")]
    value = f"run-{os.getpid()}"
    with started(command, value, log, READY=str(ready)) as process:
        while not ready.exists() and process.poll() is None:  # Spark takes its time; the test's own limit ends this
            time.sleep(0.05)
        assert ready.exists(), log.read_text()

        def all_run() -> bool:
            commands = " | ".join(marked(value).values())
            return all(commands.count(name) >= count for name, count in held.items())

        until(all_run, lambda: marked(value))
        process.kill()
        process.wait()
        until(lambda: not marked(value), lambda: marked(value))


def test_a_demo_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    log, value = tmp_path / "log", f"demo-{os.getpid()}"
    command = [sys.executable, "-m", "app.cli", "demo", "--data", str(tmp_path / "demo"), "--headless", "--rate", "10"]
    with started(command, value, log, XDG_RUNTIME_DIR=str(tmp_path)) as process:
        until(lambda: "Feeding" in log.read_text() or process.poll() is not None, log.read_text)
        engines = [pid for pid, command in marked(value).items() if "node.server" in command]
        assert len(engines) == 3, log.read_text()
        os.kill(engines[0], signal.SIGSTOP)
        process.kill()
        process.wait()
        until(lambda: not marked(value), lambda: marked(value))


def test_a_guardian_ends_what_is_left_and_nothing_else() -> None:
    stranger = subprocess.Popen(["sleep", "600"], preexec_fn=apart(signal.SIGKILL))
    outer = os.environ.get("QS_STARTED_BY")
    guardian = Guardian()
    ours = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        guardian.close()
        assert ours.wait(WITHIN_S) == -signal.SIGKILL
        assert stranger.poll() is None
        assert (os.environ.get("QS_STARTED_BY") or None) == outer
    finally:
        for process in (stranger, ours):
            process.kill()
            process.wait()
