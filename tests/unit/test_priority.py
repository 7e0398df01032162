"""Engines go first: niceness that counts, wherever a process was started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from node.children import apart
from node.priority import LOW_PRIORITY_NICENESS

AUTOGROUP = Path("/proc/self/autogroup")
GROUPED = pytest.mark.skipif(not AUTOGROUP.exists(), reason="this kernel does not group sessions for scheduling")
TELL = """
import os
from node.priority import lower_priority
lower_priority()
lower_priority()
print(os.nice(0), os.getsid(0), os.getpgid(0), os.getpid())
"""


def reported(tell: str, **how: object) -> list[str]:
    done = subprocess.run([sys.executable, "-c", tell], capture_output=True, text=True, check=True, **how)  # type: ignore[call-overload]
    return list(done.stdout.split())


def group_of_this_process() -> list[str]:
    """What the kernel says of our scheduling group: nothing in a session that never began one, as PID 1 leaves it."""
    return AUTOGROUP.read_text().split()


def test_a_child_shares_the_session_but_not_the_terminals_signals() -> None:
    nice, session, group, pid = reported(TELL, preexec_fn=apart(signal.SIGKILL))
    assert (int(session), group) == (os.getsid(0), pid)
    assert int(nice) == max(LOW_PRIORITY_NICENESS, os.nice(0))


@GROUPED
def test_a_session_of_its_own_gets_lower_priority_as_a_whole() -> None:
    *_, of_the_group = reported(TELL + 'print(open("/proc/self/autogroup").read())', start_new_session=True)
    assert of_the_group == str(LOW_PRIORITY_NICENESS)


@GROUPED
def test_a_session_of_others_is_left_alone() -> None:
    before = group_of_this_process()
    reported(TELL, preexec_fn=apart(signal.SIGKILL))
    assert group_of_this_process() == before
