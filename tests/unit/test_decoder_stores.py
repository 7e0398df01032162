"""Scribbled directories: what the fuzzer found in opening, reading and verifying stays fixed."""

from __future__ import annotations

from pathlib import Path

from node.store.reader import StoreReader
from tests.unit.store_fixtures import fill, kill, open_store, sync


def test_verify_names_a_file_that_has_another_length(tmp_path: Path) -> None:
    store = open_store(tmp_path / "s")
    fill(store, 3, 20)
    sync(store)
    kill(store)
    first = tmp_path / "s" / "data" / f"{0:020d}"
    first.write_bytes(first.read_bytes()[:28])
    problems = StoreReader(tmp_path / "s").verify().problems
    assert [one.kind for one in problems[:2]] == ["missing", "missing"]
    assert problems[0].file == f"data/{0:020d}"
    assert "28 bytes, 4096 are configured" in problems[0].detail
    assert "its checkpoint says 0" in problems[1].detail
