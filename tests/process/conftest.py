"""Groups of real engines as fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.group import Group


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    """A group whose engines the test starts itself."""
    made = Group(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Three engines that every test of a module shares; a test leaves them running."""
    made = Group(tmp_path_factory.mktemp("group"))
    try:
        made.start_all()
        yield made
    finally:
        made.close()
