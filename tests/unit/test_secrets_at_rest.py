"""Files that hold secrets are their owner's only, and what prints settings prints no password."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest

from app.command_line import run as quorumscope
from app.console.settings import ConsoleSettings
from app.demo.run import demo_directory
from app.security import links
from node.config import load
from node.server import open_store
from node.tls_files import tls_trouble
from tests.unit.console_kit import run, running
from tests.unit.store_fixtures import sync


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_database_its_side_files_and_its_folder_are_the_owner_s(tmp_path: Path) -> None:
    before = os.umask(0o000)
    try:
        path = tmp_path / "deep" / "console.db"
        links.issue(str(path), "ann", "admin")
        assert mode(path.parent) == 0o700 and mode(path) == 0o600

        async def work() -> None:
            async with running(path.parent, seeded=False) as kit:
                await kit.person()
                found = {one.name: mode(one) for one in path.parent.glob("console.db*")}
                assert "console.db-wal" in found and set(found.values()) == {0o600}, found

        run(work())
        assert mode(demo_directory(tmp_path / "demo")) == 0o700
    finally:
        os.umask(before)


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key", tmp_path / "cert"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=n0"]
    subprocess.run([*made, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    key.chmod(0o640)
    assert tls_trouble(certificate, key, None) is None
    key.chmod(0o644)
    trouble = tls_trouble(certificate, key, None)
    assert trouble is not None and f"chmod o-rwx {key}" in trouble


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hush!word@h:5432/db",
        "postgresql+psycopg://u:hush!word@h/db?x=1",
        "postgresql://u:hush!/hush!word@h:5432/db",  # should be encoded, and is taken as it is
        "postgresql://u:hush!?hush!@hush!word@h/db",
        "postgresql://u:x@h/db?password=hush!word&sslpassword=hush!word",
    ],
)
@pytest.mark.parametrize("as_json", [True, False])
def test_config_show_hides_passwords_in_urls(url: str, as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["config", "show", "--set", f"console.db_url={url}"] + (["--json"] if as_json else [])
    assert quorumscope(words) == 0
    said = capsys.readouterr().out
    assert "hush!word" not in said and "//u:***@h" in said


def test_user_link_prints_where_the_console_really_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False, port=8499):
            pass

    run(work())
    db = f"sqlite:///{tmp_path / 'console.db'}"
    assert quorumscope(["user", "link", "ann", "--db", db, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["link"].startswith("http://127.0.0.1:8499/login/link/")
    assert quorumscope(["user", "link", "ann", "--db", db, "--json", "--url", "https://c.example/"]) == 0
    assert json.loads(capsys.readouterr().out)["link"].startswith("https://c.example/login/link/")
    assert quorumscope(["user", "link", "no such name", "--db", db]) == 64
    proxied = ConsoleSettings(behind_proxy=True, allowed_hosts=("console.example",), port=8499)
    assert proxied.public_url == "https://console.example"


def test_a_log_is_its_owners_to_read(tmp_path: Path) -> None:
    """Bodies are asked for over ports that want a right to them: other users of the machine find none on its disk."""
    before = os.umask(0o022)
    try:
        chosen = {"node.id": "n0", "node.init": True, "peers": "n0-127.0.0.1:1", "node.data": str(tmp_path / "data")}
        store = open_store(load(chosen, environ={}))
        store.append_as_leader([b"a body of somebody's"], 1)
        sync(store)
        store.close()
    finally:
        os.umask(before)
    found = [tmp_path / "data", *(tmp_path / "data").rglob("*")]
    assert len(found) > 5
    assert {path.name: oct(mode(path)) for path in found if mode(path) & 0o077} == {}
