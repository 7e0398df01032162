"""What a control plane refuses before it asks an engine: with the status that says whose fault it is, and why."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from node.config import load
from node.control.app import create_app

Work = Callable[[httpx2.AsyncClient], Awaitable[Any]]


def with_plane(place: Path, work: Work, **settings: str) -> Any:
    """Runs `work` with a client of a control plane without an engine."""

    async def both() -> Any:
        chosen = {"node.id": "n0", "node.data": str(place), "peers": "n0-127.0.0.1:1", **settings}
        transport = httpx2.ASGITransport(app=create_app(load(chosen, environ={})))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:1/api/v1") as client:
            return await work(client)

    return asyncio.run(both())


@pytest.mark.parametrize(
    ("method", "path", "body", "says"),
    [
        ("POST", "/members", {"id": "n9", "address": "x"}, '"x" is not host:port'),
        ("POST", "/members", {"id": "n9", "address": "127.0.0.1:0"}, "the port must be a number from 1 to 65535"),
        ("POST", "/members", {"id": "n9", "address": "::1:20911"}, "write an IPv6 address in brackets"),
        ("POST", "/members", {"id": "n 9", "address": "127.0.0.1:1"}, '"n 9" is no member id'),
        ("PUT", "/members/n0/address", {"address": "a b:1"}, '"a b" is no host name'),
    ],
)
def test_what_can_be_no_member_is_422(tmp_path: Path, method: str, path: str, body: dict[str, str], says: str) -> None:
    refused = with_plane(tmp_path, lambda client: client.request(method, path, json=body))
    assert refused.status_code == 422 and refused.headers["content-type"] == "application/problem+json"
    assert says in refused.json()["detail"] and "Value error" not in refused.json()["detail"]


@pytest.mark.parametrize(
    ("machine", "path", "says"),
    [
        ("", "snapshots", "no state to save a snapshot of"),
        ("", "kv/a", "it has no state machine"),
        ("", "machine/query", "it has no state machine"),
        ("kv", "nothing", "There is nothing at '/api/v1/nothing'"),
        ("", "nothing", "There is nothing at '/api/v1/nothing'"),
    ],
)
def test_a_404_says_what_kind_of_group_lacks_it(tmp_path: Path, machine: str, path: str, says: str) -> None:
    given = {"node.state_machine": machine} if machine else {}
    missing = with_plane(tmp_path, lambda client: client.post(f"/{path}", json={}), **given)
    assert missing.status_code == 404 and says in missing.json()["detail"]
