"""A suite on a busy machine ends with the tracebacks of its failures (`tests/timeouts.py`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import timeouts

ROOT = Path(__file__).resolve().parents[2]
# A report takes longer than a test may, of a failure and of one that hangs: what a busy machine makes of a traceback.
CONFTEST = """
import time
from tests import timeouts

timeouts.AGAIN_S = 0.5

def pytest_runtest_makereport(item, call):
    if call.when == "call" and item.name in ("test_one", "test_hangs"):
        time.sleep(1.5)
"""
SUITE = """
import asyncio
import time
import pytest

def test_one():
    assert "first" == "one"

def test_two():
    assert "second" == "two"

def test_hangs():
    time.sleep(60)

@pytest.fixture
def hanging():
    yield
    time.sleep(60)

def test_hangs_at_its_end(hanging):
    pass

async def busy(wanted):
    time.sleep(60)
    wanted.set_result(1)

async def waiting():
    wanted = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(busy(wanted))
    await wanted

def test_waits_for_a_task():
    asyncio.run(waiting())
"""


def _run(folder: Path, *options: str) -> str:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_suite.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", "timeout=1", *options, "test_suite.py"]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def test_a_slow_report_is_made_all_the_same_and_what_hangs_is_ended(tmp_path: Path) -> None:
    said = _run(tmp_path, "-p", "tests.timeouts")
    assert "INTERNALERROR" not in said
    for line in ('assert "first" == "one"', 'assert "second" == "two"', "time.sleep(60)", "Timeout (>1.0s)"):
        assert line in said, said
    for name in ("test_one", "test_two", "test_hangs", "test_hangs_at_its_end", "test_waits_for_a_task"):
        assert f"test_suite.py::{name}" in said


def test_this_suite_has_it(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.pluginmanager.get_plugin("tests.timeouts") is timeouts
