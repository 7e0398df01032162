"""`python -m node`: the supervisor with the real engine and the real control plane."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_ports
from tests.process.group import Group

pytestmark = pytest.mark.process
WITHIN_S = 60.0


def get(address: str, path: str) -> tuple[int, Any]:
    """Status and JSON body of a GET; 0 where nobody listens."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=WITHIN_S) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, None
    except (OSError, ValueError):
        return 0, None


def state_until(address: str, wanted: dict[str, Any], within_s: float = WITHIN_S) -> dict[str, Any]:
    """The control plane's state once it says what is wanted."""
    deadline = time.monotonic() + within_s
    state: Any = None
    while time.monotonic() < deadline:
        status, state = get(address, "/api/v1/state")
        if status == 200 and all(state.get(key) == value for key, value in wanted.items()):
            return dict(state)
        time.sleep(0.1)
    raise AssertionError(f"never {wanted}: {state}")


def children(pid: int) -> dict[str, int]:
    """Module -> pid of a supervisor's children."""
    found: dict[str, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = re.search(r"^PPid:\s+(\d+)", (path / "status").read_text(), re.MULTILINE)
            words = (path / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if parent and int(parent[1]) == pid and b"-m" in words:
            found[words[words.index(b"-m") + 1].decode()] = int(path.name)
    return found


def test_a_node_serves_survives_its_engine_and_stops(tmp_path: Path) -> None:
    group = Group(tmp_path, size=1)
    control = f"127.0.0.1:{free_ports(1)[0]}"
    node = group.spawn(group.arguments("n0", "--control", control), module="node")
    group.processes["n0"] = node
    try:
        first = state_until(control, {"engine": "ok", "role": "LEADER"})
        assert first["self_id"] == "n0"
        assert get(control, "/healthz")[0] == 200
        engine = children(node.pid)["node.server"]
        node.send_signal(signal.SIGSTOP)  # it starts no other one until that was seen
        os.kill(engine, signal.SIGKILL)
        state_until(control, {"engine": "down"})
        assert get(control, "/readyz")[0] == 503
        node.send_signal(signal.SIGCONT)
        again = state_until(control, {"engine": "ok", "role": "LEADER"})
        assert again["boot_id"] != first["boot_id"]
        assert again["log"]["end_index"] >= first["log"]["end_index"]
        node.send_signal(signal.SIGTERM)
        assert node.wait(WITHIN_S) == 0
    finally:
        group.close()


def test_a_refused_engine_is_explained_by_the_control_plane(tmp_path: Path) -> None:
    group = Group(tmp_path, size=1)
    try:
        group.start("n0")
        control = f"127.0.0.1:{free_ports(1)[0]}"
        node = group.spawn(group.arguments("n0", "--control", control), module="node")
        try:
            deadline = time.monotonic() + WITHIN_S
            while not (tmp_path / "n0" / "engine-refused.json").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            reason = json.loads((tmp_path / "n0" / "engine-refused.json").read_text())["reason"]
            assert "lock" in reason or "process" in reason
            while "node.server" in children(node.pid) and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(0.2)
            assert node.poll() is None
        finally:
            node.send_signal(signal.SIGTERM)
            assert node.wait(WITHIN_S) == 3
            node.communicate()
    finally:
        group.close()
