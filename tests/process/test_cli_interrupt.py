"""A Ctrl-C ends a command with 130 and one line whenever it comes; a reader that goes away, with no word."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from node.children import apart
from tests.ports import free_ports
from tests.process.group import Group

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 60.0


def started(arguments: list[str], **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "app.cli", *arguments],
        cwd=ROOT, env=os.environ | variables, text=True, preexec_fn=apart(signal.SIGKILL),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def interrupted(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What it says after a Ctrl-C, which ends it with 130."""
    try:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WITHIN_S)
        assert process.returncode == 130, err
        assert "Traceback" not in err
        return out, err
    finally:
        process.kill()
        process.communicate()


def until(wanted: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not wanted():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_interrupted_while_it_waits_for_input() -> None:
    process = started(["append", "--peers", "n0-127.0.0.1:1"])
    _until_threads(process.pid, 2)
    _, said = interrupted(process)
    assert said.splitlines()[-1] == "interrupted"


def test_interrupted_while_it_waits_for_a_member() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(WITHIN_S)
        process = started(["tail", "--follow", "--peers", f"n0-127.0.0.1:{silent.getsockname()[1]}"])
        with silent.accept()[0]:
            _, said = interrupted(process)
    assert said.splitlines()[-1] == "interrupted"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 130)], ids=["SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("ignores_interrupts", [False, True], ids=["foreground", "background"])
def test_terminated(ignores_interrupts: bool, number: signal.Signals, code: int) -> None:
    """SIGTERM, or the end of an SSH connection, ended an `append` without a word of what was stored; a shell's job in
    the background ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if ignores_interrupts else None
    try:
        process = started(["append", "--json", "--peers", "n0-127.0.0.1:1"])
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
    try:
        _until_threads(process.pid, 2)
        process.send_signal(number)
        out, err = process.communicate(timeout=WITHIN_S)
        assert process.returncode == code, err
        assert json.loads(out)["appended"] == 0 and "Traceback" not in err
    finally:
        process.kill()
        process.communicate()


def test_a_command_that_outlives_its_terminal_goes_on() -> None:
    """`nohup` ignores the signal, and so does what it starts."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = started(["append", "--json", "--peers", "n0-127.0.0.1:1"])
    finally:
        signal.signal(signal.SIGHUP, before)
    try:
        _until_threads(process.pid, 2)
        process.send_signal(signal.SIGHUP)
        out, err = process.communicate("", timeout=WITHIN_S)
        assert (process.returncode, json.loads(out)["appended"]) == (0, 0), err
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("swallows", [False, True], ids=["plain", "swallowed"])
def test_interrupted_during_the_imports(tmp_path: Path, swallows: bool) -> None:
    """`typer` of the test's takes for ever to import, and may catch whatever is raised into it."""
    waits = f"open({str(tmp_path / 'there')!r}, 'w').close()\nimport time\ntime.sleep(600)\n"
    guarded = "try:\n" + "".join(f"    {line}\n" for line in waits.splitlines()) + "except BaseException:\n    pass\n"
    (tmp_path / "typer.py").write_text(guarded if swallows else waits)
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    process = started(["status"], PYTHONPATH=paths)
    until((tmp_path / "there").exists, "it never imported anything")
    assert interrupted(process) == ("", "interrupted\n")


def test_the_way_in_imports_nothing_of_its_own() -> None:
    """Each of them takes time in which a Ctrl-C is a traceback: nobody handles it yet."""
    asks = "import sys; before = set(sys.modules); import app.cli; print(*sorted(set(sys.modules) - before))"
    found = subprocess.run([sys.executable, "-c", asks], cwd=ROOT, capture_output=True, text=True, timeout=WITHIN_S)
    assert found.stdout.split() == ["app", "app.cli"], found.stderr


def test_a_node_that_is_interrupted_while_it_starts_ends_in_order(tmp_path: Path) -> None:
    member, control = free_ports(2)
    process = started([
        "node", "--id", "n0", "--peers", f"n0-127.0.0.1:{member}", "--data", str(tmp_path / "d"),
        "--control", f"127.0.0.1:{control}", "--init",
    ])  # fmt: skip
    try:
        until(lambda: "-P" in Path(f"/proc/{process.pid}/cmdline").read_text().split("\0"), "it never became the node")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WITHIN_S)
        assert (process.returncode, "Traceback" in err) == (0, False), err
    finally:
        process.kill()
        process.communicate()


def test_an_append_that_is_interrupted_says_what_was_acknowledged_and_what_is_open(tmp_path: Path) -> None:
    group = Group(tmp_path)
    try:
        group.start_all()
        peers = ";".join(f"{member}-{address}" for member, address in group.peers.items())
        process = started(
            ["append", "--deadline-s", "600", "--batch", "2", "--json", "--peers", peers, "--group", group.group]
        )
        assert process.stdin is not None
        process.stdin.write("one\ntwo\nthree\n")
        process.stdin.flush()
        reader = started(["tail", "--from", "0", "-n", "2", "-f", "--peers", peers, "--group", group.group])
        assert reader.wait(WITHIN_S) == 0, "the first batch was acknowledged, the second waits for its second line"
        reader.communicate()
        _until_threads(process.pid, 2)
        out, err = interrupted(process)
        reported = json.loads(out)
        assert (reported["appended"], reported["unknown"]) == (2, 0)
        assert reported["ranges"] == [[reported["first_index"], reported["last_index"]]]
        assert err.splitlines() == ["interrupted"]

        process = started(
            ["append", "--deadline-s", "600", "--batch", "2", "--json", "--peers", peers, "--group", group.group]
        )
        for node_id in group.peers:  # nobody will answer: what is on its way stays open
            group.signal(node_id, signal.SIGSTOP)
        assert process.stdin is not None
        process.stdin.write("four\nfive\nsix\n")
        process.stdin.flush()
        _until_threads(process.pid, 2)
        out, err = interrupted(process)
        reported = json.loads(out)
        assert (reported["appended"], reported["unknown"], reported["ranges"], reported["first_index"]) == (
            0,
            2,
            [],
            -1,
        )
        assert err.splitlines() == ["interrupted"]
    finally:
        group.close()


def test_a_reader_that_goes_away_ends_a_command_without_a_word(tmp_path: Path) -> None:
    group = Group(tmp_path, size=1)
    try:
        group.start_all()
        on = ["--peers", f"n0-{group.peers['n0']}", "--group", group.group]
        process = started(["append", *on])
        process.communicate("\n".join("x" * 1000 for _ in range(2000)), timeout=WITHIN_S)
        assert process.returncode == 0
        for arguments in (["tail", "--from", "0"], ["tail", "--from", "0", "-f"], ["get", "1", "-n", "1500"]):
            process = started([*arguments, *on])
            assert process.stdout is not None and process.stderr is not None
            assert process.stdout.readline() == "x" * 1000 + "\n"
            process.stdout.close()
            assert process.wait(WITHIN_S) == 0, arguments
            assert process.stderr.read() == ""
            process.stderr.close()
    finally:
        group.close()


def children_of(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGHUP, 130, marks=pytest.mark.long),
        pytest.param(signal.SIGKILL, -signal.SIGKILL, marks=pytest.mark.long),
    ],
)
def test_a_simulation_that_is_ended_leaves_no_worker(number: signal.Signals, code: int) -> None:
    """Its workers waited for seeds for ever. It is a shell's job in the background, which ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = started(["simulate", "--seeds", "1000000", "--jobs", "2"])
    finally:
        signal.signal(signal.SIGINT, before)

    def workers() -> list[int]:
        return [worker for campaign in children_of(process.pid) for worker in children_of(campaign)]

    try:
        until(lambda: len(workers()) == 2, "it never shared out its seeds")
        left = workers()
        process.send_signal(number)
        out, err = process.communicate(timeout=WITHIN_S)
        assert (process.returncode, "Traceback" in err) == (code, False), err
        assert number == signal.SIGKILL or "0 violations" in out, out
        until(lambda: not any(Path(f"/proc/{one}").exists() for one in left), "its workers go on")
    finally:
        process.kill()
        process.communicate()


def _until_threads(pid: int, count: int) -> None:
    """Until a process has so many threads and has slept for a moment: it waits for input, or for its poll."""
    deadline = time.monotonic() + WITHIN_S
    asleep = 0
    while time.monotonic() < deadline and asleep < 10:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        asleep = asleep + 1 if fields[0] == "S" and int(fields[17]) >= count else 0
        time.sleep(0.03)
    assert asleep == 10, "the command never came to rest"
