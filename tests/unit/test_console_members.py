"""The page Members and its calls: what is shown, the pre-flight first, one end, one change for one key, and rights."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from app.console import member_changes as changes_module
from app.console.configurations import changed
from app.console.member_changes import LeaderSays, MemberChange, QuorumThen, checks_of
from app.console.members_pages import row_of
from app.health.group_view import ClusterView, GroupView, QuorumView
from app.times import rfc3339, utc_now
from node.views.members import MemberView
from tests.unit import views
from tests.unit.console_kit import Kit, Person, run, running
from tests.unit.fake_control import FakeGroup

Json = dict[str, Any]
API = "/api/v1/clusters/demo/members"
PAGE = "/clusters/demo/members"
NEW = {"id": "n3", "address": "10.0.0.4:20911"}
pytestmark = pytest.mark.usefixtures("samples_stay_new")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes_module, "POLL_S", 0.01)


def over(tmp_path: Path, work: Callable[[Kit], Awaitable[None]], group: FakeGroup | None = None) -> None:
    async def all_of_it() -> None:
        async with running(tmp_path, group or FakeGroup()) as kit:
            await kit.watched()
            await work(kit)

    run(all_of_it())


async def ended(kit: Kit, person: Person, operation_id: str) -> Json:
    task = kit.console.background.get(f"{changes_module.KIND} {operation_id}")
    if task is not None:
        await task
    found: Json = (await person.get(f"/api/v1/operations/{operation_id}")).json()
    return found


def changes_asked(kit: Kit) -> list[str]:
    """What was asked of the leader that was no dry run."""
    made = [one for one in kit.group.requests if one.method != "GET" and "/members" in one.url.path]
    return [
        f"{one.method} {one.url.path.partition('/api/v1/')[2]}"
        for one in made
        if b'"dry_run":true' not in one.content.replace(b" ", b"") and one.url.params.get("dry_run") != "true"
    ]


@pytest.mark.parametrize(
    ("method", "path", "body", "asked"),
    [
        ("POST", "", NEW, "POST members"),
        ("POST", "", {**NEW, "replaces": "n1"}, "POST members"),
        ("POST", "/n3/promotion", {}, "POST members/n3/promotion"),
        ("PUT", "/n1/address", {"address": "10.0.0.9:1"}, "PUT members/n1/address"),
        ("DELETE", "/n2", None, "DELETE members/n2"),
    ],
)
def test_a_change_is_preflighted_asked_for_once_and_followed_to_its_end(
    tmp_path: Path, method: str, path: str, body: Json | None, asked: str
) -> None:
    async def work(kit: Kit) -> None:
        olga = await kit.person("olga", "operator")
        kept: Json = {} if body is None else {"json": body}
        dry: Json = {"params": {"dry_run": "true"}} if body is None else {"json": {**body, "dry_run": True}}
        known = await olga.change(method, API + path, **dry)
        assert known.status_code == 200 and known.json()["dry_run"] and known.json()["allowed"], known.text
        assert known.json()["before"]["survives"] == 1 and "quorumscope members" in known.json()["commands"]["cli"]
        assert changes_asked(kit) == []
        ids = set()
        for _ in range(2):
            answer = await olga.change(method, API + path, headers={"idempotency-key": "k1"}, **kept)
            assert answer.status_code == 202, answer.text
            ids.add(answer.json()["id"])
        assert len(ids) == 1
        done = await ended(kit, olga, ids.pop())
        assert done["state"] == "done" and done["outcome"]["index"] == 1001 and done["requested_by"] == "olga"
        assert changes_asked(kit) == [asked]
        assert (await olga.change("DELETE", f"/api/v1/operations/{done['id']}")).status_code == 409
        trail = (await (await kit.person("ann")).get("/api/v1/admin-trail")).json()["items"]
        row = next(one for one in trail if one["method"] == method and one["status"] == 202)
        assert row["user"] == "olga" and row["detail"]["after"]["kind"] and row["detail"]["after"]["operation"]

    over(tmp_path, work)


def test_what_the_leader_refuses_is_not_asked_for(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        kit.group.refuses = "1 of the 2 voters that are left answers (n0), and 2 have to"
        olga = await kit.person("olga", "operator")
        refused = await olga.change("DELETE", f"{API}/n2")
        assert refused.status_code == 409 and "2 have to" in refused.json()["detail"]
        page = (await olga.get(f"{PAGE}/change?kind=remove&id=n2")).text
        assert "2 have to" in page and "It would be refused." in page and 'name="key"' not in page
        moved = await olga.change("DELETE", f"{API}/n2", params={"if_term": 3})
        assert moved.status_code == 412
        both = await olga.change("POST", API, json={**NEW, "learner": True, "replaces": "n1"})
        assert both.status_code == 422
        kit.group.lead(None)
        await kit.until(lambda: kit.console.group_view("demo").leader_id is None)
        assert "no reachable leader" in (await olga.change("DELETE", f"{API}/n2")).json()["detail"]
        assert changes_asked(kit) == []

    over(tmp_path, work)


@pytest.mark.parametrize(
    "odd",
    [
        [], "members", 7, {"refused": "no"}, {"refused": {}}, {"refused": {"detail": 7}}, {"before": []},
        {"before": {"voters": "n0"}}, {"after": {"survives": "1"}}, {"lag_entries": "9"}, {"lag_bytes": -(2**70)},
        {"catch_up_s_at_most": {}}, {"catch_up_s_at_most": 1e300}, {"needs_disk_bytes": "much"},
    ],
)  # fmt: skip
def test_an_odd_preflight_is_said_and_allows_nothing(tmp_path: Path, odd: Any) -> None:
    async def work(kit: Kit) -> None:
        kit.group.change_members = lambda *_: (200, {"dry_run": True, "members": odd})  # type: ignore[method-assign]
        olga = await kit.person("olga", "operator")
        page = await olga.get(f"{PAGE}/change?kind=add&id=n3&address=h:1")
        assert page.status_code == 200 and "It would be refused" in page.text and 'name="key"' not in page.text
        refused = await olga.change("POST", API, json=NEW)
        assert refused.status_code == 409 and changes_asked(kit) == []

    over(tmp_path, work)


def test_only_operators_change_members_and_see_the_buttons(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        vera, olga = await kit.person("vera", "viewer"), await kit.person("olga", "operator")
        assert (await vera.change("DELETE", f"{API}/n2")).status_code == 403
        form = {"kind": "remove", "id": "n2"}
        assert (await vera.change("POST", f"{PAGE}/change", data=form)).status_code == 403
        looked = (await vera.get(f"{PAGE}/change?kind=remove&id=n2")).text
        assert "needs the role operator" in looked and "Before you press" not in looked
        assert not [one for one in kit.group.requests if one.method != "GET"], "who may change nothing asks nothing"
        assert (await olga.client.post(f"{PAGE}/change", data=form)).status_code == 403, "without the form's token"
        seen, full = (await vera.get(PAGE)).text, (await olga.get(PAGE)).text
        assert "members/change" not in seen and "needs the role operator" in seen
        assert "kind=remove&amp;id=n2" in full and "kind=replace&amp;replaces=n1" in full and "Add a member" in full
        assert changes_asked(kit) == []

    over(tmp_path, work)


def test_the_form_shows_the_preflight_first_and_then_asks(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        olga = await kit.person("olga", "operator")
        empty = (await olga.get(f"{PAGE}/change?kind=replace&replaces=n1")).text
        assert 'value="n1" selected' in empty and "Before you press" not in empty
        asked = f"{PAGE}/change?kind=replace&replaces=n1&id=n3&address=10.0.0.4:20911"
        page = (await olga.get(asked)).text
        for text in ("2 of 3 voters have to answer", "quorum then", "lacks 1,204,993 entries", "catches up in", "disk"):
            assert text in page, text
        assert changes_asked(kit) == []
        form = {"kind": "replace", "replaces": "n1", **NEW, "if_term": "4", "key": "k2"}
        sent = await olga.change("POST", f"{PAGE}/change", data=form)
        assert sent.status_code == 303, sent.text
        done = await ended(kit, olga, sent.headers["location"].rpartition("/")[2])
        assert done["state"] == "done" and changes_asked(kit) == ["POST members"]
        shown = (await olga.get(sent.headers["location"])).text
        assert "Member change" in shown and "Replace n1 by n3 at 10.0.0.4:20911. Entry 1,001 says so" in shown
        assert (await olga.change("POST", f"{PAGE}/change", data={"kind": "add", "id": "n3"})).status_code == 422

    over(tmp_path, work)


def test_an_answer_that_never_comes_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(kit: Kit) -> None:
        olga = await kit.person("olga", "operator")
        kit.group.operation_steps = 1_000_000
        monkeypatch.setattr(changes_module, "ENDS_WITHIN_S", 0.2)
        begun = (await olga.change("DELETE", f"{API}/n2")).json()
        done = await ended(kit, olga, begun["id"])
        assert done["state"] == "unknown" and "page Members" in done["problem"]["detail"]

    over(tmp_path, work)


def test_the_page_shows_who_belongs_to_it_what_they_lack_and_how_it_came_to_be_so(tmp_path: Path) -> None:
    group = FakeGroup(size=4)
    new, leader = group.nodes["n3"], group.nodes["n0"]
    new.learns, new.end, new.durable, new.dispatcher = True, 400, 400, "APPEND"
    group.configured, group.pending = 990, {"index": 990, "waits_for": ["n1", "n2"], "needed": 1}
    detail = {
        "index": 990,
        "voters": ["n0", "n1", "n2"],
        "learners": ["n3"],
        "joined": ["n3"],
        "left": [],
        "promoted": [],
    }
    at = rfc3339(utc_now())
    leader.events = [{"id": "b-1", "at": at, "kind": "configuration", "severity": "info", "detail": detail}]

    async def work(kit: Kit) -> None:
        olga = await kit.person("olga", "operator")

        async def shown() -> str:
            return (await olga.get(PAGE)).text

        await kit.until(lambda: kit.console.configurations.since("demo", 990))
        await kit.until(lambda: kit.console.group_view("demo").member("n3"))
        text = await shown()
        assert "n3 joined as a learner" in text
        for said in (
            "A change is under way", "It waits for 1 of n1, n2", "entry 990", "learner", "600 entries · 180 kB",
            "becomes a voter once it has caught up", "catching up", "100 GB free", "kind=promote&amp;id=n3",
            "3 voters, 1 learner<",
        ):  # fmt: skip
            assert said in text, said
        live = (await olga.get("/live/members/snapshot?cluster=demo")).text
        assert 'id="live-configuration"' in live and "n3 joined as a learner" in live and "<form" not in live
        listed = (await olga.get(API)).json()
        assert listed["node_id"] == "n0" and [one["id"] for one in listed["items"]] == ["n0", "n1", "n2", "n3"]
        # A console that is started anew knows it from its database.
        kit.console.configurations.forget("demo")
        assert "n3 joined as a learner" in await shown()

    over(tmp_path, work, group)


def test_a_group_whose_leader_tells_no_configuration_is_not_called_wrong_for_that(tmp_path: Path) -> None:
    group = FakeGroup()
    group.nodes["n0"].odd["members"] = b"what is that?"

    async def work(kit: Kit) -> None:
        olga = await kit.person("olga", "operator")
        page = (await olga.get(PAGE)).text
        assert "unknown: no leader reports it" in page and "n2" in page
        assert not [one.text for one in kit.console.group_view("demo").problems]

    over(tmp_path, work, group)


def test_a_member_that_is_looked_for_elsewhere_says_where_it_listens() -> None:
    """In a demo the log names the relays; the page showed them as where the members are."""
    view = views.degraded()
    seen = view.member("n1")
    assert seen is not None and seen.address
    for said, listens_at in (("127.0.0.1:39411", seen.address), (seen.address, "")):
        row = row_of(view, "n1", MemberView(id="n1", address=said, kind="voter"), seen)
        assert (row.address, row.listens_at) == (said, listens_at)


def test_who_is_not_connected_is_not_offered_a_promotion() -> None:
    """It was refused: it has not caught up. "Becomes a voter then" did not say when."""
    named = MemberView(id="n9", address="127.0.0.1:9", kind="learner", connected=False, promoting=True)
    row = row_of(views.degraded(), "n9", named, None)
    assert not row.is_connected and row.catching == "not connected to n0; becomes a voter once it has caught up"
    assert row_of(views.degraded(), "n9", MemberView(id="n9", kind="learner"), None).is_connected


def test_a_strangers_event_is_no_change() -> None:
    assert changed("2026-01-01T00:00:00Z", {"index": "x"}) is None and changed(None, {"index": 1}) is None
    assert changed("2026-01-01T00:00:00Z", None) is None
    odd = changed("2026-01-01T00:00:00Z", {"index": 1, "voters": 3, "joined": [7]})
    assert odd is not None and (odd.voters, odd.text) == ((), "7 joined")


def test_a_members_name_is_no_path_and_no_shell() -> None:
    change = MemberChange("remove", "../x; rm -rf")
    assert change.call(4, dry_run=False)[1] == "members/..%2Fx%3B%20rm%20-rf"
    assert "'../x; rm -rf'" in change.commands("http://127.0.0.1:1", 4).cli


def test_a_preflight_says_of_whom_nobody_knows_yet_whether_it_answers() -> None:
    """A member that joins is not there before it was started, and one that moves may never run where it is to be."""
    empty = GroupView(cluster=ClusterView.model_construct(), as_of="", quorum=QuorumView.model_construct(), members=())
    three = QuorumThen(voters=("n0", "n1", "n2"), needed=2, answering=("n0", "n1", "n2"), survives=1)
    four = QuorumThen(voters=(*three.voters, "n3"), needed=3, answering=(*three.voters, "n3"), survives=1)
    said = checks_of(empty, MemberChange("add", "n3", "h:1"), LeaderSays(before=three, after=four))
    texts = {one.name: one.text for one in said}
    assert texts["quorum now"] == "2 of 3 voters have to answer, 3 do: 1 may fail"
    assert texts["quorum then"].endswith("4 do, n3 among them once it has caught up: 1 may fail")
    said = checks_of(empty, MemberChange("address", "n2", "h:1"), LeaderSays(before=three, after=three))
    [moved] = [one for one in said if one.name == "address"]
    assert (moved.state, moved.text) == (
        "attention", "Until n2 runs at h:1 it counts for no quorum; none may fail meanwhile",
    )  # fmt: skip
    two = three.model_copy(update={"answering": ("n0", "n1"), "survives": 0})
    said = checks_of(empty, MemberChange("address", "n2", "h:1"), LeaderSays(before=two, after=two))
    assert "address" not in {one.name for one in said}, (
        "it is not there now either, and the quorum is counted without it"
    )
