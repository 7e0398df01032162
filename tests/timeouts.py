"""A time-out ends a test, never its report.

pytest-timeout's alarm runs on while pytest formats a failure: on a busy machine it went off in there, and what was lost
with it was the report of the whole run (an internal error in place of the tracebacks). Here each phase of a test has
the whole time to itself, and no alarm is set while its report is made and written.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

SETTINGS: pytest.StashKey[Any] = pytest.StashKey()


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """Remembers what this test was given; the alarm is set as usual."""
    item.stash[SETTINGS] = settings


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
