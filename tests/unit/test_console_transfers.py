"""Leadership transfer: checked before, followed to its end, never claimed, never asked twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.console import member_changes, remote_operations
from app.console import transfers as transfers_module
from app.console.member_changes import MemberChange
from app.console.nodes import NodeRefused
from app.console.preflight import preflight
from app.console.transfers import Transfers
from node.background import Background
from tests.unit.console_kit import Kit, Person, run, running
from tests.unit.fake_control import FakeGroup

PATH = "/api/v1/clusters/demo/leadership-transfer"
pytestmark = pytest.mark.usefixtures("samples_stay_new")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers_module, "POLL_S", 0.01)


async def ended(kit: Kit, person: Person, operation_id: str) -> dict[str, Any]:
    task = kit.console.transfers.background.get(f"transfer {operation_id}")
    if task is not None:
        await task
    found: dict[str, Any] = (await person.get(f"/api/v1/operations/{operation_id}")).json()
    return found


def test_a_transfer_is_followed_to_its_end(tmp_path: Path) -> None:
    async def work() -> None:
        group = FakeGroup()
        group.operation_steps = 5
        async with running(tmp_path, group) as kit:
            await kit.watched()
            olga = await kit.person("olga", "operator")
            asked = await olga.change("POST", PATH, json={"to": "n1", "if_term": 4})
            assert asked.status_code == 202 and asked.json()["state"] == "running"
            assert asked.headers["location"] == f"/api/v1/operations/{asked.json()['id']}"
            page = await olga.get(f"/operations/{asked.json()['id']}")
            assert "Running" in page.text and "Cancel" not in page.text, "no node of ours takes a transfer back"
            done = await ended(kit, olga, asked.json()["id"])
            assert done["state"] == "done" and done["outcome"] == {"leader_id": "n1", "term": 5}
            assert done["requested_by"] == "olga" and done["progress"]["node_operation_id"]
            await kit.until(lambda: kit.console.group_view("demo").leader_id == "n1")
            listed = (await olga.get("/api/v1/operations")).json()
            assert [one["id"] for one in listed["items"]] == [done["id"]]
            assert (await olga.change("DELETE", f"/api/v1/operations/{done['id']}")).status_code == 409

    run(work())


def test_the_same_key_transfers_once(tmp_path: Path) -> None:
    async def work() -> None:
        group = FakeGroup()
        async with running(tmp_path, group) as kit:
            await kit.watched()
            olga = await kit.person("olga", "operator")
            ids = set()
            for _ in range(3):
                headers = {"idempotency-key": "k1"}
                answer = await olga.change("POST", PATH, json={"to": "n1", "if_term": None}, headers=headers)
                ids.add(answer.json().get("id"))
                if len(ids) == 1:
                    await ended(kit, olga, answer.json()["id"])
            posts = [one for one in group.requests if one.url.path.endswith("leadership-transfer")]
            assert len(ids - {None}) == 1 and len(posts) == 1

    run(work())


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        group = FakeGroup()
        async with running(tmp_path, group) as kit:
            await kit.watched()
            olga = await kit.person("olga", "operator")
            checked = (await olga.change("POST", PATH, json={"to": "n2", "dry_run": True})).json()
            assert checked["dry_run"] and checked["allowed"] and checked["to"] == "n2"
            assert '"Authorization: Bearer $QUORUMSCOPE_TOKEN"' in checked["commands"]["curl"]
            assert checked == {"dry_run": True, **(await olga.get(f"{PATH}?to=n2")).json()}
            moved = await olga.change("POST", PATH, json={"to": "n2", "if_term": 1, "dry_run": True})
            assert moved.status_code == 412, "as without dry_run"
            assert not [one for one in group.requests if one.method == "POST"]

    run(work())


def moved_term(group: FakeGroup) -> dict[str, Any]:
    return {"to": "n1", "if_term": 3}


def to_itself(group: FakeGroup) -> dict[str, Any]:
    return {"to": "n0"}


def to_nobody(group: FakeGroup) -> dict[str, Any]:
    return {"to": "n9"}


def to_a_laggard(group: FakeGroup) -> dict[str, Any]:
    group.nodes["n1"].end = 10
    group.nodes["n0"].end = 50_000
    return {"to": "n1"}


def to_somebody_unheard(group: FakeGroup) -> dict[str, Any]:
    group.nodes["n1"].ack_ms = 60_000
    return {"to": "n1"}


def too_long(group: FakeGroup) -> dict[str, Any]:
    return {"to": "n1", "deadline_ms": 600_000}


@pytest.mark.parametrize(
    ("arrange", "status"),
    [
        (moved_term, 412),
        (to_itself, 409),
        (to_nobody, 409),
        (to_a_laggard, 409),
        (to_somebody_unheard, 409),
        (too_long, 422),
    ],
)
def test_what_is_refused_before_the_leader_is_asked(
    tmp_path: Path, arrange: Callable[[FakeGroup], dict[str, Any]], status: int
) -> None:
    async def work() -> None:
        group = FakeGroup()
        body = arrange(group)
        async with running(tmp_path, group) as kit:
            await kit.watched()
            olga = await kit.person("olga", "operator")
            refused = await olga.change("POST", PATH, json=body)
            assert refused.status_code == status and refused.json()["detail"]
            assert not [one for one in group.requests if one.method == "POST"]
            assert (await olga.get("/api/v1/operations")).json()["items"] == []

    run(work())


def test_the_leaders_refusal_is_the_operations_problem(tmp_path: Path) -> None:
    async def work() -> None:
        group = FakeGroup()
        async with running(tmp_path, group) as kit:
            await kit.watched()
            olga = await kit.person("olga", "operator")
            group.term += 1  # moves between our look and the leader's
            asked = await olga.change("POST", PATH, json={"to": "n1", "if_term": 4})
            if asked.status_code == 412:
                return  # the next sample was quicker; that refusal has its own test
            failed = await ended(kit, olga, asked.json()["id"])
            assert failed["state"] == "failed" and failed["problem"]["code"] == 501

    run(work())


def test_an_answer_that_never_came_is_unknown(tmp_path: Path) -> None:
    async def work() -> None:
        group = FakeGroup()
        group.silent_on_transfer = True
        async with running(tmp_path, group) as kit:
            await kit.watched()
            olga = await kit.person("olga", "operator")
            asked = await olga.change("POST", PATH, json={"to": "n1"})
            after = await ended(kit, olga, asked.json()["id"])
            assert after["state"] == "unknown" and after["problem"]["title"] == "Outcome unknown"

    run(work())


def test_a_console_that_restarts_says_unknown(tmp_path: Path) -> None:
    async def work() -> None:
        group = FakeGroup()
        group.operation_steps = 10**9
        async with running(tmp_path, group) as kit:
            await kit.watched()
            olga = await kit.person("olga", "operator")
            operation_id = (await olga.change("POST", PATH, json={"to": "n1"})).json()["id"]
        async with running(tmp_path, group) as kit:
            olga = await kit.person("olga", "operator")
            after = (await olga.get(f"/api/v1/operations/{operation_id}")).json()
            assert after["state"] == "unknown"

    run(work())


def test_no_leader_no_transfer(tmp_path: Path) -> None:
    async def work() -> None:
        group = FakeGroup()
        async with running(tmp_path, group) as kit:
            await kit.watched()
            group.lead(None)
            await kit.until(lambda: kit.console.group_view("demo").leader_id is None)
            checked = preflight(kit.console.group_view("demo"), None)
            assert not checked.allowed and checked.to is None

    run(work())


def test_an_admin_alone_accepts_a_first_leadership_by_name_and_the_trail_says_who(tmp_path: Path) -> None:
    async def work() -> None:
        group = FakeGroup()
        group.nodes["n1"].odd["state"] = {**group.nodes["n1"].state(), "is_java": True}
        async with running(tmp_path, group) as kit:
            await kit.watched()
            await kit.until(lambda: kit.console.preflight("demo", "n1").needs_acceptance)
            olga, ann = await kit.person("olga", "operator"), await kit.person("ann", "admin")
            accepting = {"to": "n1", "accept_data_loss": True}
            refused = await ann.change("POST", PATH, json={"to": "n1"})
            assert refused.status_code == 409 and "accept_data_loss" in refused.json()["action"]
            assert "to an index between -1 and 1,000" in refused.json()["detail"]
            assert (await olga.change("POST", PATH, json=accepting)).status_code == 403
            assert (await ann.change("POST", PATH, json={"accept_data_loss": True})).status_code == 422
            # What else refuses a transfer nobody may overrule.
            assert (await ann.change("POST", PATH, json={"to": "n0", "accept_data_loss": True})).status_code == 409

            place = "/clusters/demo/leadership"
            seen_by_olga, seen_by_ann = (await olga.get(f"{place}?to=n1")).text, (await ann.get(f"{place}?to=n1")).text
            assert 'name="typed"' in seen_by_ann and 'name="typed"' not in seen_by_olga
            assert "An admin may accept the loss" in seen_by_olga
            form = {"to": "n1", "if_term": "4", "accept_data_loss": "true", "typed": "n2"}
            assert (await ann.change("POST", place, data=form)).status_code == 422
            assert not [one for one in group.requests if one.method == "POST"]

            moved = await ann.change("POST", place, data={**form, "typed": "n1"})
            assert moved.status_code == 303
            done = await ended(kit, ann, moved.headers["location"].rpartition("/")[2])
            assert done["requested_by"] == "ann" and len([one for one in group.requests if one.method == "POST"]) == 1
            again = await ann.change("POST", PATH, json={**accepting, "dry_run": True})
            assert again.status_code == 200

            rows = (await ann.get("/api/v1/admin-trail")).json()["items"]
            afters = [(one, (one["detail"] or {}).get("after") or {}) for one in rows]
            said = [(one["user"], one["status"]) for one, after in afters if accepting.items() <= after.items()]
            assert ("ann", 303) in said and ("olga", 403) in said

    run(work())


@pytest.mark.parametrize("kind", ["transfer", "members", "own"])
@pytest.mark.parametrize("begins", [200, 500, 502, 504, 409])
def test_what_a_control_plane_has_forgotten_or_failed_at_is_unknown(
    kind: str, begins: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is started again answers 404 to the question how its operation is: it was begun, and may be done. So may
    what it answered 500 to."""
    monkeypatch.setattr(member_changes, "POLL_S", 0.0)
    monkeypatch.setattr(remote_operations, "POLL_S", 0.0)
    url, kept = "http://n0", dict[str, Any]()

    class Member:
        async def json(self, *_: object, **__: object) -> dict[str, Any]:
            if begins != 200:
                raise NodeRefused(begins, {"title": "No", "detail": "There is no operation x"}, url)
            return {"id": "x", "state": "running"}

        async def get(self, *_: object) -> dict[str, Any]:
            raise NodeRefused(404, {"title": "Unknown operation", "detail": "There is no operation x (any more)."}, url)

    class Kept:
        async def set(self, _operation_id: str, **values: Any) -> None:
            kept.update(values)

    async def work() -> None:
        parts: Any = Member(), Kept(), Background()
        if kind == "transfer":
            await Transfers(*parts).follow_transfer("o", url, {"to": "n1"}, 5000, lambda: None)
        elif kind == "members":
            await member_changes.MemberChanges(*parts).follow("o", url, MemberChange("remove", "n2"), None)
        else:
            await remote_operations.RemoteOperations(*parts).follow("o", url, "scrub", {}, "n0")

    run(work())
    assert kept["state"] == ("failed" if begins == 409 else "unknown"), kept
    assert "There is no operation x" in kept["problem"]["detail"]
