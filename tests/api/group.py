"""A real group of three nodes on loopback, each with its control plane, for the API tests."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from node.children import apart
from node.config import load
from node.control.app import create_app
from tests.openapi_kit import Document
from tests.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
Json = dict[str, Any]
TRIES = 4


def hold_to_document(answer: httpx2.Response) -> None:
    """By the way, every JSON answer of a real node is held to its OpenAPI document, every field by name and type."""
    media_type, request = answer.headers.get("content-type", ""), answer.request
    if media_type in ("application/json", "application/problem+json"):
        content = answer.read()
        document().check(request.method, request.url.path, answer.status_code, answer.headers, content)


@functools.cache
def document() -> Document:
    given = {"node.id": "n0", "node.data": "/nowhere", "peers": "n0-127.0.0.1:1"}
    return Document(create_app(load(given, environ={})).openapi())


class Group:
    """Started with `--init`; ended by pid."""

    def __init__(self, place: Path, size: int = 3, settings: Sequence[str] = ()) -> None:
        """`settings`: "table.key=value", the same for all."""
        ports = free_ports(2 * size)
        self.ids = [f"n{n}" for n in range(size)]
        self.urls = {one: f"http://127.0.0.1:{ports[size + n]}" for n, one in enumerate(self.ids)}
        peers = ";".join(f"{one}-127.0.0.1:{ports[n]}" for n, one in enumerate(self.ids))
        self.place = place
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for one in self.ids:
            control = self.urls[one].removeprefix("http://")
            command = [sys.executable, "-m", "node", "--id", one, "--group", "api", "--peers", peers, "--init"]
            command += ["--data", str(place / one), "--control", control]
            command += [word for setting in settings for word in ("--set", setting)]
            with (place / f"{one}.log").open("wb") as log:
                self.processes[one] = subprocess.Popen(
                    command, cwd=ROOT, stdout=log, stderr=log, preexec_fn=apart(signal.SIGTERM)
                )
        self.client = httpx2.Client(timeout=60, trust_env=False, event_hooks={"response": [hold_to_document]})

    def get(self, node_id: str, path: str, **more: Any) -> httpx2.Response:
        return self.client.get(f"{self.urls[node_id]}{path}", **more)

    def post(self, node_id: str, path: str, **more: Any) -> httpx2.Response:
        return self.client.post(f"{self.urls[node_id]}{path}", **more)

    def state(self, node_id: str) -> Json:
        reported: Json = self.get(node_id, "/api/v1/state").json()
        return reported

    def leader(self) -> str:
        """Once all three agree and the leader can commit."""

        def agreed() -> str | None:
            states = [self.state(one) for one in self.ids]
            leaders = {one["leader_id"] for one in states if one["engine"] == "ok"}
            (leader,) = leaders if len(leaders) == 1 else (None,)
            if leader is None or len([one for one in states if one["engine"] == "ok"]) < len(self.ids):
                return None
            return leader if self.get(leader, "/leaderz").status_code == 200 else None

        return str(self.until(agreed))

    def standing(self) -> list[tuple[int | None, str | None]]:
        """What changes with an election."""
        states = [self.until(lambda one=one: self.state(one)) for one in self.ids]
        return [(state["term"], state["leader_id"]) for state in states]

    def until(self, wanted: Callable[[], Any], seconds: float = 60.0) -> Any:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            with suppress(httpx2.TransportError):
                if found := wanted():
                    return found
            time.sleep(0.05)
        logs = "\n".join(f"{one}: {(self.place / f'{one}.log').read_text()[-2000:]}" for one in self.ids)
        raise AssertionError(f"it did not come about within {seconds} s\n{logs}")

    def engine_pid(self, node_id: str) -> int:
        children = psutil.Process(self.processes[node_id].pid).children()
        return next(int(one.pid) for one in children if "node.server" in one.cmdline())

    def close(self) -> None:
        self.client.close()
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                process.wait(60)


def undisturbed(test: Callable[..., None]) -> Callable[..., None]:
    """A test of a group and its leader: where it fails and the group had an election meanwhile, it is done again."""

    @functools.wraps(test)
    def tries(group: Group, leader: str, **more: Any) -> None:
        for number in range(TRIES):
            before = group.standing()
            try:
                return test(group, leader, **more)
            except (AssertionError, pytest.fail.Exception, httpx2.TransportError):
                if number == TRIES - 1 or group.standing() == before:
                    raise
            leader = group.leader()
        return None

    return tries


@contextmanager
def running_group(place: Path, size: int = 3, settings: Sequence[str] = ()) -> Iterator[Group]:
    group = Group(place, size, settings)
    try:
        group.leader()
        yield group
    finally:
        group.close()
