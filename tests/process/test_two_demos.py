"""Two demos that start at the same moment: each has its own ports and its own group."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.demo.state import DemoState, running_demos
from node.client import AnotherGroup, LedgerClientSync, LedgerError

pytestmark = [pytest.mark.process, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
START_WITHIN_S = 90.0


def both(started: list[subprocess.Popen[str]]) -> list[DemoState]:
    """Their notes, once both have a leader."""
    deadline = time.monotonic() + START_WITHIN_S
    while len(demos := list(running_demos())) < len(started):
        for one in started:
            assert one.poll() is None, one.communicate()
        assert time.monotonic() < deadline, f"only {len(demos)} of the demos came up"
        time.sleep(0.1)
    return demos


def appended(client: LedgerClientSync, body: bytes) -> int:
    """Its index; an election meanwhile may cut one short."""
    deadline = time.monotonic() + START_WITHIN_S
    while True:
        try:
            return client.append(body).first_index
        except LedgerError:
            assert time.monotonic() < deadline


@pytest.mark.long  # one demo and its ports: test_demo.py
def test_two_demos_that_start_together_are_two_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("QUORUMSCOPE_")}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-m", "app.cli", "demo", "--no-console", "--rate", "5"]
    started = [
        subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    try:
        one, other = both(started)
        addresses = [member.address for demo in (one, other) for member in demo.members]
        controls = [member.control_url for demo in (one, other) for member in demo.members]
        assert len({*addresses}) == len({*controls}) == 6
        assert one.group == other.group and one.group_id != other.group_id
        assert one.directory != other.directory and Path(one.directory).is_dir() and Path(other.directory).is_dir()
        for demo, stranger in ((one, other), (other, one)):
            with LedgerClientSync(demo.peers, group=demo.group, group_id=demo.group_id, deadline_s=60.0) as client:
                index = appended(client, demo.directory.encode())
                assert client.read(index, 1)[0].body == demo.directory.encode()
            with (
                LedgerClientSync(demo.peers, group=demo.group, group_id=stranger.group_id) as client,
                pytest.raises(AnotherGroup),
            ):
                client.append(b"not for you")
        for demo in (one, other):
            secret = Path(demo.directory) / "member-secret"
            assert secret.stat().st_mode & 0o777 == 0o600
    finally:
        for process in started:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        said = [process.communicate(timeout=60) for process in started]
    assert all("were appended" in stderr for _stdout, stderr in said), said
    assert not list(running_demos())
