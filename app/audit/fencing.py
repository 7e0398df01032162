"""Takes the fence of an audit: asks every replica what it holds, before anything is read.

Invariant: a replica that cannot be read is part of the fence with its `problem`; only naming mistakes (two replicas of
one name, different groups) are errors of the whole audit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from app.audit.blocks import Party
from app.audit.fence import Fence, FenceError, ReplicaFence, Truncated
from app.audit.replicas import FENCE_TIMEOUT_S, ControlError, ControlPlane, ReplicaSpec, open_replica
from app.audit.segments import ReadFailed, Segment
from node.views.files import ArchivedEntriesView, SegmentsView, SegmentView, TruncationsView, TruncationView
from node.views.reading import read
from node.views.state import StateView

ARCHIVED_ENTRIES_MAX = 1000
PAGES_MAX = 1000
NAME_DIGITS_MAX = 20
P = TypeVar("P", SegmentsView, TruncationsView)


def utc_text() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def fix_fence(specs: Sequence[ReplicaSpec], from_index: int | None = None, to_index: int | None = None) -> Fence:
    """Asks all replicas at once. Raises FenceError."""
    if not specs:
        raise FenceError("no replica is named")
    taken_at = utc_text()
    with ThreadPoolExecutor(max_workers=len(specs)) as pool:
        replicas = list(pool.map(_fence_one, specs))
    named: dict[str, str] = {}
    for replica in replicas:
        if replica.id in named:
            raise FenceError(f"{replica.id} is named twice: {named[replica.id]} and {replica.source}")
        named[replica.id] = replica.source
    groups = {r.group: r.id for r in replicas if r.group is not None}
    if len(groups) > 1:
        listing = ", ".join(f"{one} of group {group}" for group, one in sorted(groups.items()))
        raise FenceError(f"these replicas are not of one group: {listing}")
    return Fence(tuple(replicas), from_index, to_index, taken_at)


def _fence_one(spec: ReplicaSpec) -> ReplicaFence:
    try:
        return fence_http(spec) if spec.kind == "http" else fence_directory(spec)
    except Exception as error:  # whatever a damaged directory or a strange server causes is that replica's problem
        name = spec.id or spec.public
        text = str(error) if str(error) else type(error).__name__
        return ReplicaFence(name, spec.public, spec.kind, problem=text)


def fence_http(spec: ReplicaSpec) -> ReplicaFence:
    """State, segments and truncations of a node's control plane. Raises ReadFailed, Unreadable."""
    plane = ControlPlane(spec, FENCE_TIMEOUT_S)
    try:
        state = read(StateView, plane.get_json("/state"))
        rows = [row for page in pages(plane, "/segments", SegmentsView) for row in page.items]
        segments = tuple(segment_of(row) for row in rows)
        begin, end = state.marks.begin_index, state.marks.durable_index
        if begin is None or end is None:
            held = [(row.first_index, row.last_index) for row in rows if row.kind == "data"]
            begin = min((first for first, last in held if first is not None and (last or -1) >= 0), default=0)
            end = max((last for _first, last in held if last is not None), default=-1)
        truncations = _truncations(plane)
        etag = log_etag(plane, segments)
    finally:
        plane.close()
    return ReplicaFence(
        id=spec.id or state.self_id,
        source=spec.public,
        kind="http",
        group=state.group,
        java=bool(state.is_java),
        begin_index=begin,
        end_index=end,
        committed_index=state.marks.committed_index,
        sealed_from=state.sealed_from,
        etag=etag,
        segments=segments,
        truncations=truncations,
    )


def segment_of(row: SegmentView) -> Segment:
    if row.start is None and not (row.name.isascii() and row.name.isdigit() and len(row.name) <= NAME_DIGITS_MAX):
        raise ReadFailed(f"nothing says where {row.kind}/{row.name} begins")
    return Segment(row.kind, row.name, int(row.name) if row.start is None else row.start, row.size_bytes)


def log_etag(plane: ControlPlane, segments: Sequence[Segment]) -> str | None:
    """The log's identity at the fence: a truncation or a restart from here on changes it."""
    first = next((s for s in segments if s.kind == "data"), None)
    if first is None:
        return None
    try:
        _, headers, _ = plane.get(f"/segments/data/{first.name}", headers={"Range": "bytes=0-0"})
    except ControlError:
        return None
    return headers.get("etag")


def pages(plane: ControlPlane, path: str, view: type[P]) -> Iterator[P]:
    """Raises ReadFailed, also for pages without end."""
    cursor: str | None = None
    for _ in range(PAGES_MAX):
        page = read(view, plane.get_json(path, cursor=cursor))
        yield page
        cursor = page.next
        if cursor is None:
            return
    raise ReadFailed(f"{path} did not end after {PAGES_MAX} pages")


def _truncations(plane: ControlPlane) -> tuple[Truncated, ...]:
    try:
        rows = [row for page in pages(plane, "/truncations", TruncationsView) for row in page.items]
    except ControlError as error:
        if error.status in (404, 405, 501):
            return ()
        raise
    return tuple(_truncated(plane, number if row.id is None else row.id, row) for number, row in enumerate(rows))


def _truncated(plane: ControlPlane, seq: int, row: TruncationView) -> Truncated:
    entries: tuple[tuple[int, int], ...] = ()
    try:
        page = plane.get_json(f"/truncations/{seq}/entries", limit=ARCHIVED_ENTRIES_MAX)
        entries = tuple((one.index, one.term) for one in read(ArchivedEntriesView, page).items)
    except ControlError:
        pass  # an archive may be gone by size or age; what its record says still counts
    return Truncated(
        seq=seq,
        from_index=row.from_index,
        to_index=row.to_index,
        committed_index=row.committed_index,
        leader_id=row.leader_id,
        reason=row.reason or "",
        time=row.time or "",
        entries=entries,
        begins_behind=-1 if row.begins_behind is None else row.begins_behind,
    )


def fence_directory(spec: ReplicaSpec) -> ReplicaFence:
    """A store directory, ours or the Java node's; also the data directory that holds it."""
    from node.store.reader import StoreReader  # what an audit over HTTP needs no part of

    root = store_directory(Path(spec.location))
    reader = StoreReader(root)
    ours = _identity(root)
    segments = tuple(
        Segment("data" if s.kind == "data" else "index", s.name, s.start, s.size_bytes) for s in reader.segments()
    )
    durable = reader.durable_index
    end = reader.end_index if durable is None else min(reader.end_index, durable)
    if reader.unsealed_from is not None:
        end = reader.end_index  # a Java node went on, and no engine of ours since: its entries are the replica's log
    truncations = tuple(
        Truncated(
            t.seq,
            t.from_index,
            t.to_index,
            t.committed_index,
            t.leader_id,
            t.reason,
            t.time,
            tuple((e.index, e.term) for e in islice(reader.truncation_entries(t.seq), ARCHIVED_ENTRIES_MAX)),
            t.begins_behind,
        )
        for t in reader.truncations()
    )
    return ReplicaFence(
        id=spec.id or (ours or {}).get("node_id") or root.name.removeprefix("dledger-"),
        source=str(root),
        kind="directory",
        group=(ours or {}).get("group"),
        java=ours is None,
        begin_index=reader.begin_index,
        end_index=end,
        committed_index=reader.committed_index,
        sealed_from=reader.sealed_from,
        sealed_until=reader.unsealed_from,
        segments=segments,
        truncations=truncations,
    )


def store_directory(path: Path) -> Path:
    """The directory with `data/` and `index/` in it: the path itself, or the one store below it. Raises ReadFailed."""
    if not path.is_dir():
        raise ReadFailed(f"{path} is no directory")
    if (path / "data").is_dir():
        return path.resolve()
    stores = sorted(child for child in path.glob("dledger-*") if (child / "data").is_dir())
    if len(stores) != 1:
        raise ReadFailed(f"{path} holds no store (no data directory in it, {len(stores)} dledger-* below it)")
    return stores[0].resolve()


def _identity(root: Path) -> dict[str, Any] | None:
    """quorumscope.json; None in a directory that the Java node wrote."""
    try:
        loaded = json.loads((root / "quorumscope.json").read_text())
    except FileNotFoundError:
        return None
    if not isinstance(loaded, dict):
        raise ReadFailed(f"{root}/quorumscope.json does not hold an object")
    return loaded


def holders_specs(specs: Sequence[ReplicaSpec], fence: Fence) -> list[ReplicaSpec]:
    """The specs of `fence.holders`, in the same order, with the ids that the fence found: what the workers get."""
    pairs = zip(specs, fence.replicas, strict=True)
    return [replace(spec, id=one.id) for spec, one in pairs if one.problem is None and not one.empty]


def open_holders(specs: Sequence[ReplicaSpec], fence: Fence) -> list[Party]:
    """Every replica of `fence.holders` ready to be read."""
    return [open_replica(s, one) for s, one in zip(holders_specs(specs, fence), fence.holders, strict=True)]
