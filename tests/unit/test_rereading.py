"""Files that are read again on SIGHUP: one that is broken keeps what was read before, and says so."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import signal
import ssl
import subprocess
import sys
import textwrap
from pathlib import Path
from unittest.mock import Mock

import pytest

from app.console.app import create_app as create_console
from app.console.server import make_server
from app.console.settings import ConsoleSettings
from app.pki import make, wanted_for
from node.config import load
from node.config_models import OidcTable
from node.control.app import create_app as create_control
from node.engine import member_files
from node.engine.member_files import CERTIFICATE, SECRET, TOKENS
from node.rereading import Rereading
from node.tls_files import ServerTls
from tests.unit.test_pki import of, shake_hands

ROOT = Path(__file__).parents[2]


def test_one_that_is_broken_keeps_nobody_back_and_stands_until_it_was_read(tmp_path: Path) -> None:
    said: list[tuple[str, str, str]] = []
    found = Rereading(lambda kind, severity, detail: said.append((kind, severity, detail["reason"])))
    broken, sound, now = tmp_path / "broken", tmp_path / "sound", {}
    for path in (broken, sound):
        found.add(path.name, path.read_text, lambda text, name=path.name: now.__setitem__(name, text))
    sound.write_text("1")
    found.again()
    assert now == {"sound": "1"}
    (trouble,) = found.troubles.values()
    assert trouble.what == "broken" and "No such file" in trouble.text and "stays in force" in trouble.text
    assert [one[:2] for one in said] == [("not_reread", "error"), ("reread", "info")]
    assert found.text == trouble.text and found.since_text is not None
    since = found.since
    found.again()
    assert found.since == since, "it has stood since then"
    broken.write_text("2")
    found.again()
    assert now == {"sound": "1", "broken": "2"}
    assert (found.troubles, found.text, found.since_text) == ({}, None, None)
    assert said[-1] == ("reread", "info", "broken, sound")


def test_a_server_shows_the_newer_certificate_to_who_comes_later(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    make(first, wanted_for({"old": []}, [], "console"), 1)
    make(second, wanted_for({"new": []}, [], "console"), 1, first)
    certificate, key = tmp_path / "now.crt", tmp_path / "now.key"

    def put(crt: Path, its_key: Path) -> None:
        for source, target in ((crt, certificate), (its_key, key)):
            target.touch(0o600)
            target.write_bytes(source.read_bytes())

    def name(host: str = "localhost") -> str:
        client = ssl.create_default_context(cafile=str(first / "ca.crt"))
        return shake_hands(tls.context, client, host)[0]

    put(*of(first, "old")[:2])
    tls = ServerTls(certificate, key)
    assert name() == "old"
    put(*of(second, "new")[:2])
    assert name() == "old", "not before it is asked to"
    tls.use(tls.read())
    assert (name(), name("127.0.0.1")) == ("new", "new"), "also to who sends no name"
    put(first / "old.crt", second / "new.key")
    with pytest.raises(ValueError, match="no certificate and its key"):
        tls.read()
    assert name() == "new"


def secret_file(path: Path, text: str = "x" * 40) -> Path:
    path.touch(0o600)
    path.write_text(text)
    return path


def documented() -> dict[str, set[str]]:
    """The table in docs/operations.md: process -> what it reads again."""
    text = (ROOT / "docs/operations.md").read_text().partition("## Files that are read again")[2]
    rows = re.findall(r"^\| (engine|control|console) \| (.+?) \| `", text, re.MULTILINE)
    return {process: {what for name, what in rows if name == process} for process, _ in rows}


def test_the_documents_list_is_what_the_processes_read_again(tmp_path: Path) -> None:
    pki = tmp_path / "pki"
    make(pki, wanted_for({"n0": []}, [], "console"), 1)
    token = secret_file(tmp_path / "token")
    tokens = secret_file(tmp_path / "tokens", "")
    given = {
        "control.tokens_file": str(tokens),
        "peers": "n0-127.0.0.1:1", "node.id": "n0", "node.data": str(tmp_path / "data"),
        "node.tls_cert_file": str(pki / "n0.crt"), "node.tls_key_file": str(pki / "n0.key"),
        "node.tls_ca_file": str(pki / "ca.crt"), "node.token_file": str(token), "node.secret_file": str(token),
        "control.tls_cert_file": str(pki / "n0.crt"), "control.tls_key_file": str(pki / "n0.key"),
    }  # fmt: skip
    settings = load(given, environ={}).check_node()
    engine = member_files.member_files(lambda: settings, Mock(), Mock(), Mock(), lambda *_: None)
    assert set(engine.parts) == {CERTIFICATE, SECRET, TOKENS} == documented()["engine"]

    control = create_control(settings)
    control.build_middleware_stack()
    # The certificate is the server's (node/control/__main__.py), not the application's.
    assert {*control.state.parts.rereading.parts, "the control plane's certificate"} == documented()["control"]

    oidc = OidcTable(
        issuer="https://login.example", client_id="quorumscope", client_secret_file=token, ca_file=pki / "ca.crt",
        roles=("sre = operator",),
    )  # fmt: skip
    console = ConsoleSettings(
        oidc=oidc, db_url=f"sqlite:///{tmp_path / 'console.db'}", node_token="x" * 40, node_token_file=token,
        node_ca_file=pki / "ca.crt", tls_cert_file=pki / "console.crt", tls_key_file=pki / "console.key",
    )  # fmt: skip

    async def work() -> set[str]:
        app = create_console(console)
        server = make_server(console, app)
        async with app.router.lifespan_context(app):
            server._hang_up._again()
            assert app.state.console.rereading.troubles == {}
            token.write_text("y" * 40)
            server._hang_up._again()
            assert app.state.console.addresses.console_token == "y" * 40
            assert app.state.provider.secret == "y" * 40
            return set(app.state.console.rereading.parts)

    assert asyncio.run(work()) == documented()["console"]


SLEEPER = textwrap.dedent(
    """
    import asyncio, sys
    from node.rereading import HangUp

    async def main():
        ended = asyncio.Event()
        HangUp(lambda: print("again", flush=True), ended.set).listen()
        print("ready", flush=True)
        await ended.wait()
        sys.exit(7)

    asyncio.run(main())
    """
)


def test_a_hang_up_ends_what_lost_its_terminal_and_nothing_else() -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPER], cwd=ROOT, stdin=theirs, stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP}),
    )  # fmt: skip
    os.close(theirs)
    try:
        process.send_signal(signal.SIGHUP)  # before it listens: held back, and counts then
        assert process.stdout is not None
        lines = {process.stdout.readline(), process.stdout.readline()}
        assert lines == {"ready\n", "again\n"}
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline() == "again\n"
        os.close(ours)
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 7
    finally:
        process.kill()
        process.communicate()


ENDS = """
import asyncio, sys
from node.rereading import HangUp

async def main():
    hang_up = HangUp(lambda: None, lambda: None)
    hang_up.listen()
    hang_up.ignore()

asyncio.run(main())
print("over", flush=True)
sys.stdin.readline()
sys.exit(3)
"""


def test_a_process_that_ends_is_not_killed_by_a_hang_up_behind_its_loop() -> None:
    """An engine closes its store there."""
    process = subprocess.Popen(
        [sys.executable, "-c", ENDS], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "over\n"
        process.send_signal(signal.SIGHUP)
        process.stdin.write("\n")
        process.stdin.close()
        assert process.wait(60) == 3
    finally:
        process.kill()
        process.wait()


def test_without_a_main_thread_there_is_no_signal_and_no_error() -> None:
    async def work() -> None:
        from node.rereading import HangUp

        HangUp(lambda: None, lambda: None).listen()

    asyncio.run(asyncio.wait_for(asyncio.to_thread(asyncio.run, work()), 60))
