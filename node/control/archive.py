"""The truncation archive over HTTP: what was cut, by whose order, and the bytes."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from node.control.common import INT64_MAX, Cursor, Json, Limit, PartsDep
from node.control.entry_pages import As, EntryPage
from node.control.problems import Problem
from node.control.snapshots import now_text
from node.openapi_statuses import says
from node.store.reader import StoreReader
from node.views.answers import TruncatedEntries, Truncation, Truncations

router = APIRouter(prefix="/api/v1/truncations", tags=["truncations"])
Seq = Annotated[int, Path(ge=0, le=INT64_MAX)]


def record_json(record: Any) -> Json:
    return {
        "id": record.seq,
        "seq": record.seq,
        "at": record.time,
        "time": record.time,
        "by": record.by,
        "leader_id": record.leader_id,
        "term": record.term,
        "from_index": record.from_index,
        "to_index": record.to_index,
        "count": record.to_index - record.from_index + 1,
        "reason": record.reason,
        "committed_index": record.committed_index,
        # Not null: not cut, but replaced by a log that begins behind that entry, which is committed (SAFETY M6).
        "begins_behind": record.begins_behind if record.begins_behind >= 0 else None,
        # A cut at or below the committed index is a fault: the audit calls it truncated_committed.
        "below_committed": max(record.from_index, record.begins_behind + 1) <= record.committed_index,
    }


def check_cursor(cursor: str | None) -> None:
    if cursor is not None and not (cursor.isascii() and cursor.isdigit()):
        raise Problem(422, "Invalid request", f"{cursor!r} is no cursor of this list.")


@router.get("", responses=says(Truncations))
async def truncations(parts: PartsDep, limit: Limit = 100, cursor: Cursor = None) -> Json:
    """Newest first."""
    check_cursor(cursor)
    records = await parts.files.read(lambda reader: list(reader.truncations()))
    wanted = [one for one in reversed(records) if cursor is None or one.seq < int(cursor)]
    shown = [record_json(one) for one in wanted[:limit]]
    more = str(shown[-1]["id"]) if len(wanted) > limit else None
    return {"as_of": now_text(), "items": shown, "next": more}


@router.get("/{seq}", responses=says(Truncation))
async def truncation(parts: PartsDep, seq: Seq) -> Json:
    records = await parts.files.read(lambda reader: list(reader.truncations()))
    found = next((one for one in records if one.seq == seq), None)
    if found is None:
        raise Problem(404, "Unknown truncation", f"The archive holds no truncation {seq} (any more).")
    return record_json(found)


@router.get("/{seq}/entries", responses=says(TruncatedEntries))
async def truncation_entries(
    parts: PartsDep,
    seq: Seq,
    limit: Limit = 50,
    cursor: Cursor = None,
    from_: Annotated[int | None, Query(alias="from", ge=0, le=INT64_MAX)] = None,
    as_: As = "text",
) -> Json:
    check_cursor(cursor)
    await truncation(parts, seq)
    start = int(cursor) if cursor is not None else from_
    first = 0 if start is None else start

    def read(reader: StoreReader) -> tuple[list[Json], str | None]:
        """A page, and where the next one begins. Not all of it: a whole log may have been archived."""
        page = EntryPage(as_)
        for one in reader.truncation_entries(seq):
            if one.index >= first and (len(page.items) == limit or not page.add(one)):
                return page.items, str(one.index)
        return page.items, None

    items, more = await parts.files.read(read)
    return {"id": seq, "items": items, "next": more}
