"""Starts a job process and reads its lines; the command line and the console share it.

A job's directory holds `spec.json` (0600: it may hold tokens), `progress.jsonl` (the job's stdout), `log` (its stderr)
and, once asked for, `cancel`. Invariant: everything about a job is in its directory, so whoever finds the directory
again can follow it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from app.audit.replicas import ReplicaSpec
from node.children import apart, environment, python


def write_spec(directory: Path, replicas: Sequence[ReplicaSpec], **options: Any) -> Path:
    """Writes the spec, readable by its owner only."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / "spec.json"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as out:
        json.dump({"replicas": [one.as_json() for one in replicas], **options}, out)
    return path


def start_job(directory: Path, *, outlives: bool) -> subprocess.Popen[bytes]:
    """Starts the job of a directory. One that `outlives` who started it (a console that restarts) has a session of its
    own; any other is cancelled when the thread that started it ends, however that ends."""
    with (directory / "progress.jsonl").open("wb") as out, (directory / "log").open("wb") as log:
        return subprocess.Popen(
            python("-m", "app.audit.job", str(directory / "spec.json")),
            stdin=subprocess.DEVNULL, stdout=out, stderr=log, env=environment(), start_new_session=outlives,
            preexec_fn=None if outlives else apart(signal.SIGTERM),
        )  # fmt: skip


def request_cancel(directory: Path) -> None:
    """Holds also for a job that has not started yet, or whose spec is still to be written."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    (directory / "cancel").touch()


class Lines:
    """Follows `progress.jsonl` from where it was left; never gives half a line."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "progress.jsonl"
        self._offset = 0

    def read(self) -> Iterator[dict[str, Any]]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                raw = file.read()
        except FileNotFoundError:
            return
        whole, newline, _ = raw.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        for line in whole.splitlines():
            yield json.loads(line)


def last_words(directory: Path) -> str:
    """The end of what the job's process said on stderr, for a failure without a final line."""
    try:
        lines = [line for line in (directory / "log").read_text(errors="replace").splitlines() if line.strip()]
    except FileNotFoundError:
        return "it left no log"
    return lines[-1][:300] if lines else "it said nothing"
