"""Every page in the demo's states, on narrow and wide screens, light and dark: nothing hides, and axe finds nothing.

`make test` looks at a few of them, `make prove` at all: states x pages x widths x schemes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.kit import Console, Visitor, axe_violations, chromium, running_console
from tests.browser.message_states import Brokers
from tests.browser.states import (
    GROUP,
    SCHEMES,
    STATES,
    WIDTHS,
    flaws,
    held_entries,
    prepared,
    put_in_state,
)
from tests.prepare import find_chromium
from tests.unit.fake_control import FakeGroup

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="NOT RUN: no Chromium on this machine"),
]
SETTLED_S: Final = 60.0
FIVE: Final = (GROUP, f"{GROUP}/nodes/n4", f"{GROUP}/leadership", f"{GROUP}/log")
AXE_WIDTHS: Final = (360, 1280)
# State, width, scheme, whether axe looks as well: it takes twice as long as the rest.
SHORT: Final = [("cut-off", 360, "dark", False), ("flipped", 1280, "light", True)]
CASES: Final = [
    (state, width, scheme, width in AXE_WIDTHS) for state in STATES for width in WIDTHS for scheme in SCHEMES
]


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.console.audit_pages.entry_on_all", held_entries)
        with running_console(tmp_path_factory.mktemp("pages"), group=Brokers()) as one:
            until(lambda: "demo" in one.app.state.console.watches)
            yield one


@pytest.fixture(scope="module")
def browser(console: Console) -> Iterator[Browser]:
    with chromium() as one:
        yield one


@pytest.fixture(scope="module")
def paths(console: Console) -> dict[str, str]:
    found, notifier = prepared(console), console.app.state.notifier
    until(lambda: any(key.scope == "_console" for key in notifier.memory))
    return found


def until(wanted: Any) -> None:
    deadline = time.monotonic() + SETTLED_S
    while not wanted():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def settled(console: Console, state: str) -> None:
    """The group in that state, and its view says so."""
    assert console.group is not None
    put_in_state(console.group, state)
    silent = [one.id for one in console.group.nodes.values() if not one.alive]

    def seen() -> bool:
        view = console.app.state.console.group_view("demo")
        return [one.id for one in view.members if one.reach != "ok"] == silent

    until(seen)


def with_long(cases: list[tuple[Any, ...]], short: list[tuple[Any, ...]]) -> list[Any]:
    return [one if one in short else pytest.param(*one, marks=pytest.mark.long) for one in cases]


def violations(page: Page) -> list[dict[str, Any]]:
    """What axe finds. A page whose console is late is greyed, and says so: on a busy machine it is looked at again."""
    while True:
        page.wait_for_selector("#stale", state="hidden", timeout=SETTLED_S * 1000)
        found = axe_violations(page)
        if not page.evaluate("document.body.classList.contains('is-stale')"):
            return found


@contextmanager
def visiting(console: Console, browser: Browser, state: str, width: int, scheme: str) -> Iterator[Page]:
    """A visitor's page, once the console shows that state."""
    settled(console, state)
    visitor = Visitor(browser, console, viewport={"width": width, "height": 900}, color_scheme=scheme)
    yield visitor.page
    visitor.leave()


@pytest.mark.parametrize(("state", "width", "scheme", "axe"), with_long([SHORT[0], *CASES], SHORT))
def test_nothing_hides_and_axe_finds_nothing(
    console: Console, browser: Browser, paths: dict[str, str], state: str, width: int, scheme: str, axe: bool
) -> None:
    found = []
    with visiting(console, browser, state, width, scheme) as page:
        for name, path in paths.items():
            page.goto(path)
            if name.startswith("group"):
                page.wait_for_selector("#history canvas")
            found += [f"{name}: {flaw}" for flaw in flaws(page)]
            for one in violations(page) if axe else ():
                where = [node["html"][:140] for node in one["nodes"]][:3]
                found.append(f"{name}: {one['id']} ({one['impact']}): {where}")
    assert found == []


@pytest.mark.long
@pytest.mark.parametrize(("width", "scheme"), [(width, scheme) for width in WIDTHS for scheme in SCHEMES])
def test_five_replicas_and_the_way_in(
    tmp_path_factory: pytest.TempPathFactory, browser: Browser, width: int, scheme: str
) -> None:
    """A group of five with one cut off, and the page that a stranger sees."""
    with running_console(tmp_path_factory.mktemp("five"), group=FakeGroup(size=5)) as five:
        until(lambda: "demo" in five.app.state.console.watches)
        settled(five, "cut-off")
        visitor = Visitor(browser, five, viewport={"width": width, "height": 900}, color_scheme=scheme)
        stranger = browser.new_context(
            base_url=five.url, viewport={"width": width, "height": 900}, color_scheme=scheme
        ).new_page()
        found = []
        for page, path in [(stranger, "/login"), *((visitor.page, one) for one in FIVE)]:
            page.goto(path)
            found += [f"{path}: {flaw}" for flaw in flaws(page)]
            for one in violations(page):
                found.append(f"{path}: {one['id']}: {[node['html'][:140] for node in one['nodes']][:3]}")
        stranger.context.close()
        visitor.leave()
    assert found == []
