"""A member's scrub, repairs and snapshots through the console: asked once, followed, and only by those who may."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.unit.console_kit import Kit, run, running
from tests.unit.fake_control import FakeGroup, FakeNode
from tests.unit.test_console_repairs import ended

Json = dict[str, Any]
GROUP = "/api/v1/clusters/demo"
WHAT = ["scrub", "repairs", "snapshots"]


def answering(group: FakeGroup, what: str, then: Json, first: tuple[int, Json] | None = None) -> list[Json]:
    """Every member carries that call out so; what was asked of whom."""
    asked: list[Json] = []
    usual = group.answer
    began = first or (202, {"id": "own", "kind": what, "state": "running", "progress": "entry 1 of 9"})

    def answer(one: FakeNode, request: httpx2.Request, path: list[str]) -> tuple[int, Json]:
        if path[0] == what and request.method == "POST":
            sent = httpx2.Response(200, content=request.content).json()
            asked.append({"of": one.id, "key": request.headers["idempotency-key"], **sent})
            return began
        return (200, {"id": "own", **then}) if path == ["operations", "own"] else usual(one, request, path)

    group.answer = answer  # type: ignore[method-assign]
    return asked


def over(tmp_path: Path, work: Callable[[Kit], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            await work(kit)

    run(all_of_it())


@pytest.mark.parametrize("what", WHAT)
def test_one_member_is_asked_once_and_followed_to_its_end(tmp_path: Path, what: str) -> None:
    async def work(kit: Kit) -> None:
        asked = answering(kit.group, what, {"state": "done", "outcome": {"number": 3}})
        ann = await kit.person("ann", "operator")
        dry = await ann.change("POST", f"{GROUP}/{what}?node=n2", json={"dry_run": True})
        assert dry.status_code == 200 and "n2" in dry.json()["would"] and asked == []
        once = {"idempotency-key": "once"}
        first = await ann.change("POST", f"{GROUP}/{what}?node=n2", json={}, headers=once)
        again = await ann.change("POST", f"{GROUP}/{what}?node=n2", json={}, headers=once)
        assert first.status_code == again.status_code == 202, first.text
        assert first.json()["id"] == again.json()["id"]
        assert first.headers["location"] == f"/api/v1/operations/{first.json()['id']}"
        other = await ann.change("POST", f"{GROUP}/{what}?node=n1", json={}, headers=once)
        assert other.status_code == 422, "the key stands for another call"
        operation = await ended(kit, first.json()["id"])
        assert (operation["state"], operation["node_id"], operation["outcome"]) == ("done", "n2", {"number": 3})
        assert asked == [{"of": "n2", "key": operation["id"]}]
        listed = (await ann.get(f"{GROUP}/operations?limit=1")).json()
        assert [one["id"] for one in listed["items"]] == [operation["id"]] and listed["next"] is None
        assert (await ann.get(f"/operations/{operation['id']}")).status_code == 200
        leaders = (await ann.change("POST", f"{GROUP}/{what}", json={})).json()
        assert leaders["node_id"] == kit.group.leader.id, "without a name it is the leader"

    over(tmp_path, work)


def test_what_the_member_refuses_is_said(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        text = "this group has no state to save a snapshot of"
        answering(kit.group, "snapshots", {}, (404, {"title": "Not found", "status": 404, "detail": text}))
        ann = await kit.person("ann", "operator")
        begun = (await ann.change("POST", f"{GROUP}/snapshots?node=n2", json={})).json()
        operation = await ended(kit, begun["id"])
        assert (operation["state"], operation["problem"]["detail"]) == ("failed", text)

    over(tmp_path, work)


def test_it_needs_the_right_a_member_and_the_term_that_was_seen(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        asked = [answering(kit.group, what, {"state": "done"}) for what in WHAT]
        viewer, ann = await kit.person("vera", "viewer"), await kit.person("ann", "operator")
        for what in WHAT:
            assert (await viewer.change("POST", f"{GROUP}/{what}", json={})).status_code == 403
            assert (await ann.change("POST", f"{GROUP}/{what}?node=n9", json={})).status_code == 404
            moved = await ann.change("POST", f"{GROUP}/{what}", json={"if_term": kit.group.term + 1})
            assert moved.status_code == 412
        assert asked == [[], [], []]
        assert (await viewer.get(f"{GROUP}/snapshots?node=n2")).json()["items"][0]["index"] == 900
        assert (await viewer.get(f"{GROUP}/operations")).json() == {"items": [], "next": None}
        assert (await viewer.get("/api/v1/clusters/none/operations")).status_code == 404

    over(tmp_path, work)
