"""docs/tls.md is followed step by step: its code blocks are run in their order by one shell, on free ports."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from node.children import apart
from tests.ports import free_ports

pytestmark = [pytest.mark.process, pytest.mark.long]
ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PORTS = ("20911", "20912", "20913", "8431", "8432", "8433", "8421")
STEP_WITHIN_S = 120


class Shell:
    """One bash, given a block at a time; a block that fails ends it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        (bin_folder / "quorumscope").write_text(f'#!/bin/sh\nexec {sys.executable} -m app.cli "$@"\n')
        (bin_folder / "quorumscope").chmod(0o755)
        self.work = folder / "work"
        self.work.mkdir()
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{bin_folder}:{os.environ['PATH']}"}
        self.process = subprocess.Popen(
            ["bash", "-eu"], cwd=self.work, env=environment, stdin=subprocess.PIPE, text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=apart(signal.SIGKILL),
        )  # fmt: skip
        self.steps = 0

    def run(self, block: str) -> str:
        """What it printed. A line of its own on a pipe says that it is done."""
        self.steps += 1
        output, done = self.folder / f"{self.steps}.out", self.folder / f"{self.steps}.done"
        os.mkfifo(done)
        assert self.process.stdin is not None
        # What a block leaves in the background keeps no descriptor of the pipe.
        self.process.stdin.write(f"exec > {output} 2>&1\n{block}\necho done > {done}\n")
        self.process.stdin.flush()
        waiting = subprocess.Popen(["cat", str(done)], stdout=subprocess.PIPE, text=True)
        try:
            answer, _ = waiting.communicate(timeout=STEP_WITHIN_S)
        except subprocess.TimeoutExpired:
            waiting.kill()
            waiting.communicate()
            logs = "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in sorted(self.work.glob("*.log")))
            pytest.fail(f"this step failed or did not end:\n{block}\n{output.read_text()}\n{logs}")
        assert answer == "done\n"
        return output.read_text()

    def close(self) -> None:
        for path in self.work.glob("*.pid"):
            with suppress(OSError, ValueError):
                os.kill(int(path.read_text()), signal.SIGKILL)
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    try:
        yield made
    finally:
        made.close()


def blocks_of(document: Path) -> list[str]:
    """The commands, with free ports instead of those that are written there."""
    free = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
    blocks = BLOCK.findall(document.read_text())
    return [re.sub(r"\b(?:" + "|".join(PORTS) + r")\b", lambda found: free[found[0]], block) for block in blocks]


def test_the_walkthrough_works_as_it_is_written(shell: Shell) -> None:
    said = {block: shell.run(block) for block in blocks_of(ROOT / "docs/tls.md")}
    (link,) = [text for block, text in said.items() if "user link" in block]
    assert "https://" in link and "/login/link/" in link
    (appended,) = [text for block, text in said.items() if "| quorumscope append" in block and "tail" in block]
    assert appended.split()[-3:] == ["998", "999", "1000"]
    (refused,) = [text for block, text in said.items() if "! quorumscope status" in block]
    assert "no member of orders answers" in refused and "denies it" in refused
    for log in shell.work.glob("*.log"):
        assert "reread" in log.read_text() and "not_reread" not in log.read_text(), f"{log.name}: {log.read_text()}"
    assert not list(shell.work.glob("data/n0/engine-refused.json"))
