"""A link between two followers that is cut, one way or both, is seen, though they have nothing to say to each other
(tests/process/cut_followers.py tells the story)."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from node.children import apart, environment, python
from tests.process.net import isolation


@pytest.mark.process
@pytest.mark.long
def test_a_link_between_two_followers_that_carries_nothing_is_named(tmp_path: Path) -> None:
    found = isolation(network=True)
    if not found.network:
        pytest.skip("this machine lets nobody make a network of his own")
    done = subprocess.run(
        [*found.command, *python("-m", "tests.process.cut_followers", str(tmp_path))], text=True, timeout=300,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment(), preexec_fn=apart(signal.SIGKILL),
    )  # fmt: skip
    said = "".join(path.read_text()[-2000:] for path in (tmp_path / "logs").glob("*.log"))
    assert done.returncode == 0, f"{done.stdout}\n{said}"
