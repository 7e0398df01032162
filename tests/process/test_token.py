"""A member with a token file: its control plane and the commands show the token, everybody else is refused (C7)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from node.children import apart
from tests.ports import free_ports
from tests.process.group import ROOT, SMALL_FILES, START_WITHIN_S

pytestmark = pytest.mark.process
TOKEN = "one-word-of-enough-characters"


class Guarded:
    """A group of one, engine and control plane, whose configuration names a token file."""

    def __init__(self, directory: Path) -> None:
        member_port, control_port = free_ports(2)
        self.peers, self.url = f"n0-127.0.0.1:{member_port}", f"http://127.0.0.1:{control_port}"
        self.token_file, self.config = directory / "token", directory / "node.toml"
        self.token_file.touch(0o600)
        self.token_file.write_text(TOKEN + "\n")
        lines = [
            f'peers = "{self.peers}"', "[node]", 'id = "n0"', 'group = "g"', 'group_token = "a-group-token"',
            "init = true",
            f'token_file = "{self.token_file}"', f'data = "{directory / "n0"}"',
            "[control]", f'address = "127.0.0.1:{control_port}"',
        ]  # fmt: skip
        self.config.write_text("\n".join(lines))
        command = [sys.executable, "-m", "node", "--config", str(self.config), *SMALL_FILES]
        self.process = subprocess.Popen(command, cwd=ROOT, preexec_fn=apart(signal.SIGKILL))

    def command(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """A `quorumscope` command, from a shell of somebody else's."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("QUORUMSCOPE_")}
        return subprocess.run(
            [sys.executable, "-m", "app.cli", *words], cwd=ROOT, env=inherited | variables, capture_output=True,
            text=True, timeout=2 * START_WITHIN_S,
        )  # fmt: skip

    def state(self, token: str | None) -> httpx2.Response:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return httpx2.get(f"{self.url}/api/v1/state", headers=headers, timeout=START_WITHIN_S, trust_env=False)

    def wait(self) -> None:
        """Until it leads, as its control plane says."""
        ends = time.monotonic() + START_WITHIN_S
        while time.monotonic() < ends:
            try:
                reported = self.state(TOKEN).json()
            except httpx2.HTTPError:
                reported = {}
            if reported.get("leader_ready"):
                return
            time.sleep(0.1)
        raise AssertionError(f"no leader: {reported}")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(60)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    group = Guarded(tmp_path_factory.mktemp("guarded"))
    try:
        group.wait()
        yield group
    finally:
        group.close()


def test_the_control_plane_shows_its_engine_the_token_and_wants_it_itself(guarded: Guarded) -> None:
    reported = guarded.state(TOKEN).json()
    assert (reported["engine"], reported["self_id"], reported["role"]) == ("ok", "n0", "LEADER")
    assert guarded.state(None).status_code == 401


@pytest.mark.parametrize("words", [("status",), ("transfer",)])
def test_a_command_without_the_token_is_denied_and_told_what_to_do(guarded: Guarded, words: tuple[str, ...]) -> None:
    done = guarded.command(*words, "--peers", guarded.peers, "--group", "g")
    assert done.returncode == 77, done.stderr
    (line,) = done.stderr.splitlines()
    assert "token_file" in line and "--token-file FILE" in line and "$QUORUMSCOPE_TOKEN" in line


def test_every_way_to_show_the_token_works(guarded: Guarded) -> None:
    by_peers = ("--peers", guarded.peers, "--group", "g")
    for done in (
        guarded.command("status", "--json", *by_peers, QUORUMSCOPE_TOKEN=TOKEN),
        guarded.command("status", "--json", *by_peers, "--token-file", str(guarded.token_file)),
        guarded.command("status", "--json", "--config", str(guarded.config)),
        guarded.command("status", "--json", "--node", guarded.url, QUORUMSCOPE_TOKEN=TOKEN),
    ):
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["leader_id"] == "n0"
    wrong = guarded.command("status", *by_peers, QUORUMSCOPE_TOKEN=TOKEN + "r")
    assert wrong.returncode == 77 and TOKEN not in wrong.stderr


def test_appends_and_reads_need_none(guarded: Guarded) -> None:
    by_peers = ("--peers", guarded.peers, "--group", "g")
    appended = guarded.command("append", "pyproject.toml", *by_peers)
    assert appended.returncode == 0, appended.stderr
    got = guarded.command("get", "1", *by_peers)
    assert got.returncode == 0 and "[build-system]" in got.stdout
    tailed = guarded.command("tail", "-n", "1", *by_peers)
    assert tailed.returncode == 0 and tailed.stdout == (ROOT / "pyproject.toml").read_text().splitlines()[-1] + "\n"
    beyond = guarded.command("tail", "--from", "999", *by_peers)
    assert (beyond.returncode, beyond.stdout) == (2, "") and "nothing is committed from 999 on" in beyond.stderr
