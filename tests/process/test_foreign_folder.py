"""A folder that holds packages of our names, as a checkout of something else may: nothing of it is ever run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from node import children
from tests.ports import free_ports

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
# What the console script does: its own folder comes first on the path, never the current one.
SCRIPT = "from app.cli import main\nmain()\n"


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """Every package of ours, in a version that leaves a file where it was imported."""
    folder = tmp_path / "evil"
    for package in ("node", "node/control", "node/server", "node/store", "app", "app/cli", "app/audit", "tests"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'a').write('{package} ')\n")
        (folder / package / "__main__.py").write_text("")
    (tmp_path / "script").mkdir()
    (tmp_path / "script" / "quorumscope").write_text(SCRIPT)
    return folder


def quorumscope(evil: Path, *arguments: str, within_s: float = 120.0) -> tuple[int, str]:
    command = [sys.executable, str(evil.parent / "script" / "quorumscope"), *arguments]
    variables: Mapping[str, str] = os.environ | {"XDG_RUNTIME_DIR": str(evil.parent), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, cwd=evil, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=children.apart(signal.SIGTERM),
    )  # fmt: skip
    said, _ = process.communicate(timeout=within_s)
    return process.returncode, said


@pytest.mark.long  # the demo starts the same nodes in the same way (node/children.py)
def test_a_demo_and_all_its_processes(evil: Path) -> None:
    code, said = quorumscope(evil, "demo", "--for", "2", "--rate", "10")
    assert not (evil.parent / "was_run").exists(), (evil.parent / "was_run").read_text()
    assert code == 0, said
    assert "Console" in said


def test_a_node_and_both_of_its_processes(evil: Path) -> None:
    """Three packages are asked for: the supervisor, the engine (69: its port is taken), the control plane."""
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        peers = f"n0-127.0.0.1:{taken.getsockname()[1]}"
        control = f"127.0.0.1:{free_ports(1)[0]}"
        data = str(evil.parent / "data")
        code, said = quorumscope(
            evil, "node", "--id", "n0", "--peers", peers, "--data", data, "--control", control, "--init"
        )
    assert not (evil.parent / "was_run").exists(), (evil.parent / "was_run").read_text()
    assert code == 69, said


def test_a_stores_repair(evil: Path) -> None:
    (evil / "empty").mkdir()
    code, said = quorumscope(evil, "store", "repair", "empty")
    assert not (evil.parent / "was_run").exists(), (evil.parent / "was_run").read_text()
    assert code != 0 and "Traceback" not in said
