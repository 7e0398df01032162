"""Engines go first: niceness that counts, wherever a process was started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from node.children import apart
from node.priority import LOOKER_NICENESS

AUTOGROUP = Path("/proc/self/autogroup")
TELL = """
import os
from node.priority import stand_back
stand_back()
stand_back()
print(os.nice(0), os.getsid(0), os.getpgid(0), os.getpid())
try:
    print(open("/proc/self/autogroup").read().split()[-1])
except OSError:
    print("none")
"""


def told(**how: object) -> list[str]:
    done = subprocess.run([sys.executable, "-c", TELL], capture_output=True, text=True, check=True, **how)  # type: ignore[call-overload]
    return list(done.stdout.split())


def test_a_child_shares_the_session_but_not_the_terminals_signals() -> None:
    nice, session, group, pid, _ = told(preexec_fn=apart(signal.SIGKILL))
    assert (int(session), group) == (os.getsid(0), pid)
    assert int(nice) == max(LOOKER_NICENESS, os.nice(0))


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="this kernel does not group sessions for scheduling")
def test_a_session_of_its_own_stands_back_as_a_whole() -> None:
    *_, of_the_group = told(start_new_session=True)
    assert of_the_group == str(LOOKER_NICENESS)


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="this kernel does not group sessions for scheduling")
def test_a_session_of_others_is_left_alone() -> None:
    before = AUTOGROUP.read_text().split()[-1]
    *_, of_the_group = told(preexec_fn=apart(signal.SIGKILL))
    assert of_the_group == before
