"""What fails on the way to a page: a designed answer with a next step, and no side task costs the page."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession

from app.console.history import History
from app.db.repositories import DONE, Events
from app.security import trail
from app.security.identity import SEEN_EVERY
from app.times import rfc3339, utc_now
from node.views.events import EventView
from tests.unit.console_kit import Kit, Person, run, running

GROUP = "/clusters/demo"
PAGE = {"accept": "text/html"}


def locked(*_: Any, **__: Any) -> Any:
    raise OperationalError("SELECT 1", {}, sqlite3.OperationalError("database is locked"))


def over(tmp_path: Path, work: Any) -> None:
    async def running_work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            await work(kit, await kit.person())

    run(running_work())


async def shown(person: Person, path: str, status: int) -> str:
    """The designed page of an error: inside the console's frame, with what happened and where to go on."""
    answer = await person.get(path, headers=PAGE)
    assert answer.status_code == status, answer.text
    page = answer.text
    assert f'data-status="{status}"' in page and "What to do" in page and 'aria-label="Main"' in page
    assert "content-security-policy" in answer.headers and answer.headers["cache-control"] == "no-store"
    return page


def test_403_404_405_and_410_are_designed_pages(tmp_path: Path) -> None:
    async def work(kit: Kit, ann: Person) -> None:
        vic = await kit.person("vic", "viewer")
        forbidden = await shown(vic, f"{GROUP}/log", 403)
        assert "viewers do not have it" in forbidden and "Overview of demo" in forbidden
        missing = await shown(ann, "/nothing/here", 404)
        assert "There is nothing at /nothing/here." in missing
        assert "no member of this group" in await shown(ann, f"{GROUP}/nodes/n9", 404)
        gone = await shown(ann, "/login/link/used-up", 410)
        assert "used up" in gone and "quorumscope user link" in gone
        asked = await ann.get("/api/v1/nothing")
        assert asked.status_code == 404 and asked.headers["content-type"] == "application/problem+json"
        assert asked.json()["title"] == "Not found"

    over(tmp_path, work)


def test_an_unexpected_error_has_a_page_a_document_and_a_reference_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(kit: Kit, ann: Person) -> None:
        def broken(*_: Any) -> Any:
            raise ZeroDivisionError("an odd view")

        monkeypatch.setattr(kit.console, "group_view", broken)
        caplog.set_level(logging.ERROR)
        page = await shown(ann, f"{GROUP}/nodes/n1", 500)
        assert "Try again" in page and f'href="{GROUP}/nodes/n1"' in page and "an odd view" not in page
        reference = page.partition("reference ")[2][:8]
        assert f"reference {reference}" in caplog.text and "ZeroDivisionError" in caplog.text
        for path, headers in (("/api/v1/clusters/demo/view", PAGE), (GROUP + "/nodes/n1", {"hx-request": "true"})):
            answer = await ann.get(path, headers=headers)
            assert answer.status_code == 500 and answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["reference"] and answer.json()["action"]
        changed = await ann.change("POST", f"{GROUP}/leadership", data={"to": "n1"}, headers=PAGE)
        assert changed.status_code == 500 and "unknown: look before you repeat" in changed.text
        assert "Try again</a>" not in changed.text, "a change is not repeated by a click"

    over(tmp_path, work)


def test_a_page_that_cannot_be_drawn_is_still_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(kit: Kit, ann: Person) -> None:
        def broken(*_: Any, **__: Any) -> Any:
            raise ValueError("no template")

        monkeypatch.setattr(kit.app.state.templates, "TemplateResponse", broken)
        answer = await ann.get(GROUP, headers=PAGE)
        assert answer.status_code == 500 and json.loads(answer.text)["title"] == "The console failed at this"

    over(tmp_path, work)


def test_a_database_that_does_not_answer_is_said_with_503(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(kit: Kit, ann: Person) -> None:
        monkeypatch.setattr(Events, "list", locked)
        page = await shown(ann, f"{GROUP}/events", 503)
        assert "database does not answer" in page and "The nodes are not affected" in page
        monkeypatch.setattr(trail, "begin", locked)
        assert "database does not answer" in await shown(ann, f"{GROUP}/log", 503)
        monkeypatch.setattr(kit.app.state.identity, "by_cookie", locked)
        assert "database does not answer" in await shown(ann, GROUP, 503)

    over(tmp_path, work)


def test_the_group_s_page_does_without_its_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(kit: Kit, ann: Person) -> None:
        monkeypatch.setattr(History, "query", locked)
        answer = await ann.get(GROUP)
        assert answer.status_code == 200
        assert 'id="lane-n0"' in answer.text and "the history cannot be read" in answer.text

    over(tmp_path, work)


def test_a_locked_database_costs_nobody_the_page_for_noting_when_they_were_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(kit: Kit, ann: Person) -> None:
        later = utc_now() + 2 * SEEN_EVERY
        monkeypatch.setattr("app.security.identity.utc_now", lambda: later)
        with sqlite3.connect(tmp_path / "console.db", isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            async with asyncio.timeout(4):  # the database's own patience is five seconds
                assert (await ann.get(GROUP)).status_code == 200
            other.execute("ROLLBACK")
        other.close()
        await kit.until(lambda: not kit.app.state.identity.background.tasks)
        idle = later + timedelta(seconds=kit.app.state.settings.session_idle_s) - SEEN_EVERY
        monkeypatch.setattr("app.security.identity.utc_now", lambda: idle)
        assert (await ann.get(GROUP)).status_code == 200, "it was seen, and stays signed in"

    over(tmp_path, work)


def test_an_answer_is_given_though_the_trail_cannot_be_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(kit: Kit, ann: Person) -> None:
        await trail.complete(locked, 1, 200, None)  # type: ignore[arg-type]
        assert "could not be noted" in caplog.text

    over(tmp_path, work)


def locked_twice(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """The first two calls of a method meet a locked database."""
    works, calls = getattr(owner, name), iter(range(2))

    async def method(*given: Any, **named: Any) -> Any:
        if next(calls, None) is not None:
            locked()
        return await works(*given, **named)

    monkeypatch.setattr(owner, name, method)
    monkeypatch.setattr("app.db.engine.WRITE_AGAIN_S", 0.01)


def test_a_locked_database_costs_no_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(kit: Kit, ann: Person) -> None:
        locked_twice(monkeypatch, Events, "add")
        happened = EventView(id="b-7", at=rfc3339(utc_now()), kind="truncation")
        kit.console.take_events("demo", "n1", [happened])
        await kit.until(lambda: not kit.console.events_waiting.batches)
        assert await kit.console.events_kept.list("demo", kinds=("truncation",))

    over(tmp_path, work)


def test_what_waits_when_the_console_ends_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def first() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            monkeypatch.setattr("app.db.engine.WRITE_AGAIN_S", 1000.0)
            with monkeypatch.context() as away:
                away.setattr(Events, "add", locked)
                kit.console.take_events("demo", "n1", [EventView(id="b-8", at=rfc3339(utc_now()), kind="truncation")])
                await kit.until(lambda: kit.console.events_waiting.batches)

    async def again() -> None:
        async with running(tmp_path) as kit:
            assert await kit.console.events_kept.list("demo", kinds=("truncation",))

    run(first())
    run(again())


def test_a_locked_database_costs_no_operation_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(kit: Kit, ann: Person) -> None:
        kept = kit.console.operations_kept
        made, _ = await kept.open("demo", "scrub", "ann", node_id="n1", key=None, progress={})
        locked_twice(monkeypatch, AsyncSession, "execute")
        await kept.set(made["id"], state=DONE)
        found = await kept.get(made["id"])
        assert found is not None and found["state"] == DONE

    over(tmp_path, work)
