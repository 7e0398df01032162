"""Audits in the console's database: what was asked, how far it is, what came out.

Invariants: `state` moves only along STATES; a final state is never left. Findings are written once, together with the
final state. Indexes are 64-bit on every database.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import BigInteger, ForeignKey, Integer, String, Text, UniqueConstraint, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Base, seen
from app.db.engine import Sessions
from app.db.idempotency import earlier
from app.security.roles import ALL, Sight
from app.times import rfc3339, utc_now

Json = dict[str, Any]
STATES: Final[dict[str, frozenset[str]]] = {
    "queued": frozenset({"running", "failed", "cancelled"}),
    "running": frozenset({"done", "failed", "cancelled"}),
    "done": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}
TRIES: Final = 5
FINAL: Final = frozenset(state for state, after in STATES.items() if not after)
# The state that a job's last line (app/audit/progress.py) leads to.
ENDS: Final = {"result": "done", "failed": "failed", "cancelled": "cancelled"}


class AuditRow(Base):
    __tablename__ = "audits"
    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    # Listing order and cursor.
    number: Mapped[int] = mapped_column(Integer, index=True, unique=True)
    cluster_id: Mapped[str] = mapped_column(String(64), index=True)
    cluster_name: Mapped[str] = mapped_column(String(128))
    depth: Mapped[str] = mapped_column(String(16))
    from_index: Mapped[int | None] = mapped_column(BigInteger)
    to_index: Mapped[int | None] = mapped_column(BigInteger)
    state: Mapped[str] = mapped_column(String(16), index=True)
    verdict: Mapped[str | None] = mapped_column(String(16))
    pid: Mapped[int | None] = mapped_column(Integer)
    directory: Mapped[str] = mapped_column(Text)
    progress: Mapped[dict[str, Any] | None]
    result: Mapped[dict[str, Any] | None]
    problem: Mapped[dict[str, Any] | None]
    requested_by: Mapped[str] = mapped_column(String(64))
    idempotency_key: Mapped[str | None] = mapped_column(String(128))
    fingerprint: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    finished_at: Mapped[datetime | None]
    __table_args__ = (UniqueConstraint("requested_by", "idempotency_key"),)


class AuditFindingRow(Base):
    __tablename__ = "audit_findings"
    id: Mapped[int] = mapped_column(primary_key=True)
    audit_id: Mapped[str] = mapped_column(ForeignKey("audits.id", ondelete="CASCADE"), index=True)
    cls: Mapped[str] = mapped_column("class", String(32))
    severity: Mapped[str] = mapped_column(String(16))
    from_index: Mapped[int] = mapped_column(BigInteger)
    to_index: Mapped[int] = mapped_column(BigInteger)
    finding: Mapped[dict[str, Any]]


def as_json(row: AuditRow) -> Json:
    """An audit as the REST API gives it; `result` is the command line's JSON without the findings."""
    return {
        "id": row.id,
        "cluster_id": row.cluster_id,
        "cluster_name": row.cluster_name,
        "depth": row.depth,
        "from_index": row.from_index,
        "to_index": row.to_index,
        "state": row.state,
        "verdict": row.verdict,
        "progress": row.progress,
        "result": row.result,
        "problem": row.problem,
        "requested_by": row.requested_by,
        "created_at": rfc3339(row.created_at),
        "finished_at": rfc3339(row.finished_at) if row.finished_at else None,
    }


class Audits:
    """The repository."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def create(
        self,
        *,
        cluster_id: str,
        cluster_name: str,
        depth: str,
        from_index: int | None,
        to_index: int | None,
        directory: str,
        requested_by: str,
        idempotency_key: str | None = None,
        fingerprint: str | None = None,
    ) -> tuple[AuditRow, bool]:
        """A queued audit, and whether it is new: the same call with the same key gives the audit of the first one."""
        for left in reversed(range(TRIES)):
            audit_id = str(uuid.uuid4())
            row = AuditRow(
                id=audit_id, cluster_id=cluster_id, cluster_name=cluster_name, depth=depth, from_index=from_index,
                to_index=to_index, state="queued", directory=f"{directory}/{audit_id}", requested_by=requested_by,
                idempotency_key=idempotency_key, fingerprint=fingerprint, created_at=utc_now(),
            )  # fmt: skip
            try:
                async with self._sessions.begin() as db:
                    known = await earlier(db, AuditRow, requested_by, idempotency_key, fingerprint)
                    if known is None:
                        row.number = (await db.scalar(select(func.max(AuditRow.number))) or 0) + 1
                        db.add(row)
                return known or row, known is None
            except IntegrityError:  # on PostgreSQL another call of that time has the number, or the key
                if not left:
                    raise
        raise AssertionError("unreachable")

    async def get(self, audit_id: str) -> AuditRow | None:
        async with self._sessions() as db:
            return await db.get(AuditRow, audit_id)

    async def newest(
        self, cluster_id: str | None = None, limit: int = 50, before: int | None = None, sight: Sight = ALL
    ) -> Sequence[AuditRow]:
        """Newest first."""
        asked = select(AuditRow).order_by(AuditRow.number.desc()).limit(limit)
        asked = asked.where(seen(AuditRow.cluster_id, sight))
        if cluster_id is not None:
            asked = asked.where(AuditRow.cluster_id == cluster_id)
        if before is not None:
            asked = asked.where(AuditRow.number < before)
        async with self._sessions() as db:
            return (await db.scalars(asked)).all()

    async def unfinished(self) -> Sequence[AuditRow]:
        asked = select(AuditRow).where(AuditRow.state.not_in(FINAL)).order_by(AuditRow.number)
        async with self._sessions() as db:
            return (await db.scalars(asked)).all()

    async def running(self, audit_id: str, pid: int | None) -> None:
        await self._move(audit_id, "running", pid=pid)

    async def note_progress(self, audit_id: str, progress: Json) -> None:
        async with self._sessions.begin() as db:
            asked = update(AuditRow).where(AuditRow.id == audit_id, AuditRow.state.not_in(FINAL))
            await db.execute(asked.values(progress=progress))

    async def finish(self, audit_id: str, event: Json) -> AuditRow:
        """The final state with everything that belongs to it, in one transaction; `event` is the job's last line."""
        result = event["result"] if event["event"] == "result" else None
        problem = {"code": event.get("code"), "detail": event.get("detail")} if event["event"] == "failed" else None
        return await self._move(
            audit_id,
            ENDS[event["event"]],
            result["findings"] if result is not None else (),
            result={k: v for k, v in result.items() if k != "findings"} if result is not None else None,
            verdict=result["verdict"] if result is not None else None,
            problem=problem,
            finished_at=utc_now(),
            pid=None,
        )

    async def _move(self, audit_id: str, state: str, findings: Sequence[Json] = (), **values: Any) -> AuditRow:
        async with self._sessions.begin() as db:
            row = await db.get_one(AuditRow, audit_id, with_for_update=True)
            if state not in STATES[row.state]:
                raise ValueError(f"an audit that is {row.state} cannot become {state}")
            row.state = state
            for name, value in values.items():
                setattr(row, name, value)
            db.add_all(
                AuditFindingRow(
                    audit_id=audit_id, cls=one["class"], severity=one["severity"], from_index=one["from_index"],
                    to_index=one["to_index"], finding=one,
                )
                for one in findings
            )  # fmt: skip
        return row

    async def critical_range(self, audit_id: str) -> tuple[int | None, int | None]:
        """From the first to the last index of its critical findings."""
        asked = select(func.min(AuditFindingRow.from_index), func.max(AuditFindingRow.to_index)).where(
            AuditFindingRow.audit_id == audit_id, AuditFindingRow.severity == "critical"
        )
        async with self._sessions() as db:
            low, high = (await db.execute(asked)).one()
        return low, high

    async def findings(
        self, audit_id: str, limit: int = 100, after: int | None = None, severity: str | None = None
    ) -> tuple[Sequence[Json], int | None]:
        """Findings in the order of the result, and the cursor of the next page."""
        asked = select(AuditFindingRow).where(AuditFindingRow.audit_id == audit_id).order_by(AuditFindingRow.id)
        if after is not None:
            asked = asked.where(AuditFindingRow.id > after)
        if severity is not None:
            asked = asked.where(AuditFindingRow.severity == severity)
        async with self._sessions() as db:
            rows = (await db.scalars(asked.limit(limit + 1))).all()
        more = len(rows) > limit
        return [row.finding for row in rows[:limit]], rows[limit - 1].id if more else None
