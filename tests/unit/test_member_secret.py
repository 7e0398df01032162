"""The file with the secret that members share: what is refused, and that making one never overwrites (SAFETY C11)."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from node.config import ConfigError
from node.member_secret import SECRETS_MAX, make_secret, read_secrets
from node.protocol.group_id import group_id_of, is_group_id

ONE, TWO = "a1" * 16, "b2" * 16


def file_of(directory: Path, content: str | bytes, mode: int = 0o600) -> Path:
    path = directory / "secret"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)
    return path


def test_the_first_line_is_proved_and_the_others_are_taken(tmp_path: Path) -> None:
    assert read_secrets(file_of(tmp_path, f"\n{ONE}\r\n\n  {TWO}  ")) == (ONE.encode(), TWO.encode())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "0 secrets"),
        (f"{ONE}\n" * (SECRETS_MAX + 1), "are allowed"),
        ("short\n", "secret 1 is no word of at least 32"),
        (f"{ONE}\nmore than one word, and long enough\n", "secret 2 is no word"),
        (f"{ONE}\n{'ü' * 40}\n", "secret 2 is no word"),
        (b"\0" * 40, "secret 1 is no word"),
    ],
)
def test_what_is_no_secret_is_refused_and_not_quoted(tmp_path: Path, content: str | bytes, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        read_secrets(file_of(tmp_path, content))
    assert "short" not in str(caught.value).replace("at least", "")
    assert "more than" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o660, 0o644])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match="chmod 600"):
        read_secrets(file_of(tmp_path, ONE, mode))


def test_a_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_secrets(tmp_path / "nope")
    with pytest.raises(ConfigError, match="No such file"):
        make_secret(tmp_path / "no" / "directory")


def test_members_that_start_together_make_one_secret(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    old = os.umask(0)
    try:
        with ThreadPoolExecutor(1) as pool:  # one process at a time, as many as come
            made = list(pool.map(lambda _: make_secret(path), range(3)))
    finally:
        os.umask(old)
    assert made == [True, False, False]
    (secret,) = read_secrets(path)
    assert len(secret) == 64
    assert os.listdir(tmp_path) == ["secret"]


def test_what_an_interrupted_process_of_the_same_id_left_is_in_nobodys_way(tmp_path: Path) -> None:
    """In a container every start has the same process id."""
    path = tmp_path / "secret"
    (tmp_path / f".secret.{os.getpid()}").write_text("half")
    assert make_secret(path)
    assert len(read_secrets(path)) == 1


def test_an_existing_file_is_left_alone(tmp_path: Path) -> None:
    path = file_of(tmp_path, ONE)
    assert not make_secret(path)
    assert path.read_text() == ONE


def test_a_groups_id_depends_on_token_and_name() -> None:
    ids = {group_id_of("token", "g"), group_id_of("token", "h"), group_id_of("tokeng", ""), group_id_of("other", "g")}
    assert len(ids) == 4 and all(is_group_id(one) for one in ids)
    assert group_id_of("token", "g") == "c44c473ce75af02ea32aca4009f8af4c"
    assert not any(is_group_id(one) for one in (None, "", "A" * 32, "a" * 31, "a" * 33, 5))
