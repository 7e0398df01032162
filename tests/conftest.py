"""What all tests share: where the recorded vectors lie, and what a run leaves behind: nothing."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from node.guardian import Guardian
from tests import timeouts
from tests.prepare import missing

# A shell that starts something in the background has it ignore Ctrl-C, and every child inherits that; tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What the developer exported to work with a group of theirs (README) must not configure the tests' nodes and commands.
for _name in [name for name in os.environ if name.startswith("QUORUMSCOPE_") and name != "QUORUMSCOPE_WAIVE"]:
    del os.environ[_name]

# What the tests start by a module's name elsewhere finds these modules: a dependency's wheel (canaille) has a top-level
# package `tests` as well.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).resolve().parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
)

# Whatever this run starts ends with it, also when it is killed: engines of a run that was interrupted used to go on for
# hours. With pytest-xdist each worker has one of its own.
_GUARDIAN = Guardian()


def pytest_unconfigure() -> None:
    _GUARDIAN.close()


# `make test` draws the same examples every time: what it says of a commit is not a matter of luck. `make prove` draws
# new ones (DRAW_EXAMPLES). How long an example takes is the machine's affair, not the test's.
settings.register_profile("same", derandomize=True, database=None, deadline=None)
settings.register_profile("new", deadline=None)
settings.load_profile("new" if os.environ.get("DRAW_EXAMPLES") else "same")

VECTORS = Path(__file__).resolve().parents[2] / "shared" / "vectors"


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.has_plugin(timeouts.__name__):
        config.pluginmanager.register(timeouts, timeouts.__name__)


def pytest_collection_finish() -> None:
    """What is imported and collected by now stays to the end: each full collection would look at all of it again."""
    gc.freeze()


@pytest.fixture(scope="session")
def vectors() -> Path:
    """The bytes that the Java original wrote; they are not part of a clone."""
    if not VECTORS.is_dir():
        pytest.skip("the recorded vectors are not part of a clone (../shared/vectors is absent)")
    return VECTORS


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says aloud what could not be run; `tests.prepare` has already failed the target unless it was waived."""
    for tool in missing():
        terminalreporter.write_line(f"NOT RUN: {tool.tests} (no {tool.package} on this machine)", red=True)
