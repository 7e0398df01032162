"""Something else than a plain file under one of the store's names: refused at once, with what an operator has to do."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from node.store.errors import StoreRefused
from node.store.files.checkpoint import CHECKPOINT
from node.store.files.platform import OS, OsPlatform
from node.store.reader import StoreReader
from node.store.repair.problems import look
from tests.unit.store_fixtures import fill, open_store, sync
from tests.unit.test_store_positions import data_of

FIRST_DATA = f"data/{0:020d}"
NAMES = [
    FIRST_DATA, f"data/{4096:020d}", f"index/{0:020d}", "quorumscope.json", "hardstate", "currterm", CHECKPOINT,
    "lock",
]  # fmt: skip


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A sound store of several files, cleanly closed."""
    store = open_store(tmp_path / "store")
    fill(store, 3, 40)
    sync(store)
    store.close()
    return tmp_path / "store"


def put(kind: str, path: Path) -> None:
    kept = path.with_name("kept")
    path.rename(kept)
    if kind == "directory":
        path.mkdir()
    elif kind == "FIFO":
        os.mkfifo(path)
    else:
        path.symlink_to(kept if kind == "symbolic link" else "nowhere")


@pytest.mark.parametrize("kind", ["directory", "FIFO", "symbolic link", "dangling"])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_file_is_named_and_nothing_changes(made: Path, kind: str, name: str) -> None:
    put(kind, made / name)
    held = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    said = "symbolic link" if kind == "dangling" else kind
    with pytest.raises(
        StoreRefused, match=f"{name} is a {said}, not a file of this store: (move it away|put the file)"
    ):
        open_store(made)
    assert {path: path.read_bytes() for path in made.rglob("*") if path.is_file()} == held


@pytest.mark.parametrize("kind", ["directory", "FIFO"])
def test_who_only_looks_is_not_stopped_by_it(made: Path, kind: str) -> None:
    put(kind, made / f"data/{4096:020d}")
    assert "missing" in {one.kind for one in StoreReader(made).verify().problems}
    (problem,) = look(made, OS).problems
    assert f"is a {kind}" in problem.what


def test_once_it_is_moved_away_what_the_file_held_is_a_fault_to_heal(made: Path) -> None:
    whole = data_of(made)
    put("directory", made / f"data/{4096:020d}")
    (made / f"data/{4096:020d}").rmdir()
    store = open_store(made)
    assert store.faults and store.end_index == 119
    store.close()
    shutil.copy(made / "data" / "kept", made / f"data/{4096:020d}")
    (made / "data" / "kept").unlink()
    store = open_store(made)
    assert store.faults == () and data_of(made) == whole
    store.close()


class Forbidden(OsPlatform):
    """One file that another user owns: this test may run as one who may do everything."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, path: Path, flags: int) -> int:
        if path == self.path:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return super().open(path, flags)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_this_user_may_not_open_is_named(made: Path, name: str) -> None:
    with pytest.raises(StoreRefused, match=f"{name} cannot be opened .Permission denied.: let the user"):
        open_store(made, platform=Forbidden(made / name))
    open_store(made).close()
