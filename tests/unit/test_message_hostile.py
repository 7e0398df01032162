"""Directories that somebody made to be read for ever, or to be read wrongly."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.command_line import run
from node.message_store.read_files import OS, MappedFileQueue
from tests.unit.message_broker import filled


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    """Whoever waits for a FIFO is interrupted by an alarm, and fails."""
    signal.alarm(60)
    yield
    signal.alarm(0)


@pytest.mark.parametrize("name", ["checkpoint", "lock", "index/20261121032455670", "config/topics.json"])
def test_a_fifo_is_no_file_and_is_not_waited_for(tmp_path: Path, name: str) -> None:
    filled(tmp_path).write()
    (tmp_path / name).parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / name)
    for words in (["store", "inspect"], ["store", "verify"], ["topic", "list", "--store"]):
        assert run([*words, str(tmp_path)]) in (0, 1)
    assert (OS.read(tmp_path / name, 0, 10), OS.mapped(tmp_path / name), OS.locked_by(tmp_path / name)) == (
        b"",
        b"",
        None,
    )


def test_topics_with_names_that_are_no_text_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON's escapes make halves of characters."""
    filled(tmp_path).write()
    (tmp_path / "config").mkdir(exist_ok=True)
    table = r'{"topicConfigTable": {"\ud800": {"perm": "\u001b[2J"}, "a\u001b[31m": {}}}'
    (tmp_path / "config/topics.json").write_text(table)
    for more in ([], ["--json"]):
        assert run(["topic", "list", "--store", str(tmp_path), *more]) == 0
        said = capsys.readouterr()
        assert "\ufffd" in said.out and "Traceback" not in said.err
    assert run(["store", "verify", str(tmp_path)]) == 1


def test_a_device_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "zeros").symlink_to("/dev/zero")
    assert (OS.read(tmp_path / "zeros", 0, 10), OS.mapped(tmp_path / "zeros")) == (b"", b"")


def test_a_file_that_is_larger_than_any_is_named_and_not_read(tmp_path: Path) -> None:
    (tmp_path / f"{0:020d}").touch()
    os.truncate(tmp_path / f"{0:020d}", 1 << 40)
    row = MappedFileQueue(tmp_path)
    assert row.files == [] and "more than RocketMQ's files can have" in row.odd_files[0][1]
