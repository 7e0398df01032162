"""A database that is away for a while costs no audit: its job is started once, followed, and brought to its end."""

from __future__ import annotations

import asyncio
import errno
import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from sqlalchemy.exc import OperationalError

from app.audit import runner as runner_module
from app.audit.result import STATES_DIFFER
from app.audit.runner import AuditRunner
from app.console.last_audits import look_up
from app.db.audits import FINAL, AuditRow
from tests.unit.console_kit import run, running

JOB = "import sys; open(sys.argv[1], 'w').write('{\"event\": \"cancelled\"}\\n')"
RESULT = {"verdict": "divergent", "summary": "They differ.", "findings": [
    {"class": "missing", "severity": "critical", "from_index": 3, "to_index": 4}
]}  # fmt: skip


@pytest.mark.parametrize(
    ("last", "state", "verdict", "problem"),
    [
        ({"event": "result", "result": RESULT}, "done", "divergent", None),
        ({"event": "cancelled"}, "cancelled", None, None),
        ({"event": "failed", "code": "no_java", "detail": "no Java"}, "failed", None, ("no_java", "no Java")),
        (None, "failed", None, ("process_ended", "its process ended without a result: out of memory")),
    ],
    ids=["result", "cancelled", "failed", "none"],
)
def test_an_audit_ends_as_its_jobs_last_line_says(
    last: dict[str, Any] | None,
    state: str,
    verdict: str | None,
    problem: tuple[str, str] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start_job(directory: Path, *, outlives: bool) -> subprocess.Popen[bytes]:
        assert outlives
        (directory / "log").write_text("out of memory\n")
        (directory / "progress.jsonl").write_text("" if last is None else json.dumps(last) + "\n")
        return subprocess.Popen([sys.executable, "-c", ""])

    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            ended: list[Any] = []
            audits = AuditRunner(kit.app.state.sessions, tmp_path / "audits", on_end=ended.append)
            monkeypatch.setattr(runner_module, "start_job", start_job)
            order = {"cluster_id": "demo", "cluster_name": "demo", "requested_by": "ann"}
            audit = await audits.launch(**order, replicas=(), depth="bytes", from_index=None, to_index=None)
            await kit.until(lambda: bool(ended))
            kept = await audits.get(audit["id"])
            assert kept is not None and (kept["state"], kept["verdict"]) == (state, verdict)
            assert kept["problem"] == (None if problem is None else dict(zip(("code", "detail"), problem, strict=True)))
            assert kept["result"] == (None if verdict is None else {"verdict": "divergent", "summary": "They differ."})
            found, _ = await audits.kept.findings(audit["id"])
            assert list(found) == ended[0]["findings"] == ([] if verdict is None else RESULT["findings"])
            assert not (tmp_path / "audits" / audit["id"] / "spec.json").exists()
            await audits.stop()

    run(work())


def test_an_audit_whose_process_was_killed_says_so(tmp_path: Path) -> None:
    """The end of its log is whatever it wrote last, and the kernel writes nothing there."""

    said = "its process was killed by signal 9 (SIGKILL) without a result: WARN something of no interest"

    async def work() -> None:
        async with running(tmp_path) as kit:
            audits = AuditRunner(kit.app.state.sessions, tmp_path / "audits")
            (tmp_path / "log").write_text("WARN something of no interest\n")
            with subprocess.Popen(["sh", "-c", "kill -9 $$"]) as job:
                job.wait()
                event = await audits._follow("none", tmp_path, job, None)
            assert event["detail"] == said
            await audits.stop()

    run(work())


def test_of_audits_that_are_over_the_newest_stay_in_memory(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            audits = AuditRunner(kit.app.state.sessions, tmp_path / "audits", running_max=0)
            audits.live = {f"old{n}": {"state": "done"} for n in range(60)}
            audits.live["old0"] = {"state": "running"}
            row = AuditRow(
                id="new", cluster_id="demo", cluster_name="demo", depth="bytes", state="queued",
                directory=str(tmp_path / "new"), requested_by="ann", created_at=datetime.now(UTC),
            )  # fmt: skip
            audits._adopt(row)
            kept = ["old0", *(f"old{n}" for n in range(11, 60)), "new"]
            assert list(audits.live) == kept, "one that runs stays, however old it is"
            await audits.stop()

    run(work())


def test_an_audit_whose_order_cannot_be_written_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were it left waiting, no schedule of its group would start another one."""

    def full(*_: object, **__: object) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            ended: list[Any] = []
            audits = AuditRunner(kit.app.state.sessions, tmp_path / "audits", on_end=ended.append)
            monkeypatch.setattr(runner_module, "write_spec", full)
            order = {"cluster_id": "demo", "cluster_name": "demo", "requested_by": "ann"}
            audit = await audits.launch(**order, replicas=(), depth="bytes", from_index=None, to_index=None)
            kept = await audits.get(audit["id"])
            assert kept is not None and kept["state"] == audit["state"] == "failed"
            assert kept["problem"]["detail"] == "its order could not be written: No space left on device"
            assert [one["id"] for one in ended] == [audit["id"]] and not await audits.kept.unfinished()
            await audits.stop()

    run(work())


def test_a_job_that_was_begun_as_the_console_stopped_is_followed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was started once more: two jobs wrote into one directory, and the first one's end was lost."""
    jobs: list[subprocess.Popen[bytes]] = []

    def start_job(directory: Path, *, outlives: bool) -> subprocess.Popen[bytes]:
        assert outlives
        time.sleep(0.2)
        (directory / "progress.jsonl").touch()
        command = [sys.executable, "-c", "import time; time.sleep(60)", str(directory / "spec.json")]
        jobs.append(subprocess.Popen(command))
        return jobs[-1]

    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            monkeypatch.setattr(runner_module, "start_job", start_job)
            first, then = (AuditRunner(kit.app.state.sessions, tmp_path / "audits") for _ in range(2))
            order = {"cluster_id": "demo", "cluster_name": "demo", "requested_by": "ann"}
            audit = await first.launch(**order, replicas=(), depth="bytes", from_index=None, to_index=None)
            await asyncio.sleep(0.05)
            await first.stop()
            await then.start()
            await asyncio.sleep(0.5)
            row = await then.kept.get(audit["id"])
            assert row is not None and len(jobs) == 1 and (row.state, row.pid) == ("running", jobs[0].pid)
            (Path(row.directory) / "progress.jsonl").write_text('{"event": "cancelled"}\n')
            await kit.until(lambda: then.live[audit["id"]]["state"] == "cancelled")
            await then.stop()

    try:
        run(work())
    finally:
        for job in jobs:
            job.kill()
            job.wait()


@pytest.mark.parametrize("fails", ["get", "running", "finish"])
def test_an_audit_outlives_a_database_that_is_away(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    jobs: list[Path] = []

    def start_job(directory: Path, *, outlives: bool) -> subprocess.Popen[bytes]:
        assert outlives
        jobs.append(directory)
        return subprocess.Popen([sys.executable, "-c", JOB, str(directory / "progress.jsonl")])

    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            audits = AuditRunner(kit.app.state.sessions, tmp_path / "audits")
            real, left = getattr(audits.kept, fails), [1, 2]

            async def away(*given: Any, **named: Any) -> Any:
                if left:
                    left.pop()
                    raise OperationalError("UPDATE", {}, Exception("the database is away"))
                return await real(*given, **named)

            monkeypatch.setattr(audits.kept, fails, away)
            monkeypatch.setattr(runner_module, "start_job", start_job)
            audit = await audits.launch(
                cluster_id="demo", cluster_name="demo", replicas=(), depth="chain", from_index=None, to_index=None,
                requested_by="ann",
            )  # fmt: skip
            await kit.until(lambda: audits.live[audit["id"]]["state"] in FINAL)
            assert audits.live[audit["id"]]["state"] == "cancelled"
            assert len(jobs) == 1 and not left
            await audits.stop()

    run(work())
    said = [record.getMessage() for record in caplog.records if "the database is away" in record.getMessage()]
    assert len(said) == 2 and all(line.startswith("audit ") for line in said)


def test_the_sentence_says_where_the_last_audit_found_states_that_differ() -> None:
    """The result of a real comparison, through what the console keeps of it."""

    async def said(summary: str) -> bool | None:
        row = SimpleNamespace(
            id="a1", cluster_id="c", cluster_name="g", depth="bytes", from_index=None, to_index=None, state="done",
            verdict="consistent", progress=None, result={"summary": summary}, problem=None, requested_by="ann",
            created_at=datetime(2026, 11, 28, tzinfo=UTC), finished_at=datetime(2026, 11, 28, tzinfo=UTC),
        )  # fmt: skip
        newest = AsyncMock(return_value=[row])
        console, runner = SimpleNamespace(audits={}), SimpleNamespace(kept=SimpleNamespace(newest=newest))
        await look_up(console, runner, "c")  # type: ignore[arg-type]
        kept: bool | None = console.audits["c"].states_differ
        return kept

    assert asyncio.run(said("3 replicas hold the same 9 entries (0 to 8), every byte read.")) is False
    assert asyncio.run(said(f"3 replicas hold the same.{STATES_DIFFER}the states that were saved ...")) is True
