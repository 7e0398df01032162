"""How a child process is started: out of reach of the terminal's signals, never outliving who started it, and from our
own code: a folder that happens to hold a package `node` or `app` is not looked into. And how one ended, in words.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_ROOT: Final = Path(__file__).resolve().parents[1]  # where our packages lie


def python(*arguments: str) -> list[str]:
    """The command line of our own interpreter, which puts no current folder before what is installed (-P)."""
    return [sys.executable, "-P", *arguments]


def environment(given: Mapping[str, str] | None = None) -> dict[str, str]:
    """What `python` runs in: as `given` (or ours), and safe for grandchildren; finds our packages also in a clone."""
    result = dict(os.environ if given is None else given) | {"PYTHONSAFEPATH": "1"}
    if _ROOT.name not in ("site-packages", "dist-packages"):
        paths = [path for path in result.get("PYTHONPATH", "").split(os.pathsep) if path and path != str(_ROOT)]
        result["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *paths])
    return result


def apart(when_parent_dies: signal.Signals, *, hold_hang_up: bool = False) -> Callable[[], None]:
    """For `preexec_fn`: a process group of its own, and that signal when the thread that started it ends (Linux).

    So a Ctrl-C reaches the parent alone, which stops its children in order. Not a session: see `node.priority`.
    `hold_hang_up`: a SIGHUP waits until the child has its handler (`node.rereading`), instead of ending it before.
    """
    return dying_with_parent(when_parent_dies, own_group=True, hold_hang_up=hold_hang_up)


def dying_with_parent(
    when_parent_dies: signal.Signals, *, own_group: bool = False, hold_hang_up: bool = False
) -> Callable[[], None]:
    """The same, in the parent's process group: a Ctrl-C reaches both."""
    parent_pid = os.getpid()

    def between_fork_and_exec() -> None:  # only calls that were prepared before the fork
        if own_group:
            os.setpgid(0, 0)
        if hold_hang_up:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        if sys.platform == "linux":
            _LIBC.prctl(_PR_SET_PDEATHSIG, when_parent_dies)
            if os.getppid() != parent_pid:
                os._exit(0)  # it died in between

    return between_fork_and_exec


def end_with_parent(number: signal.Signals) -> None:
    """This process gets that signal when the one that started it ends (Linux)."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, number)


def how_ended(code: int) -> str:
    """In words that stand behind the process's name."""
    if code >= 0:
        return f"ended with exit code {code}"
    names = {one.value: f" ({one.name})" for one in signal.Signals}
    return f"was killed by signal {-code}{names.get(-code, '')}"


def why_failed(done: subprocess.CompletedProcess[str], name: str) -> str:
    """The last line that it left on its standard error, without its name; how it ended, where that says more."""
    lines = done.stderr.strip().splitlines()
    if lines and done.returncode >= 0:
        return lines[-1].removeprefix(f"{name}: ")
    memory = ", perhaps because memory ran out: the kernel's log says whether (`dmesg`)"
    return f"it {how_ended(done.returncode)}{memory if done.returncode == -signal.SIGKILL else ''}"
