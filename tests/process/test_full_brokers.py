"""Brokers whose disks fill up and get room again: nothing that was answered is lost, consumers go on, and nobody has to
start anything (tests/process/full_brokers.py tells the stories)."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from node.children import apart, environment, python
from tests.process.net import isolation

pytestmark = pytest.mark.process


@pytest.mark.parametrize("story", ["pair", pytest.param("group", marks=pytest.mark.long)])
def test_brokers_live_through_full_disks(story: str, tmp_path: Path) -> None:
    found = isolation(network=False)
    if not found.mount:
        pytest.skip("this machine lets nobody mount a small disk")
    done = subprocess.run(
        [*found.command, *python("-m", "tests.process.full_brokers", story, str(tmp_path))], text=True, timeout=300,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment(), preexec_fn=apart(signal.SIGKILL),
    )  # fmt: skip
    said = "".join(path.read_text()[-2000:] for path in tmp_path.glob("*.log"))
    assert done.returncode == 0, f"{done.stdout}\n{said}"
