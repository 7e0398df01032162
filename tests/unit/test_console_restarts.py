"""Starting a hanging engine or state machine again through the console: one end, and only for those who may."""

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
PAGE = "/clusters/demo/nodes/n2/restart"
STARTED = {"id": "restart", "kind": "restart", "state": "running", "progress": None}
DONE = {"id": "restart", "state": "done", "outcome": {"boot_id": "b2", "took_ms": 812}}
LATE = {"id": "restart", "state": "failed", "problem": {"title": "Not started again", "detail": "none within 60 s"}}
ANSWERS = {"title": "The engine answers", "status": 409, "detail": "It answers its control plane."}


def restarting(group: FakeGroup, first: tuple[int, Json], then: Json) -> list[Json]:
    """n2 answers so; what it was asked."""
    asked: list[Json] = []
    usual = group.answer

    def answer(one: FakeNode, request: httpx2.Request, path: list[str]) -> tuple[int, Json]:
        if path[0] == "restart" and one is group.nodes["n2"]:
            asked.append(
                {"key": request.headers["idempotency-key"], **httpx2.Response(200, content=request.content).json()}
            )
            return first
        return (200, then) if path == ["operations", "restart"] else usual(one, request, path)

    group.answer = answer  # type: ignore[method-assign]
    return asked


def over(tmp_path: Path, work: Callable[[Kit], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            await work(kit)

    run(all_of_it())


@pytest.mark.parametrize("what", ["engine", "state_machine"])
def test_the_node_is_asked_once_and_followed_to_its_end(tmp_path: Path, what: str) -> None:
    outcome = {"boot_id": "b2", "took_ms": 812} if what == "engine" else {"applied_index": 9, "took_ms": 40}
    said = "The engine of n2 answers again" if what == "engine" else "The state machine of n2 has applied"

    async def work(kit: Kit) -> None:
        asked = restarting(kit.group, (202, STARTED), {**DONE, "outcome": outcome})
        ann = await kit.person("ann", "operator")
        answer = await ann.change("POST", PAGE, data={"what": what, "key": "k"})
        assert answer.status_code == 303, answer.text
        operation_id = answer.headers["location"].removeprefix("/operations/")
        again = await ann.change("POST", PAGE, data={"what": what, "key": "k"})
        assert again.headers["location"] == answer.headers["location"], "pressed twice"
        assert (await ended(kit, operation_id))["state"] == "done"
        assert asked == [{"key": operation_id, "what": what}]
        assert said in (await ann.get(f"/operations/{operation_id}")).text

    over(tmp_path, work)


@pytest.mark.parametrize(
    ("first", "then", "state", "detail"),
    [
        ((409, ANSWERS), DONE, "failed", "It answers its control plane."),
        ((202, STARTED), LATE, "failed", "none within 60 s"),
        ((202, STARTED), {"id": "restart", "state": "odd"}, "unknown", None),
    ],
)
def test_how_it_ended_is_what_the_node_says(
    tmp_path: Path, first: tuple[int, Json], then: Json, state: str, detail: str | None
) -> None:
    async def work(kit: Kit) -> None:
        restarting(kit.group, first, then)
        ann = await kit.person("ann", "operator")
        answer = await ann.change("POST", f"/api/v1{PAGE}", json={})
        assert answer.status_code == 202, answer.text
        assert answer.headers["location"] == f"/api/v1/operations/{answer.json()['id']}"
        operation = await ended(kit, answer.json()["id"])
        assert (operation["state"], (operation["problem"] or {}).get("detail")) == (state, detail)

    over(tmp_path, work)


def test_restarting_needs_the_right_for_it_and_a_member(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        asked = restarting(kit.group, (202, STARTED), DONE)
        viewer = await kit.person("vera", "viewer")
        assert (await viewer.change("POST", f"/api/v1{PAGE}", json={})).status_code == 403
        assert (await viewer.change("POST", PAGE, data={})).status_code == 403
        assert '<button type="submit">Start' not in (await viewer.get(PAGE)).text
        ann = await kit.person("ann", "operator")
        page = (await ann.get(f"{PAGE}?what=state_machine")).text
        assert '<button type="submit">Start n2\'s state machine again' in page
        assert "quorumscope restart --state-machine --node" in page
        assert (await ann.get(f"{PAGE}?what=everything")).status_code == 422
        assert (await ann.change("POST", f"/api/v1{PAGE}", json={"what": "everything"})).status_code == 422
        assert (await ann.change("POST", f"/api/v1{PAGE.replace('n2', 'n9')}", json={})).status_code == 404
        assert not asked

    over(tmp_path, work)


@pytest.mark.parametrize("call", ["restart", "repair"])
def test_a_call_for_another_term_and_a_dry_run_start_nothing(tmp_path: Path, call: str) -> None:
    async def work(kit: Kit) -> None:
        asked = restarting(kit.group, (202, STARTED), DONE)
        ann, path = await kit.person("ann", "operator"), f"/api/v1/clusters/demo/nodes/n2/{call}"
        term = (await ann.get("/api/v1/clusters/demo")).json()["term"]
        dry = await ann.change("POST", path, json={"if_term": term, "dry_run": True})
        assert dry.status_code == 200 and dry.json()["dry_run"] is True and "n2" in dry.json()["would"]
        for body in ({"if_term": term + 1}, {"if_term": term + 1, "dry_run": True}):
            moved = await ann.change("POST", path, json=body)
            assert moved.status_code == 412 and f"term {term}" in moved.json()["detail"], moved.text
        assert (await ann.get("/api/v1/operations")).json()["items"] == [] and asked == []
        gone = await ann.change("POST", path.replace("n2", "n9"), json={"dry_run": True})
        assert gone.status_code == 404
        key = {"idempotency-key": "one"}
        first = await ann.change("POST", path, json={"if_term": term}, headers=key)
        again = await ann.change("POST", path, json={"if_term": term}, headers=key)
        assert first.status_code == again.status_code == 202 and first.json()["id"] == again.json()["id"]
        assert again.headers["location"] == first.headers["location"]
        other = await ann.change("POST", path, json={}, headers=key)
        assert other.status_code == 422

    over(tmp_path, work)
