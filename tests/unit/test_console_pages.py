"""The pages over a fake group, without a browser: each begins with a sentence and shows only what is allowed."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from app.console.fragments import GROUP_FRAGMENTS, render_fragments
from app.resources import resource
from app.times import rfc3339, utc_now
from node.views.events import EventView
from tests.unit import views
from tests.unit.console_kit import Kit, run, running
from tests.unit.fake_control import FakeGroup, entry
from tests.unit.group_story import Story

GROUP = "/clusters/demo"
TRUNCATION = {
    "id": 3, "seq": 3, "at": "2026-11-21T03:12:44.000Z", "by": "leader", "leader_id": "n0", "term": 4,
    "from_index": 990, "to_index": 1002, "committed_index": 989, "reason": "conflict with term 4",
    "below_committed": False,
}  # fmt: skip


def over(tmp_path: Path, work: Callable[[Kit], Awaitable[None]]) -> None:
    async def running_work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            await work(kit)

    run(running_work())


def test_every_page_begins_with_a_sentence(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        kit.group.nodes["n1"].truncations = [TRUNCATION]
        ann = await kit.person()
        views = ("/log", "/log?as=json", "/log?as=hex&view=raw", "/truncations", "/events")
        paths = ("", "?unit=bytes", "/nodes/n1", "/leadership?to=n1", *views)
        for path in ("/", *(GROUP + one for one in paths)):
            answer = await ann.get(path)
            assert answer.status_code == 200, path
            assert 'class="sentence ' in answer.text, path

    over(tmp_path, work)


def test_events_come_in_pages_that_lead_back_and_forth(tmp_path: Path) -> None:
    """On a phone each event is a card: a page of 100 was 18,350 px tall."""

    async def work(kit: Kit) -> None:
        at = rfc3339(utc_now())
        happened = [EventView(id=f"b-{n}", at=at, kind="role", text=f"event {n}.") for n in range(35)]
        await kit.console.events_kept.add("demo", "n0", happened)
        ann = await kit.person()
        first = (await ann.get(f"{GROUP}/events")).text
        older = re.search(r'<a href="(\?cursor=[^"]+)">Older events', first)
        assert older is not None and first.count("<tr><td") == 30 and "Newest events" not in first
        second = (await ann.get(f"{GROUP}/events{older[1]}")).text
        assert f'<a href="{GROUP}/events">Newest events' in second and "Older events" not in second
        assert all(f"event {n}." in first + second for n in range(35))

    over(tmp_path, work)


@pytest.mark.parametrize(("severity", "said"), [("attention", "What to do about n1<"), ("info", "What to do<")])
def test_a_note_does_not_send_to_the_member_that_tells_of_it(tmp_path: Path, severity: str, said: str) -> None:
    """ "Messages wait, and no consumer of their group is connected" was to be done "about n1", its master."""

    async def work(_kit: Kit) -> None:
        noted = [views.problem("consumers_gone", severity, "n1", "Messages wait.")]
        view = views.edited(views.healthy(), lambda made: made.update(problems=noted))
        assert said in str(render_fragments(view, "viewer")["sentence"])

    over(tmp_path, work)


def test_of_many_dispatchers_those_that_append_are_folded() -> None:
    """In a group of 30 they made a page of 8,000 px, where the one that does not append stood among the others."""
    story = Story(group=FakeGroup(size=9))
    story.node("n4").dispatcher = "COMPARE"
    drawn = str(render_fragments(story.look(3), "viewer")["dispatchers"])
    before, folded = drawn.split('<details id="dispatchers-in-append"')
    assert 'id="dispatcher-n4"' in before and before.count('class="card dispatcher') == 1
    assert "<summary>7 peers in APPEND</summary>" in folded and folded.count('class="card dispatcher') == 7
    few = str(render_fragments(Story().look(3), "viewer")["dispatchers"])
    assert "<details" not in few and few.count('class="card dispatcher') == 2


def test_pages_that_say_something_else_first_say_what_is_wrong_with_the_group(tmp_path: Path) -> None:
    paths = ("/log", "/truncations", "/audits", "/addresses")

    async def work(kit: Kit) -> None:
        ann = await kit.person()
        for path in paths:
            assert "of-group" not in (await ann.get(GROUP + path)).text, path
        kit.group.nodes["n1"].alarms = [{"code": "disk_full", "severity": "critical", "text": "no space"}]
        await kit.until(lambda: kit.console.watches["demo"].view.severity == "critical")
        for path in paths:
            said = (await ann.get(GROUP + path)).text
            assert '<aside class="of-group notice critical" aria-label="What is wrong with demo">' in said, path
            assert re.search(r'class="of-group.*<a href="/clusters/demo">n1&#39;s disk is full', said), path
        assert "of-group" not in (await ann.get(GROUP)).text, "the overview begins with it"

    over(tmp_path, work)


def begins_at(kit: Kit) -> set[int | None]:
    """Where the members' logs begin, as the console knows them."""
    members = kit.console.watches["demo"].view.members
    return {one.state.log.begin_index if one.state is not None and one.state.log else None for one in members}


def test_the_page_of_a_log_that_lost_its_front_begins_where_the_log_does(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        for node in kit.group.nodes.values():
            node.begin = 980
        kit.group.nodes["n1"].retention = {
            "enabled": True, "last_removed_at": "2026-11-21T04:00:03.120Z", "last_removed": "2 data files were removed",
            "kept_by": [{"owner": "voter n2", "from_index": 990, "why": "is not connected"}],
            "pins": [{"owner": "audit-7", "from_index": 985, "expires_in_s": 60}],
        }  # fmt: skip
        await kit.until(lambda: begins_at(kit) == {980})
        ann = await kit.person("ann", "operator")
        newest = (await ann.get(f"{GROUP}/log")).text
        assert 'name="from" inputmode="numeric" pattern="[0-9]*" value="980"' in newest
        assert "begins at entry" in newest and "what was before it was removed" in newest
        assert "Earlier" not in newest, "there is nothing before it"
        gone = (await ann.get(f"{GROUP}/log?from=5")).text
        assert "This log begins at 980; 5 was removed." in gone
        assert "?from=980" in gone, "where to go on from"
        node_page = (await ann.get(f"{GROUP}/nodes/n1")).text
        for said in (
            "2 data files were removed",
            "voter n2, from entry 990 on: it is not connected",
            "audit-7, from entry 985 on, for 1 min",
        ):
            assert said in node_page, said

    over(tmp_path, work)


def test_a_viewer_reads_no_bodies_and_changes_nothing(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        eve = await kit.person("eve", "viewer")
        page = (await eve.get(GROUP)).text
        assert f"{GROUP}/log" not in page and "Make n1 leader" not in page
        assert (await eve.get(f"{GROUP}/log")).status_code == 403
        asked = await eve.change("POST", f"{GROUP}/leadership", data={"to": "n1", "if_term": "4"})
        assert asked.status_code == 403 and kit.group.leader is kit.group.nodes["n0"]

    over(tmp_path, work)


def test_a_transfer_by_form_is_refused_when_the_term_moved_since_the_page_was_shown(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        ann = await kit.person("ann", "operator")
        asked = await ann.change("POST", f"{GROUP}/leadership", data={"to": "n1", "if_term": "3"})
        assert asked.status_code == 412 and "term 4" in asked.text

    over(tmp_path, work)


def test_a_cut_of_committed_entries_is_critical(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        ann = await kit.person()
        kit.group.nodes["n1"].truncations = [TRUNCATION]
        calm = (await ann.get(f"{GROUP}/truncations")).text
        assert "990–1,002" in calm and 'class="sentence ok"' in calm
        kit.group.nodes["n1"].truncations = [{**TRUNCATION, "below_committed": True}]
        said = (await ann.get(f"{GROUP}/truncations")).text
        assert 'class="sentence critical"' in said and "Committed entries were cut on n1" in said

    over(tmp_path, work)


def test_what_was_cut_is_read_to_its_end(tmp_path: Path) -> None:
    """The first 50 entries were shown, and nothing said that there were others."""

    async def work(kit: Kit) -> None:
        ann, node = await kit.person(), kit.group.nodes["n1"]
        base = f"{GROUP}/truncations/n1/1/entries"
        cut = {**TRUNCATION, "from_index": 951, "to_index": 1100}
        node.odd["truncations"] = {**cut, "items": [entry(one, "cut") for one in range(951, 1001)], "next": "1001"}
        first = (await ann.get(base)).text
        assert "Entries 951–1,000 of 951–1,100." in first and "From the first" not in first
        assert f'href="{base}?as=text&amp;from=1001">Later' in first
        node.odd["truncations"] = {**cut, "items": [entry(1001, "cut")], "next": None}
        second = (await ann.get(f"{base}?as=text&from=1001")).text
        assert "Entries 1,001 of 951–1,100." in second and "Later" not in second
        assert f'href="{base}?as=text">From the first' in second
        asked = [one for one in kit.group.requests if one.url.path.endswith("/truncations/1/entries")]
        assert [one.url.params.get("from") for one in asked] == [None, "1001"]
        node.odd["truncations"] = {**cut, "items": [entry(951, "cut")], "next": None}
        assert "of 951" not in (await ann.get(base)).text, "it is all of it"

    over(tmp_path, work)


def test_a_record_that_cannot_be_read_is_said_on_the_page_of_its_log(tmp_path: Path) -> None:
    """Its body was shown as `null`, and the page said that all was well."""

    async def work(kit: Kit) -> None:
        ann = await kit.person()
        broken = {"index": 2, "body": None, "problem": "entry 2: body_crc does not match"}
        kit.group.nodes["n1"].odd["entries"] = {"items": [entry(1, "one"), broken, entry(3, "three")], "next": None}
        page = (await ann.get(f"{GROUP}/log?node=n1")).text
        assert 'class="sentence critical"' in page and "The record of entry 2 cannot be read on n1." in page
        assert '<span class="badge critical">damaged</span>' in page and "<code>null</code>" not in page
        assert '<span class="critical-text">entry 2: body_crc does not match</span>' in page

    over(tmp_path, work)


def test_a_wrong_control_plane_comes_back_in_the_form(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        ann = await kit.person()
        sent = {"control_url": "http://127.0.0.1:9/x", "name": "b"}
        answer = await ann.change("POST", "/clusters", data=sent)
        assert answer.status_code == 422 and 'value="http://127.0.0.1:9/x"' in answer.text

    over(tmp_path, work)


def test_what_is_not_there_is_404(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        ann = await kit.person()
        for path in ("/clusters/nope", f"{GROUP}/nodes/n9", "/operations/nope", f"{GROUP}?at=2001-01-01T00:00:00Z"):
            assert (await ann.get(path)).status_code == 404, path
        assert (await ann.change("POST", "/demo/break", data={"what": "kill"})).status_code == 404
        assert (await ann.get(f"{GROUP}?at=yesterday")).status_code == 422

    over(tmp_path, work)


@pytest.mark.parametrize("name", list(views.ALL))
@pytest.mark.parametrize("role", ["viewer", "admin"])
def test_every_fragment_of_every_view_is_one_element_with_its_id(tmp_path: Path, name: str, role: str) -> None:
    async def work(kit: Kit) -> None:
        rendered = render_fragments(views.ALL[name](), role)
        assert tuple(rendered) == GROUP_FRAGMENTS
        for fragment, html in rendered.items():
            assert re.match(rf"\s*<(\w+) id=\"live-{fragment}\"", html), fragment
            assert "None" not in html and "csrf" not in html, fragment
        led = name in ("healthy", "degraded", "empty_log")
        assert ("Make n1 leader" in rendered["members"]) == (role == "admin" and led)

    over(tmp_path, work)


def test_the_documentation_is_read_where_the_console_is(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        ann = await kit.person("ann", "viewer")
        page = await ann.get("/docs/problems")
        assert page.status_code == 200 and 'id="a-member-is-cut-off"' in page.text
        assert (await ann.get("/docs/operations.md")).status_code == 200, "as files link to each other"
        for wrong in ("/docs/nothing", "/docs/..%2fREADME", "/docs/problems.html", "/docs/nothing.svg"):
            assert (await ann.get(wrong)).status_code in (404, 422), wrong

    over(tmp_path, work)


def test_every_link_of_every_page_of_the_documentation_leads_somewhere(tmp_path: Path) -> None:
    """From the list of pages on; an anchor is one of its page."""

    async def work(kit: Kit) -> None:
        ann = await kit.person("ann", "viewer")
        html: dict[str, str] = {}
        left = ["/docs"]
        while left:
            path = left.pop()
            answer = await ann.get(path)
            assert answer.status_code == 200, path
            html[path] = "" if path.endswith(".svg") else answer.text.partition("<main")[2]
            links = [re.sub("#.*", "", one) for one in re.findall(r'(?:href|src)="(/[^"]*)"', html[path])]
            left += sorted({one for one in links if one not in html and one not in left})
        written = {f"/docs/{page.stem}" for page in resource("docs").glob("*.md")}
        assert written | {"/docs/ARCHITECTURE", "/docs/flame-one.svg"} <= html.keys() and len(written) > 20
        for path, text in html.items():
            for link in re.findall(r'(?:href|src)="([^"]*)"', text):
                if re.match("https?://", link):
                    continue
                page, _, where = link.partition("#")
                assert page in ("", *html), f"{path}: {link}"
                assert not where or f'id="{where}"' in html[page or path], f"{path}: {link}"

    over(tmp_path, work)


def test_what_to_do_is_on_the_page_with_its_commands_and_buttons_as_the_role_allows(
    tmp_path: Path,
) -> None:
    async def work(kit: Kit) -> None:
        story = Story()
        story.look()
        story.node("n2").ack_ms = 9_000
        view = story.look(6)
        html = render_fragments(view, "viewer")["sentence"]
        assert "What it means" in html and "one more failure stops them" in html
        assert "quorumscope status --node http://127.0.0.1:8433" in html
        assert 'href="/docs/problems#a-member-is-cut-off"' in html
        story.node("n2").ack_ms, story.node("n2").rtt_ms = 20, 250.0
        assert "/leadership" not in render_fragments(story.look(6), "operator")["sentence"], "a follower is slow"
        story.node("n1").rtt_ms = 250.0
        slow = story.look(6)
        assert "/leadership" in render_fragments(slow, "operator")["sentence"]
        assert "/leadership" not in render_fragments(slow, "viewer")["sentence"]

    over(tmp_path, work)


def test_static_files_go_over_the_wire_small_and_pages_as_they_are(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit, kit.client() as stranger:
            small = await stranger.get("/static/app.css", headers={"accept-encoding": "gzip"})
            plain = await stranger.get("/static/app.css", headers={"accept-encoding": "identity"})
            assert small.text == plain.text and small.headers["content-encoding"] == "gzip"
            assert small.num_bytes_downloaded < plain.num_bytes_downloaded / 2
            assert "content-encoding" not in plain.headers and "vary" in small.headers
            page = await stranger.get("/login", headers={"accept-encoding": "gzip"})
            assert page.status_code == 200 and "content-encoding" not in page.headers

    run(work())


def test_one_view_is_drawn_once_for_each_role_and_unit(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        view = kit.console.group_view("demo")
        drawn = render_fragments(view, "viewer")
        assert render_fragments(view, "viewer") is drawn
        assert render_fragments(view, "admin")["members"] != drawn["members"], "an admin may move leadership"
        assert render_fragments(view, "viewer", "bytes")["waterline"] != drawn["waterline"]
        newer = kit.console.watch_of("demo").assemble()
        assert newer is not view and render_fragments(newer, "viewer") is not drawn
        page = (await (await kit.person("vic", "viewer")).get(GROUP)).text
        assert all(f'id="live-{name}"' in page for name in GROUP_FRAGMENTS) and "&lt;div" not in page

    over(tmp_path, work)


def test_the_page_of_an_audit_asks_for_a_stream_only_where_there_is_one(tmp_path: Path) -> None:
    """A page without its stream loads itself again; one that asked for it anew would do so for ever."""

    async def work(kit: Kit) -> None:
        runner, ann = kit.app.state.audit_runner, await kit.person()
        row, _ = await runner.kept.create(
            cluster_id="demo", cluster_name="demo", depth="digest", from_index=0, to_index=9, directory="/nowhere",
            requested_by="ann",
        )  # fmt: skip
        await runner.kept.running(row.id, 1)
        place, stream = f"{GROUP}/audits/{row.id}", f"/live/audit?cluster=demo&node={row.id}"
        assert "data-live=" not in (await ann.get(place)).text
        assert (await ann.get(stream)).status_code == 404
        runner.live[row.id] = await runner.get(row.id)
        assert "data-live=" in (await ann.get(place)).text
        assert (await ann.get(stream.replace("/audit?", "/audit/snapshot?"))).status_code == 200

    over(tmp_path, work)


def test_an_audits_form_that_is_sent_twice_starts_one_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A double click started two, of everything there is."""
    keys: list[str | None] = []

    async def started(*_: Any, idempotency_key: str | None, **__: Any) -> dict[str, str]:
        keys.append(idempotency_key)
        return {"id": "a1"}

    async def work(kit: Kit) -> None:
        ann = await kit.person()
        monkeypatch.setattr("app.console.audit_pages.start_audit", started)
        drawn = [re.search(r'name="key" value="([^"]+)"', (await ann.get(f"{GROUP}/audits")).text) for _ in range(2)]
        for one in drawn:
            assert one is not None
            for _ in range(2):
                sent = await ann.change("POST", f"{GROUP}/audits", data={"depth": "chain", "key": one[1]})
                assert sent.headers["location"] == f"{GROUP}/audits/a1"
        assert keys[0] and keys[0] == keys[1] != keys[2] == keys[3]

    over(tmp_path, work)
