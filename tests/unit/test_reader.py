"""The read-only half: beside a live engine that rolls, cuts and expires, and over damaged files."""

import hashlib
import json
import random
import struct
import threading
from pathlib import Path

import pytest

from node.protocol.entry import decode_slab
from node.store.errors import StoreCorrupt, StoreError
from node.store.reader import StoreReader
from tests.unit.store_fixtures import entries_of, fill, kill, open_store, record, sync
from tests.unit.store_layout import DATA_BYTES, INDEX_BYTES, build, currterm, flip


def test_it_follows_an_engine_that_appends_rolls_and_cuts(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    reader = StoreReader(tmp_path)
    assert (reader.begin_index, reader.end_index, reader.durable_index) == (0, -1, -1)
    fill(store, 3, 20)
    reader.refresh()
    assert (reader.end_index, reader.durable_index) == (59, -1)
    store.note_progress(40, 40)
    sync(store)
    reader.refresh()
    assert (reader.end_index, reader.durable_index, reader.committed_index) == (59, 59, 40)
    fill(store, 1, 20)
    reader.refresh(upto_index=65)
    assert reader.end_index == 65
    reader.refresh()
    assert [reader.entry(index) for index in range(80)] == entries_of(store)
    store.truncate(45, record(store, 45, reason="fork"))
    assert reader.entry(79) is None  # it noticed by itself
    assert reader.end_index == 44
    store.append_as_leader([b"another 45"], 9)
    reader.refresh()
    entry = reader.entry(45)
    assert entry is not None and entry.body == b"another 45"
    (cut,) = reader.truncations()
    assert (cut.from_index, cut.to_index, cut.reason, cut.leader_id, cut.seq) == (45, 79, "fork", "n1", 1)
    assert [entry.index for entry in reader.truncation_entries(1)] == list(range(45, 80))
    with pytest.raises(KeyError):
        reader.truncation_entries(2)
    sync(store)
    store.note_progress(30, 30)
    store.remove_prefix(30)
    reader.refresh()
    assert (reader.begin_index, reader.base) == (store.begin_index, store.base)
    assert reader.entry(0) is None
    store.close()


def test_it_never_crashes_while_the_engine_cuts_and_rolls(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 1, 30)
    reader = StoreReader(tmp_path)
    stop = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        chosen = random.Random(5)
        try:
            while not stop.is_set():
                reader.refresh()
                index = chosen.randrange(200)
                try:
                    entry = reader.entry(index)
                    assert entry is None or entry.index == index
                    for slab in reader.slabs(index, index + 50, 2000):
                        assert decode_slab(slab)[0].index == slab.first_index
                except (StoreError, ValueError):
                    pass  # a record that was cut in the middle of this read: said, not crashed
                reader.segments()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    chosen = random.Random(6)
    for round_number in range(150):
        store.append_as_leader([chosen.randbytes(150) for _ in range(20)], 2 + round_number)
        if round_number % 2:
            cut_index = chosen.randrange(10, store.end_index)
            store.truncate(cut_index, record(store, cut_index))
    stop.set()
    thread.join(timeout=60)
    assert failures == []
    reader.refresh()
    assert [reader.entry(index) for index in range(store.end_index + 1)] == entries_of(store)
    store.close()


def test_segments_tell_which_entries_they_hold_and_give_raw_bytes(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 5, 20)
    store.close()
    reader = StoreReader(tmp_path)
    for kind, size in (("data", DATA_BYTES), ("index", INDEX_BYTES)):
        files = [one for one in reader.segments() if one.kind == kind]
        assert [one.start for one in files] == [number * size for number in range(len(files))]
        indexes = [index for one in files for index in range(one.first_index or 0, (one.last_index or -1) + 1)]
        assert indexes == list(range(100))
        for one in files:
            assert reader.read_segment(kind, one.name, 0, size) == (tmp_path / kind / one.name).read_bytes()
            assert len(reader.read_segment(kind, one.name, size - 10, 100)) == 10
    for name in ("00000000000000999424", "../checkpoint", f"{17:020d}"):
        with pytest.raises(KeyError):
            reader.read_segment("data", name, 0, 10)


def test_digests_are_those_of_the_document(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 4, 13)
    entries = entries_of(store)
    store.close()
    items = StoreReader(tmp_path).digests(5, 10_000, 16)
    assert [(one["from_index"], one["to_index"]) for one in items] == [(5, 15), (16, 31), (32, 47), (48, 51)]
    for one in items:
        sha = hashlib.sha256()
        for entry in entries[one["from_index"] : one["to_index"] + 1]:
            sha.update(struct.pack(">iqqi", entry.magic, entry.index, entry.term, len(entry.body)) + entry.body)
        assert (one["digest"], one["count"]) == (sha.hexdigest(), one["to_index"] - one["from_index"] + 1)


def test_a_broken_index_record_does_not_hide_the_entry(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 2, 20)
    entries = entries_of(store)
    store.close()
    flip(tmp_path / "index" / f"{0:020d}", 12 * 32 + 5)
    reader = StoreReader(tmp_path)
    assert reader.entry(12) == entries[12]
    report = reader.verify().as_json()
    assert [(one["class"], one["index"]) for one in report["problems"]] == [("index_record_mismatch", 12)]


def test_verify_names_every_flipped_bit_and_only_that(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 6, 12)
    store.close()
    chosen = random.Random(11)
    index_raw = b"".join(path.read_bytes() for path in sorted((tmp_path / "index").glob("[0-9]*")))
    for _ in range(150):
        index = chosen.randrange(72)
        _, pos, size, _, _ = struct.unpack_from(">iqiqq", index_raw, index * 32)
        kind, at, file_bytes = chosen.choice(
            [("data", pos + chosen.randrange(size), DATA_BYTES)] * 3
            + [("index", index * 32 + chosen.randrange(32), INDEX_BYTES)]
        )
        path, mask = tmp_path / kind / f"{at // file_bytes * file_bytes:020d}", 1 << chosen.randrange(8)
        flip(path, at % file_bytes, mask)
        reader = StoreReader(tmp_path)
        report = reader.verify().as_json()
        assert [one["index"] for one in report["problems"]] == [index], (kind, at - pos, report)
        expected = {"data": {"crc_invalid", "record_invalid", "position_mismatch"}, "index": {"index_record_mismatch"}}
        assert report["problems"][0]["class"] in expected[kind]
        assert report["problems"][0]["file"] == f"{kind}/{path.name}"
        assert (reader.end_index, report["end_index"]) == (71, 71)
        flip(path, at % file_bytes, mask)
    assert StoreReader(tmp_path).verify().as_json() == {
        "entries": 72, "begin_index": 0, "end_index": 71, "end_term": 6, "terms": [1, 2, 3, 4, 5, 6], "sealed": True,
        "problems": [],
    }  # fmt: skip


def test_verify_of_a_killed_nodes_directory_finds_no_fault_in_a_torn_tail(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 2, 10)
    sync(store)
    store.append_as_leader([b"x" * 300], 3)
    kill(store)
    path = tmp_path / "data" / f"{0:020d}"
    content = path.read_bytes().rstrip(b"\0")
    path.write_bytes(content[:-100].ljust(DATA_BYTES, b"\0"))
    report = StoreReader(tmp_path).verify()
    assert (report.end_index, report.problems) == (19, [])


def test_verify_says_where_a_log_is_shorter_than_its_checkpoint(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 2, 40)
    store.close()
    sorted((tmp_path / "data").glob("[0-9]*"))[-1].write_bytes(bytes(DATA_BYTES))
    (problem,) = StoreReader(tmp_path).verify().as_json()["problems"]
    assert problem["class"] == "missing" and "durable up to 79" in problem["detail"]


def test_verify_goes_on_behind_a_missing_file(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 3, 40)
    store.close()
    gone = sorted((tmp_path / "data").glob("[0-9]*"))[1]
    gone.unlink()
    reader = StoreReader(tmp_path)
    report = reader.verify().as_json()
    assert [one["class"] for one in report["problems"]] == ["missing"]
    assert report["end_index"] == 119
    with pytest.raises(StoreCorrupt):
        reader.entry(report["problems"][0]["index"])


def test_an_unsealed_directory_with_damage_in_the_middle_keeps_its_end(tmp_path: Path) -> None:
    built = build([(1, 1, b"body-%d" % number) for number in range(90)], seal=False)
    built.save(tmp_path)
    currterm(tmp_path, 1)
    flip(tmp_path / "data" / f"{0:020d}", built.positions[30] + 3)
    reader = StoreReader(tmp_path)
    assert reader.end_index == 89
    report = reader.verify().as_json()
    assert [(one["class"], one["index"]) for one in report["problems"]] == [("record_invalid", 30)]
    assert report["sealed"] is False


def test_inspect_is_plain_json_and_changes_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 2, 10)
    store.close()
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in tmp_path.rglob("*")}
    found = StoreReader(tmp_path).inspect()
    json.dumps(found)
    assert (found["node_id"], found["log"]["end_index"], found["clean_stop"]) == ("n0", 19, True)
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in tmp_path.rglob("*")} == before
