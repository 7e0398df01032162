"""How the code is built: modules of a readable length, and processes that load no more than they need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINES_MAX = 400


def modules() -> list[Path]:
    return [path for part in ("node", "app") for path in sorted((ROOT / part).rglob("*.py"))]


def test_no_module_is_longer_than_can_be_read_at_once() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in modules()}
    assert len(lines) > 300
    assert {name: count for name, count in lines.items() if count > LINES_MAX} == {}


def test_the_supervisor_loads_no_store() -> None:
    """It lives as long as its member and does next to nothing: numpy alone is several times its size."""
    say = (
        "import sys, node.__main__\n"
        "print(*(one for one in sys.modules if one.split('.')[0] in ('node', 'numpy', 'pydantic')))"
    )
    done = subprocess.run([sys.executable, "-c", say], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(done.stdout.split())
    assert "node.store.files.data_lock" in loaded
    assert not loaded & {"numpy", "pydantic", "node.protocol.entry", "node.store.log_store", "node.config"}
