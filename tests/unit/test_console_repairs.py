"""Scrub and repair through the console: three steps, one end, and only for those who may."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy.exc import OperationalError

from app.api import repairs as repairs_api
from tests.unit.console_kit import Kit, run, running
from tests.unit.fake_control import FakeGroup, FakeNode

Json = dict[str, Any]
PAGE = "/clusters/demo/nodes/n2/repair"
FAULT = {"first_index": 500, "last_index": 502, "kind": "rot", "detail": "body CRC"}


class Audits:
    """Instead of the runner: an audit that ends at its second look."""

    def __init__(self, verdict: str = "consistent") -> None:
        self.verdict, self.asked = verdict, []  # type: ignore[var-annotated]
        self.kept = self
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def newest(self, *_: Any) -> list[Any]:
        return []  # none has run

    async def launch(self, **asked: Any) -> Json:
        self.asked.append((asked["from_index"], asked["to_index"]))
        return {"id": "audit-1", "state": "running"}

    async def get(self, audit_id: str) -> Json:
        await self.may_end.wait()
        return {"id": audit_id, "state": "done", "verdict": self.verdict}


def scrubbing(group: FakeGroup, node: FakeNode, found: int, mends: bool = True, heals: bool = False) -> list[str]:
    """That member answers scrub and repairs; both end at the second look. `heals`: it mends what it found at once."""
    asked: list[str] = []
    usual = group.answer

    def answer(one: FakeNode, request: httpx2.Request, path: list[str]) -> tuple[int, Json]:
        if path[0] in ("scrub", "repairs") and one is node:
            asked.append(path[0])
            return 202, {"id": path[0], "kind": path[0], "state": "running", "progress": "entry 1 of 9"}
        if path[0] == "operations" and path[1] == "scrub":
            if heals:
                node.repair = {"repaired_entries": node.repair["repaired_entries"] + 1}
            return 200, {"id": "scrub", "state": "done", "outcome": {"faults": found}}
        if path[0] == "operations" and path[1] == "repairs":
            if mends:
                node.faults = []
                return 200, {"id": "repairs", "state": "done", "outcome": {}}
            problem = {"title": "No member can give what was written", "detail": "ask a back-up"}
            return 200, {"id": "repairs", "state": "failed", "problem": problem}
        return usual(one, request, path)

    group.answer = answer  # type: ignore[method-assign]
    return asked


def over(tmp_path: Path, audits: Audits, work: Callable[[Kit], Awaitable[None]], monkeypatch: Any) -> None:
    monkeypatch.setattr(repairs_api, "runner_of", lambda _request: audits)

    async def all_of_it() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            await work(kit)

    run(all_of_it())


async def ended(kit: Kit, operation_id: str) -> Json:
    async def look() -> Json | None:
        found = await kit.console.operation(operation_id)
        return found if found["state"] != "running" else None

    for _ in range(400):
        found = await look()
        if found is not None:
            return found
        await asyncio.sleep(0.05)
    raise AssertionError("it never ended")


def test_a_member_reads_repairs_and_is_audited_where_it_was_damaged(tmp_path: Path, monkeypatch: Any) -> None:
    audits = Audits()

    async def work(kit: Kit) -> None:
        node = kit.group.nodes["n2"]
        node.faults = [FAULT]
        asked = scrubbing(kit.group, node, found=1)
        ann = await kit.person("ann", "operator")
        answer = await ann.change("POST", f"/api/v1{PAGE}", json={})
        assert answer.status_code == 202, answer.text
        operation = await ended(kit, answer.json()["id"])
        assert operation["state"] == "done", operation
        assert asked == ["scrub", "repairs"] and audits.asked == [(500, 502)]
        assert operation["outcome"]["verdict"] == "consistent"
        page = (await ann.get(f"/operations/{operation['id']}")).text
        assert "all members hold the same there" in page and "audit-1" in page

    over(tmp_path, audits, work, monkeypatch)


def test_while_it_is_audited_it_says_how_long_that_takes(tmp_path: Path, monkeypatch: Any) -> None:
    """Who pressed the button reads the operation, and not the page before it."""
    audits = Audits()
    audits.may_end.clear()

    async def work(kit: Kit) -> None:
        kit.group.nodes["n2"].faults = [FAULT]
        scrubbing(kit.group, kit.group.nodes["n2"], found=1)
        ann = await kit.person("ann", "operator")
        asked = (await ann.change("POST", f"/api/v1{PAGE}", json={})).json()["id"]
        while not audits.asked:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.05)
        cost = "entries 500 to 502. None has run here yet; a cold one, the first since a machine started, took 97 s"
        assert cost in (await kit.console.operation(asked))["progress"]["detail"]
        assert cost in (await ann.get(f"/operations/{asked}")).text
        audits.may_end.set()
        assert (await ended(kit, asked))["progress"]["detail"] == "entries 500 to 502"

    over(tmp_path, audits, work, monkeypatch)


def test_one_that_could_not_be_begun_is_no_operation_that_runs_for_ever(tmp_path: Path, monkeypatch: Any) -> None:
    """It was opened before the last look at the database, and nobody followed it where that failed."""

    class Locked(Audits):
        async def newest(self, *_: Any) -> list[Any]:
            raise OperationalError("SELECT", None, OSError("the database is locked"))

    async def work(kit: Kit) -> None:
        ann = await kit.person("ann", "operator")
        assert (await ann.change("POST", f"/api/v1{PAGE}", json={})).status_code >= 500
        assert (await ann.get("/api/v1/operations")).json()["items"] == []

    over(tmp_path, Locked(), work, monkeypatch)


def test_what_the_member_mended_by_itself_is_said_and_no_step_was_needless(tmp_path: Path, monkeypatch: Any) -> None:
    """It asks its peers as soon as its scrub finds damage, perhaps before anybody looks again."""
    audits = Audits()

    async def work(kit: Kit) -> None:
        node = kit.group.nodes["n2"]
        node.repair = {"repaired_entries": 2}
        scrubbing(kit.group, node, found=1, heals=True)
        ann = await kit.person("ann", "operator")
        operation = await ended(kit, (await ann.change("POST", f"/api/v1{PAGE}", json={})).json()["id"])
        assert operation["state"] == "done" and operation["outcome"]["mended"] == "1 entry, from its peers"
        assert [one["state"] for one in operation["progress"]["steps"]] == ["done", "done", "now"]
        assert audits.asked == [(None, None)], "where it was is not known any more"
        page = (await ann.get(f"/operations/{operation['id']}")).text
        assert "Mended: 1 entry, from its peers. Nothing of the log of n2 is damaged" in page

    over(tmp_path, audits, work, monkeypatch)


def test_nothing_damaged_is_nothing_to_audit_unless_a_range_was_named(tmp_path: Path, monkeypatch: Any) -> None:
    audits = Audits()

    async def work(kit: Kit) -> None:
        asked = scrubbing(kit.group, kit.group.nodes["n2"], found=0)
        ann = await kit.person("ann", "operator")
        first = (await ann.change("POST", f"/api/v1{PAGE}", json={})).json()
        assert (await ended(kit, first["id"]))["state"] == "done"
        assert audits.asked == [] and asked == ["scrub"]
        named = (await ann.change("POST", f"/api/v1{PAGE}", json={"from_index": 7, "to_index": 9})).json()
        assert (await ended(kit, named["id"]))["state"] == "done"
        assert audits.asked == [(7, 9)]

    over(tmp_path, audits, work, monkeypatch)


def test_what_stays_damaged_or_different_is_no_success(tmp_path: Path, monkeypatch: Any) -> None:
    audits = Audits("divergent")

    async def work(kit: Kit) -> None:
        node = kit.group.nodes["n2"]
        ann = await kit.person("ann", "operator")
        node.faults = [FAULT]
        scrubbing(kit.group, node, found=1, mends=False)
        hopeless = await ended(kit, (await ann.change("POST", f"/api/v1{PAGE}", json={})).json()["id"])
        assert (hopeless["state"], hopeless["problem"]["detail"]) == ("failed", "ask a back-up")
        node.faults = []
        sent = {"from_index": 7, "to_index": 9}
        differs = await ended(kit, (await ann.change("POST", f"/api/v1{PAGE}", json=sent)).json()["id"])
        assert (differs["state"], differs["problem"]["title"]) == ("failed", "The replicas still differ")

    over(tmp_path, audits, work, monkeypatch)


def test_repairing_needs_the_right_for_it(tmp_path: Path, monkeypatch: Any) -> None:
    async def work(kit: Kit) -> None:
        scrubbing(kit.group, kit.group.nodes["n2"], found=0)
        viewer = await kit.person("vera", "viewer")
        assert (await viewer.change("POST", f"/api/v1{PAGE}", json={})).status_code == 403
        assert (await viewer.change("POST", PAGE, data={})).status_code == 403
        assert '<button type="submit">Scrub' not in (await viewer.get(PAGE)).text
        ann = await kit.person("ann", "operator")
        page = (await ann.get(f"{PAGE}?from=5&to=7")).text
        assert '<button type="submit">Scrub' in page and "entries 5 to 7" in page and "a cold one" in page.lower()
        assert (await ann.change("POST", PAGE, data={"key": "k"})).headers["location"].startswith("/operations/")
        wrong = await ann.change("POST", f"/api/v1{PAGE}", json={"from_index": 9, "to_index": 7})
        assert wrong.status_code == 422 and "behind" in json.dumps(wrong.json())

    over(tmp_path, Audits(), work, monkeypatch)


@pytest.mark.parametrize("faults", [None, {}, "none", [7], [{"first_index": 1}]], ids=str)
def test_a_member_that_does_not_say_what_is_damaged_has_not_said_that_nothing_is(
    faults: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """An operation on it was done: nothing of its log is damaged."""

    async def work(kit: Kit) -> None:
        node = kit.group.nodes["n2"]
        scrubbing(kit.group, node, found=0)
        node.faults = faults
        ann = await kit.person("ann", "operator")
        begun = await ann.change("POST", f"/api/v1{PAGE}", json={})
        operation = await ended(kit, begun.json()["id"])
        assert operation["state"] == "unknown" and operation["problem"]["title"] == "Damage unknown"
        assert "n2 does not say what of its log is damaged" in operation["problem"]["detail"]

    over(tmp_path, Audits(), work, monkeypatch)
