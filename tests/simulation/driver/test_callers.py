"""What the loop may do to a disk: sync a file that an append had to make itself, as often as the store counts one."""

from __future__ import annotations

import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.simulation.driver.callers import DriverPlatform
from tests.simulation.observer import Violation

FOLDER = Path("/n0/data")


class Loop:
    """A platform that serves the loop's turn, and what a store would count."""

    def __init__(self) -> None:
        self.made_late = 0
        self.found: list[Violation] = []
        self.platform = DriverPlatform(random.Random(1), lambda: 0, "n0")
        self.platform.make_directory(FOLDER.parent)
        self.platform.make_directory(FOLDER)
        self.platform.violate = self.found.append
        turn, threads = SimpleNamespace(in_turn=True), SimpleNamespace(at_work="")
        self.platform.serve(cast(Any, turn), cast(Any, threads), lambda: self.made_late)

    def make(self, name: str) -> int:
        fd = self.platform.open(FOLDER / name, os.O_RDWR | os.O_CREAT)
        self.platform.fsync(fd)
        self.platform.sync_directory(FOLDER)
        return fd


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_a_file_that_the_store_counts_as_late_is_synced_once_with_its_folder(loop: Loop) -> None:
    loop.made_late += 1
    fd = loop.make("0")
    assert loop.found == []
    loop.platform.fsync(fd)
    loop.platform.sync_directory(FOLDER)
    assert [one.invariant for one in loop.found] == ["no_sync_on_loop"] * 2


def test_a_file_that_no_append_waited_for_may_not_be_synced_there(loop: Loop) -> None:
    loop.make("0")
    assert [one.invariant for one in loop.found] == ["no_sync_on_loop"] * 2
    loop.made_late += 1
    loop.make("1")
    loop.make("2")
    assert [one.invariant for one in loop.found] == ["no_sync_on_loop"] * 4, "one count, one file"
