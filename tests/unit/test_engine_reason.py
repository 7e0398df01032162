"""Why an engine ended: what it said itself stays, and what an earlier one said is replaced (node/__main__.py)."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import pytest

from node import __main__ as supervisor
from node.__main__ import STAYS_DOWN, record_crash, record_refusal
from node.down_reason import REASON_FILE


@pytest.mark.parametrize(("age_s", "kept"), [(0, True), (3600, False)])
def test_the_supervisor_leaves_what_the_engine_said_of_its_end(tmp_path: Path, age_s: int, kept: bool) -> None:
    path = tmp_path / REASON_FILE
    path.write_text(json.dumps({"reason": "fsync failed"}))
    os.utime(path, (time.time() - age_s,) * 2)
    record_crash(tmp_path, "the engine ended with exit code 1")
    assert json.loads(path.read_text())["reason"] == ("fsync failed" if kept else "the engine ended with exit code 1")


def test_a_refusal_that_could_not_be_written_down_is_once_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory was read-only, and is mounted read-write again: the engine stays down all the same."""
    monkeypatch.setattr(supervisor, "LOOK_AGAIN_AT_DISK_S", 0.01)
    path, write, refused = tmp_path / REASON_FILE, Path.write_text, []

    def read_only_at_first(self: Path, text: str) -> int:
        if len(refused) < 3:
            refused.append(self)
            raise OSError(30, "Read-only file system")
        return write(self, text)

    monkeypatch.setattr(Path, "write_text", read_only_at_first)
    asyncio.run(asyncio.wait_for(record_refusal(tmp_path), 10))
    assert refused == [path] * 3 and json.loads(path.read_text())["reason"] == STAYS_DOWN
    monkeypatch.undo()
    path.write_text(json.dumps({"reason": "the lock is held"}))
    asyncio.run(asyncio.wait_for(record_refusal(tmp_path), 10))
    assert json.loads(path.read_text())["reason"] == "the lock is held", "the engine said it better"
