"""The check for Spark: audits of whole logs need it; it is an extra (`audit` in pyproject.toml), for it is large.

Invariants: nothing is installed here; where `make demo` is installing it at this moment (it holds a lock in the
environment meanwhile), an audit waits for the end of that instead of importing half a package.
"""

from __future__ import annotations

import fcntl
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

NEEDED: Final = ("pyspark", "py4j", "pyarrow", "pandas")
LOCK_FILE: Final = ".audit.lock"  # the Makefile's
WAITING: Final = "Spark is being installed in this environment; the audit goes on when it is there"


class NoSpark(RuntimeError):
    """Spark is not installed; the message says how to get it."""


def missing() -> list[str]:
    """What of NEEDED cannot be imported here."""
    importlib.invalidate_caches()
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def await_spark(waits: Callable[[str | None], None], prefix: Path | None = None) -> None:
    """Returns when Spark can be imported; `waits` is called with why it takes long, then with None. Raises NoSpark."""
    lock = (prefix or Path(sys.prefix)) / LOCK_FILE
    try:
        with lock.open("rb") as held:
            _wait_for(held.fileno(), waits)
    except FileNotFoundError:
        pass  # not an environment that the Makefile made
    lacking = missing()
    if lacking:
        raise NoSpark(
            f"audits need Spark, which is not installed here ({', '.join(lacking)} missing): in a clone `make setup`,"
            " elsewhere `pip install 'quorumscope[audit]'`"
        )


def _wait_for(descriptor: int, waits: Callable[[str | None], None]) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        waits(WAITING)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        waits(None)
