"""What an audit says in words is true of the very data it speaks of: extents, CRCs, and what Java wrote."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from app.audit.blocks import Party, compare_block
from app.audit.classify import Finding, classify
from app.audit.fence import Fence, ReplicaFence
from app.audit.fencing import fix_fence
from app.audit.replicas import DirectorySegments, ReplicaSpec
from app.audit.result import build_result
from tests.audit.builder import fence_of
from tests.unit.store_layout import DATA_BYTES, blank_out
from tests.unit.test_store_java_tail import java_appended


def replica(name: str, begin: int, end: int, **more: Any) -> ReplicaFence:
    return ReplicaFence(
        name, name, "directory", begin_index=begin, end_index=end, **{"sealed_from": 0, "committed_index": end, **more}
    )


def said(*replicas: ReplicaFence, depth: str = "bytes", findings: tuple[Finding, ...] = ()) -> dict[str, Any]:
    result = build_result(fence=fence_of(*replicas), depth=depth, findings=findings, unaudited=(), rows=1, seconds=1.0)
    assert result["verdict"] == "consistent"
    return result


@pytest.mark.parametrize(
    ("replicas", "sentence"),
    [
        (
            [replica("n0", 0, 1123), replica("n1", 0, 1123)],
            "2 replicas hold the same 1,124 entries (0 to 1,123), every byte read.",
        ),
        (
            [replica("n0", 0, 1123), replica("n1", 0, 1121)],
            "2 replicas hold the same 1,122 entries (0 to 1,121), every byte read;"
            " entries 1,122 to 1,123 are on n0 alone, read and compared with nothing.",
        ),
        (
            [replica("n0", 0, 99), replica("n1", 10, 99), replica("n2", 0, 89)],
            "3 replicas hold the same 80 entries (10 to 89), every byte read;"
            " n0 and n2 hold the same 10 entries (0 to 9), every byte read;"
            " n0 and n1 hold the same 10 entries (90 to 99), every byte read.",
        ),
        (
            [replica("n0", 0, 99), replica("n1", 0, 99), replica("n2", 0, -1)],
            "2 of 3 replicas hold the same 100 entries (0 to 99), every byte read; n2 holds none of them.",
        ),
    ],
)
def test_the_sentence_counts_what_was_compared(replicas: list[ReplicaFence], sentence: str) -> None:
    assert said(*replicas)["summary"] == sentence


def test_entries_that_differ_above_the_commit_are_not_the_same() -> None:
    differ = Finding("uncommitted_divergence", "info", ("n0", "n1"), 98, 99, "…")
    text = said(replica("n0", 0, 99), replica("n1", 0, 99), findings=(differ,))["summary"]
    assert text == (
        "2 replicas hold the same 98 entries (0 to 97), every byte read; entries 98 to 99 differ, above the committed"
        " index."
    )


@pytest.mark.parametrize(("depth", "alone"), [("digest", "and was not looked at"), ("chain", "and was not looked at")])
def test_other_depths_did_not_read_what_one_holds_alone(depth: str, alone: str) -> None:
    text = said(replica("n0", 0, 9), replica("n1", 0, 8), depth=depth)["summary"]
    assert "9 entries (0 to 8)" in text and text.endswith(f"entry 9 is on n0 alone, {alone}.")


def test_crcs_are_claimed_only_where_there_are_any() -> None:
    sealed, java = replica("n0", 0, 99), replica("n1", 0, 99, sealed_from=None, java=True)
    tail, unknown = replica("n2", 0, 99, sealed_until=60), replica("n3", 0, 99, sealed_from=None)
    heritage = replica("n4", 0, 99, sealed_from=40)
    assert "Bodies were checked against their CRCs" in said(sealed, replica("n1", 0, 99))["proves"]
    both = said(java, replica("n2", 0, 99, sealed_from=None, java=True))["proves"]
    assert "checked against their CRCs" not in both and "carry no CRCs" in both
    mixed = said(sealed, java, tail, heritage)["proves"]
    assert "where entries carry them" in mixed
    assert "n1 (0 to 99), n2 (60 to 99) and n4 (0 to 39)" in mixed
    assert "n3 does not say" in said(sealed, unknown)["proves"]


def read(fence: Fence) -> list[Finding]:
    parties = [Party(one, DirectorySegments(one)) for one in fence.holders]
    findings, unaudited = classify(compare_block(parties, fence.from_index, fence.to_index).facts, fence)
    assert unaudited == []
    return findings


def test_what_a_java_node_appended_is_audited_too(tmp_path: Path) -> None:
    built = java_appended(tmp_path / "n0")
    shutil.copytree(tmp_path / "n0", tmp_path / "n1")
    fence = fix_fence([ReplicaSpec("directory", str(tmp_path / name), name) for name in ("n0", "n1")])
    assert [(one.end_index, one.sealed_from, one.sealed_until) for one in fence.replicas] == [(249, 0, 100)] * 2
    assert read(fence) == []
    at = built.positions[50]
    path = tmp_path / "n1" / "data" / f"{at // DATA_BYTES * DATA_BYTES:020d}"
    blank_out(path, at % DATA_BYTES + 36, at % DATA_BYTES + 44)
    (found,) = read(fence)
    assert (found.cls, found.replicas, found.from_index, found.to_index) == ("record_invalid", ("n1",), 50, 50)


def test_a_log_that_begins_behind_a_snapshot_and_holds_no_entry_yet_is_not_behind() -> None:
    """What lies before its beginning stands in its snapshot; only what comes behind may be lacking."""

    def of_newcomer(begin: int) -> list[tuple[str, int, int, str]]:
        newcomer = replica("n0", begin, -1)
        found, _ = classify([], fence_of(newcomer, replica("n1", 40, 99), replica("n2", 40, 99)))
        assert all(one.replicas == ("n0",) for one in found)
        return [(one.cls, one.from_index, one.to_index, one.detail) for one in found]

    nothing = "n0 begins at 100, and holds nothing of entries 40 to 99"
    assert of_newcomer(100) == [("trimmed", 40, 99, nothing)]
    trimmed, lagging = of_newcomer(90)
    assert trimmed == ("trimmed", 40, 89, "n0 begins at 90, and holds nothing of entries 40 to 89")
    assert lagging == ("lagging", 90, 99, "n0 holds nothing of entries 90 to 99")
    assert of_newcomer(0) == [("lagging", 40, 99, "n0 holds nothing of entries 40 to 99")]
