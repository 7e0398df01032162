"""The console over a real group: found by one address, transferred, paused, killed; every sentence is what happened."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from app.console.app import create_app
from app.console.settings import ConsoleSettings, Seed
from app.health.group_view import GroupView
from tests.api.group import Group, running_group
from tests.unit.console_kit import Kit, Person, run
from tests.unit.fake_control import FakeGroup

pytestmark = pytest.mark.process
WITHIN_S = 60.0
DOWN_SEEN_WITHIN_S = 15.0
TRIES = 5


async def until_said(kit: Kit, *words: str, seconds: float = WITHIN_S) -> GroupView:
    """The view whose sentence says all of it."""

    def said() -> Any:
        watch = kit.console.watches.get("api")
        if watch is None:
            return None
        sentence = watch.view.sentence
        whole = f"{sentence.headline} {sentence.rest}"
        return watch.view if all(word in whole for word in words) else None

    found: GroupView = await kit.until(said, seconds)
    return found


async def transfer_away(kit: Kit, ann: Person, leader: str) -> str:
    """Moves leadership through the console and follows it to its end; returns the new leader."""
    target = next(one for one in ("n0", "n1", "n2") if one != leader)
    path = "/api/v1/clusters/api/leadership-transfer"
    asked = await ann.change("POST", path, json={"to": target})
    assert asked.status_code == 202, asked.text
    task = kit.console.transfers.background.get(f"transfer {asked.json()['id']}")
    if task is not None:
        await task
    done = (await ann.get(f"/api/v1/operations/{asked.json()['id']}")).json()
    assert done["state"] == "done" and done["outcome"]["leader_id"] == target
    await until_said(kit, "All 3 replicas are in step", f"{target} leads")
    return target


async def start_again_by_the_button(kit: Kit, victim: str) -> None:
    """As an operator finds it at the problem, follows it to its page, and presses it."""
    olga = await kit.person("olga", "operator")
    path, html = f"/clusters/api/nodes/{victim}/restart", {"accept": "text/html"}
    assert f'href="{path}"' in (await olga.get("/clusters/api", headers=html)).text
    page = (await olga.get(path, headers=html)).text
    given = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]+)"', page))
    assert given["what"] == "engine" and given["key"] and given["csrf_token"] == olga.csrf, page
    pressed = await olga.client.post(path, data=given, headers=html)
    assert pressed.status_code == 303, pressed.text
    operation = pressed.headers["location"]
    assert (await olga.client.post(path, data=given, headers=html)).headers["location"] == operation, "pressed twice"
    task = kit.console.remote_operations.background.get(f"restart {operation.rpartition('/')[2]}")
    if task is not None:
        await task
    done = (await olga.get(f"/api/v1{operation}")).json()
    assert done["state"] == "done" and done["requested_by"] == "olga" and done["outcome"]["boot_id"], done
    assert f"The engine of {victim} answers again." in (await olga.get(operation, headers=html)).text


async def disturb(kit: Kit, group: Group, leader: str) -> None:
    """A follower's engine hangs, is started again by an operator's button, and is killed."""
    victim = next(one for one in group.ids if one != leader)
    pid = group.engine_pid(victim)
    os.kill(pid, signal.SIGSTOP)
    try:
        view = await until_said(kit, f"The engine of {victim} does not answer", "Quorum stands")
        stale = next(one for one in view.members if one.id == victim)
        assert stale.reach == "stale" and stale.log.end_index is not None, "the last marks stay"
        await start_again_by_the_button(kit, victim)
        assert group.engine_pid(victim) != pid
    finally:
        with suppress(ProcessLookupError):  # the button ended it
            os.kill(pid, signal.SIGCONT)
    await until_said(kit, "All 3 replicas are in step")
    for _ in range(TRIES):  # it is started again at once: a busy machine may not have looked before
        os.kill(group.engine_pid(victim), signal.SIGKILL)
        with suppress(TimeoutError):
            await until_said(
                kit, f"The engine of {victim} is down: the engine was killed by signal 9", seconds=DOWN_SEEN_WITHIN_S
            )
            break
        await until_said(kit, "All 3 replicas are in step")
    else:
        raise AssertionError(f"{TRIES} times nobody said that the engine of {victim} is down")
    await until_said(kit, "All 3 replicas are in step")


def test_the_console_over_a_real_group(tmp_path: Path) -> None:
    async def work(group: Group) -> None:
        seed = Seed(group.urls["n1"])
        app = create_app(ConsoleSettings(db_url=str(tmp_path / "console.db"), seeds=(seed,), sample_interval_ms=200))
        async with app.router.lifespan_context(app):
            kit = Kit(app, FakeGroup())
            ann = await kit.person()
            view = await until_said(kit, "All 3 replicas are in step", "leads term")
            leader = await transfer_away(kit, ann, view.leader_id)
            sent = await ann.change("POST", "/api/v1/clusters/api/entries", json={"entries": ["through the console"]})
            assert sent.status_code == 200 and sent.json()["node_id"] == leader
            index = sent.json()["first_index"]
            await kit.until(lambda: all(held(kit, one) >= index for one in group.ids), 60)
            entry = (await ann.get(f"/api/v1/clusters/api/entries/{index}")).json()
            assert entry["agree"] is True and entry["compared"] == 3
            await disturb(kit, group, leader)
            kinds = {one["kind"] for one in (await ann.get("/api/v1/events?limit=500")).json()["items"]}
            assert {"role", "problem_opened", "problem_closed"} <= kinds
            history = (await ann.get("/api/v1/clusters/api/history")).json()
            assert set(history["replicas"]) == set(group.ids) and history["t"]
            await page_by_page(ann)

    with running_group(tmp_path) as group:
        run(work(group))


def held(kit: Kit, node_id: str) -> int:
    member = kit.console.group_view("api").member(node_id)
    committed = member.log.committed_index if member is not None else None
    return -1 if committed is None else committed


async def page_by_page(ann: Person) -> None:
    """Every page of the group reads without JavaScript."""
    pages = ("/", "/clusters/api", "/clusters/api/nodes/n0", "/clusters/api/leadership", "/clusters/api/events")
    for path in (
        *pages,
        "/clusters/api/truncations",
        "/clusters/api/log",
        "/clusters/api/audits",
        "/account",
        "/users",
    ):
        page = await ann.get(path, headers={"accept": "text/html"})
        assert page.status_code == 200 and "<main" in page.text, (path, page.status_code)
        await asyncio.sleep(0)
