"""A directory of ours that a Java node went on with: `inspect` and `verify` tell what is there, each thing once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli import run
from node.store.reader import StoreReader
from tests.unit.store_fixtures import open_store
from tests.unit.store_layout import DATA_BYTES, Built, blank_out, build, currterm, flip

Entries = list[tuple[int, int, bytes]]
OURS: Entries = [(1, 3, b"ours-%03d" % number * 4) for number in range(100)]
JAVAS: Entries = [(1, 5, b"java-%03d" % number * 4) for number in range(150)]


def java_appended(directory: Path, ours: Entries = OURS, javas: Entries = JAVAS, cut: int | None = None) -> Built:
    """Ours, stopped, and what a Java node put behind entry `cut` (the last one) without a seal or a checkpoint."""
    store = open_store(directory)
    for _, term, body in ours:
        store.append_as_leader([body], term)
    store.note_progress(store.end_index, store.end_index)
    store.close()
    kept = ours if cut is None else ours[: cut + 1]
    whole = build([*kept, *javas], seal=False)
    at = whole.positions[len(kept) - 1] + whole.sizes[len(kept) - 1]
    for start, content in whole.data.items():
        path = directory / "data" / f"{start:020d}"
        before = path.read_bytes() if path.exists() else bytes(DATA_BYTES)
        edge = min(max(at - start, 0), DATA_BYTES)
        written = max((n for n, byte in enumerate(content) if byte), default=-1) + 1
        path.write_bytes(before[:edge] + bytes(content[edge:written]) + before[max(edge, written) :])
    for start, content in whole.index.items():
        path = directory / "index" / f"{start:020d}"
        before = path.read_bytes() if path.exists() else bytes(len(content))
        used = len(content.rstrip(b"\0")) + 31 & ~31
        path.write_bytes(bytes(content[:used]) + before[used:])
    currterm(directory, 5, "n2")
    return whole


def reported(directory: Path, command: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, object]]:
    code = run(["store", command, str(directory), "--json"])
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return code, found


def test_inspect_shows_what_a_java_node_appended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    java_appended(tmp_path)
    code, found = reported(tmp_path, "inspect", capsys)
    assert code == 0
    assert found["log"] == {
        "begin_index": 0, "end_index": 249, "end_term": 5, "durable_index": 99, "committed_index": 99,
        "unsealed_from": 100,
    }  # fmt: skip
    assert found["written_by"] == "quorumscope; DLedger (Java) from entry 100 on"


def test_verify_says_once_that_a_range_carries_no_seals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    java_appended(tmp_path)
    code, found = reported(tmp_path, "verify", capsys)
    assert code == 1, "an engine does not open it before it is adopted"
    (problem,) = found["problems"]  # type: ignore[misc]
    assert (problem["class"], problem["index"], problem["last_index"]) == ("unsealed", 100, 249)
    assert "store adopt" in problem["detail"] and "corrupt" not in problem["detail"]
    assert (found["entries"], found["begin_index"], found["end_index"], found["end_term"], found["terms"]) == (
        250, 0, 249, 5, [3, 5],
    )  # fmt: skip
    assert found["sealed"] is False
    assert run(["store", "verify", str(tmp_path)]) == 1
    text = capsys.readouterr().out
    assert "250 entries, indexes 0 to 249, end term 5, not sealed throughout" in text
    assert "! unsealed at index 100 to 249 in data/" in text
    assert text.count("\n!") == 1 and "1 problem\n" in text


def test_damage_inside_such_a_range_is_a_problem_of_its_own(tmp_path: Path) -> None:
    built = java_appended(tmp_path)
    at = built.positions[200]
    flip(tmp_path / "data" / f"{at // DATA_BYTES * DATA_BYTES:020d}", at % DATA_BYTES + 3)
    report = StoreReader(tmp_path).verify().as_json()
    assert [(one["class"], one["index"], one["last_index"]) for one in report["problems"]] == [
        ("unsealed", 100, 249), ("record_invalid", 200, 200),
    ]  # fmt: skip
    assert (report["entries"], report["end_index"], report["end_term"]) == (249, 249, 5)


def test_a_java_node_that_cut_our_log_first_leaves_no_old_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    java_appended(tmp_path, javas=[(1, 5, b"java" * 9)] * 20, cut=39)
    _, found = reported(tmp_path, "inspect", capsys)
    assert (found["log"]["end_index"], found["log"]["end_term"]) == (59, 5)  # type: ignore[index]
    _, verified = reported(tmp_path, "verify", capsys)
    assert (verified["end_index"], verified["end_term"], verified["entries"]) == (59, 5, 60)
    problems = verified["problems"]
    assert [(one["class"], one["index"]) for one in problems] == [("unsealed", 40), ("missing", 60)]  # type: ignore[attr-defined]


def test_a_seal_that_is_gone_before_sealed_entries_is_damage(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append_as_leader([body for _, _, body in OURS], 3)
    store.close()
    built = build(OURS)
    for index in (20, 21, 22):
        at = built.positions[index]
        blank_out(tmp_path / "data" / f"{at // DATA_BYTES * DATA_BYTES:020d}", at % DATA_BYTES + 36,
                  at % DATA_BYTES + 44)  # fmt: skip
    report = StoreReader(tmp_path).verify().as_json()
    (problem,) = report["problems"]
    assert (problem["class"], problem["index"], problem["last_index"]) == ("crc_invalid", 20, 22)
    assert "sealed entries follow" in problem["detail"] and "Java" not in problem["detail"]
    assert (report["end_index"], report["end_term"]) == (99, 3)


def test_equal_findings_side_by_side_are_one_range(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append_as_leader([body for _, _, body in OURS], 3)
    store.close()
    built = build(OURS)
    for index in (20, 21, 22, 40):
        at = built.positions[index]
        flip(tmp_path / "data" / f"{at // DATA_BYTES * DATA_BYTES:020d}", at % DATA_BYTES + 48)
    report = StoreReader(tmp_path).verify().as_json()
    assert [(one["class"], one["index"], one["last_index"]) for one in report["problems"]] == [
        ("crc_invalid", 20, 22), ("crc_invalid", 40, 40),
    ]  # fmt: skip
