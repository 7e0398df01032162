"""The comparison and its classes, each on real bytes that an independent builder wrote."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from app.audit.blocks import Party, compare_block, digest_block
from app.audit.classify import Finding, classify, single_copy_ranges
from app.audit.fence import Fence, Truncated, coverage
from app.audit.replicas import DirectorySegments, ReplicaSpec
from app.audit.result import STATES_DIFFER, build_result
from app.audit.states import Saved, State, about_states, compare_states, saved_states
from node.snapshots.directory import SnapshotMeta, SnapshotWriter
from node.store.files.identity import Identity, write_identity
from tests.audit.builder import NOOP, Store, Written, entries, fence_of


def audit(fence: Fence, block: int = 16, digests: bool = False, chunk_bytes: int = 1 << 20) -> list[Finding]:
    """Compares a fence in blocks of `block` entries and classifies."""
    facts = []
    for low, high, ids in coverage(fence):
        parties = [Party(r, DirectorySegments(r)) for r in fence.holders if r.id in ids]
        for start in range(low - low % block, high + 1, block):
            first, last = max(start, low), min(start + block - 1, high)
            run = digest_block(parties, first, last, block) if digests else compare_block(
                parties, first, last, chunk_bytes
            )  # fmt: skip
            facts.extend(run.facts)
    findings, unaudited = classify(facts, fence)
    assert unaudited == []
    return findings


def three(tmp_path: Path, count: int = 200, **more: object) -> list[Store]:
    return [Store(tmp_path / name, **more).write(entries(count)) for name in ("n0", "n1", "n2")]  # type: ignore[arg-type]


def fence3(stores: list[Store], committed: int | None = 199) -> Fence:
    return fence_of(*(s.fence(f"n{i}", committed) for i, s in enumerate(stores)))


def classes(findings: list[Finding]) -> list[tuple[str, tuple[str, ...], int, int]]:
    return [(f.cls, f.replicas, f.from_index, f.to_index) for f in findings]


def test_a_range_is_cut_where_any_replica_begins_or_ends(tmp_path: Path) -> None:
    """Also one entry before the others' end: that one is held by them alone."""
    fence = fence3(three(tmp_path), committed=199)
    first, second, third = fence.replicas
    cut = Fence((first, replace(second, end_index=198), replace(third, begin_index=1)))
    assert coverage(cut) == [(0, 0, ("n0", "n1")), (1, 198, ("n0", "n1", "n2")), (199, 199, ("n0", "n2"))]
    assert coverage(replace(cut, asked_from=1, asked_to=198)) == [(1, 198, ("n0", "n1", "n2"))]


@pytest.mark.parametrize("block", [7, 16, 64, 1000])
def test_equal_replicas_give_no_finding(tmp_path: Path, block: int) -> None:
    assert audit(fence3(three(tmp_path)), block) == []


def test_small_chunks_cover_every_entry(tmp_path: Path) -> None:
    stores = three(tmp_path)
    for index in (1, 50, 199):
        stores[2].flip(index, 60)
    found = audit(fence3(stores), 64, chunk_bytes=300)
    assert classes(found) == [("crc_invalid", ("n2",), i, i) for i in (1, 50, 199)]


def test_crc_invalid_names_the_bad_replica_and_the_good_ones(tmp_path: Path) -> None:
    stores = three(tmp_path)
    stores[1].flip(77, 48 + 20)
    (found,) = audit(fence3(stores))
    assert (found.cls, found.severity, found.replicas, found.good) == ("crc_invalid", "critical", ("n1",), ("n0", "n2"))
    assert (found.from_index, found.to_index) == (77, 77)
    assert "n1" in found.detail
    assert "n0 and n2 hold it sound" in found.detail


# Every byte of a sealed record's head is guarded by something; `pos` alone only by its true position.
@pytest.mark.parametrize(
    ("byte", "cls"),
    [(byte, "record_invalid") for byte in (*range(24), *range(32, 40), *range(44, 48))]
    + [(byte, "position_mismatch") for byte in range(24, 32)]
    + [(byte, "crc_invalid") for byte in (40, 43, 48, 147)],
)
def test_any_flipped_byte_of_a_record_is_found_at_its_index_in_its_replica(tmp_path: Path, byte: int, cls: str) -> None:
    stores = [Store(tmp_path / name).write(entries(40)) for name in ("n0", "n1", "n2")]
    stores[2].flip(20, byte)
    found = audit(fence3(stores, 39))
    assert [(f.cls, f.replicas, f.from_index) for f in found] == [(cls, ("n2",), 20)]


def test_the_first_entry_of_a_block_is_judged_against_the_one_before(tmp_path: Path) -> None:
    stores = three(tmp_path)
    for index in (15, 16, 32):
        stores[0].flip(index, 38)  # the stored chain
    assert classes(audit(fence3(stores))) == [("record_invalid", ("n0",), 15, 16), ("record_invalid", ("n0",), 32, 32)]


def test_a_zeroed_record_is_broken_and_a_lost_file_is_a_hole(tmp_path: Path) -> None:
    stores = three(tmp_path)
    stores[0].put_record(30, bytes(148))
    lost = stores[1].root / "data" / f"{8192:020d}"
    fence = fence3(stores)
    inside = [i for i, p in stores[1].positions.items() if 8192 <= p < 12288]
    lost.unlink()
    found = audit(fence)
    assert classes(found) == [("record_invalid", ("n0",), 30, 30), ("missing", ("n1",), inside[0], inside[-1])]
    assert all(f.severity == "critical" for f in found)


def test_a_hole_in_data_and_index_is_missing(tmp_path: Path) -> None:
    stores = three(tmp_path)
    gap = entries(200)
    whole = Store(tmp_path / "gap").write(gap)
    # The log as it would be had entry 10 never been written: 11.. lie where 10.. lay.
    raw = [whole.root.joinpath("data", f"{0:020d}").read_bytes()]
    start = whole.positions[10]
    shifted = (
        raw[0][:start] + raw[0][whole.positions[11] : whole.positions[20]] + bytes(148) + raw[0][whole.positions[20] :]
    )
    whole.root.joinpath("data", f"{0:020d}").write_bytes(shifted)
    whole.put_unit(10, bytes(32))
    for index in range(11, 20):
        magic, pos, size, number, term = struct.unpack(">iqiqq", whole.unit(index))
        whole.put_unit(index, struct.pack(">iqiqq", magic, pos - 148, size, number, term))
    found = audit(fence_of(stores[0].fence("n0", 199), whole.fence("n1", 199)))
    assert ("missing", ("n1",), 10, 10) in classes(found)
    assert [f.severity for f in found if f.cls == "missing"] == ["critical"]


def test_a_hole_above_the_commit_is_a_broken_record(tmp_path: Path) -> None:
    stores = three(tmp_path)
    fence = fence3(stores, committed=150)
    (stores[1].root / "data" / f"{stores[1].positions[199] // 4096 * 4096:020d}").unlink()
    (found,) = audit(fence)
    assert found.cls == "record_invalid"
    assert found.to_index == 199


@pytest.mark.parametrize(
    "unit",
    [bytes(32), struct.pack(">iqiqq", 1, 7, 148, 50, 1), struct.pack(">iqiqq", 1, 0, 148, 9, 1), b"\xff" * 32],
)
def test_a_damaged_index_unit_does_not_hide_the_sound_record(tmp_path: Path, unit: bytes) -> None:
    stores = three(tmp_path)
    stores[1].put_unit(50, unit)
    (found,) = audit(fence3(stores))
    assert (found.cls, found.severity, found.replicas) == ("index_record_mismatch", "critical", ("n1",))
    assert (found.from_index, found.to_index) == (50, 50)


def test_an_index_unit_of_another_term_disagrees(tmp_path: Path) -> None:
    stores = three(tmp_path)
    magic, pos, size, index, _ = struct.unpack(">iqiqq", stores[0].unit(60))
    stores[0].put_unit(60, struct.pack(">iqiqq", magic, pos, size, index, 9))
    assert classes(audit(fence3(stores))) == [("index_record_mismatch", ("n0",), 60, 60)]


def test_a_java_leaders_unit_for_its_own_noop_is_no_mismatch(tmp_path: Path) -> None:
    plain = entries(30)
    noop = [Written(b"", 1, NOOP, unit_magic=1), *plain[1:]]
    a = Store(tmp_path / "n0", sealed=False).write(noop)
    b = Store(tmp_path / "n1", sealed=False).write(plain)
    assert audit(fence_of(a.fence("n0"), b.fence("n1"))) == []


def test_a_broken_filler_at_a_files_end_is_found(tmp_path: Path) -> None:
    stores = three(tmp_path)
    last = max(i for i, p in stores[1].positions.items() if p < 4096)
    end = stores[1].positions[last] + stores[1].sizes[last]
    path = stores[1].root / "data" / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    raw[end + 7] ^= 1
    path.write_bytes(raw)
    assert classes(audit(fence3(stores), 1000)) == [("record_invalid", ("n1",), last, last)]


def test_body_mismatch_blames_nobody_between_two(tmp_path: Path) -> None:
    changed = entries(100)
    changed[42] = Written(b"another".ljust(100, b"."))
    a = Store(tmp_path / "n0", sealed=False).write(entries(100))
    b = Store(tmp_path / "n1", sealed=False).write(changed)
    (found,) = audit(fence_of(a.fence("n0"), b.fence("n1")))
    assert (found.cls, found.severity, found.from_index, found.to_index) == ("body_mismatch", "critical", 42, 42)
    assert found.replicas == ("n0", "n1")
    assert "two replicas that disagree" in found.detail


def test_bodies_of_different_length_still_align(tmp_path: Path) -> None:
    changed = entries(100)
    changed[42] = Written(b"short")
    a = Store(tmp_path / "n0", sealed=False).write(entries(100))
    b = Store(tmp_path / "n1", sealed=False).write(changed)
    found = audit(fence_of(a.fence("n0", 99), b.fence("n1", 99)))
    assert ("body_mismatch", ("n0", "n1"), 42, 42) in classes(found)
    assert {f.cls for f in found} == {"body_mismatch", "position_mismatch"}


def test_two_sealed_logs_that_differ_once_differ_in_body_and_share_no_chain_after(tmp_path: Path) -> None:
    changed = entries(100)
    changed[42] = Written(b"another".ljust(100, b"."))
    a = Store(tmp_path / "n0").write(entries(100))
    b = Store(tmp_path / "n1").write(changed)
    assert classes(audit(fence_of(a.fence("n0", 99), b.fence("n1", 99)))) == [("body_mismatch", ("n0", "n1"), 42, 42)]
    # Asked only for what lies behind, the chains still tell that the histories parted.
    (found,) = audit(fence_of(a.fence("n0", 99), b.fence("n1", 99), asked_from=60))
    assert (found.cls, found.from_index, found.to_index) == ("fork", 60, 99)


def test_term_mismatch_is_bounded_and_a_fork_runs_to_the_end(tmp_path: Path) -> None:
    changed = entries(100)
    for index in (42, 43):
        changed[index] = Written(changed[index].body, term=2)
    a = Store(tmp_path / "n0", sealed=False).write(entries(100))
    b = Store(tmp_path / "n1", sealed=False).write(changed)
    (found,) = audit(fence_of(a.fence("n0", 99), b.fence("n1", 99)))
    assert (found.cls, found.severity, found.from_index, found.to_index) == ("term_mismatch", "critical", 42, 43)


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("committed", [None, 80, 99])
def test_fork_says_who_stands_where_and_what_each_side_alone_holds(
    tmp_path: Path, sealed: bool, committed: int | None
) -> None:
    left = entries(100)
    right = [*entries(60), *(Written(f"r{i}".encode().ljust(100, b"."), term=2) for i in range(60, 120))]
    stores = [
        Store(tmp_path / "n0", sealed=sealed).write(left),
        Store(tmp_path / "n1", sealed=sealed).write(right),
        Store(tmp_path / "n2", sealed=sealed).write(right),
    ]
    (found,) = audit(fence3(stores, committed))
    assert (found.cls, found.severity, found.from_index, found.to_index) == ("fork", "critical", 60, 119)
    assert found.sides == (
        {"replicas": ["n0"], "term": 1, "entries_alone": 40},
        {"replicas": ["n1", "n2"], "term": 2, "entries_alone": 60},
    )


def test_a_difference_above_the_known_commit_is_only_information(tmp_path: Path) -> None:
    right = [*entries(90), *(Written(b"x" * 100, term=2) for _ in range(10))]
    a = Store(tmp_path / "n0").write(entries(100))
    b = Store(tmp_path / "n1").write(right)
    (found,) = audit(fence_of(a.fence("n0", 85), b.fence("n1", 89)))
    assert (found.cls, found.severity, found.from_index, found.to_index) == ("uncommitted_divergence", "info", 90, 99)
    # As soon as one of them cannot tell its commit index, nothing excuses the difference.
    (found,) = audit(fence_of(a.fence("n0", None), b.fence("n1", 89)))
    assert found.cls == "fork"


def test_position_mismatch_is_a_warning_and_information_on_java(tmp_path: Path) -> None:
    a = Store(tmp_path / "n0", sealed=False).write(entries(50))
    moved = [Written(e.body, e.term, e.magic, head_pos=a.positions[i]) for i, e in enumerate(entries(50))]
    b = Store(tmp_path / "n1", sealed=False, start_pos=4096).write(moved)
    (found,) = audit(fence_of(a.fence("n0"), b.fence("n1")))
    assert (found.cls, found.severity, found.replicas) == ("position_mismatch", "info", ("n1",))
    assert (found.from_index, found.to_index) == (0, 49)
    (found,) = audit(fence_of(a.fence("n0"), b.fence("n1", java=False)))
    assert found.severity == "warning"


def test_unsealed_entries_in_the_sealed_part_are_broken(tmp_path: Path) -> None:
    plain = entries(60)
    loose = [*plain[:40], *(Written(e.body, e.term, body_crc=0, chain_crc=0) for e in plain[40:45]), *plain[45:]]
    a = Store(tmp_path / "n0").write(plain)
    b = Store(tmp_path / "n1").write(loose)
    found = audit(fence_of(a.fence("n0", 59, sealed_from=0), b.fence("n1", 59, sealed_from=0)))
    assert classes(found) == [("record_invalid", ("n1",), 40, 44)]


@pytest.mark.parametrize("sealed_first", [True, False])
def test_a_replica_that_has_to_be_sealed_is_judged_by_itself(tmp_path: Path, sealed_first: bool) -> None:
    """The same bytes are sound in a Java node's log, which has no seals, and broken in ours."""
    plain = entries(60)
    loose = [*plain[:40], *(Written(e.body, e.term, body_crc=0, chain_crc=0) for e in plain[40:45]), *plain[45:]]
    ours, theirs = Store(tmp_path / "n0").write(loose), Store(tmp_path / "n1").write(loose)
    fences = [ours.fence("n0", 59, sealed_from=0), theirs.fence("n1", 59, sealed_from=None)]
    found = audit(fence_of(*(fences if sealed_first else reversed(fences))))
    assert ("record_invalid", ("n0",), 40, 44) in classes(found)
    assert all(one.replicas == ("n0",) for one in found)


def test_lagging_trimmed_and_single_copies(tmp_path: Path) -> None:
    a = Store(tmp_path / "n0", sealed=False).write(entries(100))
    b = Store(tmp_path / "n1", sealed=False).write(entries(80))
    tail = Store(tmp_path / "n2", sealed=False, begin_index=32, start_pos=a.positions[32])
    tail.write(entries(100)[32:])
    fence = fence_of(a.fence("n0", 99), b.fence("n1", 79), tail.fence("n2", 99))
    found = audit(fence)
    assert classes(found) == [("trimmed", ("n2",), 0, 31), ("lagging", ("n1",), 80, 99)]
    assert {f.severity for f in found} == {"info"}
    assert single_copy_ranges(fence) == []
    two = fence_of(b.fence("n1", 79), tail.fence("n2", 99))
    assert single_copy_ranges(two) == [
        {"replica": "n1", "from_index": 0, "to_index": 31},
        {"replica": "n2", "from_index": 80, "to_index": 99},
    ]


def test_a_committed_entry_in_the_truncation_archive_is_critical(tmp_path: Path) -> None:
    stores = three(tmp_path)
    innocent = Truncated(0, 150, 160, 149, "n0", "conflict", "2026-11-20T10:00:00Z")
    guilty = Truncated(1, 140, 160, 149, "n0", "conflict", "2026-11-20T10:00:00Z")
    # A log that begins anew behind entry 155: what it held up to there is archived, and not lost (SAFETY M6).
    replaced = Truncated(2, 100, 158, 149, "n0", "left behind", "2026-11-20T10:00:00Z", begins_behind=155)
    fence = fence_of(stores[0].fence("n0", 199), stores[1].fence("n1", 199, truncations=(innocent, guilty, replaced)))
    (found,) = audit(fence)
    assert (found.cls, found.severity, found.replicas) == ("truncated_committed", "critical", ("n1",))
    assert (found.from_index, found.to_index) == (140, 149)


def test_digests_drill_only_where_they_differ(tmp_path: Path) -> None:
    stores = three(tmp_path)
    stores[1].flip(77, 48 + 20)
    fence = fence3(stores)
    parties = [Party(r, DirectorySegments(r)) for r in fence.holders]
    assert not digest_block(parties, 48, 63, 16).drilled
    assert digest_block(parties, 64, 79, 16).drilled
    assert classes(audit(fence, digests=True)) == [("crc_invalid", ("n1",), 77, 77)]


def test_the_java_vectors_are_consistent_with_each_other(vectors: Path) -> None:
    fences = []
    for name in ("main-n0", "main-n1"):
        store = Store(vectors / "store" / name, sealed=False)
        store.end_index = 370
        fences.append(store.fence(name))
    found = audit(fence_of(*fences))
    assert {f.severity for f in found} <= {"info"}, found


# --- states -----------------------------------------------------------------------------------------------------------
SAME, OTHER = Saved(90, 1, 7, 100, 0xAB), Saved(90, 1, 7, 100, 0xCD)


def states(**saved: Saved) -> list[State]:
    return [State(name, "accounts", (one,)) for name, one in saved.items()]


def test_states_behind_one_entry_that_differ_are_found(tmp_path: Path) -> None:
    """The logs are equal: a state machine that is not deterministic was seen by nothing."""
    fence = fence3(three(tmp_path, 100), 99)
    (found,) = compare_states(states(n0=SAME, n1=OTHER, n2=SAME), fence)
    assert (found.cls, found.severity, found.replicas) == ("state_mismatch", "warning", ("n0", "n1", "n2"))
    assert (found.from_index, found.to_index) == (90, 90)
    assert "n0 and n2 (100 bytes, CRC 000000ab) against n1 (100 bytes, CRC 000000cd)" in found.detail
    assert "or saves equal states as different bytes" in found.detail
    (shipped,) = compare_states([State("n0", "kv", (SAME,)), State("n1", "kv", (OTHER,))], fence)
    assert "or saves" not in shipped.detail
    said = build_result(fence=fence, depth="bytes", findings=[found], unaudited=[], rows=0, seconds=0.0, twice=True)
    assert (
        said["verdict"] == "consistent"
        and f"{STATES_DIFFER}the states that were saved behind entry 90 differ" in said["summary"]
    )


def test_only_states_behind_the_same_entry_are_compared(tmp_path: Path) -> None:
    stores = three(tmp_path, 100)
    fence = fence3(stores, 99)
    equal = states(n0=SAME, n1=SAME)
    assert compare_states(equal, fence) == []
    assert about_states(equal, fence) == " Saved states were compared by their checksums behind entry 90."
    for other in (replace(OTHER, index=91), replace(OTHER, term=2), replace(OTHER, chain=8)):
        apart = states(n0=SAME, n1=other)
        assert compare_states(apart, fence) == []
        assert "no two replicas have a snapshot behind the same entry" in about_states(apart, fence)
    within = fence_of(*(one.fence(f"n{i}", 99) for i, one in enumerate(stores)), asked_from=0, asked_to=89)
    assert compare_states(states(n0=SAME, n1=OTHER), within) == []
    assert about_states([State("n0", "plain", ()), State("n1", "plain", ())], fence) == ""


def test_states_are_read_from_directories_and_what_cannot_be_is_none(tmp_path: Path) -> None:
    stores = three(tmp_path, 100)
    fence = fence3(stores, 99)
    specs = [ReplicaSpec("directory", str(one.root)) for one in stores]
    assert [one.saved for one in saved_states(specs, fence)] == [(), (), ()], "a log alone"
    for number, one in enumerate(stores):
        made = Identity.fresh("g", f"n{number}", one.file_bytes, one.index_file_bytes, kind="accounts")
        write_identity(one.root, made)
        writer = SnapshotWriter(one.root)
        writer.write(b"state 1" if number == 1 else b"state 0")
        writer.commit(SnapshotMeta(90, 1, 7, 4096))
    (stores[2].root / "snapshot" / "snapshot_90" / "snapshot_meta").write_text("{")
    found = saved_states(specs, fence)
    assert [[one.index for one in state.saved] for state in found] == [[90], [90], []]
    assert [one.cls for one in compare_states(found, fence)] == ["state_mismatch"]
