"""The console in headless Chromium: it lives, says when it does not, and works without a mouse and without scripts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, expect

from app.times import rfc3339, utc_now
from tests.browser.kit import Console, Visitor, axe_violations, chromium, running_console
from tests.prepare import find_chromium
from tests.unit.fake_control import FakeGroup

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="NOT RUN: no Chromium on this machine"),
]
HISTORY = "fetch('/api/v1/clusters/demo/history').then(one => one.json())"
GROUP = "/clusters/demo"
PAGES = (
    "/", f"{GROUP}/leadership", f"{GROUP}/nodes/n1", f"{GROUP}/log", f"{GROUP}/events", "/account", "/users",
    "/admin-trail", GROUP,
)  # fmt: skip
CARDS_TO = 768  # so wide a screen has a card for each row
Visit = Callable[..., Visitor]


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    with running_console(tmp_path_factory.mktemp("console"), group=FakeGroup()) as one:
        yield one


@pytest.fixture(scope="module")
def browser(console: Console) -> Iterator[Browser]:
    with chromium() as one:
        yield one


@pytest.fixture
def visit(browser: Browser, console: Console) -> Iterator[Visit]:
    """Signs somebody in; after the test the browser must not have complained (a CSP violation is a complaint)."""
    visitors: list[Visitor] = []

    def one(role: str = "admin", **context: Any) -> Visitor:
        visitors.append(Visitor(browser, console, role, **context))
        return visitors[-1]

    yield one
    complaints = [text for visitor in visitors for text in visitor.complaints]
    for visitor in visitors:
        visitor.leave()
    assert complaints == []


@pytest.fixture
def group(console: Console) -> Iterator[FakeGroup]:
    """The fake group; put back afterwards."""
    group = console.group
    assert group is not None
    yield group
    fresh = FakeGroup()
    group.term, group.committed, group.closures = fresh.term, fresh.committed, fresh.closures
    for node in group.nodes.values():
        default = fresh.nodes[node.id]
        for name in ("alive", "engine", "end", "durable", "role", "ack_ms", "dispatcher", "transitions", "alarms"):
            setattr(node, name, getattr(default, name))


def test_a_change_moves_the_waterline_without_a_reload(visit: Visit, group: FakeGroup) -> None:
    page = visit().page
    page.goto(GROUP)
    end = page.locator("#lane-n2 td").nth(1)
    expect(end).to_have_text("1,000")
    before = page.locator("#lane-n2 .lane line.end").get_attribute("x1")
    page.evaluate("window.kept = document.getElementById('lane-n2')")
    group.nodes["n2"].end = group.nodes["n2"].durable = 940
    expect(end).to_have_text("940")
    expect(page.locator("#lane-n2 .lane line.end")).not_to_have_attribute("x1", str(before))
    assert page.evaluate("window.kept === document.getElementById('lane-n2')"), "the row is morphed, not replaced"


def test_leadership_moves_a_badge_and_never_a_row(visit: Visit, group: FakeGroup) -> None:
    page = visit().page
    page.goto(GROUP)
    order = page.locator(".waterline tbody tr").evaluate_all("rows => rows.map(row => row.id)")
    expect(page.locator("#lane-n0 .badge.leader")).to_have_text("leader")
    group.lead("n2")
    expect(page.locator("#lane-n2 .badge.leader")).to_have_text("leader")
    expect(page.locator("#lane-n0 .badge.leader")).to_have_count(0)
    assert page.locator(".waterline tbody tr").evaluate_all("rows => rows.map(row => row.id)") == order


def test_a_morph_keeps_what_the_operator_opened(visit: Visit, group: FakeGroup) -> None:
    group.closures = {
        "pending": 3,
        "limit": 10_000,
        "oldest_age_ms": 640,
        "groups": [{"waits_for": ["n1", "n2"], "needed": 1, "count": 3, "first_index": 1001, "last_index": 1003,
                    "oldest_age_ms": 640, "bytes": 900}],
        "items": [{"first_index": n, "last_index": n, "term": 4, "age_ms": 640, "waits_for": ["n1", "n2"]}
                  for n in (1001, 1002, 1003)],
    }  # fmt: skip
    page = visit().page
    page.goto(GROUP)
    page.locator("#closure-items summary").click()
    group.closures = {**group.closures, "oldest_age_ms": 650}
    expect(page.locator("#live-closures .lead")).to_contain_text("650 ms")
    expect(page.locator("#closure-items")).to_have_attribute("open", "")


def test_the_name_of_the_tab_says_how_severe_it_is(visit: Visit, group: FakeGroup) -> None:
    """Among other tabs a group in trouble looked as one that is well."""
    page = visit().page
    page.goto(GROUP)
    expect(page).to_have_title("demo · Quorumscope")
    group.nodes["n2"].alive = False
    expect(page).to_have_title("Degraded: demo · Quorumscope")
    group.nodes["n2"].alive = True
    expect(page).to_have_title("demo · Quorumscope")


def test_a_frozen_console_marks_the_page_stale_and_thaws(visit: Visit, console: Console) -> None:
    visitor = visit()
    visitor.page.goto(GROUP)
    expect(visitor.page.locator("#stale")).to_be_hidden()
    with console.frozen():
        expect(visitor.page.locator("#stale")).to_be_visible()
        expect(visitor.page.locator("body")).to_have_class("is-stale")
        expect(visitor.page.locator("#stale time")).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
        expect(visitor.page.locator("#lane-n0")).to_be_visible()
    expect(visitor.page.locator("#stale")).to_be_hidden()
    expect(visitor.page.locator("body")).not_to_have_class("is-stale")


def test_the_banner_comes_within_five_seconds_of_the_last_word(visit: Visit, console: Console) -> None:
    """By the pages' own clock, which the test turns on: one that follows the group, one that follows nothing."""
    visitor = visit()
    live, still = visitor.page, visitor.tab()
    live.clock.install()  # of both: of their context
    live.goto(GROUP)
    still.goto(f"{GROUP}/log")
    expect(live.locator("#lane-n0 .badge.leader")).to_be_visible()
    expect(still.locator("#stale")).to_be_hidden()
    with console.frozen():
        live.clock.run_for(5000)
        assert live.locator("#stale").is_visible() and still.locator("#stale").is_visible()
    live.clock.resume()
    expect(still.locator("#stale")).to_be_hidden()


def test_a_browser_that_stood_still_does_not_call_the_console_silent(visit: Visit, console: Console) -> None:
    """A lid that was closed: one look, long after the last one, with all that came meanwhile still unread."""
    visitor = visit()
    live, still = visitor.page, visitor.tab()
    live.clock.install()
    live.goto(GROUP)
    still.goto(f"{GROUP}/log")
    expect(live.locator("#lane-n0 .badge.leader")).to_be_visible()
    with console.frozen():
        now_ms = live.evaluate("Date.now()")
        live.clock.pause_at(datetime.fromtimestamp(now_ms / 1000 + 60, UTC))
        for page in (live, still):
            assert page.locator("#stale").is_hidden(), "nobody knows yet"
        live.clock.run_for(1500)
        for page in (live, still):
            assert page.locator("#stale").is_visible(), "what is not heard soon is stale"
    live.clock.resume()
    expect(live.locator("#stale")).to_be_hidden()
    expect(still.locator("#stale")).to_be_hidden()


def test_a_console_that_beats_but_looks_no_more_is_stale_too(
    visit: Visit, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = visit().page
    page.goto(GROUP)
    watch = console.app.state.console.watches["demo"]
    with monkeypatch.context() as patch:
        patch.setattr(watch, "assemble", lambda: watch.view)
        expect(page.locator("#stale")).to_be_visible()
    expect(page.locator("#stale")).to_be_hidden()


@pytest.mark.long
def test_seven_tabs_do_not_hang(visit: Visit, group: FakeGroup) -> None:
    visitor = visit()
    tabs = [visitor.tab() for _ in range(7)]
    for tab in tabs:
        tab.goto(GROUP)
    group.nodes["n1"].end = group.nodes["n1"].durable = 977
    for tab in tabs:
        expect(tab.locator("#lane-n1 td").nth(1)).to_have_text("977")
    tabs[6].goto("/")
    expect(tabs[6].locator("#cluster-demo")).to_be_visible()


def test_the_status_region_speaks_only_when_the_problems_change(visit: Visit, group: FakeGroup) -> None:
    page = visit().page
    page.goto(GROUP)
    expect(page.locator("#live-status")).to_have_text("No problem is known.")
    page.evaluate(
        "window.spoken = 0; new MutationObserver(() => window.spoken++)"
        ".observe(document.getElementById('live-status'), {childList: true, characterData: true, subtree: true})"
    )
    for end in (990, 980, 970, 960):  # a console that was not given the processor may take a member for silent
        page.evaluate("window.spoken = 0")
        group.nodes["n1"].end = group.nodes["n1"].durable = end
        expect(page.locator("#lane-n1 td").nth(1)).to_have_text(str(end))
        if page.evaluate("window.spoken") == 0:
            break
    else:
        raise AssertionError("it speaks whenever a number changes")
    group.nodes["n1"].alarms = [{"kind": "disk_low", "detail": "3 % left", "since": rfc3339(utc_now())}]
    expect(page.locator("#live-status")).to_contain_text("alarm disk low on n1")


def test_the_keyboard_reaches_everything_and_steps_through_time(visit: Visit, console: Console) -> None:
    page = visit().page
    page.goto(GROUP)
    page.wait_for_selector("#history canvas")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("(document.activeElement.getAttribute('href') || document.activeElement.localName)"))
    assert {f"{GROUP}/leadership", f"{GROUP}/nodes/n1", "?unit=bytes", "summary"} <= reached
    page.wait_for_function(f"{HISTORY}.then(one => one.t.length > 2)")
    page.reload()
    page.wait_for_selector("#history canvas")
    page.keyboard.press("ArrowLeft")
    page.wait_for_url("**/*at=*")
    expect(page.locator(".frozen")).to_contain_text("Back to live")
    page.keyboard.press("l")
    page.wait_for_url(lambda url: "at=" not in url)


def test_a_drag_over_the_history_freezes_the_lanes(visit: Visit) -> None:
    page = visit().page
    page.goto(GROUP)
    page.wait_for_function(f"{HISTORY}.then(one => one.t.length > 2)")
    page.goto(GROUP + "?range=15m")
    page.wait_for_selector("#history canvas")
    over = page.locator("#history .u-over")
    box = over.bounding_box()
    assert box is not None
    ends = [{"x": box["width"] - off, "y": 50} for off in (60, 2)]
    over.drag_to(over, source_position=ends[0], target_position=ends[1])
    page.wait_for_url("**/*at=*")
    expect(page.locator(".frozen")).to_be_visible()
    assert page.locator("[data-live]").count() == 0, "a frozen page opens no stream"


@pytest.mark.long
def test_a_drag_outlives_a_chart_that_was_asked_for_before_it(visit: Visit) -> None:
    page = visit().page
    page.goto(GROUP)
    page.wait_for_function(f"{HISTORY}.then(one => one.t.length > 2)")
    page.reload()
    over = page.locator("#history .u-over")
    over.wait_for()
    late: list[Route] = []
    page.route("**/history?*", lambda route: late.append(route))
    with page.expect_request("**/history?*"):
        pass
    over.hover(position={"x": 400, "y": 50})
    page.mouse.down()
    with page.expect_response("**/history?*"):
        late[0].continue_()
    page.evaluate("new Promise(requestAnimationFrame)")
    page.mouse.up()
    page.wait_for_url("**/*at=*")


# test_every_page.py has all pages in light colours.
@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.long), "dark"])
def test_axe_finds_no_serious_violation(visit: Visit, group: FakeGroup, scheme: str) -> None:
    page = visit(color_scheme=scheme).page
    group.nodes["n2"].dispatcher = "COMPARE"
    group.nodes["n2"].dispatcher_since = rfc3339(utc_now() - timedelta(seconds=9))
    paths = ["/", GROUP, f"{GROUP}/leadership?to=n1", f"{GROUP}/nodes/n2", f"{GROUP}/events", f"{GROUP}/truncations"]
    for path in [*paths, f"{GROUP}/log", "/clusters/new"]:
        page.goto(path)
        serious = [
            (one["id"], [node["html"][:120] for node in one["nodes"]])
            for one in axe_violations(page)
            if one["impact"] in ("serious", "critical")
        ]
        assert serious == [], f"{path}: {json.dumps(serious, indent=1)}"


# test_every_page.py has all pages at 360 and 1280.
@pytest.mark.parametrize(
    "width", [pytest.param(360, marks=pytest.mark.long), 768, pytest.param(1280, marks=pytest.mark.long), 1920]
)
def test_no_page_is_wider_than_the_screen_and_no_column_hides(visit: Visit, width: int) -> None:
    """Where a row becomes a card, too: every cell is drawn inside the screen, under its column's name."""
    page = visit(viewport={"width": width, "height": 900}).page
    for path in PAGES:
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
        outside = page.evaluate(
            """() => [...document.querySelectorAll('main tbody td, main tbody th')].filter((cell) => {
                 const box = cell.getBoundingClientRect();
                 return box.width > 0 && (box.left < -1 || box.right > innerWidth + 1);
               }).map((cell) => cell.textContent.trim())"""
        )
        assert outside == [] or width > CARDS_TO, f"{path} at {width}"
    button = page.get_by_role("link", name="Make n1 leader").bounding_box()
    assert button is not None and button["x"] >= 0 and button["x"] + button["width"] <= width
    assert page.locator("#member-n1 td[data-label='Durable']").is_visible()


def test_the_chart_names_the_newest_value_without_a_pointer(visit: Visit) -> None:
    page = visit().page
    page.goto(GROUP)
    values = page.locator(".history .u-legend .u-series:not(.edge) .u-value")
    expect(values.nth(1)).to_have_text("0")
    expect(values.first).not_to_have_text("")


def test_without_scripts_every_page_reads_and_the_form_moves_leadership(visit: Visit, group: FakeGroup) -> None:
    page = visit("operator", java_script_enabled=False).page
    page.goto("/")
    expect(page.locator(".sentence")).to_be_visible()
    page.get_by_role("link", name="demo", exact=True).click()
    for heading in ("Waterline", "Lag", "Dispatchers", "Closures", "Members"):
        expect(page.get_by_role("heading", name=heading)).to_be_visible()
    for tab in ("Log", "Truncations", "Events", "Audits", "Leadership"):
        page.get_by_role("navigation", name="demo").get_by_role("link", name=tab).click()
        expect(page.locator("h1")).to_be_visible()
    page.goto(GROUP)
    page.get_by_role("link", name="Make n1 leader").click()
    page.get_by_role("button", name="Make n1 leader").click()
    page.wait_for_url("**/operations/*")
    expect(page.locator("#operation[data-state=done]")).to_be_visible()
    assert group.leader is not None and group.leader.id == "n1"


def test_a_viewer_sees_no_lever_and_an_operator_moves_leadership_by_a_click(visit: Visit, group: FakeGroup) -> None:
    looking = visit("viewer").page
    looking.goto(GROUP)
    expect(looking.get_by_role("link", name="Make n1 leader")).to_have_count(0)
    page = visit("operator").page
    page.goto(GROUP)
    page.get_by_role("link", name="Make n1 leader").click()
    expect(page.locator(".checks")).to_contain_text("n1 is 0 entries behind")
    expect(page.locator(".shell code").first).to_contain_text("quorumscope transfer")
    page.get_by_role("button", name="Make n1 leader").click()
    expect(page.locator("#operation")).to_contain_text("n1 leads term 5")
    expect(looking.locator("#lane-n1 .badge.leader")).to_be_visible()


def test_a_dead_session_leads_to_the_login(visit: Visit) -> None:
    visitor = visit(alone=True)
    other = visitor.tab()
    visitor.page.goto(GROUP)
    other.goto("/")
    other.get_by_role("button", name="Log out").click()
    other.wait_for_url("**/login*")
    visitor.page.wait_for_url("**/login?next=*")
    visitor.complaints[:] = [one for one in visitor.complaints if "401" not in one]


def test_what_is_printed_is_dark_on_light_also_from_a_dark_screen(browser: Browser, console: Console) -> None:
    visitor = Visitor(browser, console, color_scheme="dark")
    visitor.page.goto(GROUP)
    card = visitor.page.locator(".card").first
    ink = "one => getComputedStyle(one).backgroundColor.match(/[0-9]+/g).slice(0, 3).map(Number)"
    assert max(card.evaluate(ink)) < 64
    visitor.page.emulate_media(media="print", color_scheme="dark")
    assert min(card.evaluate(ink)) > 192
    visitor.leave()
