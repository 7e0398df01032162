"""A log with the entry that names its group (CONFIG_CHANGE, C9): whoever reads logs copes with it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.protocol.codes import RequestCode
from node.protocol.entry import Magic
from node.store.reader import StoreReader
from tests.process.group import ROOT, Group
from tests.process.test_refusals import Wire, request

pytestmark = [pytest.mark.process, pytest.mark.long]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    """One engine that was made without a token: its first leader names the group in the log."""
    made = Group(tmp_path, size=1)
    made.token = ()
    made.start_all()
    try:
        yield made
    finally:
        made.close()


def quorumscope(*words: str, said: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "app.cli", *words]
    return subprocess.run(command, cwd=ROOT, input=said, capture_output=True, text=True, timeout=120)


def metadata(group: Group) -> dict[str, object]:
    with Wire(group) as wire:
        return dict(json.loads(wire.ask(request(RequestCode.METADATA, {"group": group.group})).body))


def test_commands_and_the_store_tools_read_past_the_entry_that_names_the_group(group: Group) -> None:
    ends = time.monotonic() + 60
    while "groupId" not in (reported := metadata(group)) and time.monotonic() < ends:
        time.sleep(0.05)
    assert set(reported) == {"code", "group", "leaderId", "term", "peers", "groupId"}, "one field more than DLedger's"
    where = ("--peers", f"n0-{group.peers['n0']}", "--group", group.group)
    appended = quorumscope("append", *where, said="a\nb\n")
    assert appended.returncode == 0, appended.stderr
    tailed = quorumscope("tail", "--from", "0", "-n", "2", "--json", *where)
    assert tailed.returncode == 0, tailed.stderr
    assert [json.loads(line)["text"] for line in tailed.stdout.splitlines()] == ["a", "b"]
    group.kill("n0", signal.SIGTERM)
    directory = next((group.directory / "n0").glob("dledger-*"))
    reader = StoreReader(directory)
    magics = [reader.entry(index).magic for index in range(reader.end_index + 1)]  # type: ignore[union-attr]
    assert magics.count(Magic.CONFIG_CHANGE) == 1
    for tool in ("inspect", "verify", "repair"):
        done = quorumscope("store", tool, str(directory))
        assert done.returncode == 0, done.stdout + done.stderr
