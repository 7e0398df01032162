"""Groups of real engines, and whole demos, as fixtures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.demo.processes import descendants_of
from app.demo.state import process_start_ticks
from tests.process.group import Group

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    """A group whose engines the test starts itself."""
    made = Group(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Three engines that every test of a module shares; a test leaves them running."""
    made = Group(tmp_path_factory.mktemp("group"))
    try:
        made.start_all()
        yield made
    finally:
        made.close()


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return {key: value for key, value in os.environ.items() if not key.startswith("QUORUMSCOPE_")}


@pytest.fixture
def demo(tmp_path: Path, environment: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts demos; whatever a test leaves is ended by its process id."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "app.cli", "demo", "--data", str(tmp_path / "demo"), *arguments]
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        left = list(descendants_of(process.pid)) if process.returncode is None else []
        process.kill()
        process.wait()
        for pid in left:
            if process_start_ticks(pid) is not None:
                os.kill(pid, signal.SIGKILL)
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
