"""What an audit ships to Spark's tasks is complete, and asks of them no more than Spark does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from app.audit.session import pack_modules

LOOK = """
import sys
sys.path.insert(0, sys.argv[1])
import app.audit.data_source, app.audit.message_tasks, app.audit.pair_audit, app.audit.tasks
assert app.__file__.startswith(sys.argv[1]), app.__file__
assert "pydantic" not in sys.modules, "a task would need pydantic"
import app.audit.fencing
"""


def test_the_shipped_modules_are_all_that_tasks_import(tmp_path: Path) -> None:
    modules = pack_modules(tmp_path / "modules.zip")
    done = subprocess.run([sys.executable, "-P", "-c", LOOK, modules], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
