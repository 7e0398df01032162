"""A state machine's snapshots as files: which ones there are, and their bytes, for a back-up to take along.

Invariants: only whole snapshots are listed; of one that is removed meanwhile the rest is 410, so that nobody glues two
together; one pread a range.
"""

from __future__ import annotations

import os
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Path
from starlette.responses import Response

from node.control.common import INT64_MAX, Cursor, Json, Limit, PartsDep, paged
from node.control.problems import Problem
from node.control.segments import asks_for_bytes, parse_range
from node.control.snapshots import now_text
from node.openapi_statuses import BYTES, gives, says
from node.snapshots.directory import DATA, META, SEALED, Snapshot, read_snapshot, snapshots_in
from node.store.errors import StoreError
from node.store.reader import StoreReader
from node.views.answers import SnapshotList

router = APIRouter(prefix="/api/v1/snapshots", tags=["segments"])
Index = Annotated[int, Path(ge=0, le=INT64_MAX)]
Name = Literal["data", "snapshot_meta", "quorumscope-meta"]
Asked = Annotated[str | None, Header(alias="Range", max_length=100)]


@router.get("", responses=says(SnapshotList))
async def snapshot_list(parts: PartsDep, limit: Limit = 1000, cursor: Cursor = None) -> Json:
    """Newest first; empty where the group has no state machine, or none was saved yet."""
    items = await parts.bulk.read(
        lambda reader: [snapshot_json(one, reader) for one in snapshots_in(reader.directory, reader.platform)]
    )
    shown, then = paged(items, lambda one: str(one["index"]), limit, cursor)
    return {"as_of": now_text(), "items": shown, "next": then}


def snapshot_json(one: Snapshot, reader: StoreReader) -> Json:
    files = []
    for name in (DATA, META, SEALED):
        if reader.platform.exists(one.path / name):
            files.append({"name": name, "size_bytes": reader.platform.path_size(one.path / name)})
    return {
        "index": one.meta.index, "term": one.meta.term, "chain_crc": one.meta.chain,
        "data_bytes": one.meta.data_bytes, "data_crc": one.meta.data_crc, "is_sealed": one.is_sealed, "files": files,
    }  # fmt: skip


@router.get(
    "/{index}/{name}",
    response_class=Response,
    responses=gives("application/octet-stream", BYTES, 200, 206),
)
async def snapshot_file(
    parts: PartsDep,
    index: Index,
    name: Name,
    range_: Annotated[str | None, Header(alias="Range", max_length=100)] = None,
) -> Response:
    """Raw bytes; at most 16 MiB at a time."""
    content, first, size_bytes = await parts.bulk.read(lambda reader: piece_of(reader, index, name, range_))
    if not asks_for_bytes(range_) and len(content) == size_bytes:
        return Response(content, 200, {"accept-ranges": "bytes"}, media_type="application/octet-stream")
    span = f"bytes {first}-{first + len(content) - 1}/{size_bytes}"
    headers = {"accept-ranges": "bytes", "content-range": span}
    return Response(content, 206, headers, media_type="application/octet-stream")


def piece_of(reader: StoreReader, index: int, name: str, range_: str | None) -> tuple[bytes, int, int]:
    """(bytes, where they begin, how long the file is). Raises Problem."""
    platform = reader.platform
    path = reader.directory / "snapshot" / f"snapshot_{index}"
    try:
        read_snapshot(path, platform)
        size_bytes = platform.path_size(path / name)
        first, last = parse_range(range_, size_bytes)
        fd = platform.open(path / name, os.O_RDONLY)
        try:
            return platform.pread(fd, last - first + 1, first), first, size_bytes
        finally:
            platform.close(fd)
    except (StoreError, FileNotFoundError):
        raise Problem(410, "Removed", f"There is no snapshot up to entry {index} (any more).") from None
