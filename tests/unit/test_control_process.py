"""The control plane's process beside the engine's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from node.config import parse_node_arguments
from node.control.__main__ import start_command
from node.priority import LOW_PRIORITY_NICENESS


@pytest.mark.skipif(sys.platform == "win32", reason="no niceness there")
def test_the_control_plane_stands_behind_the_engine_where_cores_are_short() -> None:
    before = os.nice(0)
    code = "import os; from node.control.__main__ import main; print(main(['--nonsense'])); print(os.nice(0))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert said == ["64", str(max(before, LOW_PRIORITY_NICENESS))]


PEERS = "n0-127.0.0.1:1;n1-127.0.0.1:2;n2-127.0.0.1:3"
BORN = ["--init", "--group-token", "abcdefgh"]


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        (["--data", "/d/n0"], "quorumscope node --id n0 --peers '{peers}' --data /d/n0"),
        (["--data", "n0"], "cd '/srv/a b' && quorumscope node --id n0 --peers '{peers}' --data n0"),
        ([], "cd '/srv/a b' && quorumscope node --id n0 --peers '{peers}'"),
    ],
    ids=["absolute", "relative", "default"],
)
def test_the_printed_start_runs_from_wherever_it_is_typed(given: list[str], printed: str) -> None:
    """Another directory would be an empty one: the member would come back without its log."""
    arguments = ["--id", "n0", "--peers", PEERS, *given, *BORN]
    settings = parse_node_arguments(arguments, {})
    assert start_command(arguments, settings, Path("/srv/a b")) == printed.format(peers=PEERS)


def test_the_printed_start_names_where_a_relative_configuration_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = f'peers = "{PEERS}"\n[node]\nid = "n0"\ndata = "/d/n0"\n'
    (tmp_path / "n0.toml").write_text(text)
    settings = parse_node_arguments(["--config", "n0.toml"], {})
    assert start_command(["--config", "n0.toml"], settings, tmp_path) == (
        f"cd {tmp_path} && quorumscope node --config n0.toml"
    )
    full = ["--config", str(tmp_path / "n0.toml")]
    assert start_command(full, parse_node_arguments(full, {}), tmp_path) == f"quorumscope node {' '.join(full)}"
