"""A group that is down: a command says what it waits for, and gives up while somebody still looks at it."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.cli import run
from app.commands.endings import Exit
from node.client import members as client_members
from tests.ports import free_ports


@pytest.mark.parametrize("words", [["list"], ["add", "n9", "127.0.0.1:9", "--yes"], ["promote", "n1", "--yes"]])
def test_members_of_a_group_that_is_down(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said nothing for half a minute, and then that nobody answers."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("app.commands.waiting.SLOW_S", 0.0)
    assert client_members.LEADER_WITHIN_S <= 10.0
    monkeypatch.setattr(client_members, "LEADER_WITHIN_S", 0.5)
    peers = f"n0-127.0.0.1:{free_ports(1)[0]}"
    assert run(["members", *words, "--peers", peers, "--group", "g"]) == Exit.UNREACHABLE
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first.startswith("waiting for the leader of group g to answer (asking n0 at 127.0.0.1:")
    assert "unreachable" in last
