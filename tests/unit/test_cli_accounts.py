"""`db upgrade`, `user link`, `token …` on a database of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli import run


@pytest.fixture
def db(tmp_path: Path) -> list[str]:
    return ["--db", f"sqlite:///{tmp_path / 'console.db'}"]


def test_a_link_then_a_token_then_none(db: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["db", "upgrade", *db]) == 0
    assert run(["user", "link", "admin", "--url", "https://logs.example", *db]) == 0
    link = capsys.readouterr().out.strip()
    assert link.startswith("https://logs.example/login/link/")
    assert run(["token", "issue", "nobody", *db]) == 1
    assert "there is no user 'nobody'" in capsys.readouterr().err
    assert run(["token", "issue", "admin", "--role", "viewer", "--name", "graphs", *db]) == 0
    token = capsys.readouterr().out.strip()
    assert len(token.split()) == 1
    assert run(["token", "list", "--json", *db]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["items"]
    assert (listed["user"], listed["name"], listed["role"]) == ("admin", "graphs", "viewer")
    assert token not in json.dumps(listed)
    assert run(["token", "revoke", str(listed["id"]), *db]) == 0
    assert run(["token", "revoke", "99", *db]) == 1
    capsys.readouterr()
    assert run(["token", "list", *db]) == 0
    assert capsys.readouterr() == ("", "no tokens\n")


def test_a_link_to_a_console_that_never_started_says_that_its_address_is_assumed(
    db: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside a console that was just starting, with TLS, it was http:// and another port, without a word."""
    assert run(["db", "upgrade", *db]) == 0
    capsys.readouterr()
    assert run(["user", "link", *db]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("http://127.0.0.1:8421/login/link/")
    assert "no console noted its address in this database yet" in said.err and "--url" in said.err
    assert run(["user", "link", "--url", "https://logs.example", *db]) == 0
    assert capsys.readouterr().err == "good for one login within a day:\n"


def test_a_database_without_users_says_how_to_make_one(db: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["db", "upgrade", *db]) == 0
    capsys.readouterr()
    assert run(["user", "list", *db]) == 0
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("no users yet: quorumscope user link makes the first admin")
    assert run(["user", "list", "--json", *db]) == 0
    assert json.loads(capsys.readouterr().out)["items"] == []


def test_a_database_that_cannot_be_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["db", "upgrade", "--db", "nosuch://x"]) == 64
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [["token", "list"], ["token", "issue", "ann"], ["token", "revoke", "1"], ["user", "link"]],
    ids=lambda words: " ".join(words),
)
def test_a_mistyped_database_is_named_and_not_made(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for url in (f"sqlite:///{tmp_path / 'typo.db'}", str(tmp_path / "typo.db"), str(tmp_path / "no" / "typo.db")):
        assert run([*arguments, "--db", url]) == 64
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1
        assert "typo.db: there is no such database" in said.err
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_database_is_said_in_the_drivers_own_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "console.db"
    file.write_text("notes")
    assert run(["user", "list", "--db", str(file)]) == 69
    assert capsys.readouterr().err == f"quorumscope: {file}: file is not a database\n"
    assert run(["db", "upgrade", "--db", str(tmp_path)]) == 69
    assert capsys.readouterr().err == f"quorumscope: {tmp_path}: Is a directory\n"


def test_an_upgrade_makes_the_database(tmp_path: Path) -> None:
    assert run(["db", "upgrade", "--db", str(tmp_path / "new" / "console.db")]) == 0
    assert run(["token", "list", "--db", str(tmp_path / "new" / "console.db")]) == 0
