"""The page Members over a real group: a learner is taken in by its form and removed over REST, and both are on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.console.app import create_app
from app.console.member_changes import KIND
from app.console.settings import ConsoleSettings, Seed
from tests.api.group import running_group
from tests.ports import free_ports
from tests.unit.console_kit import Kit, Person, run

pytestmark = [pytest.mark.process, pytest.mark.long]
GROUP = "/clusters/api"
LOOKS_MAX = 600  # ten a second
TRIES = 5  # an election of the group's own in between, and it is asked for once more


async def ended(kit: Kit, ann: Person, operation_id: str) -> dict[str, Any]:
    task = kit.console.background.get(f"{KIND} {operation_id}")
    if task is not None:
        await task
    found: dict[str, Any] = (await ann.get(f"/api/v1/operations/{operation_id}")).json()
    return found


async def surely(kit: Kit, ann: Person, method: str, path: str, **more: Any) -> None:
    """Until it is so."""
    for _ in range(TRIES):
        await kit.until(lambda: kit.console.group_view("api").leader_id)
        answer = await ann.change(method, path, **more)
        if answer.status_code in (202, 303):
            operation_id = answer.headers["location"].rpartition("/")[2]
            if (await ended(kit, ann, operation_id))["state"] == "done":
                return
        elif "already" in answer.text or "is no member" in answer.text:
            return
    raise AssertionError(f"{method} {path}: {answer.status_code} {answer.text[:400]}")


async def comes_to_say(kit: Kit, ann: Person, *words: str) -> str:
    """The page, once it says all of it."""
    page, looks = "", 0
    while not all(word in page for word in words):
        assert looks < LOOKS_MAX, f"{words}: {page}"
        seen = kit.console.group_view("api").as_of
        await kit.until(lambda before=seen: kit.console.group_view("api").as_of != before)  # type: ignore[misc]
        page, looks = (await ann.get(f"{GROUP}/members")).text, looks + 1
    return page


def test_a_learner_comes_and_goes_through_the_console(tmp_path: Path) -> None:
    with running_group(tmp_path) as group:
        address = f"127.0.0.1:{free_ports(1)[0]}"

        async def work() -> None:
            settings = ConsoleSettings(
                db_url=f"sqlite:///{tmp_path / 'console.db'}", seeds=(Seed(group.urls["n0"]),), sample_interval_ms=100
            )
            app = create_app(settings)
            async with app.router.lifespan_context(app):
                kit = Kit(app, None)  # type: ignore[arg-type]
                await kit.watched("api")
                ann = await kit.person()
                form = {"kind": "add", "id": "n7", "address": address, "learner": "true"}
                await surely(kit, ann, "POST", f"{GROUP}/members/change", data=form)
                page = await comes_to_say(kit, ann, "n7 joined as a learner", "not connected to")
                assert address in page and "3 voters, 1 learner<" in page
                assert "kind=promote&amp;id=n7" not in page, "it would be refused: the page offers it to nobody"
                refused = (await ann.get(f"{GROUP}/members/change?kind=promote&id=n7")).text
                assert "n7 has not caught up" in refused and "It would be refused." in refused
                await surely(kit, ann, "DELETE", f"/api/v1{GROUP}/members/n7")
                page = await comes_to_say(kit, ann, "n7 left", "no learners")
                listed = (await ann.get(f"/api/v1{GROUP}/members")).json()
                assert sorted(one["id"] for one in listed["items"]) == ["n0", "n1", "n2"]

        run(work())
