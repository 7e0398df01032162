"""Files that an operator names: what is none is refused, and never waited for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from app.broker_conf import PROPERTIES_BYTES_MAX
from app.command_line import run
from app.commands.endings import Exit
from node.__main__ import data_directory, is_classic
from node.certificates import ends_of
from node.config import TOKEN_BYTES_MAX, load, read_token
from node.control_tokens import FILE_BYTES_MAX as TOKENS_BYTES_MAX
from node.control_tokens import read_tokens
from node.hand_over.old_log import OLD_LOG_BYTES_MAX, OldCommitLog, compare
from node.member_secret import FILE_BYTES_MAX as SECRETS_BYTES_MAX
from node.member_secret import read_secrets
from node.operator_trail import verify
from node.regular_file import CONFIG_BYTES_MAX, open_regular
from node.supervisor_log import in_file
from node.tls_files import tls_trouble

TOKEN = "a-token-of-many-letters"


def fails_with_trouble(path: Path) -> None:
    trouble = tls_trouble(path, path, path)
    if trouble is not None:
        raise ValueError(trouble)


def look_at_old_log(path: Path) -> int:
    return compare(OldCommitLog(path, 0, 0, 0, 0, 0, True, {}), path)


READERS: dict[str, Callable[[Path], object]] = {
    "configuration": lambda path: load(None, path, environ={}),
    "token": read_token,
    "tokens": read_tokens,
    "secret": read_secrets,
    "certificate": fails_with_trouble,
    "certificate's end": ends_of,
    "another member's old log": look_at_old_log,
    "node's trail": verify,
}
# How many bytes of each are read at most.
BOUNDED: dict[str, int] = {
    "configuration": CONFIG_BYTES_MAX,
    "token": TOKEN_BYTES_MAX,
    "tokens": TOKENS_BYTES_MAX,
    "secret": SECRETS_BYTES_MAX,
    "another member's old log": OLD_LOG_BYTES_MAX,
}
COMMANDS: dict[str, tuple[str, ...]] = {
    "migrate": ("migrate", "config"),
    "adopt": ("store", "adopt", "no-such-store", "--broker", "--group", "g", "--broker-conf"),
    "trail": ("trail", "verify", "--file"),
}


@pytest.mark.parametrize("name", READERS)
def test_a_fifo_is_refused_by_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path, 0o600)
    with pytest.raises((OSError, ValueError), match="no regular file") as caught:
        READERS[name](path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", READERS)
def test_a_directory_is_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises((OSError, ValueError), match=r"[Ii]s a directory") as caught:
        READERS[name](tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("name", BOUNDED)
def test_a_file_that_is_too_long_is_refused_by_name_and_not_read_further(tmp_path: Path, name: str) -> None:
    path = tmp_path / "long"
    path.touch(0o600)
    os.truncate(path, 1 << 40)  # as much as nobody can read
    with pytest.raises((OSError, ValueError), match=f"more than {BOUNDED[name]} bytes") as caught:
        READERS[name](path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("kind", ["fifo", "missing", "directory"])
def test_a_command_says_in_one_line_what_is_no_file(
    tmp_path: Path, name: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "named"
    if kind == "fifo":
        os.mkfifo(path, 0o600)
    elif kind == "directory":
        path.mkdir()
    assert run([*COMMANDS[name], str(path)]) == Exit.USAGE
    said = capsys.readouterr()
    reason = {"fifo": "this is no regular file", "missing": "No such file", "directory": "Is a directory"}[kind]
    assert said.out == "" and said.err.count("\n") == 1
    assert said.err.startswith(f"quorumscope: {path}: {reason}") and said.err.count(str(path)) == 1


def test_a_broker_conf_that_is_too_long_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broker.conf"
    path.touch()
    os.truncate(path, 1 << 40)
    for name in ("migrate", "adopt"):
        assert run([*COMMANDS[name], str(path)]) == Exit.USAGE
        assert f"{path}: it has more than {PROPERTIES_BYTES_MAX} bytes" in capsys.readouterr().err


def test_a_supervisor_waits_for_no_fifo_that_its_engine_will_refuse(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path, 0o600)
    arguments = ["--config", str(path)]
    assert data_directory(arguments, {}) == Path("data")
    assert not is_classic(arguments, {})
    assert in_file(arguments, "id") is None


def test_a_device_is_refused_and_the_empty_one_read(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no regular file"):
        open_regular(Path("/dev/zero"))
    load(None, Path(os.devnull), environ={})


def test_what_the_shell_hands_over_is_read_to_its_end() -> None:
    reading, writing = os.pipe()
    os.write(writing, TOKEN.encode())
    os.close(writing)
    assert read_token(Path(f"/dev/fd/{reading}")) == TOKEN
    os.close(reading)
