"""What a wheel of this tree installs, away from the tree: console, demo and audit run from it in an empty folder.

Invariant: nothing is downloaded, and nothing of the checkout is on the path; every process is a real one.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import httpx2
import pytest

from tests.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 60.0
ENTRIES_MIN = 50

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "-w", str(folder), str(ROOT)]
    subprocess.run(build, check=True, timeout=240)
    (made,) = folder.glob("*.whl")
    return made


class Installed:
    """The wheel in a folder of its own; commands run in another one, which starts out empty."""

    def __init__(self, code: Path, folder: Path) -> None:
        self.code, self.folder = code, folder
        clean = {key: value for key, value in os.environ.items() if not key.startswith("QUORUMSCOPE_")}
        self.environment = clean | {"PYTHONPATH": str(code), "XDG_RUNTIME_DIR": str(folder)}

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(self.code / "bin" / "quorumscope"), *words]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, *words: str) -> tuple[int, str, str]:
        process = self.start(*words)
        out, err = process.communicate(timeout=240)
        return process.returncode, out, err


@pytest.fixture(scope="module")
def code(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the wheel is installed."""
    code = tmp_path_factory.mktemp("code")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(code), str(wheel)], check=True, timeout=240)
    return code


@pytest.fixture
def installed(code: Path, tmp_path: Path) -> Installed:
    folder = tmp_path / "empty"
    folder.mkdir()
    return Installed(code, folder)


def end(process: subprocess.Popen[str]) -> None:
    """Ends what a failed test left; a demo takes its own processes down on SIGTERM."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
    process.communicate()


def page_is_whole(url: str) -> None:
    """The page of the way in, and every file that it names."""
    with httpx2.Client(base_url=url, timeout=30, trust_env=False) as browser:
        page = browser.get("/login")
        assert page.status_code == 200
        parts = set(re.findall(r'(?:href|src)="(/static/[^"]+)"', page.text))
        assert any(part.split("?")[0].endswith(".css") for part in parts)
        assert any(part.split("?")[0].endswith(".js") for part in parts)
        for part in parts:
            assert browser.get(part).status_code == 200, part


def test_the_wheel_carries_what_the_tree_has(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "app", "node", "templates", "static", "migrations"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    ).stdout.split()  # fmt: skip
    named = tracked or [str(path.relative_to(ROOT)) for path in (ROOT / "templates").rglob("*.html")]
    wanted = {name if name.startswith(("app/", "node/")) else f"app/_data/{name}" for name in named}
    assert {"app/py.typed", "node/py.typed"} <= inside
    assert wanted <= inside
    strangers = {name for name in inside if not name.startswith(("app/", "node/")) and ".dist-info/" not in name}
    assert not strangers
    assert not [name for name in inside if "__pycache__" in name or name.startswith("tests")]


def test_the_console_runs_from_a_wheel(installed: Installed) -> None:
    (port,) = free_ports(1)
    process = installed.start("console", "--listen", f"127.0.0.1:{port}", "--db", "console.db")
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        page_is_whole(json.loads(line)["url"])
    finally:
        end(process)
    assert (installed.folder / "console.db").is_file()


def committed_of(installed: Installed) -> int:
    """The leader's committed index as `status` shows it; -1 where nobody leads."""
    _, out, err = installed.run("status", "--json")
    assert out, err
    status = json.loads(out)
    states = [one["state"] for one in status["members"] if one["id"] == status["leader_id"] and one["state"]]
    return int(states[0]["log"]["committed_index"]) if states else -1


@pytest.mark.timeout(600)
@pytest.mark.long
@pytest.mark.parametrize("depth", ["chain", pytest.param("bytes", marks=pytest.mark.spark)])
def test_demo_and_audit_run_from_a_wheel(installed: Installed, depth: str) -> None:
    data = installed.folder / "kept"
    process = installed.start("demo", "--data", str(data), "--keep", "--rate", "100")
    try:
        assert process.stdout is not None
        said = ""
        while "Ctrl-C stops" not in said:
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            said += line
        found = re.search(r"Console +(\S+)", said)
        assert found is not None
        page_is_whole(found.group(1))
        until = time.monotonic() + WITHIN_S
        while committed_of(installed) < ENTRIES_MIN:
            assert time.monotonic() < until
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WITHIN_S)
        assert process.returncode == 0
    finally:
        end(process)
    stores = [word for name in ("n0", "n1") for word in ("--store", f"{name}={data / name / f'dledger-{name}'}")]
    code, out, err = installed.run("audit", *stores, "--depth", depth, "--json")
    assert code == 0, err or out
    result = json.loads(out)
    assert result["verdict"] == "consistent"
    assert result["rows"] >= (ENTRIES_MIN if depth == "bytes" else 1)


def test_what_needs_a_clone_says_so(installed: Installed) -> None:
    code, out, err = installed.run("simulate", "--seed", "1")
    assert (code, out) == (2, "")
    assert "run this command in a clone" in err
    assert err.count("\n") == 1
