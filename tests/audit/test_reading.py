"""What happens to a replica while it is read, what archives tell, and how chains are bisected: without Spark."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from app.audit import fencing
from app.audit.archives import find_committed
from app.audit.blocks import Party, compare_block, digest_block
from app.audit.chain import compare_chains, merge_ranges
from app.audit.classify import Finding, Unaudited, classify
from app.audit.fence import Fence, FenceError, Truncated
from app.audit.fencing import fix_fence, holders_specs, open_holders
from app.audit.replicas import DirectorySegments, ReplicaSpec
from app.audit.result import build_result
from app.audit.tasks import Piece, compare_task, facts_of, plan_pieces
from tests.audit.builder import Store, Written, entries, fence_of
from tests.audit.plane import Plane, serve


def build(root: Path, count: int = 100) -> list[Store]:
    return [
        Store(root / name, file_bytes=1 << 13, index_file_bytes=1 << 15).write(entries(count))
        for name in ("n0", "n1", "n2")
    ]


def planes_of(stack: ExitStack, stores: list[Store], committed: int) -> list[Plane]:
    return [
        stack.enter_context(serve(Plane(store.root, f"n{n}", 0, store.end_index, committed)))
        for n, store in enumerate(stores)
    ]


def fenced(planes: list[Plane]) -> tuple[Fence, list[Party]]:
    specs = [ReplicaSpec("http", plane.url) for plane in planes]
    fence = fix_fence(specs)
    return fence, open_holders(specs, fence)


def findings(fence: Fence, parties: list[Party]) -> tuple[list[Finding], list[Unaudited]]:
    return classify(compare_block(parties, fence.from_index, fence.to_index).facts, fence)


def test_http_reads_few_large_ranges(tmp_path: Path) -> None:
    with ExitStack() as stack:
        planes = planes_of(stack, build(tmp_path), 99)
        fence, parties = fenced(planes)
        for plane in planes:
            plane.requests.clear()
        assert findings(fence, parties) == ([], [])
        # One range of the index, one a data file, and the filler at the end of the first.
        assert [len(plane.requests) for plane in planes] == [4, 4, 4]


def test_an_odd_answer_is_that_replicas_problem_and_names_the_field(tmp_path: Path) -> None:
    with ExitStack() as stack:
        planes = planes_of(stack, build(tmp_path), 99)
        planes[0].committed_index = "99"  # type: ignore[assignment]
        planes[1].truncations = [{"id": 1, "from_index": 3}]
        planes[2].truncations = [
            {"seq": 4, "from_index": 3, "to_index": 5, "committed_at": 2, "leader": "n1", "at": "t"}
        ]
        fence = fix_fence([ReplicaSpec("http", plane.url) for plane in planes])
        problems = [one.problem for one in fence.replicas]
        assert problems == ["log.committed_index is no whole number", "items[0].to_index is missing", None]
        (cut,) = fence.replicas[2].truncations
        assert cut == Truncated(4, 3, 5, 2, "n1", "", "t")


def test_a_truncation_meanwhile_excuses_only_what_lies_above_the_commit(tmp_path: Path) -> None:
    stores = build(tmp_path)
    stores[1].flip(40, 60)
    with ExitStack() as stack:
        planes = planes_of(stack, stores, 89)
        fence, parties = fenced(planes)
        for index in range(90, 100):
            stores[1].put_record(index, bytes(148))
            stores[1].put_unit(index, bytes(32))
        planes[1].etag = '"boot-1"'
        found, unaudited = findings(fence, parties)
    assert [(f.cls, f.replicas, f.from_index) for f in found] == [("crc_invalid", ("n1",), 40)]
    assert [(u.replica, u.from_index, u.to_index) for u in unaudited] == [("n1", 90, 99)]
    assert "truncated" in unaudited[0].reason


def test_a_replica_that_dies_meanwhile_is_unaudited_and_the_others_are_still_compared(tmp_path: Path) -> None:
    stores = build(tmp_path)
    stores[1].flip(40, 60)
    with ExitStack() as stack:
        planes = planes_of(stack, stores[:2], 99)
        with serve(Plane(stores[2].root, "n2", 0, 99, 99)) as third:
            fence, _ = fenced([*planes, third])
        specs = [ReplicaSpec("http", plane.url) for plane in (*planes, third)]
        parties = open_holders(specs, fence)
        found, unaudited = findings(fence, parties)
    assert [(f.cls, f.replicas, f.good) for f in found] == [("crc_invalid", ("n1",), ("n0",))]
    assert [(u.replica, u.from_index, u.to_index) for u in unaudited] == [("n2", 0, 99)]
    assert "unreachable" in unaudited[0].reason


def test_a_lying_digest_is_followed_by_the_bytes(tmp_path: Path) -> None:
    with ExitStack() as stack:
        planes = planes_of(stack, build(tmp_path), 99)
        _, parties = fenced(planes)
        assert not digest_block(parties, 0, 63, 64).drilled
        planes[2].lie_digest = "0" * 64
        reported = digest_block(parties, 0, 63, 64)
    assert reported.drilled
    assert reported.facts == []


ODD_DIGESTS = [[], {"items": 7}, {"items": [None]}, {"items": [{}]}, {"items": [{"from_index": 0}]}]


@pytest.mark.parametrize("answer", ODD_DIGESTS)
def test_digests_that_are_none_are_followed_by_the_bytes(tmp_path: Path, answer: object) -> None:
    with ExitStack() as stack:
        planes = planes_of(stack, build(tmp_path), 99)
        _, parties = fenced(planes)
        planes[1].odd_digests = answer
        reported = digest_block(parties, 0, 63, 64)
    assert reported.drilled
    assert reported.facts == []


def test_pages_without_end_are_that_replicas_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fencing, "PAGES_MAX", 3)
    with ExitStack() as stack:
        planes = planes_of(stack, build(tmp_path), 99)
        planes[1].next_page = "again"
        fence = fix_fence([ReplicaSpec("http", plane.url) for plane in planes])
        assert planes[1].requests.count("/segments") == 3
    assert [one.problem for one in fence.replicas] == [None, "/segments did not end after 3 pages", None]


def test_more_entries_than_one_audit_reads_are_refused_before_they_are_planned(tmp_path: Path) -> None:
    """A member that says that it holds anything costs no memory; a range that is named can be audited."""
    store = Store(tmp_path / "n0").write(entries(100))
    claims = store.fence("n1", 99, end_index=10**18)
    with pytest.raises(FenceError, match="one audit reads 16384000000 at most: name a range"):
        plan_pieces(fence_of(store.fence("n0", 99), claims))
    pieces = plan_pieces(fence_of(store.fence("n0", 99), claims, asked_to=199))
    assert pieces == [Piece(0, 99, ("n0", "n1")), Piece(100, 199, ("n1",))]


@pytest.mark.parametrize(("depth", "rows"), [("bytes", [128, 72, 28, 32]), ("digest", [128, 72, 0, 0])])
def test_a_task_reads_its_pieces_at_the_depth_that_was_asked_for(tmp_path: Path, depth: str, rows: list[int]) -> None:
    """By digests, entries that one replica holds alone have nothing to be compared with, and nobody reads them."""
    whole = Store(tmp_path / "whole").write(entries(160))
    part = Store(tmp_path / "part").write(entries(100))
    specs = [ReplicaSpec("directory", str(store.root)) for store in (whole, part)]
    fence = fix_fence(specs)
    assert [party.fence.id for party in open_holders(specs, fence)] == ["whole", "part"]
    counted: list[tuple[int, int]] = []
    task = compare_task(
        [[], plan_pieces(fence, 64)],
        [one.as_json() for one in holders_specs(specs, fence)],
        [one.as_json() for one in fence.holders],
        depth,
        64,
        lambda *one: counted.append(one),
    )
    answered = [row for batch in task(iter([pa.record_batch({"id": [1]})])) for row in batch.to_pylist()]
    assert [(row["task"], row["found"], facts_of(row["facts"])) for row in answered] == [(1, 0, [])] * len(answered)
    assert sum(row["rows"] for row in answered) == sum(rows_ for rows_, _ in counted)
    assert [row["rows"] for row in answered] == rows


def test_archived_entries_that_are_committed_are_known_by_index_and_term(tmp_path: Path) -> None:
    stores = build(tmp_path)
    cut = Truncated(3, 50, 52, None, "n0", "conflict", "2026-11-20T10:00:00Z", ((50, 1), (51, 1), (52, 7)))
    lost = replace(cut, entries=((50, 7), (51, 7)))
    torn = replace(cut, leader_id=None)
    for record, expected in ((cut, [(50, 51)]), (lost, []), (torn, [])):
        fences = [s.fence(f"n{n}", 99, truncations=(record,) if n == 1 else ()) for n, s in enumerate(stores)]
        fence = fence_of(*fences)
        parties = [Party(one, DirectorySegments(one)) for one in fence.holders]
        reported, _ = classify([], find_committed(fence, parties))
        assert [(f.from_index, f.to_index) for f in reported if f.cls == "truncated_committed"] == expected


@pytest.mark.parametrize("parting", [0, 1, 37, 98])
def test_the_chain_is_bisected_to_the_first_difference(tmp_path: Path, parting: int) -> None:
    other = [*entries(100)[:parting], *(Written(b"y" * 100, term=2) for _ in range(100 - parting))]
    a = Store(tmp_path / "a").write(entries(100))
    b = Store(tmp_path / "b").write(other)
    fence = fence_of(a.fence("a", 99), b.fence("b", 99))
    reported = compare_chains(fence, [Party(one, DirectorySegments(one)) for one in fence.holders])
    assert reported.drill == [(parting, 99)]
    assert reported.rows < 20


def test_chains_of_logs_of_different_length_compare_at_the_common_end(tmp_path: Path) -> None:
    a = Store(tmp_path / "a").write(entries(100))
    b = Store(tmp_path / "b").write(entries(60))
    fence = fence_of(a.fence("a", 99), b.fence("b", 59))
    reported = compare_chains(fence, [Party(one, DirectorySegments(one)) for one in fence.holders])
    assert (reported.drill, reported.unaudited, reported.compared) == ([], [], 1)


def test_ranges_merge() -> None:
    assert merge_ranges([(5, 9), (0, 2), (3, 4), (20, 30), (25, 26)]) == [(0, 9), (20, 30)]


def test_verdicts(tmp_path: Path) -> None:
    stores = build(tmp_path)
    whole = fence_of(*(s.fence(f"n{n}", 99) for n, s in enumerate(stores)))
    gap = Unaudited("n1", 0, 5, "because")
    bad = Finding("missing", "critical", ("n0",), 3, 3, "a hole")
    odd = Finding("position_mismatch", "warning", ("n0",), 3, 3, "moved")

    def verdict(fence: Fence, found: list[Finding], unaudited: list[Unaudited]) -> tuple[str, int | None]:
        result = build_result(
            fence=fence, depth="bytes", findings=found, unaudited=unaudited, rows=0, seconds=0.0
        )  # fmt: skip
        return result["verdict"], result["first_divergence"]

    assert verdict(whole, [], []) == ("consistent", None)
    assert verdict(whole, [odd], []) == ("consistent", None)
    assert verdict(whole, [odd, bad], [gap]) == ("divergent", 3)
    assert verdict(whole, [odd], [gap]) == ("unauditable", None)
    assert verdict(fence_of(stores[0].fence("n0", 99)), [], []) == ("unauditable", None)
    empty = fence_of(*(s.fence(f"n{n}", -1, begin_index=0, end_index=-1) for n, s in enumerate(stores)))
    assert verdict(empty, [], []) == ("unauditable", None)
