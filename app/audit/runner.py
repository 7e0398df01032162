"""Audits that the console runs: starts job processes, follows them, keeps what they say in the database.

A job lives in a process and a directory of its own, so it outlives a console that restarts: `start` finds the
unfinished audits again and goes on following their files. Invariants: every audit ends in one final state, also when
its process dies without a word; its job is started once, also where a console ends before it could note that it was;
a cancel counts from the moment it is asked for, whether or not the job has started.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from app.audit.launch import Lines, last_words, request_cancel, start_job, write_spec
from app.audit.progress import STEPS
from app.audit.replicas import ReplicaSpec
from app.db.audits import FINAL, AuditRow, Audits, Json, as_json
from app.db.engine import Sessions, between_writes
from node.background import Background
from node.children import how_ended

log = logging.getLogger(__name__)

RUNNING_MAX = 2  # each holds a JVM of half a gigabyte
FOLLOW_S = 0.2
SAVE_EVERY_S = 1.0
KEPT_IN_MEMORY = 50
FINDINGS_SHOWN = 100


class AuditRunner:
    """See the module's docstring. `live` holds the newest state of what runs or has just ended, for pages."""

    def __init__(
        self,
        sessions: Sessions,
        root: Path,
        running_max: int = RUNNING_MAX,
        on_end: Callable[[Json], None] | None = None,
    ) -> None:
        self.kept = Audits(sessions)
        self._sessions = sessions
        self.root = root
        self._on_end = on_end
        self.live: dict[str, Json] = {}
        self._slots = asyncio.Semaphore(running_max)
        self._following = Background()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}  # those that this console has started itself

    async def start(self) -> None:
        """Takes up every audit that had not ended when the console did."""
        for row in await self.kept.unfinished():
            self._adopt(row)

    async def stop(self) -> None:
        """Stops following; the jobs go on."""
        async with between_writes(self._sessions):
            await self._following.stop()

    async def launch(
        self,
        *,
        cluster_id: str,
        cluster_name: str,
        replicas: Sequence[ReplicaSpec],
        depth: str,
        from_index: int | None,
        to_index: int | None,
        requested_by: str,
        ha: bool = False,
        idempotency_key: str | None = None,
        fingerprint: str | None = None,
    ) -> Json:
        """Records the audit and starts its job as soon as there is room. `ha`: of a classic pair's brokers."""
        row, fresh = await self.kept.create(
            cluster_id=cluster_id, cluster_name=cluster_name, depth=depth, from_index=from_index, to_index=to_index,
            directory=str(self.root.resolve()), requested_by=requested_by, idempotency_key=idempotency_key,
            fingerprint=fingerprint,
        )  # fmt: skip
        if fresh:
            directory = Path(row.directory)
            try:
                write_spec(
                    directory,
                    replicas,
                    depth=depth,
                    from_index=from_index,
                    to_index=to_index,
                    out=str(directory / "out"),
                    ha=ha,
                )
            except OSError as error:  # left as it is, it would wait for ever, and its group's schedules with it
                log.exception("the order of audit %s could not be written", row.id)
                detail = f"its order could not be written: {error.strerror or error}"
                await self._finish(row.id, {"event": "failed", "code": "failed", "detail": detail})
            else:
                self._adopt(row)
        return self.live.get(row.id) or as_json(row)

    async def cancel(self, audit_id: str) -> Json | None:
        """Asks the job to end; None where there is no such audit. A finished one stays as it is."""
        row = await self.kept.get(audit_id)
        if row is None:
            return None
        if row.state not in FINAL:
            request_cancel(Path(row.directory))
            if audit_id in self.live:
                self.live[audit_id] = {**self.live[audit_id], "cancel_requested": True}
        return self.live.get(audit_id) or as_json(row)

    async def get(self, audit_id: str) -> Json | None:
        """The newest state: from memory while it runs, from the database afterwards."""
        found = self.live.get(audit_id)
        if found is not None and found["state"] not in FINAL:
            return found
        row = await self.kept.get(audit_id)
        return as_json(row) if row is not None else None

    def _adopt(self, row: AuditRow) -> None:
        state = as_json(row)
        if not self._slots.locked():
            # It starts at once: what is shown must not say for a moment that it waits.
            state = {**state, "state": "running", "progress": state["progress"] or starting()}
        self.live[row.id] = state
        for old in list(self.live)[:-KEPT_IN_MEMORY]:
            if self.live[old]["state"] in FINAL:
                del self.live[old]
        # A database that is away for a while ends no audit: its job is found again by what stands in its directory.
        self._following.keep(f"audit {row.id}", lambda: self._run(row.id))

    async def _run(self, audit_id: str) -> None:
        row = await self.kept.get(audit_id)
        if row is None or row.state in FINAL:
            return
        directory = Path(row.directory)
        try:
            async with self._slots:
                process, pid = self._processes.get(row.id), row.pid
                if row.state == "queued":
                    if process is None:  # by a console that ended before it noted it
                        begun, pid = await asyncio.to_thread(begun_before, directory)
                        if not begun and (directory / "cancel").exists():
                            await self._finish(row.id, {"event": "cancelled"})
                            return
                        process = None if begun else await self._begin(row.id, directory)
                    if process is not None:
                        pid = process.pid
                    await self.kept.running(row.id, pid)
                    self._show(row.id, state="running", progress=self.live[row.id]["progress"] or starting())
                await self._finish(row.id, await self._follow(row.id, directory, process, pid))
                if process is not None:
                    await asyncio.to_thread(reap, process)
        except SQLAlchemyError:
            raise
        except Exception as error:
            log.exception("audit %s could not be followed", row.id)
            await self._finish(row.id, {"event": "failed", "code": "failed", "detail": str(error)})
        finally:
            if self.live.get(row.id, {}).get("state") in FINAL:
                self._processes.pop(row.id, None)

    async def _begin(self, audit_id: str, directory: Path) -> subprocess.Popen[bytes]:
        """Starts the job. Whoever is stopped meanwhile waits for the thread, which starts it all the same."""
        loop = asyncio.get_running_loop()
        starting = loop.run_in_executor(None, lambda: start_job(directory, outlives=True))
        try:
            process = self._processes[audit_id] = await asyncio.shield(starting)
        finally:
            await asyncio.wait({starting})
        return process

    async def _follow(
        self, audit_id: str, directory: Path, process: subprocess.Popen[bytes] | None, pid: int | None
    ) -> Json:
        """Shows and saves the job's progress until it ends; the event that ended it, also where it wrote none."""
        lines = Lines(directory)
        saved_s = 0.0
        while True:
            ended = process.poll() is not None if process is not None else not runs_job(pid, directory)
            newest: Json | None = None
            for event in lines.read():
                if event["event"] != "progress":
                    return event
                newest = event
            if newest is not None:
                self._show(audit_id, progress=newest)
                if time.monotonic() - saved_s >= SAVE_EVERY_S:
                    saved_s = time.monotonic()
                    await self.kept.note_progress(audit_id, newest)
            if ended:
                how = how_ended(process.returncode) if process is not None and process.returncode else "ended"
                detail = f"its process {how} without a result: {last_words(directory)}"
                return {"event": "failed", "code": "process_ended", "detail": detail}
            await asyncio.sleep(FOLLOW_S)

    async def _finish(self, audit_id: str, event: Json) -> None:
        """Records the end of an audit: `event` is the job's last line, or one of the same shape made here."""
        found = await self.kept.get(audit_id)
        if found is not None:  # before anybody reads that it ended: the specification may hold a token
            try:
                (Path(found.directory) / "spec.json").unlink(missing_ok=True)
            except OSError:
                log.exception("the order of audit %s could not be removed", audit_id)
        progress = self.live.get(audit_id, {}).get("progress")
        if progress is not None:
            await self.kept.note_progress(audit_id, progress)
        row = await self.kept.finish(audit_id, event)
        findings, more = await self.kept.findings(audit_id, FINDINGS_SHOWN)
        self.live[audit_id] = {**as_json(row), "findings": findings, "findings_next": more}
        if self._on_end is not None:
            self._on_end(self.live[audit_id])

    def _show(self, audit_id: str, **values: Any) -> None:
        self.live[audit_id] = {**self.live[audit_id], **values}


def starting() -> Json:
    """What a page shows before the job has said its first word."""
    return {
        "event": "progress", "step": "starting_jvm", "blocks_done": 0, "blocks_total": None, "bytes_done": 0,
        "bytes_total": None, "rows_done": 0, "eta_s": None, "elapsed_s": 0.0,
        "steps": [{"name": name, "state": "running" if name == STEPS[0] else "pending"} for name in STEPS],
    }  # fmt: skip


def begun_before(directory: Path) -> tuple[bool, int | None]:
    """Whether this audit's job was started already, and its process while it runs. Blocking."""
    progress = directory / "progress.jsonl"
    if not progress.exists():
        return False, None
    spec = str(directory / "spec.json")
    for one in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended
            if spec in (one / "cmdline").read_bytes().decode(errors="replace").split("\0"):
                return True, int(one.name)
    return progress.stat().st_size > 0, None


def runs_job(pid: int | None, directory: Path) -> bool:
    """Whether that process is still this audit's job: a number alone may long be someone else's."""
    if pid is None:
        return False
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return _alive_without_proc(pid)
    if command == [""]:  # it has ended, or its program is just being loaded: then there is one already
        return _has_program(pid)
    return str(directory / "spec.json") in command


def _has_program(pid: int) -> bool:
    try:
        Path(f"/proc/{pid}/exe").readlink()
    except OSError:
        return False
    return True


def _alive_without_proc(pid: int) -> bool:
    if Path("/proc/self").exists():
        return False
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def reap(process: subprocess.Popen[bytes], timeout_s: float = 5.0) -> None:
    """Waits for a job that has said its last word; one that hangs on its way out is ended."""
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
