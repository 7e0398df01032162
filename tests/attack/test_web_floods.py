"""Strangers at the console's and a control plane's port, as real processes: floods, half requests, wrong passwords.

Families: how many, how much of a request and in what order comes from a seed that is printed. What is asserted is what
somebody with a right to be there notices: they get in, pages answer, and afterwards all is as before.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx2
import pytest

from app.security.links import issue
from node.children import apart
from node.http_server import YIELDS_S
from tests.ports import free_ports

pytestmark = pytest.mark.process
CONSOLE: Final = pytest.param("console", marks=pytest.mark.long)  # the same server; it takes twice as long
ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 60.0
FEW_DESCRIPTORS = 300
TRIES = 12
SEED = int(os.environ.get("ATTACK_SEED", 12))  # `make prove` draws others


@contextmanager
def process(*command: str, descriptors: int | None = None) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, "-m", *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        preexec_fn=apart(signal.SIGKILL),
    )  # fmt: skip
    if descriptors is not None:
        resource.prlimit(started.pid, resource.RLIMIT_NOFILE, (descriptors, descriptors))
    try:
        yield started
    finally:
        started.kill()
        started.communicate(timeout=WAIT_S)


@contextmanager
def console(tmp_path: Path, descriptors: int | None = None) -> Iterator[tuple[str, httpx2.Client]]:
    """A running console and somebody who is logged in."""
    link = issue(str(tmp_path / "console.db"), "ann", "admin")
    listen = ("--db", str(tmp_path / "console.db"), "--listen", "127.0.0.1:0")
    with process("app.console.server", *listen, descriptors=descriptors) as started:
        assert started.stdout is not None
        url = json.loads(started.stdout.readline())["url"]
        with httpx2.Client(base_url=url, timeout=WAIT_S, trust_env=False) as ann:
            assert ann.post(link, headers={"origin": url}).status_code == 303
            yield url, ann


@contextmanager
def control_plane(tmp_path: Path, descriptors: int | None = None) -> Iterator[str]:
    """A control plane without its engine."""
    member, port = free_ports(2)
    flags = ("--id", "n0", "--group", "g", "--peers", f"n0-127.0.0.1:{member}", "--data", str(tmp_path))
    with process("node.control", *flags, "--control", f"127.0.0.1:{port}", descriptors=descriptors):
        until(lambda: answers(f"http://127.0.0.1:{port}/healthz"))
        yield f"http://127.0.0.1:{port}"


def answers(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=WAIT_S, trust_env=False).status_code == 200
    except httpx2.HTTPError:
        return False


def page(client: httpx2.Client, path: str) -> bool:
    """Whether it answers; an idle connection may have made room for somebody else's, and another one is made."""
    try:
        return client.get(path).status_code == 200
    except httpx2.TransportError:
        return False


def until(fact: object) -> None:
    ends = time.monotonic() + WAIT_S
    while not fact():  # type: ignore[operator]
        assert time.monotonic() < ends, "it did not come about"
        time.sleep(0.05)


def stranger(stack: ExitStack, url: str) -> socket.socket:
    parts = urlsplit(url)
    return stack.enter_context(socket.create_connection((parts.hostname or "", parts.port or 0), timeout=WAIT_S))


def half_request(chosen: random.Random, url: str) -> bytes:
    """Somewhere in a head or a body it stops."""
    host = urlsplit(url).netloc
    whole = (
        f"POST /login HTTP/1.1\r\nhost: {host}\r\nx: {'y' * chosen.randrange(2000)}\r\n"
        f"content-type: application/x-www-form-urlencoded\r\ncontent-length: {chosen.randrange(500, 1 << 20)}\r\n"
        "\r\nname="
    ).encode()
    return whole[: chosen.randrange(len(whole))]


@pytest.mark.parametrize("where", [CONSOLE, "control plane"])
def test_idle_and_half_connections_keep_nobody_out(tmp_path: Path, where: str) -> None:
    print(f"seed {SEED}")
    chosen = random.Random(SEED)
    with ExitStack() as stack:
        if where == "console":
            url, ann = stack.enter_context(console(tmp_path))
            path = "/account"
        else:
            url, path = stack.enter_context(control_plane(tmp_path)), "/api/v1/state"
            ann = stack.enter_context(httpx2.Client(base_url=url, timeout=WAIT_S, trust_env=False))
        strangers = []
        for _ in range(chosen.randrange(520, 640)):  # more than there are places
            one = stranger(stack, url)
            strangers.append(one)
            if chosen.random() < 0.5:
                one.sendall(half_request(chosen, url))
        until(lambda: page(ann, path))
        with httpx2.Client(base_url=url, timeout=WAIT_S, trust_env=False) as newcomer:
            until(lambda: page(newcomer, "/healthz"))  # a newcomer gets in
        closed = sum(ended(one) for one in strangers[:8])
        assert closed == 8, "those that came first made room"


class AheadOfAnswers:
    """Strangers who send requests ahead of their answers, take these drop by drop, and come again when they are put
    out: none of them is ever idle, or takes nothing."""

    def __init__(self, url: str, path: str, chosen: random.Random) -> None:
        self._url, self._chosen = url, chosen
        self._request = f"GET {path} HTTP/1.1\r\nhost: {urlsplit(url).netloc}\r\n\r\n".encode()
        self._here, self._done = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()
        assert self._here.wait(WAIT_S)

    def __exit__(self, *_raised: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        held = [self._one() for _ in range(self._chosen.randrange(520, 640))]
        self._here.set()
        while not self._done.is_set():
            for number, one in enumerate(held):
                if one is None or self._is_put_out(one):
                    held[number] = self._one()
            self._done.wait(0.2)
        for one in held:
            if one is not None:
                one.close()

    def _one(self) -> socket.socket | None:
        parts = urlsplit(self._url)
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.settimeout(WAIT_S)
        try:
            one.connect((parts.hostname, parts.port))
            one.sendall(self._request * self._chosen.randrange(20, 40))
        except OSError:
            one.close()
            return None
        one.setblocking(False)
        return one

    def _is_put_out(self, one: socket.socket) -> bool:
        with suppress(BlockingIOError):
            try:
                if one.recv(4096):
                    return False
            except ConnectionError:
                pass
            one.close()
            return True
        return False


@pytest.mark.long  # one connection of each kind: tests/unit/test_http_server.py
@pytest.mark.parametrize("where", ["console", "control plane"])
def test_requests_ahead_of_their_answers_keep_nobody_out(tmp_path: Path, where: str) -> None:
    print(f"seed {SEED}")
    with ExitStack() as stack:
        if where == "console":
            url, path = stack.enter_context(console(tmp_path))[0], "/static/app.css"
        else:
            url, path = stack.enter_context(control_plane(tmp_path)), "/api/v1/openapi.json"
        stack.enter_context(AheadOfAnswers(url, path, random.Random(SEED)))
        time.sleep(2 * YIELDS_S)
        tries = [came_in(url) for _ in range(TRIES)]
        print(tries)
        assert sum(tries) > TRIES // 2, tries


def came_in(url: str) -> bool:
    with httpx2.Client(base_url=url, timeout=WAIT_S, trust_env=False) as newcomer:
        return page(newcomer, "/healthz")


@pytest.mark.long
@pytest.mark.parametrize("where", ["console", "control plane"])
def test_where_descriptors_are_few_pages_answer_through_a_flood(tmp_path: Path, where: str) -> None:
    """Of 300, strangers took all, and every page was an error: neither file nor database could be opened."""
    print(f"seed {SEED}")
    chosen = random.Random(SEED)
    with ExitStack() as stack:
        if where == "console":
            url, ann = stack.enter_context(console(tmp_path, FEW_DESCRIPTORS))
            paths = ["/account", "/users", "/static/app.css", "/api/v1/me"]
        else:
            url, paths = stack.enter_context(control_plane(tmp_path, FEW_DESCRIPTORS)), ["/api/v1/state", "/metrics"]
            ann = stack.enter_context(httpx2.Client(base_url=url, timeout=WAIT_S, trust_env=False))
        for _ in range(chosen.randrange(2, 4)):
            for _ in range(chosen.randrange(FEW_DESCRIPTORS, 2 * FEW_DESCRIPTORS)):
                with suppress(OSError):  # it made room for the next ones before it said anything
                    stranger(stack, url).sendall(half_request(chosen, url))
            for path in chosen.sample(paths, len(paths)):
                until(lambda path=path: answered(ann, path))
            with httpx2.Client(base_url=url, timeout=WAIT_S, trust_env=False) as newcomer:
                until(lambda one=newcomer: answered(one, "/healthz"))


def answered(client: httpx2.Client, path: str) -> bool:
    """Its connection may have made room for another one; no answer is an error."""
    try:
        answer = client.get(path)
    except httpx2.TransportError:
        return False
    assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:200]}"
    return True


def ended(one: socket.socket) -> bool:
    try:
        while one.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


@pytest.mark.long  # with checks that are let go one by one: tests/unit/test_login_limits.py
def test_a_flood_of_wrong_passwords_freezes_no_page(tmp_path: Path) -> None:
    """32 at once: pages are drawn meanwhile, all are answered, and who tries too often is asked to wait."""
    print(f"seed {SEED}")
    chosen = random.Random(SEED)
    statuses: list[int] = []
    with console(tmp_path) as (url, ann):

        def wrong(name: str) -> None:
            form = {"name": name, "password": f"wrong {chosen.random()}"}
            answer = httpx2.post(f"{url}/login", data=form, headers={"origin": url}, timeout=WAIT_S, trust_env=False)
            statuses.append(answer.status_code)
            if answer.status_code == 429:
                assert int(answer.headers["retry-after"]) >= 1

        names = [chosen.choice(["ann", "Ann", "ANN", "root", "admin"]) for _ in range(32)]
        threads = [threading.Thread(target=wrong, args=(name,)) for name in names]
        for one in threads:
            one.start()
        while any(one.is_alive() for one in threads):
            assert ann.get("/account").status_code == 200
        for one in threads:
            one.join()
        assert len(statuses) == 32 and set(statuses) == {403, 429}
        rows = ann.get("/api/v1/admin-trail?limit=1000").json()["items"]
        failed = [one for one in rows if one["action"] == "login failed"]
        # What the console wrote in the background meanwhile is a row of its own.
        assert sum(one["detail"]["count"] for one in failed) + statuses.count(429) >= 32 and len(failed) <= 3
