"""Heads of requests that two servers in a row could read differently, over sockets: refused by both, before a handler.

A proxy that judges one of two values, another host than the one that is used, or a body of another length lets a
stranger past its rules.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import uvicorn

from app.console.app import create_app as create_console
from app.console.server import make_server
from app.console.settings import ConsoleSettings
from app.security.gate import read_cookie
from node.config import load
from node.control.app import create_app as create_control
from node.control.http_protocol import BoundedHttp
from tests.attack.remoting_kit import drawn

ANSWER_WITHIN_S: Final = 20.0
HOST: Final = b"Host: 127.0.0.1\r\n"
BODY: Final = b"Content-Type: application/json\r\n"
STATUS_LINE: Final = re.compile(rb"HTTP/1\.1 \d{3} ")
Make = Callable[[Path], uvicorn.Server]


def control(directory: Path) -> uvicorn.Server:
    settings = load({"node.id": "n0", "node.data": str(directory), "peers": "n0-127.0.0.1:1"}, environ={})
    return uvicorn.Server(uvicorn.Config(create_control(settings), http=BoundedHttp, log_level="critical"))


def console(directory: Path) -> uvicorn.Server:
    settings = ConsoleSettings(db_url=f"sqlite:///{directory / 'console.db'}")
    return make_server(settings, create_console(settings))


def answers(make: Make, directory: Path, sent: list[bytes]) -> list[bytes]:
    """What comes for each, on a connection of its own that takes no second request."""

    async def ask(address: tuple[str, int], request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*address)
        try:
            writer.write(request)
            writer.write_eof()
            return await asyncio.wait_for(reader.read(), ANSWER_WITHIN_S)
        finally:
            writer.close()

    async def run() -> list[bytes]:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            server = make(directory)
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                return [await ask(listener.getsockname(), one) for one in sent]
            finally:
                server.should_exit = True
                await serving

    return asyncio.run(run())


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def problem_of(answer: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return found


HEADS: Final = {
    "two hosts": b"GET /healthz HTTP/1.1\r\n" + HOST + b"Host: evil.example\r\n\r\n",
    "the same host twice": b"GET /healthz HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\nAccept: */*\r\n\r\n",
    "two origins": b"POST /api/v1/x HTTP/1.1\r\n" + HOST + BODY + b"Origin: http://127.0.0.1\r\nOrigin: http://evil\r\n"
    b"Content-Length: 2\r\n\r\n{}",
    "two authorizations": b"GET /api/v1/x HTTP/1.1\r\n" + HOST
    + b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
    "two types": b"POST /api/v1/x HTTP/1.1\r\n" + HOST + BODY
    + b"Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}",
    "two sites": b"POST /api/v1/x HTTP/1.1\r\n" + HOST + BODY
    + b"Sec-Fetch-Site: none\r\nSec-Fetch-Site: cross-site\r\nContent-Length: 2\r\n\r\n{}",
    "two lengths": b"POST /api/v1/x HTTP/1.1\r\n" + HOST + BODY + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a length and chunks": b"POST /api/v1/x HTTP/1.1\r\n" + HOST + BODY
    + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a negative length": b"POST /api/v1/x HTTP/1.1\r\n" + HOST + BODY + b"Content-Length: -1\r\n\r\n",
    "a length with a plus": b"POST /api/v1/x HTTP/1.1\r\n" + HOST + BODY + b"Content-Length: +2\r\n\r\n{}",
    "chunks, and once more": b"POST /api/v1/x HTTP/1.1\r\n" + HOST + BODY
    + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "a space before the colon": b"GET /healthz HTTP/1.1\r\nHost : 127.0.0.1\r\n\r\n",
    "a bare line feed in a value": b"GET /healthz HTTP/1.1\r\n" + HOST + b"X-A: b\nHost: evil.example\r\n\r\n",
    "a zero byte": b"GET /healthz HTTP/1.1\r\n" + HOST + b"X-A: b\0c\r\n\r\n",
    "another host in the target": b"GET http://evil.example/healthz HTTP/1.1\r\n" + HOST + b"\r\n",
    "our host in the target only": b"GET http://127.0.0.1/healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "a user in the target": b"GET http://evil@127.0.0.1/healthz HTTP/1.1\r\n" + HOST + b"\r\n",
    "no version": b"GET /healthz\r\n\r\n",
    "another version": b"GET /healthz HTTP/3.7\r\n" + HOST + b"\r\n",
}  # fmt: skip


def dressed(rng: random.Random, request: bytes) -> bytes:
    """The same request with names in drawn cases, and with headers that say nothing in drawn places."""
    head, end, body = request.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    for at, line in enumerate(lines):
        name, colon, value = line.partition(b":")
        lines[at] = bytes(rng.choice([one, one ^ 32]) if chr(one).isalpha() else one for one in name) + colon + value
    for number in range(rng.randrange(4)):
        value = bytes(rng.choices(b"abc0 ,;=\t\xe9", k=rng.randrange(1, 200)))
        lines.insert(rng.randrange(len(lines) + 1), b"X-Nothing-%d: x%sx" % (number, value))
    return b"\r\n".join([first, *lines]) + end + body


@pytest.mark.parametrize("make", [control, console])
def test_a_head_with_two_readings_is_refused(make: Make, tmp_path: Path) -> None:
    """Each is answered with one refusal: nothing behind the head is taken for another request."""
    rng = drawn(f"heads at a {make.__name__}")
    sent = {name: dressed(rng, HEADS[name]) for name in rng.sample(list(HEADS), len(HEADS))}
    found = dict(zip(sent, answers(make, tmp_path, list(sent.values())), strict=True))
    wrong = {name: (sent[name], answer[:200]) for name, answer in found.items() if not 400 <= status_of(answer) < 600}
    assert not wrong
    assert {name for name, answer in found.items() if len(STATUS_LINE.findall(answer)) != 1} == set()
    assert status_of(found["another version"]) in (400, 505)
    for name in ("two hosts", "the same host twice", "two origins", "two authorizations", "two types", "two sites"):
        assert status_of(found[name]) == 400, name


@pytest.mark.parametrize("make", [control, console])
def test_the_refusal_says_what_is_wrong(make: Make, tmp_path: Path) -> None:
    target = b"GET /api/v1/x HTTP/1.1\r\n"
    twice, none, coded = answers(
        make,
        tmp_path,
        [
            target + HOST + b"Authorization: a\r\nAuthorization: b\r\n\r\n",
            target + b"Accept: */*\r\n\r\n",
            b"POST /api/v1/x HTTP/1.1\r\n" + HOST + BODY + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        ],
    )
    assert problem_of(twice)["detail"] == "The header 'authorization' may be there once."
    assert status_of(none) == 400 and status_of(coded) in (400, 501)


@pytest.mark.parametrize("make", [control, console])
def test_what_has_one_reading_passes(make: Make, tmp_path: Path) -> None:
    plain, old = answers(
        make, tmp_path, [b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n", b"GET /healthz HTTP/1.0\r\n" + HOST + b"\r\n"]
    )
    assert status_of(plain) == status_of(old) == 200


def chunked(*chunks: bytes) -> bytes:
    head = b"POST /api/v1/x HTTP/1.1\r\n" + HOST + BODY + b"Transfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in (*chunks, b""))


def test_a_body_in_very_many_short_chunks_is_refused(tmp_path: Path) -> None:
    """Before anybody is known: a parser in Python takes 0.1 ms for each, and everybody else waits."""
    few, long, many = answers(
        console, tmp_path, [chunked(*[b"x"] * 1000), chunked(*[b"x" * 1024] * 3000), chunked(*[b"x"] * 3000)]
    )
    assert status_of(few) == status_of(long) == 401
    assert status_of(many) == 400 and len(STATUS_LINE.findall(many)) == 1


@pytest.mark.parametrize(
    ("make", "paths", "statuses"),
    [
        (console, ("/", "/login", "/login/oidc/callback"), [401, 200, 404]),
        (control, ("/healthz", "/api/v1", "/api/v1/none"), [200, 200, 404]),
    ],
    ids=["console", "control"],
)
def test_no_cookie_is_unquoted(
    make: Make, paths: tuple[str, ...], statuses: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library takes a time for it that grows with the square of the backslashes: three seconds for 60 KB."""

    def unquoted(_: str) -> str:
        raise AssertionError("a stranger's cookie is unquoted")

    monkeypatch.setattr("http.cookies._unquote", unquoted)
    cookie = b'Cookie: a="' + b'\\"' * 100 + b'"; b=c\r\n\r\n'
    sent = [b"GET %s HTTP/1.1\r\n" % path.encode() + HOST + cookie for path in paths]
    assert [status_of(one) for one in answers(make, tmp_path, sent)] == statuses


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("name=v", "v"), ("a=b; name=v", "v"), ("name=v;a=b", "v"), ('name="v=="', "v=="), ("name=1; name=2", "2"),
        ("name=", ""), ("names=v", None), ("a", None), ("", None), ('x="; name=v', "v"), ("é=1; [=]; name=v", "v"),
    ],
)  # fmt: skip
def test_a_cookie_is_found_beside_those_of_others(header: str, value: str | None) -> None:
    """Whatever else listens on this machine's name has its cookies here as well."""
    assert read_cookie(header, "name") == value


def test_a_target_may_name_the_host_that_the_header_names(tmp_path: Path) -> None:
    """RFC 9112, 3.2.2; the console's parser leaves such targets whole, and there is nothing at them."""
    (found,) = answers(control, tmp_path, [b"GET http://127.0.0.1/healthz HTTP/1.1\r\n" + HOST + b"\r\n"])
    assert status_of(found) == 200
