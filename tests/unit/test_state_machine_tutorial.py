"""The tutorial of docs/state-machines.md, as it stands there: its state machine in a real process, its client."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from node.engine.engine import Engine
from node.engine.machine_process import MachineOptions, MachineProcess
from node.state_machine.kind import kind_of
from node.store.memory_store import MemoryStore
from tests.ports import free_ports
from tests.unit.engine_kit import running
from tests.unit.machine_kit import settings_of

DOCUMENT = Path(__file__).parents[2] / "docs" / "state-machines.md"
CHOICE = "accounts:Accounts"


def blocks() -> list[str]:
    tutorial = DOCUMENT.read_text().split("## One of your own")[1]
    return re.findall(r"```python\n(.*?)```", tutorial, re.DOTALL)


def test_the_tutorial_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine_code, client_code = blocks()
    (tmp_path / "accounts.py").write_text(machine_code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    names: dict[str, Any] = {}
    exec(client_code, names)

    async def both() -> list[bytes]:
        peers = {"n0": f"127.0.0.1:{free_ports(1)[0]}"}
        machine = MachineProcess(MachineOptions(CHOICE, tmp_path, 1, 3), lambda *_: None, lambda _: None)
        kind = kind_of(CHOICE)
        engine = Engine(
            settings_of(tmp_path, peers, "n0", CHOICE), MemoryStore(kind=kind.name), machine=machine, kind=kind
        )
        async with running([engine]) as codes:
            found: list[bytes] = await names["use"](peers)
        assert codes == [0], engine.reason
        return found

    assert asyncio.run(both()) == [b"booked", b"booked", b"refused: not covered", b"30"]


def test_it_has_forty_lines_at_most() -> None:
    assert len(blocks()[0].strip().splitlines()) <= 40
