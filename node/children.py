"""How a child process is started: out of reach of the terminal's signals, and never outliving who started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def apart(when_parent_dies: signal.Signals) -> Callable[[], None]:
    """For `preexec_fn`: a process group of its own, and that signal when the thread that started it ends (Linux).

    So a Ctrl-C reaches the parent alone, which stops its children in order. Not a session: see `node.priority`.
    """
    parent_pid = os.getpid()

    def between_fork_and_exec() -> None:  # only calls that were prepared before the fork
        os.setpgid(0, 0)
        if sys.platform == "linux":
            _LIBC.prctl(_PR_SET_PDEATHSIG, when_parent_dies)
            if os.getppid() != parent_pid:
                os._exit(0)  # it died in between

    return between_fork_and_exec
