"""Bulk reading of a classic broker's commit log, for audits: where it begins and ends, its files as raw bytes, pins.

The control plane reads the files itself, off the loop; where the log ends its broker says, and while that is down the
files do. What is served ends where the log ends, also what is not on disk yet: a slave has that already.

Invariants: `version`, which is the ETag, is another one after each cut and each start of the broker, and is looked at
behind the read: a range that was read across a cut is never answered for one before it (If-Match: 412); one range is
read at a time.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path as FilePath
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from pydantic import Field
from starlette.responses import Response

from node.broker.classic.control_key import read_key
from node.broker.classic.pins import PIN_S_MAX
from node.broker.introspection import PIN
from node.control import ha
from node.control.broker_link import broker_away, refusal
from node.control.common import INT64_MAX, Parts, PartsDep, answer
from node.control.messages import link_of
from node.control.problems import Problem
from node.control.segments import HeaderText, Name, asks_for_bytes, parse_range
from node.control.snapshots import now_text
from node.control.trim import Owner
from node.ha.lineage import read_lineage
from node.message_client.errors import Unavailable
from node.message_store.commit_log import COMMIT_LOG
from node.message_store.errors import MessageStoreError
from node.message_store.local_recovery import file_name
from node.message_store.log_span import span_of
from node.openapi_statuses import BYTES, gives, says
from node.rocketmq.codes import Answer
from node.views.ha import HA_FILES_MAX, HaLog, HaPinned, HaView
from node.views.request_body import RequestBody

router = APIRouter(prefix="/api/v1/ha", tags=["classic HA"])
DOWN = "down"
PIN_WITHIN_S = 5.0
RETRY = {"retry-after": "1"}
Range = Annotated[str | None, Header(alias="Range", max_length=100)]
FilesLimit = Annotated[int, Query(ge=1, le=HA_FILES_MAX)]
FilesCursor = Annotated[int | None, Query(ge=0, le=INT64_MAX, description="`next` of the page before")]


class NewPin(RequestBody):
    """`for_s`: seconds; a pin ends by itself."""

    from_offset: Annotated[int, Field(ge=0, le=INT64_MAX)]
    for_s: Annotated[int, Field(ge=1, le=PIN_S_MAX)]


def version_of(found: HaView) -> str:
    return found.log_version or DOWN


async def look(parts: Parts) -> HaView:
    return await ha.said(parts)


@router.get("/log", response_model=HaLog, responses=says(HaLog))
async def log(parts: PartsDep, limit: FilesLimit = HA_FILES_MAX, cursor: FilesCursor = None) -> Response:
    """This broker's commit log: from where to where it goes, and which files are there, `limit` of them from the oldest
    on. A page begins behind the last one of the page before it: files may go from the front meanwhile."""
    found, node = await look(parts), parts.settings.node
    known: dict[str, Any] = {
        "as_of": now_text(), "version": version_of(found), "self_id": node.id, "is_master": found.is_master,
    }  # fmt: skip
    async with parts.bulk.lock:
        try:
            known |= await asyncio.to_thread(_span, node.data, found)
        except (MessageStoreError, OSError) as error:
            raise Problem(503, "No log yet", f"The commit log cannot be read: {error}", headers=RETRY) from None
    files = [one for one in known["files"] if cursor is None or one > cursor]
    known |= {"files": files[:limit], "next": str(files[limit - 1]) if len(files) > limit else None}
    return answer(HaLog.model_validate(known))


def _span(root: FilePath, found: HaView) -> dict[str, Any]:
    lineage = read_lineage(root)
    said: dict[str, Any] = {"pair": lineage.pair or None}
    said["epochs"] = [{"epoch": number, "start": start} for number, start in lineage.epochs[-1000:]]
    if found.begin_offset is None or found.end_offset is None:
        span = span_of(root)
        said |= {"begin_offset": span.begin, "end_offset": span.end, "file_bytes": span.file_bytes}
        return said | {"files": list(span.starts)}
    names = (one.name for one in os.scandir(root / COMMIT_LOG))
    starts = sorted(int(one) for one in names if len(one) == len(file_name(0)) and one.isascii() and one.isdigit())
    files = [one for one in starts if found.begin_offset <= one < found.end_offset]
    said |= {"begin_offset": found.begin_offset, "end_offset": found.end_offset, "file_bytes": found.file_bytes}
    return said | {"files": files}


@router.get(
    "/log/{name}", response_class=Response, responses=gives("application/octet-stream", BYTES, 200, 206)
)  # fmt: skip
async def piece(parts: PartsDep, name: Name, range_: Range = None, if_match: HeaderText = None) -> Response:
    """Raw bytes of one file, which its first offset names; at most 16 MiB at a time, and shorter where the log ends."""
    found, start = await look(parts), int(name)
    path = parts.settings.node.data / COMMIT_LOG / name
    async with parts.bulk.lock:
        size_bytes = await asyncio.to_thread(_size, path)
        if size_bytes is None:
            if found.begin_offset is not None and start < found.begin_offset:
                raise Problem(410, "Removed", f"Retention removed {name}: the log begins at {found.begin_offset}.")
            raise Problem(404, "Unknown file", f"There is no file {name} in this broker's commit log.")
        end = size_bytes if found.end_offset is None else max(0, min(size_bytes, found.end_offset - start))
        first, last = parse_range(range_, end)
        try:
            content = await asyncio.to_thread(_read, path, first, last - first + 1)
        except OSError as error:
            raise Problem(500, "The log cannot be read", f"{name}: {error.strerror or error}") from None
    version = version_of(await look(parts))
    tag = f'"{version}"'
    if version != version_of(found) or (
        if_match is not None and if_match != "*" and tag not in [one.strip() for one in if_match.split(",")]
    ):
        raise Problem(
            412, "Changed", "The log was cut, or its broker restarted, since that ETag; begin again.", etag=tag
        )
    headers = {"etag": tag, "accept-ranges": "bytes"}
    whole = not asks_for_bytes(range_) and len(content) == end
    if not whole:
        headers["content-range"] = f"bytes {first}-{first + len(content) - 1}/{end}"
    return Response(content, 200 if whole else 206, headers, media_type="application/octet-stream")


def _size(path: FilePath) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _read(path: FilePath, at: int, length: int) -> bytes:
    with path.open("rb", buffering=0) as file:
        return os.pread(file.fileno(), length, at) if length > 0 else b""


# --- pins -------------------------------------------------------------------------------------------------------------
@router.put("/pins/{owner}", response_model=HaPinned, responses=says(HaPinned))
async def pin(parts: PartsDep, owner: Owner, body: NewPin) -> Response:
    """Keep the log's files from `from_offset` on, for so long; the same owner's next pin replaces this one."""
    await _asked(parts, owner, body.from_offset, body.for_s)
    return answer(HaPinned(owner=owner, from_offset=body.from_offset, expires_in_s=body.for_s))


@router.delete("/pins/{owner}", status_code=204)
async def release(parts: PartsDep, owner: Owner) -> Response:
    """This owner needs nothing any more; one without a pin is fine."""
    await _asked(parts, owner, None, 1)
    return Response(status_code=204)


async def _asked(parts: Parts, owner: str, from_offset: int | None, for_s: int) -> None:
    try:
        key = await asyncio.to_thread(read_key, parts.settings.node.data)
    except OSError as error:
        raise Problem(503, "The broker does not answer", f"its key cannot be read ({error.strerror})") from None
    said = json.dumps({"key": key, "owner": owner, "from_offset": from_offset, "for_s": for_s})
    try:
        got = await link_of(parts).command(PIN, {}, said.encode(), PIN_WITHIN_S)
    except Unavailable as error:
        raise broker_away(error) from None
    if got.code == Answer.QUERY_NOT_FOUND:
        raise Problem(410, "Removed", f"Retention removed {from_offset}: {got.remark}.")
    if got.code != Answer.SUCCESS:
        raise refusal(got.code, got.remark or "")
