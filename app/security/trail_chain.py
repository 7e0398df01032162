"""The trail's hash chain: what was added to the trail, in order, each entry with the SHA-256 over the one before.

An entry tells that a row was begun (all its fields) or ended (status, target, detail), or that old ones were removed
(retention). `verify` recomputes every hash and compares every row with what the chain says of it. It shows any row that
was changed, removed or slipped in, and any entry that was. It cannot show that the newest entries are missing, or that
somebody who writes the whole database made the chain anew: for that, compare with a hash that is kept elsewhere
(`trail export` prints it, `trail verify --head` looks for it).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import delete, func, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.models import TrailLink, TrailRow
from app.times import rfc3339, utc_now
from node.hash_chain import (
    BEGUN,
    CUT,
    ENDED,
    ORIGIN,
    WRITTEN,
    Verified,
    canonical,
    check_link,
    check_time,
    hash_of,
    parse,
)  # fmt: skip
from node.hash_chain import line_of as chain_line

__all__ = [
    "BEGUN", "ENDED", "ORIGIN", "Verified", "append", "begun_content", "entries", "hash_of", "line_of", "trim",
    "verify",
]  # fmt: skip

CHUNK: Final = 500
FIELDS: Final = ("user_name", "role", "via", "credential", "address", "action", "method", "path")
Json = dict[str, Any]


def begun_content(row: TrailRow) -> Json:
    return {"at": row.at.isoformat(), "target": row.target, **{name: getattr(row, name) for name in FIELDS}}


ONE_AT_A_TIME: Final = 0x717363  # the lock's number, among all of that database


async def append(db: AsyncSession, row_id: int, kind: str, values: Json) -> TrailLink:
    """The next entry, within the caller's transaction. With SQLite another process that was first makes the commit
    fail; PostgreSQL lets writers wait for each other here, to the ends of their transactions."""
    if db.get_bind().dialect.name == "postgresql":
        await db.execute(select(func.pg_advisory_xact_lock(ONE_AT_A_TIME)))
    newest = select(TrailLink.seq, TrailLink.hash).order_by(TrailLink.seq.desc()).limit(1)
    seq, previous = (await db.execute(newest)).one_or_none() or (0, ORIGIN)
    at = utc_now()
    content = canonical({"kind": kind, "row": row_id, **values, WRITTEN: rfc3339(at)})
    link = TrailLink(
        seq=seq + 1, at=at, row_id=row_id, content=content, previous_hash=previous,
        hash=hash_of(previous, content),
    )  # fmt: skip
    db.add(link)
    await db.flush()
    return link


async def trim(db: AsyncSession, before: datetime) -> int:
    """Removes what is older, and says so in the chain; how many rows went."""
    last = await db.scalar(select(TrailLink).where(TrailLink.at < before).order_by(TrailLink.seq.desc()).limit(1))
    if last is None:
        return 0
    rows = select(func.max(TrailLink.row_id)).where(TrailLink.seq <= last.seq)
    rows_upto = await db.scalar(rows) or 0
    # PostgreSQL may give a row its number before another one and its place in the chain behind it.
    begun_later = select(TrailLink.row_id).group_by(TrailLink.row_id).having(func.min(TrailLink.seq) > last.seq)
    gone = (TrailRow.at < before) & (TrailRow.id <= rows_upto) & TrailRow.id.not_in(begun_later)
    count = await db.scalar(select(func.count()).select_from(TrailRow).where(gone)) or 0
    await db.execute(delete(TrailRow).where(gone))
    await db.execute(delete(TrailLink).where(TrailLink.seq <= last.seq))
    if await db.scalar(select(func.count()).select_from(TrailLink)) == 0:
        # The chain goes on from here although nothing of it is left.
        values = {"upto_seq": last.seq, "hash": last.hash, "rows_upto": rows_upto}
        at = utc_now()
        content = canonical({"kind": CUT, "row": 0, **values, WRITTEN: rfc3339(at)})
        db.add(
            TrailLink(
                seq=last.seq + 1, at=at, row_id=0, content=content, previous_hash=last.hash,
                hash=hash_of(last.hash, content),
            )
        )  # fmt: skip
        await db.flush()
    else:
        await append(db, 0, CUT, {"upto_seq": last.seq, "hash": last.hash, "rows_upto": rows_upto})
    return count


async def one_moment(db: AsyncSession) -> None:
    """What is read from now on, to the end of this transaction, is as it was at one moment, whoever writes meanwhile.

    First of all in it. Each statement saw the newest rows otherwise, and a row that a console ended in between, or that
    came after its chain had been read, was one that somebody had changed.
    """
    postgresql = db.get_bind().dialect.name == "postgresql"
    await db.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ" if postgresql else "BEGIN"))


async def entries(db: AsyncSession) -> AsyncGenerator[Sequence[TrailLink], None]:
    """All of them, in order, a bounded number at a time."""
    after = 0
    while True:
        asked = select(TrailLink).where(TrailLink.seq > after).order_by(TrailLink.seq).limit(CHUNK)
        found = (await db.scalars(asked)).all()
        if not found:
            return
        yield found
        after = found[-1].seq
        db.expunge_all()


async def verify(db: AsyncSession, head: str | None = None) -> Verified:
    """Every entry and every row, as they are at one moment. `head`: a hash that was noted elsewhere and must be in the
    chain."""
    await one_moment(db)
    done = Verified(head_found=None if head is None else False)
    cuts = await cuts_of(db)
    previous: TrailLink | None = None
    first_row: int | None = None
    async for chunk in entries(db):
        ids = {one.row_id for one in chunk if one.row_id}
        rows = {row.id: row for row in await db.scalars(select(TrailRow).where(TrailRow.id.in_(ids)))}
        endings = await endings_of(db, ids)
        for one in chunk:
            check_link(done, one, previous, cuts)
            content = content_of(done, one)
            check_time(done, one, content, rfc3339(one.at))
            if content.get("kind") == BEGUN:
                first_row = one.row_id if first_row is None else min(first_row, one.row_id)
                done.rows += 1
                done.rows_without_end += one.row_id not in endings
                check_row(done, one, content, rows.get(one.row_id), endings.get(one.row_id))
            done.passed(one, head)
            previous = one
    cut_rows = max((one["rows_upto"] for one in cuts.values()), default=0)
    beyond = TrailRow.id >= (first_row if first_row is not None else cut_rows + 1)
    count = select(func.count()).select_from(TrailRow)
    present = await db.scalar(count.where(beyond)) or 0
    if present > done.rows:
        done.found(f"{present - done.rows} rows of the trail are not in its chain")
    slipped_in = TrailRow.id <= cut_rows if cuts else TrailRow.id < 1
    forged = await db.scalar(count.where(~beyond & slipped_in)) or 0
    if forged:
        done.found(f"{forged} rows of the trail stand where the chain says that there are none any more")
    done.older_rows = await db.scalar(count.where(~beyond & ~slipped_in)) or 0
    done.end(head)
    return done


async def cuts_of(db: AsyncSession) -> dict[int, Json]:
    found = await db.scalars(select(TrailLink.content).where(TrailLink.row_id == 0))
    cuts = [parsed for text in found if (parsed := parse(text)).get("kind") == CUT]
    return {one["upto_seq"]: one for one in cuts}


async def endings_of(db: AsyncSession, ids: set[int]) -> dict[int, Json]:
    """What the chain says of how these rows ended."""
    links = await db.scalars(select(TrailLink).where(TrailLink.row_id.in_(ids)).order_by(TrailLink.seq))
    parsed = ((one.row_id, parse(one.content)) for one in links)
    return {row_id: content for row_id, content in parsed if content.get("kind") == ENDED}


def line_of(one: TrailLink) -> str:
    """An entry for an export."""
    return chain_line(one, rfc3339(one.at))


def content_of(done: Verified, one: TrailLink) -> Json:
    content = parse(one.content)
    if content.get("row") != one.row_id:
        done.found(f"entry {one.seq} speaks of another row than it is filed under")
    return content


def check_row(done: Verified, link: TrailLink, content: Json, row: TrailRow | None, ending: Json | None) -> None:
    if row is None:
        done.found(f"row {link.row_id} of the trail is missing")
        return
    said = begun_content(row)
    if ending is not None and "target" in ending:
        content = {**content, "target": ending["target"]}
    changed = [name for name, value in said.items() if content.get(name) != value]
    if row.status != (ending or {}).get("status"):
        changed.append("status")
    if canonical({"detail": row.detail}) != canonical({"detail": (ending or {}).get("detail")}):
        changed.append("detail")
    if changed:
        done.found(f"row {link.row_id} of the trail was changed: {', '.join(changed)}")
