"""Control planes whose certificate an authority of the operator's own signed: which one a command goes by, and what it
says where it knows none."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from app.command_line import run
from app.commands.endings import Exit
from app.pki import make, wanted_for

HINT = "--ca FILE names the authority that signed its certificate"


@pytest.fixture
def pki(tmp_path: Path) -> Path:
    make(tmp_path / "pki", wanted_for({"n0": ()}, [], "console"), days=3)
    return tmp_path / "pki"


@pytest.fixture
def asked(pki: Path) -> Iterator[tuple[str, list[str]]]:
    """The address of a control plane with TLS, which refuses everything, and what it was asked."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(403)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki / "n0.crt", pki / "n0.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", paths
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def config_of(pki: Path, address: str, **node: Path) -> Path:
    given = {"tls_cert_file": pki / "n0.crt", "tls_key_file": pki / "n0.key", **node}
    lines = [
        "[peers]",
        'n0 = "127.0.0.1:1"',
        "[node]",
        'id = "n0"',
        *(f'{key} = "{one}"' for key, one in given.items()),
    ]
    lines += [
        "[control]",
        f'address = "{address}"',
        f'tls_cert_file = "{pki}/n0.crt"',
        f'tls_key_file = "{pki}/n0.key"',
    ]
    path = pki.parent / "n0.toml"
    path.write_text("\n".join(lines))
    return path


def test_a_back_up_by_a_members_configuration_goes_by_the_authority_that_it_names(
    pki: Path, asked: tuple[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """As every other command with --config; the unit of back-ups has nothing else to go by."""
    address, paths = asked
    config = config_of(pki, address, tls_ca_file=pki / "ca.crt")
    assert run(["backup", str(pki.parent / "b"), "--config", str(config)]) == Exit.DENIED
    assert paths and HINT not in capsys.readouterr().err


@pytest.mark.parametrize("words", [["backup", "b", "--node"], ["pins", "list", "--node"], ["status", "--node"]])
def test_who_knows_no_authority_is_said_how_to_name_it(
    words: list[str], asked: tuple[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    address, paths = asked
    assert run([*words, f"https://{address}"]) == Exit.UNREACHABLE
    said = capsys.readouterr().err
    assert "unable to get local issuer certificate" in said and HINT in said
    assert not paths
