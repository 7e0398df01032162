"""A time-out ends a test, never its report.

pytest-timeout's alarm runs on while pytest formats a failure: on a busy machine it went off in there, and what was lost
with it was the report of the whole run (an internal error in place of the tracebacks). Here each phase of a test has
the whole time to itself, and no alarm is set while its report is made and written.

What the alarm raises in a task of asyncio's ends that task alone, and whoever waits for it waits for ever: it goes off
again and again, until it meets the test itself.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from typing import Any, Final

import pytest

SETTINGS: pytest.StashKey[Any] = pytest.StashKey()
AGAIN_S: Final = 10.0


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, Any, Any]:
    """Remembers what this test was given; the alarm is set as usual, and repeats itself."""
    item.stash[SETTINGS] = settings
    done = yield
    if settings.method == "signal" and threading.current_thread() is threading.main_thread():
        signal.setitimer(signal.ITIMER_REAL, settings.timeout, AGAIN_S)
    return done


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    item.config.hook.pytest_timeout_cancel_timer(item=item)
    return (yield)


def _again(item: pytest.Item) -> None:
    settings = item.stash.get(SETTINGS, None)
    if settings is not None:
        item.config.hook.pytest_timeout_set_timer(item=item, settings=settings)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    _again(item)
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    _again(item)
    return (yield)
