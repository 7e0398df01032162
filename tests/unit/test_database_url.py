"""A database's URL is judged before a database is made of it, and never repeated with its password."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.cli import run
from node.database_url import check_database


@pytest.mark.parametrize(
    "url",
    [
        "console.db", "a:b.db", "/var/lib/q/console.db", "sqlite:///console.db", "sqlite+aiosqlite:////x/console.db",
        "postgresql://h/x", "postgres://u:p%40@h:5432/x?sslmode=require", "postgresql+psycopg://u@[::1]:5432/x",
        "postgresql:///x?host=/run/postgresql", "postgresql://u:a:b@h/x", "postgresql://u:a/b#c?@h:1/x", "",
    ],
)  # fmt: skip
def test_a_database_is_taken(url: str) -> None:
    assert check_database(url) == url


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("mysql://u:secret@h/x", "mysql:// is no database"), ("https://u:secret@h", "https:// is no database"),
        ("postgresql:u:secret@h/x", '"//" is missing'), ("sqlite:secret.db", '"//" is missing'),
        ("postgresql://u:secret@h:port/x", "its port"), ("postgresql://u:secret@h:65536/x", "its port"),
        ("postgresql://u:secret@[::1]:0/x", "its port"), ("postgresql://u:secret@h:٣/x", "its port"),
    ],
)  # fmt: skip
def test_another_is_refused_and_nothing_is_made(
    url: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (["user", "list"], ["db", "upgrade"], ["console"]):
        assert run([*arguments, "--db", url]) == 64
        said = capsys.readouterr().err
        assert why in said and "secret" not in said and said.count("\n") == 1, said
    assert list(tmp_path.iterdir()) == []
