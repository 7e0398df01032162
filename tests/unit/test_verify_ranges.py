"""`store verify` names every entry that it could not read, and not only the first of them."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from node.store.errors import StoreRefused
from node.store.files.platform import OS
from node.store.reader import StoreReader
from node.store.repair.problems import look
from tests.unit.store_fixtures import open_store, sync
from tests.unit.store_layout import DATA_BYTES, INDEX_BYTES

INDEX_RECORD_BYTES = 32
Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cleanly closed store of several data and index files."""
    directory = tmp_path_factory.mktemp("sound") / "store"
    store = open_store(directory)
    chosen = random.Random(9)
    for term in (1, 2, 3):
        for _ in range(40):
            store.append_as_leader([chosen.randbytes(chosen.randrange(200))], term)
    sync(store)
    store.close()
    return directory


def garbage(path: Path) -> None:
    path.write_bytes(random.Random(4).randbytes(path.stat().st_size))


DAMAGES: dict[str, Damage] = {
    "gone": lambda path: path.unlink(),
    "of 99 bytes": lambda path: path.write_bytes(path.read_bytes()[:99]),
    "too long": lambda path: path.write_bytes(path.read_bytes() + bytes(4096)),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "garbage": garbage,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("which", ["first", "middle", "last"])
def test_verify_names_all_entries_of_a_data_file(sound: Path, tmp_path: Path, which: str, damage: str) -> None:
    directory = Path(shutil.copytree(sound, tmp_path / "store"))
    files = [one for one in StoreReader(directory).segments() if one.kind == "data" and one.first_index is not None]
    chosen = files[{"first": 0, "middle": len(files) // 2, "last": -1}[which]]
    assert chosen.first_index is not None and chosen.last_index is not None and chosen.last_index > chosen.first_index
    DAMAGES[damage](directory / "data" / chosen.name)

    report = StoreReader(directory).verify()
    named = {
        index
        for one in report.problems
        if one.index is not None and one.end is not None
        for index in range(one.index, one.end + 1)
    }
    lost = set(range(chosen.first_index, chosen.last_index + 1))
    assert named & set(range(120)) == lost
    assert report.entries == 120 - len(lost)


def test_verify_names_all_entries_of_an_index_file_that_is_gone(sound: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(sound, tmp_path / "store"))
    files = sorted((directory / "index").glob("[0-9]*"))
    a_file = INDEX_BYTES // INDEX_RECORD_BYTES
    for path in (files[1], files[-1]):
        path.unlink()
    found = [(one.index, one.end) for one in StoreReader(directory).verify().problems]
    assert found == [(a_file, 2 * a_file - 1), ((len(files) - 1) * a_file, 119)]


@pytest.mark.parametrize("kind", ["data", "index"])
def test_a_link_that_leads_nowhere_is_named_as_what_keeps_a_start(sound: Path, tmp_path: Path, kind: str) -> None:
    """`store repair` looks at what a start will find, and a start refuses a link in place of a file."""
    directory = Path(shutil.copytree(sound, tmp_path / "store"))
    path = sorted((directory / kind).glob("[0-9]*"))[0]
    assert path.stat().st_size == (DATA_BYTES if kind == "data" else INDEX_BYTES)
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    problems = look(directory, OS).problems
    assert [str(path) in one.what and "symbolic link" in one.what for one in problems] == [True]


@pytest.mark.parametrize(
    "name", ["hardstate", "currterm", "quorumscope.json", "quorumscope.checkpoint", "faults", "base"]
)
def test_a_reader_does_not_wait_for_what_never_answers(sound: Path, tmp_path: Path, name: str) -> None:
    """`store verify` and `inspect` of a directory with a FIFO in a file's place stood still for good."""
    directory = Path(shutil.copytree(sound, tmp_path / "store"))
    (directory / name).unlink(missing_ok=True)
    os.mkfifo(directory / name)
    with pytest.raises(StoreRefused, match=f"{name} is a FIFO.*move it away"):
        StoreReader(directory)
