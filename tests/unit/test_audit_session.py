"""What an audit says of a JVM that ended under it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from app.audit.job import Job, JobSpec
from app.audit.progress import Progress
from app.audit.session import how_jvm_ended


@contextmanager
def jvm() -> Iterator[tuple[Any, subprocess.Popen[bytes]]]:
    """A session, and the process that it takes for its JVM."""
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            yield SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=process))), process
        finally:
            process.kill()


def test_a_jvm_that_was_killed_is_named_and_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ConnectionRefusedError: [Errno 111] Connection refused` sounds as if a member had refused."""
    said: list[tuple[int, str, str]] = []

    def fail(_self: Job, code: int, name: str, detail: str) -> NoReturn:
        said.append((code, name, detail))
        raise SystemExit(code)

    monkeypatch.setattr(Job, "fail", fail)
    job = Job(JobSpec(replicas=[]), tmp_path / "cancel", Progress(), tmp_path)
    with jvm() as (session, process):
        job._session = session
        process.kill()
        with pytest.raises(SystemExit), job._errors_end_it():
            raise ConnectionRefusedError(111, "Connection refused")
    ((code, name, detail),) = said
    assert (code, name) == (70, "jvm_ended")
    assert "Spark's JVM was killed by signal 9" in detail and "out of memory" in detail


def test_a_jvm_that_lives_or_is_none_of_ours_is_not_accused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.audit.session.ENDING_S", 0.0)
    remote = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=None)))
    with jvm() as (session, process):
        assert how_jvm_ended(session) is None
        assert how_jvm_ended(None) is how_jvm_ended(remote) is None
        process.send_signal(signal.SIGTERM)
        process.wait()
        assert "signal 15" in (how_jvm_ended(session) or "") and "memory" not in (how_jvm_ended(session) or "")
