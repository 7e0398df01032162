"""A Ctrl-C ends a command with 130, also while it waits for a line that nobody types."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("arguments", [["append"], ["tail", "--follow"]])
def test_interrupted(arguments: list[str]) -> None:
    # Not before the command waits: a signal during its imports would be another story.
    command = [sys.executable, "-m", "app.cli", *arguments, "--peers", "n0-127.0.0.1:1"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip
    try:
        _until_threads(process.pid, 1 if arguments == ["tail", "--follow"] else 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.communicate()


def _until_threads(pid: int, count: int) -> None:
    """Until a process has so many threads and has slept for a moment: it waits for input, or for its poll."""
    deadline = time.monotonic() + 30
    asleep = 0
    while time.monotonic() < deadline and asleep < 10:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        asleep = asleep + 1 if fields[0] == "S" and int(fields[17]) >= count else 0
        time.sleep(0.1)
    assert asleep == 10, "the command never came to rest"
