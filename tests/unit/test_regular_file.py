"""Files that an operator names: what is none is refused, and never waited for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from node.__main__ import data_directory, is_classic
from node.certificates import ends_of
from node.config import load, read_token
from node.control_tokens import read_tokens
from node.member_secret import read_secrets
from node.regular_file import open_regular
from node.supervisor_log import in_file
from node.tls_files import tls_trouble

TOKEN = "a-token-of-many-letters"


def fails_with_trouble(path: Path) -> None:
    trouble = tls_trouble(path, path, path)
    if trouble is not None:
        raise ValueError(trouble)


READERS: dict[str, Callable[[Path], object]] = {
    "configuration": lambda path: load(None, path, environ={}),
    "token": read_token,
    "tokens": read_tokens,
    "secret": read_secrets,
    "certificate": fails_with_trouble,
    "certificate's end": ends_of,
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
