"""Every list of the contract takes `limit` and `cursor`, also those that are whole in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from node.config import load
from node.control.app import create_app
from node.paging import page
from node.views.members import MembersView, MemberView
from node.views.replication import DispatchersView, DispatcherView
from node.views.state import PinView, RetentionView, StateView
from tests.unit.console_kit import run, running

pytestmark = pytest.mark.usefixtures("samples_stay_new")


def test_pages_follow_one_another_and_end() -> None:
    names, seen, cursor = list("abcde"), [], None
    while True:
        shown, cursor = page(names, str, 2, cursor)
        seen.append("".join(shown))
        if cursor is None:
            break
    assert seen == ["ab", "cd", "e"]
    assert page(names, str, 5, None) == (names, None)
    assert page(names, str, 2, "e") == ([], None)
    assert page([], str, 2, None) == ([], None)
    with pytest.raises(ValueError, match="'x' is no cursor of this list"):
        page(names, str, 2, "x")


def test_a_nodes_dispatchers_and_members_come_in_pages(tmp_path: Path) -> None:
    common: dict[str, Any] = {"as_of": "2026-01-01T00:00:00Z", "engine": "ok", "boot_id": "b"}
    views: dict[type, Any] = {
        DispatchersView: DispatchersView(
            items=tuple(DispatcherView(peer_id=f"n{n}", state="APPEND") for n in range(3)), **common
        ),
        MembersView: MembersView(items=tuple(MemberView(id=f"n{n}") for n in range(3)), **common),
    }

    async def get(view: type) -> Any:
        return views[view]

    async def work() -> None:
        app = create_app(load({"node.id": "n0", "node.data": str(tmp_path), "peers": "n0-127.0.0.1:1"}, environ={}))
        app.state.parts.snapshots = SimpleNamespace(get=get)
        base = "http://127.0.0.1:1/api/v1"
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=base) as client:
            for path, name in (("/dispatchers", "peer_id"), ("/members", "id")):
                whole = (await client.get(path)).json()
                assert (len(whole["items"]), whole["next"]) == (3, None), path
                first = (await client.get(f"{path}?limit=2")).json()
                rest = (await client.get(f"{path}?limit=2&cursor={first['next']}")).json()
                assert [one[name] for one in first["items"] + rest["items"]] == ["n0", "n1", "n2"]
                assert rest["next"] is None
                for odd in ("limit=0", "limit=1001", "limit=x", "cursor=zz"):
                    refused = await client.get(f"{path}?{odd}")
                    assert refused.status_code == 422, odd
                    assert refused.headers["content-type"] == "application/problem+json"

    asyncio.run(work())


def test_a_nodes_pins_and_snapshots_come_in_pages(tmp_path: Path) -> None:
    pins = tuple(PinView(owner=f"o{n}", from_index=n) for n in range(3))
    state = StateView(engine="ok", self_id="n0", retention=RetentionView(pins=pins))

    async def get(_view: type) -> Any:
        return state

    async def read(_work: object) -> list[dict[str, Any]]:
        return [{"index": index, "files": []} for index in (900, 700, 500)]

    async def work() -> None:
        given = {"node.id": "n0", "node.data": str(tmp_path), "peers": "n0-127.0.0.1:1", "node.state_machine": "kv"}
        app = create_app(load(given, environ={}))
        app.state.parts.snapshots, app.state.parts.bulk = SimpleNamespace(get=get), SimpleNamespace(read=read)
        base = "http://127.0.0.1:1/api/v1"
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=base) as client:
            for path, name in (("/pins", "owner"), ("/snapshots", "index")):
                whole = (await client.get(path)).json()
                first = (await client.get(f"{path}?limit=2")).json()
                rest = (await client.get(f"{path}?limit=2&cursor={first['next']}")).json()
                assert [one[name] for one in first["items"] + rest["items"]] == [one[name] for one in whole["items"]]
                assert (len(first["items"]), whole["next"], rest["next"]) == (2, None, None), path
                for odd in ("limit=0", "cursor=zz"):
                    assert (await client.get(f"{path}?{odd}")).status_code == 422, odd

    asyncio.run(work())


LISTS = (
    "clusters", "problems", "operations", "events", "audits", "alerts", "users", "tokens", "sessions", "admin-trail",
    "clusters/demo/state", "clusters/demo/problems", "clusters/demo/truncations", "clusters/demo/events",
    "clusters/demo/segments",
)  # fmt: skip


def test_every_list_of_the_console_refuses_a_bad_limit_and_cursor(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            ann = await kit.person()
            for path in LISTS:
                whole = await ann.get(f"/api/v1/{path}?limit=1000")
                assert whole.status_code == 200 and {"items", "next"} <= whole.json().keys(), path
                for odd in ("limit=0", "limit=1001", "limit=x"):
                    assert (await ann.get(f"/api/v1/{path}?{odd}")).status_code == 422, (path, odd)
            first = (await ann.get("/api/v1/clusters/demo/state?limit=2")).json()
            assert [one["id"] for one in first["items"]] == ["n0", "n1"] and first["next"] == "n1"
            rest = (await ann.get(f"/api/v1/clusters/demo/state?limit=2&cursor={first['next']}")).json()
            assert [one["id"] for one in rest["items"]] == ["n2"] and rest["next"] is None
            assert (await ann.get("/api/v1/clusters?cursor=zz")).status_code == 422

    run(work())


def test_what_a_node_names_as_next_is_the_cursor_at_the_console_too(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            ann = await kit.person()
            path = "/api/v1/clusters/demo/segments?limit=1"
            first = (await ann.get(path)).json()
            rest = await ann.get(f"{path}&cursor={first['next']}")
            assert rest.status_code == 200, rest.text
            assert [one["kind"] for one in first["items"] + rest.json()["items"]] == ["data", "index"]
            assert rest.json()["next"] is None

    run(work())
