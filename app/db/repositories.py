"""Repositories of the console's database: clusters, operations, events, people; short transactions.

Invariants: a list is bounded and continues by cursor; an event that a node reported twice is stored once; an operation
that ran when the console died is `unknown` afterwards, never silently gone.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.base import seen
from app.db.engine import Sessions, again_if_taken, put_row, until_taken
from app.db.idempotency import earlier
from app.db.models import Cluster, ClusterNode, ConsoleMeta, EventRow, OperationRow
from app.security.grants import forget_group
from app.security.roles import ALL, Sight
from app.times import parse_time, rfc3339, utc_now
from node.views.events import EventView

Json = dict[str, Any]
RUNNING, DONE, FAILED, CANCELLED, UNKNOWN = "running", "done", "failed", "cancelled", "unknown"
EVENTS_KEPT_PER_CLUSTER = 20_000
EVENT_CHARS_MAX = 2_000


class Clusters:
    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions

    async def all(self) -> list[Cluster]:
        async with self.sessions() as db:
            return list(await db.scalars(select(Cluster).order_by(Cluster.name)))

    async def save(
        self, name: str | None, group: str, nodes: list[tuple[str, str, str | None]], group_id: str | None = None
    ) -> Cluster:
        """A known group (same name of the group, a common member, no other id) is updated, not doubled."""
        return await again_if_taken(lambda: self._save(name, group, nodes, group_id))

    async def _save(
        self, name: str | None, group: str, nodes: list[tuple[str, str, str | None]], group_id: str | None
    ) -> Cluster:
        ids = {node_id for node_id, _, _ in nodes}
        async with self.sessions() as db, db.begin():
            known = list(await db.scalars(select(Cluster).where(Cluster.group == group)))
            known = [one for one in known if group_id is None or one.group_id in (None, group_id)]
            known.sort(key=lambda one: one.group_id is None)  # the one that surely is this group goes first
            row = next((one for one in known if ids & {node.node_id for node in one.nodes}), None)
            if row is None:
                row = Cluster(
                    id=await self.free_id(db, name or group), name=name or group, group=group, group_id=group_id
                )
                row.nodes = []
                db.add(row)
            elif name:
                row.name = name
            row.group_id = row.group_id or group_id
            have = {node.node_id: node for node in row.nodes}
            for node_id, address, control_url in nodes:
                if node_id in have:
                    have[node_id].address = address or have[node_id].address
                    have[node_id].control_url = control_url or have[node_id].control_url
                else:
                    row.nodes.append(ClusterNode(node_id=node_id, address=address, control_url=control_url))
        return row

    async def free_id(self, db: AsyncSession, name: str) -> str:
        base = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:48] or "group"
        taken = set(await db.scalars(select(Cluster.id).where(Cluster.id.startswith(base))))
        return next(one for one in [base, *(f"{base}-{n}" for n in range(2, len(taken) + 3))] if one not in taken)

    async def moved(self, cluster_id: str, node_id: str, address: str, control_url: str | None) -> None:
        where = (ClusterNode.cluster_id == cluster_id) & (ClusterNode.node_id == node_id)
        async with self.sessions() as db, db.begin():
            await db.execute(update(ClusterNode).where(where).values(address=address, control_url=control_url))

    async def joined(self, cluster_id: str, node_id: str, address: str) -> None:
        """One more node of a group that is (still) watched."""
        async with self.sessions() as db, db.begin():
            row = await db.get(Cluster, cluster_id)
            if row is not None and all(node.node_id != node_id for node in row.nodes):
                row.nodes.append(ClusterNode(node_id=node_id, address=address))

    async def left(self, cluster_id: str, node_id: str) -> None:
        where = (ClusterNode.cluster_id == cluster_id) & (ClusterNode.node_id == node_id)
        async with self.sessions() as db, db.begin():
            await db.execute(delete(ClusterNode).where(where))

    async def move_all(self, cluster_id: str, control_urls: Mapping[str, str | None]) -> Cluster:
        """Each node's control plane is there now; the row as it is then."""
        async with self.sessions() as db, db.begin():
            row = await db.get_one(Cluster, cluster_id)
            for node in row.nodes:
                node.control_url = control_urls.get(node.node_id, node.control_url)
        return row

    async def named(self, cluster_id: str, group_id: str) -> None:
        """Stores the group's id, once a member has reported it."""
        async with self.sessions() as db, db.begin():
            await db.execute(update(Cluster).where(Cluster.id == cluster_id).values(group_id=group_id))

    async def rename(self, cluster_id: str, name: str) -> None:
        async with self.sessions() as db, db.begin():
            await db.execute(update(Cluster).where(Cluster.id == cluster_id).values(name=name))

    async def remove(self, cluster_id: str) -> None:
        """The console forgets it; the nodes are not touched."""
        async with self.sessions() as db, db.begin():
            row = await db.get(Cluster, cluster_id)
            if row is not None:
                await db.delete(row)
                await forget_group(db, cluster_id)


class Operations:
    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions

    async def open(
        self,
        cluster_id: str,
        kind: str,
        requested_by: str,
        *,
        node_id: str | None,
        key: str | None,
        progress: Json,
        fingerprint: str | None = None,
    ) -> tuple[Json, bool]:
        """(the operation, whether it is new): the same call with the same Idempotency-Key finds the first one."""
        row = OperationRow(
            id=str(uuid.uuid4()),
            cluster_id=cluster_id,
            node_id=node_id,
            kind=kind,
            state=RUNNING,
            progress=progress,
            outcome=None,
            problem=None,
            requested_by=requested_by,
            idempotency_key=key,
            fingerprint=fingerprint,
            created_at=utc_now(),
            updated_at=utc_now(),
        )
        try:
            async with self.sessions() as db, db.begin():
                first = await earlier(db, OperationRow, requested_by, key, fingerprint)
                if first is None:
                    db.add(row)
            return operation_json(first or row), first is None
        except IntegrityError:
            async with self.sessions() as db:
                first = await earlier(db, OperationRow, requested_by, key, fingerprint)
            if first is None:
                raise
            return operation_json(first), False

    async def earlier(self, requested_by: str, key: str | None, fingerprint: str) -> Json | None:
        """What the same call with the same key has started. Raises Invalid where the key stands for another call."""
        async with self.sessions() as db:
            found = await earlier(db, OperationRow, requested_by, key, fingerprint)
            return operation_json(found) if found is not None else None

    async def set(self, operation_id: str, **values: Any) -> None:
        """How far it is, or how it ended: lost, it would run for ever, so this waits until the database takes it."""

        async def write() -> None:
            async with self.sessions() as db, db.begin():
                found = update(OperationRow).where(OperationRow.id == operation_id)
                await db.execute(found.values(updated_at=utc_now(), **values))

        await until_taken(write, f"operation {operation_id}")

    async def get(self, operation_id: str) -> Json | None:
        async with self.sessions() as db:
            row = await db.get(OperationRow, operation_id)
            return operation_json(row) if row is not None else None

    async def list(
        self, cluster_id: str | None, limit: int, after: str | None = None, sight: Sight = ALL
    ) -> list[Json]:
        """Newest first; `after`: the id of the last one that the caller has."""
        asked = select(OperationRow).order_by(OperationRow.created_at.desc(), OperationRow.id.desc()).limit(limit)
        asked = asked.where(seen(OperationRow.cluster_id, sight))
        if cluster_id is not None:
            asked = asked.where(OperationRow.cluster_id == cluster_id)
        if after is not None:
            at = select(OperationRow.created_at).where(OperationRow.id == after).scalar_subquery()
            same_time = (OperationRow.created_at == at) & (OperationRow.id < after)
            asked = asked.where((OperationRow.created_at < at) | same_time)
        async with self.sessions() as db:
            return [operation_json(row) for row in await db.scalars(asked)]

    async def orphaned(self) -> int:
        """At start: whatever was running has lost its follower."""
        problem = {
            "title": "The console stopped meanwhile",
            "detail": "The console was restarted while this ran; the group's events tell how it ended.",
        }
        running = update(OperationRow).where(OperationRow.state == RUNNING)
        async with self.sessions() as db, db.begin():
            asked = select(OperationRow.id).where(OperationRow.state == RUNNING)
            count = len(list(await db.scalars(asked)))
            await db.execute(running.values(state=UNKNOWN, problem=problem, updated_at=utc_now()))
        return count


def operation_json(row: OperationRow) -> Json:
    return {
        "id": row.id,
        "kind": row.kind,
        "state": row.state,
        "progress": row.progress,
        "outcome": row.outcome,
        "problem": row.problem,
        "cluster_id": row.cluster_id,
        "node_id": row.node_id,
        "requested_by": row.requested_by,
        "created_at": rfc3339(row.created_at),
        "updated_at": rfc3339(row.updated_at),
    }


class Events:
    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions

    async def add(self, cluster_id: str, node_id: str | None, items: Sequence[EventView]) -> int:
        """Stores what is new; returns how many that were."""
        rows = [row for item in items if (row := event_row(cluster_id, node_id, item)) is not None]
        async with self.sessions() as db, db.begin():
            ids = [row.source_id for row in rows if row.source_id is not None]
            mine = (EventRow.cluster_id == cluster_id) & (EventRow.node_id == node_id)
            known = set(await db.scalars(select(EventRow.source_id).where(mine & EventRow.source_id.in_(ids))))
            fresh = {row.source_id or id(row): row for row in rows if row.source_id not in known or not row.source_id}
            db.add_all(fresh.values())
        return len(fresh)

    async def list(
        self,
        cluster_id: str | None = None,
        *,
        limit: int = 100,
        before_id: int | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        kinds: Sequence[str] = (),
        sight: Sight = ALL,
    ) -> list[Json]:
        """Newest first, by the time of the event: members are asked for theirs at different moments."""
        asked = select(EventRow).order_by(EventRow.at.desc(), EventRow.id.desc()).limit(limit)
        asked = asked.where(seen(EventRow.cluster_id, sight))
        if cluster_id is not None:
            asked = asked.where(EventRow.cluster_id == cluster_id)
        if before_id is not None:
            before = select(EventRow.at).where(EventRow.id == before_id).scalar_subquery()
            same_time = (EventRow.at == before) & (EventRow.id < before_id)
            asked = asked.where((EventRow.at < before) | same_time)
        if since is not None:
            asked = asked.where(EventRow.at >= since)
        if until is not None:
            asked = asked.where(EventRow.at <= until)
        if kinds:
            asked = asked.where(EventRow.kind.in_(kinds))
        async with self.sessions() as db:
            return [event_json(row) for row in await db.scalars(asked)]

    async def trim(self, cluster_id: str) -> None:
        newest = select(EventRow.id).where(EventRow.cluster_id == cluster_id).order_by(EventRow.id.desc())
        async with self.sessions() as db, db.begin():
            limit_id = await db.scalar(newest.offset(EVENTS_KEPT_PER_CLUSTER).limit(1))
            if limit_id is not None:
                gone = (EventRow.cluster_id == cluster_id) & (EventRow.id <= limit_id)
                await db.execute(delete(EventRow).where(gone))


def event_row(cluster_id: str, node_id: str | None, item: EventView) -> EventRow | None:
    """None for one that tells no time."""
    try:
        at = parse_time(item.at or "")
    except ValueError:
        return None
    return EventRow(
        cluster_id=cluster_id,
        node_id=node_id,
        source_id=item.id[:64] if item.id else None,
        at=at,
        kind=(item.kind or "event")[:48],
        severity=(item.severity or "info")[:16],
        text=(item.text or describe(item))[:EVENT_CHARS_MAX],
        detail=dict(item.detail) if item.detail else None,
    )


def describe(item: EventView) -> str:
    """A node's event in words; its own text where it has one."""
    kind, detail = item.kind or "event", item.detail or {}
    if detail.get("text"):
        return str(detail["text"])
    said = {key: value for key, value in detail.items() if value is not None and key not in ("at_ns", "reason")}
    now = next((said.pop(key) for key in ("role", "state") if key in said), None)
    change = f"{said.pop('was')} to {now}" if now is not None and "was" in said else now
    words = [str(change)] if change is not None else []
    words += [f"{key.replace('_', ' ')} {value}" for key, value in said.items()]
    known, reason = ", ".join(words), detail.get("reason")
    said_so = f"{known} ({reason})" if known and reason else str(reason or known)
    return f"{kind.replace('_', ' ')}: {said_so}" if said_so else kind


def event_json(row: EventRow) -> Json:
    return {
        "id": str(row.id),
        "cluster_id": row.cluster_id,
        "node_id": row.node_id,
        "source_id": row.source_id,
        "at": rfc3339(row.at),
        "kind": row.kind,
        "severity": row.severity,
        "text": row.text,
        "detail": row.detail,
    }


async def set_meta(sessions: Sessions, key: str, value: str) -> None:
    await put_row(sessions, ConsoleMeta(key=key, value=value))


async def meta(sessions: Sessions, key: str, default: str) -> str:
    """A value that is made once and kept, such as this console's instance id; of two made at once, the first one."""

    async def made() -> str:
        async with sessions() as db, db.begin():
            row = await db.get(ConsoleMeta, key)
            if row is None:
                row = ConsoleMeta(key=key, value=default)
                db.add(row)
            return row.value

    return await again_if_taken(made)
