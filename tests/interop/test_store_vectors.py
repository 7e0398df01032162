"""Directories that the Java original wrote open here with exactly the entries they hold, to read and to go on with."""

import hashlib
import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest

from node.protocol.entry import Entry, Seal, seal_of
from node.store.file_store import FileStore
from node.store.reader import StoreReader

CASES = ["main-n0", "main-n1", "snapshot-n0", "snapshot-n1", "truncated-n1"]
DATA_BYTES, INDEX_BYTES = 16384, 4096


@pytest.fixture(scope="module")
def manifest(vectors: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((vectors / "store" / "manifest.json").read_bytes())
    return loaded["cases"]  # type: ignore[no-any-return]


@pytest.fixture
def copied(vectors: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    directory = tmp_path / "store"
    shutil.copytree(vectors / "store" / request.param, directory)
    for path in [directory, *directory.rglob("*")]:
        path.chmod(0o755)
    return directory


def open_copy(directory: Path) -> FileStore:
    return FileStore.open(
        directory, group="g", node_id="n0", data_file_size=DATA_BYTES, index_file_size=INDEX_BYTES, boot_id="b"
    )


def check(entry: Entry | None, expected: dict[str, Any]) -> None:
    assert entry is not None
    assert (entry.index, entry.term, entry.magic) == (expected["index"], expected["term"], expected["magic"])
    assert (entry.size, entry.pos, entry.channel) == (expected["size"], expected["pos_header"], expected["channel"])
    assert (entry.body_crc, entry.chain_crc) == (expected["body_crc_field"], expected["chain_crc"])
    assert hashlib.sha256(entry.body).hexdigest() == expected["body_sha256"]
    assert zlib.crc32(entry.body) == expected["body_crc32"]


def content(directory: Path) -> dict[str, bytes]:
    return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in directory.glob("[di]*/*")}


@pytest.mark.parametrize(("copied", "name"), [(name, name) for name in CASES], indirect=["copied"])
def test_the_engine_opens_what_java_wrote(copied: Path, name: str, manifest: dict[str, Any]) -> None:
    expected = manifest[name]["entries"]
    before = content(copied)
    store = open_copy(copied)
    assert (store.begin_index, store.end_index) == (expected[0]["index"], expected[-1]["index"])
    for one in expected:
        check(store.get(one["index"]), one)
        slab = store.read_slab(one["index"], 1)
        assert (slab.pos, slab.count) == (one["pos"], 1)
    term = int(manifest[name]["currterm"].split("currTerm=")[1])
    assert (store.hard_state.term, store.hard_state.vote_floor) == (term, term)
    assert store.alarms == ()
    store.close()
    after = content(copied)
    assert {key: after[key] for key in before} == before


@pytest.mark.parametrize(("copied", "name"), [(name, name) for name in CASES], indirect=["copied"])
def test_we_go_on_where_java_stopped(copied: Path, name: str, manifest: dict[str, Any]) -> None:
    expected = manifest[name]["entries"]
    store = open_copy(copied)
    bodies = [b"ours-%d" % number * 20 for number in range(150)]
    store.append_as_leader(bodies, 50)
    store.close()
    again = open_copy(copied)
    for one in expected:
        check(again.get(one["index"]), one)
    added = [again.get(expected[-1]["index"] + 1 + number) for number in range(150)]
    assert [entry.body for entry in added if entry is not None] == bodies
    trimmed = expected[0]["index"] > 0  # no anchor for the chain: such a log stays unsealed
    assert {seal_of(entry, None) for entry in added if entry is not None} == {Seal.UNSEALED if trimmed else Seal.SEALED}
    again.close()
    assert StoreReader(copied).verify().problems == []


@pytest.mark.parametrize("name", CASES)
def test_the_reader_sees_the_same_and_finds_no_fault(vectors: Path, name: str, manifest: dict[str, Any]) -> None:
    expected = manifest[name]["entries"]
    reader = StoreReader(vectors / "store" / name)  # sizes from the files' lengths
    assert (reader.data_file_size, reader.index_file_size) == (DATA_BYTES, INDEX_BYTES)
    assert (reader.begin_index, reader.end_index) == (expected[0]["index"], expected[-1]["index"])
    assert (reader.durable_index, reader.committed_index) == (None, None)
    for one in expected:
        check(reader.entry(one["index"]), one)
    report = reader.verify().as_json()
    assert report["problems"] == []
    assert report["entries"] == len(expected)
    assert report["terms"] == sorted({one["term"] for one in expected})
    assert (report["end_term"], report["sealed"]) == (expected[-1]["term"], False)
    sizes = {(one.kind, one.name): one.size_bytes for one in reader.segments()}
    recorded = {
        tuple(key.split("/")): value["size"]
        for key, value in manifest[name]["files"].items()
        if key.startswith(("data/", "index/"))
    }
    assert sizes == recorded


def test_two_members_of_one_java_group_have_equal_chains(vectors: Path, tmp_path: Path) -> None:
    ends = []
    for name in ("main-n0", "main-n1"):
        directory = tmp_path / name
        shutil.copytree(vectors / "store" / name, directory)
        for path in [directory, *directory.rglob("*")]:
            path.chmod(0o755)
        store = open_copy(directory)
        ends.append([store.meta(index) for index in range(store.end_index + 1)])
        store.close()
    assert ends[0] == ends[1]
