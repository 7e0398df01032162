"""The console as a process: it says where it listens, ends on Ctrl-C with a stream open, and names a port in use."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from app.console.app import create_app
from app.console.server import make_server, parse, serve
from app.console.settings import ConsoleSettings
from app.security.links import issue
from node.children import apart
from tests.databases import prepared_url

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def console(tmp_path: Path, *more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "app.console.server", "--db", str(tmp_path / "console.db"), *more]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=apart(signal.SIGKILL)
    )
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())["url"]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=10)


@pytest.mark.process
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_works_with_a_page_open(tmp_path: Path, ending: signal.Signals) -> None:
    link = issue(str(tmp_path / "console.db"), "ann", "admin")
    with console(tmp_path, "--listen", "127.0.0.1:0") as (process, url):
        # The socket is bound before the app is up: the request simply waits.
        with httpx2.Client(base_url=url, timeout=30, trust_env=False) as browser:
            assert browser.post(link, headers={"origin": url}).status_code == 303
            assert browser.get("/api/v1/me").json()["name"] == "ann"
            raw = socket.create_connection((urlsplit(url).hostname or "", urlsplit(url).port or 0), timeout=30)
            cookie = "; ".join(f"{key}={value}" for key, value in browser.cookies.items())
            host = urlsplit(url).netloc
            raw.sendall(f"GET /live/clusters HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\n\r\n".encode())
            assert raw.recv(64).startswith(b"HTTP/1.1 200")
            process.send_signal(ending)
            process.wait(timeout=30)
            raw.close()
        assert process.returncode in (0, -ending)
        assert process.stderr is not None
        said = process.stderr.read()
        assert "Traceback" not in said and said.count(" listening ") == 1, said


def test_a_port_in_use_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert serve(parse(["--db", str(tmp_path / "c.db"), "--listen", f"127.0.0.1:{port}"])) == 69
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and f"port {port} on 127.0.0.1 is in use" in said.err


def test_plain_http_beyond_loopback_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(parse(["--db", str(tmp_path / "c.db"), "--listen", "0.0.0.0:0"])) == 64
    assert "--behind-proxy" in capsys.readouterr().err


def test_garbage_is_collected_in_steps_while_it_serves(tmp_path: Path) -> None:
    """The interpreter's own collections of all objects held up whichever page was being drawn."""

    async def work() -> None:
        settings = ConsoleSettings(db_url=prepared_url(tmp_path / "console.db"), port=0)
        server = make_server(settings, create_app(settings), alone=True)
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            await server.startup([listener])
            assert not gc.isenabled() and gc.get_freeze_count() > 0
            await server.shutdown([listener])
            assert gc.isenabled()

    try:
        asyncio.run(work())
    finally:
        gc.enable()
        gc.unfreeze()
