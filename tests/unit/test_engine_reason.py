"""Why an engine ended: what it said itself stays, and what an earlier one said is replaced (node/__main__.py)."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from node.__main__ import REASON_FILE, record_crash


@pytest.mark.parametrize(("age_s", "kept"), [(0, True), (3600, False)])
def test_the_supervisor_leaves_what_the_engine_said_of_its_end(tmp_path: Path, age_s: int, kept: bool) -> None:
    path = tmp_path / REASON_FILE
    path.write_text(json.dumps({"reason": "fsync failed"}))
    os.utime(path, (time.time() - age_s,) * 2)
    record_crash(tmp_path, "the engine ended with exit code 1")
    assert json.loads(path.read_text())["reason"] == ("fsync failed" if kept else "the engine ended with exit code 1")
