"""The supervisor's rules, with small stand-ins for the two processes (the real ones have tests of their own)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from node.__main__ import BACK_OFF_S_MAX, BACK_OFF_S_MIN, STEADY_AFTER_S, STOP_WITHIN_S, back_off_s, data_directory
from node.config import read_again
from node.supervised import ask_for_another_engine
from tests.unit.test_data_lock import java_gets_it

pytestmark = pytest.mark.process

WITHIN_S = 60.0
REAL = Path(__file__).parents[2] / "node"
CONTROL = "import time\nopen('control.pid', 'w').write(str(__import__('os').getpid()))\ntime.sleep(600)\n"


@pytest.fixture
def stand_ins(tmp_path: Path) -> Path:
    """A package `node` whose supervisor is the real one and whose two processes are scripts of the test's."""
    package = tmp_path / "node"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for module in REAL.glob("*.py"):  # whatever the supervisor imports of them, without another list of it here
        if module.name not in ("__init__.py", "server.py"):
            (package / module.name).write_text(module.read_text())
    for name in ("protocol", "store"):  # what the lock of a data directory needs
        shutil.copytree(REAL / name, package / name, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "control.py").write_text(CONTROL)
    return tmp_path


def run(directory: Path, engine: str, *arguments: str) -> subprocess.Popen[str]:
    (directory / "node" / "server.py").write_text(textwrap.dedent(engine))
    environment = {**os.environ, "PYTHONPATH": str(directory)}
    return subprocess.Popen(
        [sys.executable, "-m", "node", "--data", str(directory), *arguments],
        cwd=directory, env=environment, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


ASKING = """\
import os, signal, time
open("control.pid", "w").write(str(os.getpid()))
from node.supervised import ask_for_another_engine
while not os.path.exists("engine.pid"):
    time.sleep(0.02)
first = open("engine.pid").read()
assert ask_for_another_engine()
while open("engine.pid").read() in ("", first):
    time.sleep(0.02)
open("asked", "w").write(first)
time.sleep(600)
"""


def wait_for(path: Path, text: str = "", seconds: float = WITHIN_S) -> str:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if path.exists() and text in (found := path.read_text()) and found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"{path.name} never held {text!r}")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_gone(pid: int) -> None:
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline and alive(pid):
        time.sleep(0.02)
    assert not alive(pid)


def test_a_crashed_engine_comes_back_and_the_reason_is_recorded(stand_ins: Path) -> None:
    node = run(stand_ins, "open('starts', 'a').write('x')\nraise SystemExit(1)")
    try:
        wait_for(stand_ins / "starts", "xxx")
        assert json.loads(wait_for(stand_ins / "engine-refused.json"))["reason"] == "the engine ended with exit code 1"
        control_pid = int(wait_for(stand_ins / "control.pid"))
    finally:
        node.terminate()
    assert node.wait(WITHIN_S) == 0
    assert not alive(control_pid)


def test_a_broker_is_kept_out_between_the_first_two_engines_of_a_new_member(stand_ins: Path) -> None:
    """The first one makes the directory; the stand-in holds no lock, so whoever holds it is the supervisor."""
    data = stand_ins / "new"
    node = run(stand_ins, "import os, time\nos.makedirs('new', exist_ok=True)\ntime.sleep(600)", "--data", str(data))
    try:
        deadline = time.monotonic() + WITHIN_S
        while (not data.is_dir() or java_gets_it(data)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert node.poll() is None
        assert not java_gets_it(data)
    finally:
        node.terminate()
    assert node.wait(WITHIN_S) == 0
    assert java_gets_it(data)


def test_a_stop_is_heard_where_no_engine_makes_the_directory(stand_ins: Path) -> None:
    engine = "import time\nopen('starts', 'a').write('x')\ntime.sleep(600)"
    node = run(stand_ins, engine, "--data", str(stand_ins / "never"))
    try:
        wait_for(stand_ins / "starts", "x")
    finally:
        node.terminate()
    assert node.wait(WITHIN_S) == 0


def test_an_engine_comes_back_where_its_reason_cannot_be_written(stand_ins: Path) -> None:
    """A full disk ends engines and refuses the note about it; a directory in the note's place refuses it too."""
    (stand_ins / "engine-refused.json").mkdir()
    node = run(stand_ins, "open('starts', 'a').write('x')\nraise SystemExit(1)")
    try:
        wait_for(stand_ins / "starts", "xxx")
        assert node.poll() is None
    finally:
        node.terminate()
    assert node.wait(WITHIN_S) == 0


def test_a_refusal_is_not_retried_and_the_control_plane_stays(stand_ins: Path) -> None:
    node = run(stand_ins, "open('starts', 'a').write('x')\nraise SystemExit(3)")
    try:
        control_pid = int(wait_for(stand_ins / "control.pid"))
        wait_for(stand_ins / "starts", "x")
        time.sleep(4 * BACK_OFF_S_MIN)
        assert (stand_ins / "starts").read_text() == "x"
        assert node.poll() is None
        assert alive(control_pid)
    finally:
        node.terminate()
    assert node.wait(WITHIN_S) == 3
    assert not alive(control_pid)


def test_a_port_in_use_ends_the_node(stand_ins: Path) -> None:
    node = run(stand_ins, "raise SystemExit(69)")
    assert node.wait(WITHIN_S) == 69


def test_a_refusal_ends_the_node_where_the_control_plane_ended_for_good_too(stand_ins: Path) -> None:
    """The same command started twice: lock and control port are taken, and nothing is left that could tell why."""
    (stand_ins / "node" / "control.py").write_text("raise SystemExit(69)")
    node = run(stand_ins, "raise SystemExit(3)")
    assert node.wait(WITHIN_S) == 3


def test_exit_with_engine_ends_the_node(stand_ins: Path) -> None:
    node = run(stand_ins, "raise SystemExit(3)", "--exit-with-engine")
    assert node.wait(WITHIN_S) == 3


def test_a_crashed_control_plane_comes_back(stand_ins: Path) -> None:
    node = run(stand_ins, "import time; time.sleep(600)")
    try:
        first = int(wait_for(stand_ins / "control.pid"))
        (stand_ins / "control.pid").unlink()
        os.kill(first, signal.SIGKILL)
        assert int(wait_for(stand_ins / "control.pid")) != first
    finally:
        node.terminate()
    assert node.wait(WITHIN_S) == 0


def test_an_engine_that_does_not_hear_a_stop_is_killed(stand_ins: Path) -> None:
    engine = """
    import os, signal, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open('engine.pid', 'w').write(str(os.getpid()))
    time.sleep(600)
    """
    node = run(stand_ins, engine)
    pid = int(wait_for(stand_ins / "engine.pid"))
    node.terminate()
    assert node.wait(WITHIN_S) == 0
    assert not alive(pid)
    assert STOP_WITHIN_S < 3, "as docs/operations.md promises"


def test_both_processes_die_with_a_killed_supervisor(stand_ins: Path) -> None:
    node = run(stand_ins, "import os, time\nopen('engine.pid', 'w').write(str(os.getpid()))\ntime.sleep(600)")
    pids = [int(wait_for(stand_ins / name)) for name in ("engine.pid", "control.pid")]
    node.kill()
    node.wait(WITHIN_S)
    for pid in pids:
        wait_gone(pid)


def test_the_back_off_doubles_is_bounded_and_starts_over() -> None:
    waits = [wait := 0.0]
    for _ in range(10):
        wait = back_off_s(wait, ran_s=0.1)
        waits.append(wait)
    assert waits[1] == BACK_OFF_S_MIN
    assert waits[2] == 2 * BACK_OFF_S_MIN
    assert waits[-1] == BACK_OFF_S_MAX
    assert back_off_s(BACK_OFF_S_MAX, STEADY_AFTER_S) == BACK_OFF_S_MIN


@pytest.mark.parametrize(
    ("arguments", "environ"),
    [
        (["--data", "d"], {}),
        (["--data=d", "--id", "n0", "--data", "e"], {"QUORUMSCOPE_NODE__DATA": "f"}),
        (["--set", "node.data=d"], {"QUORUMSCOPE_NODE__DATA": "f"}),
        (["--config", "FILE"], {"QUORUMSCOPE_NODE__DATA": "f"}),
        (["--config", "FILE"], {}),
        (["--config=FILE", "--id", "n0"], {"QUORUMSCOPE_CONFIG": "/nowhere.toml"}),
        ([], {"QUORUMSCOPE_CONFIG": "FILE"}),
        ([], {}),
    ],
)
def test_the_data_directory_is_found_wherever_it_is_named(
    tmp_path: Path, arguments: list[str], environ: dict[str, str]
) -> None:
    """Where a configuration file named it, as the service unit in the documentation does, no crash was written down,
    and nothing kept a RocketMQ broker out between two engines."""
    file = tmp_path / "n0.toml"
    file.write_text('[node]\ndata = "from-file"\n')
    arguments = [word.replace("FILE", str(file)) for word in arguments]
    environ = {name: value.replace("FILE", str(file)) for name, value in environ.items()}
    others = ["--peers", "n0-127.0.0.1:20911", "--id", "n0"]
    assert data_directory(arguments, environ) == read_again([*arguments, *others], environ).node.data


def test_a_data_directory_that_cannot_be_found_out_is_no_error_of_the_supervisors(tmp_path: Path) -> None:
    (tmp_path / "odd.toml").write_text("node = 3\n")
    for words in (["--data"], ["--config", str(tmp_path / "odd.toml")], ["--config", str(tmp_path)]):
        assert data_directory(words, {}) == Path("data")


def test_an_engine_that_hangs_is_ended_and_started_again_when_it_is_asked_for(stand_ins: Path) -> None:
    """By the control plane, which is its child; an engine that takes no SIGTERM is killed."""
    (stand_ins / "node" / "control.py").write_text(ASKING)
    engine = """
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open("engine.tmp", "w").write(str(os.getpid()))
        os.replace("engine.tmp", "engine.pid")
        time.sleep(600)
        """
    node = run(stand_ins, engine)
    try:
        first = int(wait_for(stand_ins / "asked"))
        assert not alive(first) and alive(int(wait_for(stand_ins / "engine.pid"))) and node.poll() is None
    finally:
        node.terminate()
        _, errors = node.communicate(timeout=WITHIN_S)
    assert "an operator asked for it" in errors


def test_nobody_is_asked_who_said_not_to_be_the_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NODE_SUPERVISOR_PID", raising=False)
    assert not ask_for_another_engine()
    monkeypatch.setenv("NODE_SUPERVISOR_PID", str(os.getpid()))  # of another parent
    assert not ask_for_another_engine()
