"""The pages of a classic pair, in step and in trouble, on all widths, light and dark: nothing hides, axe is content."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.kit import Console, Visitor, axe_violations, chromium, running_console
from tests.browser.states import SCHEMES, WIDTHS, flaws, on_loop
from tests.browser.test_every_page import until, with_long
from tests.prepare import find_chromium
from tests.unit.fake_pair import FakePair
from tests.unit.pair_states import all_silent, forked, master_silent, sends_wait, slave_silent, two_masters
from tests.unit.test_pair_audit_pages import found_in

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="NOT RUN: no Chromium on this machine"),
]
PAGES: Final = ("/clusters/pair", "/clusters/pair/addresses", "/clusters/pair/events", "/")
TROUBLES: Final = {
    one.__name__: one for one in (slave_silent, master_silent, forked, sends_wait, two_masters, all_silent)
}
STATES: Final = ("in_step", *TROUBLES)
SHORT: Final = [("in_step", 1280, "light"), ("forked", 360, "dark")]


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    pair = FakePair()
    with running_console(tmp_path_factory.mktemp("pairs"), tuple(pair.urls.values()), pair) as one:
        until(lambda: "pair" in one.app.state.console.watches)
        until(lambda: len(one.app.state.console.group_view("pair").members) == len(pair.urls))
        # Nobody audited it yet: what `paths` adds is looked up by nobody, or no state would be without a problem.
        until(lambda: "pair" in one.app.state.console.audits)
        yield one


@pytest.fixture(scope="module")
def paths(console: Console, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """With the page of an audit that found a damaged record."""
    found = found_in(tmp_path_factory.mktemp("logs"))

    async def made() -> str:
        kept = console.app.state.audit_runner.kept
        row, _ = await kept.create(
            cluster_id="pair", cluster_name="pair", depth="ha", from_index=None, to_index=None,
            directory="/nowhere", requested_by="ann",
        )  # fmt: skip
        await kept.running(row.id, 1)
        await kept.finish(row.id, {"event": "result", "result": found})
        return str(row.id)

    return *PAGES, "/clusters/pair/audits", f"/clusters/pair/audits/{on_loop(console, made)}"


@pytest.fixture(scope="module")
def browser(console: Console) -> Iterator[Browser]:
    with chromium() as one:
        yield one


def put_in(console: Console, state: str) -> None:
    """The pair in that state, and its view says so."""
    pair, well = console.group, FakePair()
    assert isinstance(pair, FakePair)
    pair.alive, pair.ha = copy.deepcopy(well.alive), copy.deepcopy(well.ha)
    if state in TROUBLES:
        TROUBLES[state](pair)

    def seen() -> bool:
        view = console.app.state.console.group_view("pair")
        return bool(view.problems) == (state in TROUBLES) and view.severity != "unknown"

    until(seen)


def test_a_frozen_console_is_said_within_five_seconds_of_its_last_answer(console: Console, browser: Browser) -> None:
    """By the page's own clock, which the test turns on; the page has no stream, and htmx waits for a minute."""
    put_in(console, "in_step")
    visitor = Visitor(browser, console)
    page = visitor.page
    page.clock.install()
    page.goto("/clusters/pair")
    expect(page.locator("#stale")).to_be_hidden()
    with console.frozen():
        page.clock.run_for(5000)
        assert page.locator("#stale").is_visible()
    page.clock.resume()
    expect(page.locator("#stale")).to_be_hidden()
    visitor.leave()


@pytest.mark.parametrize(
    ("state", "width", "scheme"),
    with_long([(state, width, scheme) for state in STATES for width in WIDTHS for scheme in SCHEMES], SHORT),
)
def test_nothing_hides_and_axe_finds_nothing(
    console: Console, browser: Browser, paths: tuple[str, ...], state: str, width: int, scheme: Any
) -> None:
    put_in(console, state)
    visitor, found = Visitor(browser, console, viewport={"width": width, "height": 900}, color_scheme=scheme), []
    for path in paths:
        answer = visitor.page.goto(path)
        assert answer is not None and answer.ok, path
        visitor.page.evaluate("document.querySelectorAll('main details').forEach((one) => { one.open = true })")
        found += [f"{path}: {flaw}" for flaw in flaws(visitor.page)]
        for one in axe_violations(visitor.page):
            found.append(f"{path}: {one['id']}: {[node['html'][:140] for node in one['nodes']][:3]}")
    complaints = visitor.complaints
    visitor.leave()
    assert (found, complaints) == ([], [])
