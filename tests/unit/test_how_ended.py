"""What is said of a process that ended, and of commands whose work such a process did."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from app.backup import run as backup_run
from app.commands import store
from app.commands.endings import Failure
from node.children import how_ended

KILLED = ["sh", "-c", "echo {} ; echo a warning >&2; kill -9 $$"]
SAID = "it was killed by signal 9 (SIGKILL), perhaps because memory ran out: the kernel's log says whether (`dmesg`)"


def test_a_signal_has_its_name() -> None:
    assert how_ended(3) == "ended with exit code 3"
    assert how_ended(-signal.SIGKILL) == "was killed by signal 9 (SIGKILL)"
    assert how_ended(-(signal.SIGRTMIN + 1)) == f"was killed by signal {signal.SIGRTMIN + 1}"


def test_a_store_command_that_was_killed_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "store_directory", lambda directory: directory)
    monkeypatch.setattr(store, "python", lambda *_: KILLED)
    with pytest.raises(Failure) as caught:
        store._decided(tmp_path, [], dry_run=False, as_json=False)
    assert str(caught.value) == SAID


def test_a_backup_whose_process_was_killed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_run, "python", lambda *_: KILLED)
    with pytest.raises(backup_run.TrialFailed) as caught:
        backup_run.in_process({})
    assert str(caught.value) == SAID
