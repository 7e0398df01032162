"""Attempts to have the console's node token sent elsewhere, drawn from a seed (ATTACK_SEED has others drawn).

By names that members give themselves, by redirects, by DNS that answers otherwise. A token goes to scheme, host and
port that the configuration or an admin gave, and over https only to who has a certificate for that name.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from app.console.addresses import PORTS, normal_control_url, origin_of
from app.console.errors import Invalid, NodeUnreachable
from app.console.nodes import NodeRefused, Nodes
from app.console.settings import ConsoleSettings
from app.pki import Authority, Wanted
from tests.attack.remoting_kit import drawn
from tests.unit.console_kit import run, running
from tests.unit.fake_control import FakeGroup

TOKEN: Final = "the-token-that-stays-here"
PINNED: Final = "http://127.0.0.1:8431"
NAMES: Final = 6  # for each member


def a_hostile_name(rng: random.Random) -> str:
    """Something that a careless reader takes for the pinned address, and a client for another one, or the reverse."""
    port = rng.randrange(1, 65536)
    other = rng.choice(["10.9.9.9", "evil.example", "[2001:db8::1]", "169.254.169.254", "localhost", "[::1]", "[::]"])
    same = rng.choice([
        "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "127.1", "127.0.0.1.", "[::ffff:127.0.0.1]", "[::1%25lo]",
        "\uff11\uff12\uff17.0.0.1", "127\u30020\u30020\u30021", "0", "0.0.0.0", "LOCALHOST",
    ])  # fmt: skip
    scheme = rng.choice(["http", "HTTP", "https", "ftp", "file", "gopher", "javascript", "unix", ""])
    return rng.choice([
        f"http://127.0.0.1:8431@{other}:{port}", f"http://{other}#@127.0.0.1:8431", f"http://{other}\\@127.0.0.1:8431",
        f"http://127.0.0.1:8431\\@{other}", f"http://127.0.0.1:8431.{other}", f"http://{same}:8431", f"https://{same}",
        f"{scheme}://127.0.0.1:8431", f"{scheme}:{other}:{port}", f"//{other}:{port}", f"http:///{other}:{port}",
        f"http://127.0.0.1:8431/api/v1/../../{other}", f"http://127.0.0.1:8431?@{other}", f"http://{other}:{port}/",
        f"http://127.0.0.1\t:8431@{other}", f"http://{other}:{port}\r\nHost: 127.0.0.1:8431", f"http://127.0.0.1:{port}",
        f"http://127.0.0.1:8431;{other}", f"http://{other}%2f@127.0.0.1:8431", f"http://127.0.0.1%00.{other}:8431",
        f"http://127.0.0.1:{rng.choice(['99999', '-1', '8431x', '0', '08431', '8_431', chr(0x661)])}",
        f"http://127.0.0.1:8431:{port}", f"http://[{other}]:{port}", f"http://\u0000{other}", "http://", "", " ",
    ])  # fmt: skip


def test_names_that_members_give_themselves_are_asked_nothing(tmp_path: Path) -> None:
    rng = drawn("named")

    async def work() -> None:
        group = FakeGroup()
        async with running(tmp_path, group, node_token=TOKEN) as kit:
            await kit.until(lambda: group.requests)
            for _ in range(NAMES):
                for name in ("n1", "n2"):
                    group.nodes[name].url = a_hostile_name(rng)
                seen = len(group.requests)
                await kit.until(lambda seen=seen: len(group.requests) >= seen + 5)  # type: ignore[misc]
            assert {str(one.url.copy_with(path="/", query=None)).rstrip("/") for one in group.requests} == {PINNED}

    run(work())


def test_an_address_is_read_alike_by_who_pins_it_and_by_who_asks_it() -> None:
    rng, kept = drawn("alike"), 0
    for _ in range(3000):
        try:
            url = normal_control_url(a_hostile_name(rng))
            asked = httpx2.URL(f"{url}/api/v1/state")
        except (Invalid, httpx2.InvalidURL):  # the latter: nothing is asked there
            continue
        kept += 1
        assert origin_of(url) == (asked.scheme, asked.host, asked.port or PORTS[asked.scheme]), url
        assert normal_control_url(url) == url
    assert kept > 100


class Thief(BaseHTTPRequestHandler):
    """Answers whatever it is asked with its server's status and headers, and keeps what it was shown."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server: Any = self.server
        server.shown.append(self.headers.get("authorization"))
        self.send_response(server.status)
        for name, text in {"content-length": "2", **server.answers}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None: ...


@contextmanager
def listening(tls: ssl.SSLContext | None = None) -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Thief)
    server.shown, server.status, server.answers = [], 200, {}
    server.handle_error = lambda *_: None  # a handshake that its client ended
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def asked(settings: ConsoleSettings, url: str) -> str:
    """Why there was no answer; empty: there was one."""
    nodes = Nodes(settings, credentials=lambda given: TOKEN if given == url else None)
    try:
        await nodes.get(url, "state")
    except (NodeUnreachable, NodeRefused) as error:
        return f"{error.code}: {error}"
    finally:
        await nodes.close()
    return ""


def test_no_answer_leads_the_token_anywhere() -> None:
    rng = drawn("redirects")
    with listening() as pinned, listening() as thief:
        url = f"http://127.0.0.1:{pinned.server_port}"
        to = f"127.0.0.1:{thief.server_port}"
        for status in (300, 301, 302, 303, 305, 307, 308, 401, 407, 426, 200):
            where = rng.choice([f"http://{to}/", f"//{to}/", f"https://{to}/", f"http://x@{to}/"])
            pinned.status = status
            pinned.answers = {
                "location": where, "refresh": f"0; url={where}", "alt-svc": f'h2="{to}"; ma=9', "link": f"<{where}>",
                "set-cookie": f"a=b; domain={to}", "proxy-authenticate": "Basic", "connection": "close",
            }  # fmt: skip
            why = asyncio.run(asked(ConsoleSettings(), url))
            assert (why == "") is (status == 200)
            assert why.startswith("redirect") is (300 <= status < 400)
        assert set(pinned.shown) == {f"Bearer {TOKEN}"}
        assert thief.shown == []


def test_over_https_dns_that_changes_its_answer_leads_the_token_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the member, somebody with another certificate of the same authority, and one of an authority of theirs."""
    known, theirs = Authority(1), Authority(1)
    (tmp_path / "ca.crt").write_bytes(known.own()[0])
    settings = ConsoleSettings(node_ca_file=tmp_path / "ca.crt")

    def context(by: Authority, name: str) -> ssl.SSLContext:
        certificate, key = by.issue(Wanted(name, (name,), serves=True, asks=True))
        (tmp_path / "pair.pem").write_bytes(certificate + key)
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(tmp_path / "pair.pem")
        return made

    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda _host, *more, **named: resolve("127.0.0.1", *more, **named))
    with (
        listening(context(known, "member.example")) as member,
        listening(context(known, "other.example")) as other,
        listening(context(theirs, "member.example")) as forger,
        listening() as plain,
    ):
        for server in (other, forger, plain, member):
            why = asyncio.run(asked(settings, f"https://member.example:{server.server_port}"))
            assert (why == "") is (server is member), why
        assert [one.shown for one in (other, forger, plain)] == [[], [], []]
        assert member.shown == [f"Bearer {TOKEN}"]
