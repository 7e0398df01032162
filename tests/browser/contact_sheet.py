"""One picture of all pages: `python -m tests.browser.contact_sheet [OUT]`, by default docs/pages.jpg.

Every page of the group with a finding, the group's page in every other state of the demo, wide and narrow, light and
dark, each scaled down into a sheet that the browser itself lays out.
"""

from __future__ import annotations

import base64
import sys
import tempfile
import time
from html import escape
from pathlib import Path
from unittest.mock import patch

from playwright.sync_api import Browser

from app.resources import resource
from tests.browser.kit import Console, Visitor, chromium, running_console
from tests.browser.message_states import Brokers
from tests.browser.states import (
    GROUP,
    STATES,
    held_entries,
    prepared,
    put_in_state,
)
from tests.unit.fake_pair import FakePair
from tests.unit.pair_states import forked, master_silent

SETTLES_S = 4.0
TILE_HEIGHT = 900
QUALITY = 62
SHEET_WIDTH = 2000
STYLE = """
body { margin: 24px; background: #d7dce2; font: 14px system-ui, sans-serif; display: flex; flex-wrap: wrap; gap: 18px; }
figure { margin: 0; } figcaption { padding-bottom: 4px; }
img { display: block; height: 270px; border: 1px solid #9aa5b1; }
"""


def taken(visitor: Visitor, path: str) -> bytes:
    visitor.page.goto(path)
    if visitor.page.locator("#history").count():
        visitor.page.wait_for_selector("#history canvas")
    # A busy machine may hold up console and browser for so long that the page rightly says it.
    visitor.page.wait_for_selector("#stale", state="hidden")
    return visitor.page.screenshot(type="jpeg", quality=80)


def pictures(console: Console, browser: Browser) -> list[tuple[str, bytes]]:
    assert console.group is not None
    time.sleep(SETTLES_S)
    found: list[tuple[str, bytes]] = []
    sizes = {"wide": {"width": 1280, "height": TILE_HEIGHT}, "narrow": {"width": 360, "height": TILE_HEIGHT}}
    people = {
        (size, scheme): Visitor(browser, console, viewport=view, color_scheme=scheme)
        for size, view in sizes.items()
        for scheme in ("light", "dark")
    }
    for number, state in enumerate(one for one in STATES if one != "flipped"):
        put_in_state(console.group, state)
        time.sleep(SETTLES_S)
        scheme = ("dark", "light")[number % 2]
        found.append((f"group: {state}, {scheme}", taken(people["wide", scheme], GROUP)))
        found.append((state, taken(people["narrow", scheme], GROUP)))
    paths = prepared(console)
    put_in_state(console.group, "flipped")
    time.sleep(SETTLES_S)
    for number, (name, path) in enumerate(paths.items()):
        scheme = ("light", "dark")[number % 2]
        found.append((f"{name}, {scheme}", taken(people["wide", scheme], path)))
        found.append((name, taken(people["narrow", scheme], path)))
    return found


def pair_pictures(console: Console, browser: Browser) -> list[tuple[str, bytes]]:
    """A classic pair, in step and in trouble."""
    pair, found = console.group, []
    assert isinstance(pair, FakePair)
    for state, scheme in ((None, "light"), (forked, "dark"), (master_silent, "light")):
        well = FakePair()
        pair.alive, pair.ha = well.alive, well.ha
        if state is not None:
            state(pair)
        time.sleep(SETTLES_S)
        for size, width in (("", 1280), (", narrow", 360)):
            visitor = Visitor(browser, console, viewport={"width": width, "height": TILE_HEIGHT}, color_scheme=scheme)
            name = state.__name__.replace("_", " ") if state is not None else "in step"
            found.append((f"pair: {name}{size}", taken(visitor, "/clusters/pair")))
            visitor.leave()
    return found


def sheet(browser: Browser, found: list[tuple[str, bytes]]) -> bytes:
    figures = "".join(
        f'<figure><figcaption>{escape(name)}</figcaption><img alt="" src="data:image/jpeg;base64,'
        f'{base64.b64encode(picture).decode()}"></figure>'
        for name, picture in found
    )
    page = browser.new_page(viewport={"width": SHEET_WIDTH, "height": 1000})
    page.set_content(f"<style>{STYLE}</style>{figures}")
    return page.screenshot(type="jpeg", quality=QUALITY, full_page=True)


def folder(place: str, name: str) -> Path:
    path = Path(place) / name
    path.mkdir()
    return path


def main() -> None:
    default = Path(resource("templates")).parent / "docs" / "pages.jpg"
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    with (
        patch("app.console.audit_pages.entry_on_all", held_entries),
        tempfile.TemporaryDirectory() as place,
        chromium() as browser,
    ):
        with running_console(folder(place, "group"), group=Brokers()) as console:
            found = pictures(console, browser)
        pair = FakePair()
        with running_console(folder(place, "pair"), tuple(pair.urls.values()), pair) as console:
            found += pair_pictures(console, browser)
        out.write_bytes(sheet(browser, found))
    print(f"{out}: {out.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
