"""A stopped member for the tests of repairs by hand, and the ways to damage and to read it."""

from __future__ import annotations

from pathlib import Path

from node.protocol.codes import VoterState
from node.store.log_store import HardState
from node.store.reader import StoreReader
from node.store.repair.report import Report
from tests.unit.store_fixtures import entries_of, fill, open_store
from tests.unit.store_layout import DATA_BYTES, flip


def everything(directory: Path) -> dict[str, tuple[bytes | None, int]]:
    """Every name with its bytes and the moment it was written last."""
    return {
        str(path.relative_to(directory)): (path.read_bytes() if path.is_file() else None, path.stat().st_mtime_ns)
        for path in sorted(directory.rglob("*"))
    }


def stopped_member(tmp_path: Path) -> Path:
    """A stopped VOTER of term 5 with the entries 0..59 of terms 1 to 3, entry 49 committed."""
    path = tmp_path / "dledger-n0"
    store = open_store(path)
    fill(store, 3, 20)
    store.save_hard_state(HardState(5, "n1", VoterState.VOTER, 1, {"n1": "s1"}))
    store.note_progress(49, 49)
    store.close()
    return path


def damage(directory: Path, *indexes: int) -> None:
    """One bit of each entry's body, or of its chain where it has no body."""
    reader = StoreReader(directory)
    for index in indexes:
        entry = reader.entry(index)
        assert entry is not None
        path = directory / "data" / f"{entry.pos // DATA_BYTES * DATA_BYTES:020d}"
        flip(path, entry.pos % DATA_BYTES + (48 if entry.body else 36))


def damage_chain(directory: Path, index: int) -> None:
    """One bit of an entry's chain: nothing tells any more whether the next one follows it."""
    entry = StoreReader(directory).entry(index)
    assert entry is not None
    flip(directory / "data" / f"{entry.pos // DATA_BYTES * DATA_BYTES:020d}", entry.pos % DATA_BYTES + 36)


def bodies(directory: Path) -> list[bytes]:
    store = open_store(directory)
    found = [entry.body for entry in entries_of(store)]
    store.close()
    return found


def ways(report: Report) -> str:
    return "\n".join(way for one in report.problems for way in one.ways)
