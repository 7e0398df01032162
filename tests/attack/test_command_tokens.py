"""Commands that are led elsewhere: a control plane that somebody names with --node says where the others are, and those
words come from whoever said HELLO. The token that the command holds goes to the named one, and over TLS to what an
authority vouches for that was named; nowhere else, whatever is asked.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from app.cli import run as run_cli
from app.commands.targets import Target
from node import control
from tests.attack.remoting_kit import drawn

TOKEN: Final = "operator-token-0123456789"
Answer = Callable[[str, str], tuple[int, dict[str, Any]]]
COMMANDS: Final = [
    ["status"], ["topic", "list"], ["topic", "describe", "T"], ["topic", "create", "T"],
    ["topic", "delete", "T", "--yes"], ["broker", "list"], ["broker", "describe", "n0"], ["consumer", "list"],
    ["consumer", "describe", "G"], ["consumer", "reset", "G", "--topic", "T", "--to", "earliest", "--yes"],
    ["scrub"], ["restart"], ["members"], ["transfer"], ["get", "0"], ["kv", "get", "a"],
]  # fmt: skip


class Plane:
    """A control plane that notes what it is shown."""

    def __init__(self, answer: Answer) -> None:
        self.shown: list[str | None] = []
        plane = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                plane.shown.append(self.headers.get("authorization"))
                self.rfile.read(int(self.headers.get("content-length") or 0))
                status, body = answer(self.command, self.path)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            do_POST = do_PUT = do_DELETE = do_GET

            def log_message(self, *_words: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def serving(*planes: Plane) -> Iterator[None]:
    serve = [threading.Thread(target=one.server.serve_forever, kwargs={"poll_interval": 0.05}) for one in planes]
    for thread in serve:
        thread.start()
    try:
        yield
    finally:
        for one, thread in zip(planes, serve, strict=True):
            one.server.shutdown()
            thread.join()
            one.server.server_close()


@pytest.mark.long
def test_no_command_shows_its_token_where_members_alone_lead_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUORUMSCOPE_TOKEN", TOKEN)
    state = json.loads((Path(control.__file__).parent / "examples.json").read_text())["get /api/v1/state"]["response"]
    rng = drawn("named addresses")
    for words in rng.sample(COMMANDS, 8):
        itself = rng.choice([one["id"] for one in state["peers"]])
        led = Plane(lambda _method, _path: (200, state | {"items": [], "next": None}))

        def answer(
            method: str, path: str, led: Plane = led, itself: str = itself, moved: bool = rng.random() < 0.5
        ) -> tuple[int, dict[str, Any]]:
            if "/state" in path:
                named = [one | {"control_url": led.url, "address": "127.0.0.1:1"} for one in state["peers"]]
                return 200, state | {"self_id": itself, "peers": named}
            if method != "GET" or moved:
                return 421, {"title": "Not the leader", "leader_id": "n9", "leader_api_url": led.url}
            return 200, {"items": [], "next": None}

        given = Plane(answer)
        with serving(given, led):
            run_cli([*words, "--node", rng.choice([given.url, f"{given.url}/", f"{given.url}/api/v1"])])
        capsys.readouterr()
        print(words, itself)
        assert f"Bearer {TOKEN}" in given.shown
        assert set(led.shown) <= {None}


def test_the_token_goes_to_what_was_named_and_to_what_its_authority_proves() -> None:
    target = Target({}, "g", TOKEN, given="http://127.0.0.1:8431")
    assert target.token_for("http://127.0.0.1:8431") == TOKEN
    for other in ("http://127.0.0.1:8432", "http://127.0.0.1:8431.evil.example", "https://127.0.0.1:8431"):
        assert target.token_for(other) is None and other in (target.not_shown(other) or "")
    proven = Target({}, "g", TOKEN, given="https://n0:8431", control_tls=ssl.create_default_context())
    assert proven.token_for("https://n1:8431") == TOKEN, "its certificate is looked at before anything is sent"
    assert proven.token_for("http://n1:8431") is None, "never from https to http"
    assert Target({}, "g", TOKEN).token_for("http://127.0.0.1:8432") == TOKEN, "a note of this machine's own names it"
    assert Target({}, "g", given="http://a").not_shown("http://b") is None, "there is none to show"
