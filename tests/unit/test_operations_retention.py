"""Operations and audits that were over long ago go, with all that belongs to them; what is still needed stays."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from app.db import retention
from app.db.audits import AuditFindingRow, AuditRow, Audits
from app.db.models import OperationRow
from app.db.repositories import DONE, FAILED, RUNNING, UNKNOWN, Operations
from app.times import utc_now
from tests.unit.console_kit import run, running

NOW = utc_now()
BEFORE = NOW - timedelta(days=90)
FINDING = {"class": "missing", "severity": "critical", "from_index": 3, "to_index": 4}


def test_operations_that_were_over_long_ago_go_and_their_keys_are_free(tmp_path: Path) -> None:
    rng = random.Random(12)

    async def work() -> None:
        async with running(tmp_path) as kit:
            sessions = kit.app.state.sessions
            operations, stay = Operations(sessions), set()
            for number in range(2 * retention.AT_ONCE + 50):
                given: dict[str, Any] = {"node_id": None, "progress": {}, "fingerprint": f"{number}"}
                made, _ = await operations.open("demo", "transfer", "ann", key=f"key-{number}", **given)
                state, days = rng.choice([RUNNING, DONE, FAILED, UNKNOWN]), rng.choice([0, 89, 91, 1000])
                async with sessions() as db, db.begin():
                    row = await db.get_one(OperationRow, made["id"])
                    row.state, row.updated_at = state, NOW - timedelta(days=days)
                if state == RUNNING or days < 90:
                    stay.add(made["id"])
            removed = await retention.remove_operations(sessions, BEFORE)
            async with sessions() as db:
                assert set(await db.scalars(select(OperationRow.id))) == stay
            assert removed == 2 * retention.AT_ONCE + 50 - len(stay) and removed > 0
            assert await retention.remove_operations(sessions, BEFORE) == 0
            # A key stands for what is there: the others are free for another call.
            again = [await operations.open("demo", "x", "ann", key=f"key-{one}", node_id=None, progress={},
                                           fingerprint=f"{one}") for one in range(20)]  # fmt: skip
            assert any(fresh for _, fresh in again) and not all(fresh for _, fresh in again)

    run(work())


def test_audits_go_with_their_findings_and_directories_but_for_the_newest_of_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "AUDITS_KEPT_PER_CLUSTER", 3)
    monkeypatch.setattr(retention, "AT_ONCE", 4)
    root = tmp_path / "audits"

    async def work() -> None:
        async with running(tmp_path) as kit:
            sessions, made = kit.app.state.sessions, list[AuditRow]()
            audits = Audits(sessions)
            for number in range(16):
                order = {"cluster_id": "a" if number < 13 else "b", "cluster_name": "x", "requested_by": "ann"}
                row, _ = await audits.create(
                    **order, depth="bytes", from_index=None, to_index=None, directory=str(root)
                )
                (Path(row.directory) / "out").mkdir(parents=True)
                (Path(row.directory) / "out" / "evidence").touch()
                if number != 5:  # it runs on
                    await audits.running(row.id, 1)
                    await audits.finish(
                        row.id, {"event": "result", "result": {"verdict": "divergent", "findings": [FINDING]}}
                    )
                made.append(row)
            young, elsewhere = made[2], made[3]
            async with sessions() as db, db.begin():
                for row in await db.scalars(select(AuditRow)):
                    if row.finished_at is not None and row.id != young.id:
                        row.finished_at = NOW - timedelta(days=91)
                (await db.get_one(AuditRow, elsewhere.id)).directory = str(tmp_path / "precious")
            (tmp_path / "precious").mkdir()
            assert await retention.remove_audits(sessions, BEFORE) == 8
            stay = {made[number].id for number in (2, 5, 10, 11, 12, 13, 14, 15)}
            async with sessions() as db:
                assert set(await db.scalars(select(AuditRow.id))) == stay
                assert await db.scalar(select(func.count()).select_from(AuditFindingRow)) == len(stay) - 1
            assert {one.name for one in root.iterdir()} == stay | {elsewhere.id}
            assert (tmp_path / "precious").is_dir()  # a row that was changed has nothing else removed
            # The next one has a number of its own.
            last, _ = await audits.create(**order, depth="bytes", from_index=None, to_index=None, directory=str(root))
            assert last.number == 17

    run(work())


def test_an_audit_whose_directory_cannot_be_removed_stays_and_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "AUDITS_KEPT_PER_CLUSTER", 0)

    async def work() -> None:
        async with running(tmp_path) as kit:
            sessions = kit.app.state.sessions
            audits = Audits(sessions)
            rows = []
            for _ in range(3):
                row, _ = await audits.create(cluster_id="a", cluster_name="x", requested_by="ann", depth="bytes",
                                             from_index=None, to_index=None, directory=str(tmp_path))  # fmt: skip
                await audits.finish(row.id, {"event": "cancelled"})
                rows.append(row)
            (tmp_path / rows[1].id).touch()  # no directory
            assert await retention.remove_audits(sessions, utc_now() + timedelta(days=1)) == 2
            async with sessions() as db:
                assert list(await db.scalars(select(AuditRow.id))) == [rows[1].id]

    run(work())
