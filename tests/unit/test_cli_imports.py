"""What a command loads before it does anything: an operator waits for it, and so does every script that calls one."""

from __future__ import annotations

import subprocess

import pytest

from node.children import environment, python

LOADED = """
import sys
from app.cli import run
run(sys.argv[1:])
print(*sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""
OF_SERVERS = {"sqlalchemy", "alembic", "fastapi", "uvicorn", "jinja2", "pyspark"}


@pytest.mark.parametrize(
    "command", ["--help", "append --help", "status --node http://127.0.0.1:1", "members --node http://127.0.0.1:1"]
)
def test_what_asks_a_group_loads_no_database_and_no_server(command: str) -> None:
    """SQLAlchemy alone was a third of the time of `status`."""
    done = subprocess.run(
        [*python("-c"), LOADED, *command.split()], env=environment(), capture_output=True, text=True, check=True
    )
    loaded = set(done.stderr.splitlines()[-1].split())
    assert {"app", "typer"} <= loaded
    assert not loaded & OF_SERVERS
