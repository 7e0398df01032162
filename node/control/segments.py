"""Bulk reading for audits: segments as raw bytes, and digests per block.

Invariants: bytes end at the durable end; an ETag names the boot and the count of truncations, so a range read after a
cut cannot be glued to one read before (If-Match: 412); one pread a range.
"""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import APIRouter, Header, Path, Query
from starlette.responses import Response

from node.control.common import Begin, Json, Limit, Parts, PartsDep, To, below_begin
from node.control.problems import Problem
from node.control.snapshots import now_text
from node.openapi_statuses import BYTES, gives, says
from node.protocol.entry import INDEX_UNIT_BYTES
from node.protocol.group_kind import PLAIN_NAME
from node.store.files.identity import read_base
from node.store.reader import StoreReader
from node.views.answers import Digests, Segments
from node.views.state import StateView

router = APIRouter(prefix="/api/v1", tags=["segments"])
RANGE_BYTES_MAX = 16 << 20
BLOCKS_MAX = 1000
ENTRIES_MAX = 2_000_000
TRIES = 3
LOOKS, LOOK_EVERY_S = 20, 0.05  # at a log that is being cut
RANGE = re.compile(r"bytes=(?:(\d{1,99})-(\d{0,99})|-(\d{1,99}))", re.ASCII | re.IGNORECASE)
Name = Annotated[str, Path(pattern=r"^[0-9]{20}$")]
Kind = Literal["data", "index"]
Behind = Annotated[str | None, Query(pattern=r"^(data|index)-[0-9]{20}$", description="`next` of the page before")]
HeaderText = Annotated[str | None, Header(max_length=200)]


@router.get("/segments", responses=says(Segments))
async def segments(parts: PartsDep, limit: Limit = 1000, cursor: Behind = None) -> Json:
    """The log's files in the order of their kinds and names. A page begins behind the last one of the page before it:
    files may go from the front meanwhile."""
    found = await parts.bulk.read(lambda reader: list(reader.segments()))
    found = [one for one in found if cursor is None or f"{one.kind}-{one.name}" > cursor]
    items = [segment_json(one) for one in found[:limit]]
    more = "{kind}-{name}".format(**items[-1]) if len(found) > limit else None
    store = await parts.bulk.read(store_json)
    return {"as_of": now_text(), "etag": (await settled(parts)).etag, "store": store, "items": items, "next": more}


def store_json(reader: StoreReader) -> Json:
    """Of which store the files are, and what came before their first entry: what a copy of them begins with."""
    identity, base = reader.identity, read_base(reader.directory, reader.platform)
    before = None
    if base is not None:
        members = None if base.members is None else {"index": base.members[0], "body": base.members[1]}
        before = {
            "index": base.meta.index, "term": base.meta.term, "chain_crc": base.meta.chain, "position": base.pos,
            "members": members,
        }  # fmt: skip
    return {
        "kind": PLAIN_NAME if identity is None else identity.kind,
        "data_file_size_bytes": reader.data_file_size,
        "index_file_size_bytes": reader.index_file_size,
        "sealed_from": reader.sealed_from,
        "base": before,
    }


def segment_json(one: Any) -> Json:
    names = ("kind", "name", "start", "size_bytes", "first_index", "last_index")
    return {name: getattr(one, name) for name in names}


class Settled(NamedTuple):
    """The log's state while it is not being cut; `etag` is strong: it changes with every cut and every start."""

    state: StateView
    etag: str
    cuts: int


async def settled(parts: Parts) -> Settled:
    """The log as it is now. The files count the truncations: an archive is there before its cut begins.

    Raises Problem while a cut is under way, when neither the old bytes nor the new ones are all there.
    """
    for attempt in range(LOOKS):
        await asyncio.sleep(LOOK_EVERY_S if attempt else 0)
        state = await parts.snapshots.get(StateView)
        count = await parts.bulk.read(lambda reader: reader.archive.count)
        answers = state.engine == "ok"
        cutting = answers and state.marks.truncating_from_index is not None
        if not cutting and not (answers and state.truncation_count not in (None, count)):
            return Settled(state, f'"{state.boot_id or "down"}-{count}"', count)
        parts.snapshots.outdate()
    raise Problem(503, "Being cut", "The log is being truncated; try again.", headers={"retry-after": "1"})


async def durable_end(parts: Parts, state: StateView, kind: str, start: int, size_bytes: int) -> int:
    """How many bytes of this segment are durable. Raises Problem."""
    durable_index = state.marks.durable_index if state.engine == "ok" else None
    position = state.durable_position if state.engine == "ok" else None
    if kind == "data" and position is not None:
        return max(0, min(size_bytes, int(position) - start))
    if durable_index is None:
        marks = await parts.bulk.marks()
        if marks is not None:
            durable_index = marks.end_index if marks.durable_index is None else marks.durable_index
    if durable_index is None:
        raise Problem(503, "Unknown", "How far the log is durable is not known.", headers={"retry-after": "1"})
    if kind == "index":
        return max(0, min(size_bytes, (int(durable_index) + 1) * INDEX_UNIT_BYTES - start))
    last = await parts.bulk.read(lambda reader: reader.entry(durable_index), upto_index=durable_index)
    return size_bytes if last is None else max(0, min(size_bytes, last.pos + last.size - start))


@router.get(
    "/segments/{kind}/{name}",
    response_class=Response,
    responses=gives("application/octet-stream", BYTES, 200, 206),
)
async def segment(
    parts: PartsDep,
    kind: Kind,
    name: Name,
    range_: Annotated[str | None, Header(alias="Range", max_length=100)] = None,
    if_match: HeaderText = None,
    if_range: HeaderText = None,
) -> Response:
    """Raw bytes; at most 16 MiB at a time, and shorter where the durable end comes first."""
    asked = range_
    for _ in range(TRIES):
        log = await settled(parts)
        tag = log.etag
        if if_match is not None and if_match != "*" and tag not in [one.strip() for one in if_match.split(",")]:
            text = "The log was truncated, or the engine restarted, since that ETag; begin again."
            raise Problem(412, "Changed", text, etag=tag)
        if if_range is not None and if_range.strip() != tag:
            asked = None  # who goes on with another log's file gets this one from its start
        answer = await bytes_of(parts, log, kind, name, asked)
        if answer is not None:
            return answer
    raise Problem(503, "Being cut", "The log is truncated again and again; try again.", headers={"retry-after": "1"})


async def bytes_of(parts: Parts, log: Settled, kind: str, name: str, asked: str | None) -> Response | None:
    """A range of a segment, or what there is of all of it; None: the log was cut under the reading. Raises Problem.

    The cuts are counted where the bytes were just read: to ask once more, behind other readers, would keep the bytes of
    everybody who waits for that in memory.
    """
    found = await parts.bulk.read(lambda reader: [one for one in reader.segments() if one.kind == kind])
    chosen = next((one for one in found if one.name == name), None)
    if chosen is None:
        if found and int(name) < min(one.start for one in found):
            raise Problem(410, "Removed", f"Retention removed {kind}/{name}.")
        raise Problem(404, "Unknown segment", f"There is no segment {kind}/{name}.")
    end = await durable_end(parts, log.state, kind, chosen.start, chosen.size_bytes)
    first, last = parse_range(asked, end)
    try:
        content, cuts = await parts.bulk.read(
            lambda reader: (reader.read_segment(kind, name, first, last - first + 1), reader.archive.count)
        )
    except KeyError:
        raise Problem(410, "Removed", f"Retention removed {kind}/{name} while it was read.") from None
    if cuts != log.cuts:
        return None
    headers = {"etag": log.etag, "accept-ranges": "bytes"}
    whole = not asks_for_bytes(asked) and len(content) == end
    if not whole:
        headers["content-range"] = f"bytes {first}-{first + len(content) - 1}/{end}"
    return Response(content, 200 if whole else 206, headers, media_type="application/octet-stream")


def asks_for_bytes(asked: str | None) -> bool:
    """Whether there is a Range that counts: one of another unit than bytes is ignored (RFC 9110, 14.2)."""
    return asked is not None and asked.strip().lower().startswith("bytes=")


def parse_range(asked: str | None, end: int) -> tuple[int, int]:
    """(first, last) byte, inclusive. Without a Range of bytes: from the start. Raises Problem."""
    if asked is None or not asks_for_bytes(asked):
        if end == 0:
            return 0, -1
        return 0, min(end, RANGE_BYTES_MAX) - 1
    match = RANGE.fullmatch(asked.strip())
    if match is None:
        text = f"{asked!r}: write bytes=FIRST-LAST, bytes=FIRST- or bytes=-COUNT, one range."
        raise Problem(416, "Range", text, headers={"content-range": f"bytes */{end}"})
    first = int(match[1]) if match[1] else max(0, end - int(match[3]))
    last = min(int(match[2]) if match[2] else end - 1, end - 1, first + RANGE_BYTES_MAX - 1)
    if first >= end or last < first:
        text = f"The segment's durable end is at {end}."
        raise Problem(416, "Range", text, headers={"content-range": f"bytes */{end}"})
    return first, last


@router.get("/digests", responses=says(Digests))
async def digest_list(
    parts: PartsDep,
    from_: Begin,
    to: To = None,
    block: Annotated[int, Query(ge=1, le=1_000_000)] = 1000,
) -> Json:
    """SHA-256 per block over what the disk holds now; null with a `problem` where it cannot be read.

    A long range is answered in parts: `next` is the next `cursor` (or `from`).
    """
    marks = await parts.bulk.marks()
    if marks is None:
        raise Problem(503, "No log yet", "The files cannot be read.", headers={"retry-after": "1"})
    first = marks.begin_index if from_ is None else from_
    if to is not None and from_ is not None and to < from_:
        raise Problem(422, "Invalid request", f"The range ends at {to}, before it begins at {from_}.")
    if min(first, first if to is None else to) < marks.begin_index:
        raise below_begin(min(first, first if to is None else to), marks.begin_index)
    last = marks.end_index if to is None else min(to, marks.end_index)
    blocks_end = (first // block + BLOCKS_MAX) * block - 1
    entries_end = (first // block + max(1, ENTRIES_MAX // block)) * block - 1
    stop = min(last, blocks_end, entries_end)
    items: list[Json] = []
    if first <= last:
        items = await parts.digests.get(
            (first, stop, block),
            lambda: parts.bulk.read(lambda reader: reader.digests(first, stop, block), upto_index=stop),
        )
        begin = await parts.bulk.read(lambda reader: reader.begin_index)
        if first < begin and (not items or items[0]["from_index"] > first):  # it was removed while it was read
            raise below_begin(first, begin)
    return {
        "as_of": now_text(), "begin_index": marks.begin_index, "end_index": marks.end_index, "items": items,
        "next": str(stop + 1) if stop < last else None,
    }  # fmt: skip
