"""The control plane's process beside the engine's."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from node.priority import LOW_PRIORITY_NICENESS


@pytest.mark.skipif(sys.platform == "win32", reason="no niceness there")
def test_the_control_plane_stands_behind_the_engine_where_cores_are_short() -> None:
    before = os.nice(0)
    code = "import os; from node.control.__main__ import main; print(main(['--nonsense'])); print(os.nice(0))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert said == ["64", str(max(before, LOW_PRIORITY_NICENESS))]
