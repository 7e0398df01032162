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


def sheet(browser: Browser, found: list[tuple[str, bytes]]) -> bytes:
    figures = "".join(
        f'<figure><figcaption>{escape(name)}</figcaption><img alt="" src="data:image/jpeg;base64,'
        f'{base64.b64encode(picture).decode()}"></figure>'
        for name, picture in found
    )
    page = browser.new_page(viewport={"width": SHEET_WIDTH, "height": 1000})
    page.set_content(f"<style>{STYLE}</style>{figures}")
    return page.screenshot(type="jpeg", quality=QUALITY, full_page=True)


def main() -> None:
    default = Path(resource("templates")).parent / "docs" / "pages.jpg"
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    with (
        patch("app.console.audit_pages.entry_on_all", held_entries),
        tempfile.TemporaryDirectory() as place,
        running_console(Path(place), group=Brokers()) as console,
        chromium() as browser,
    ):
        out.write_bytes(sheet(browser, pictures(console, browser)))
    print(f"{out}: {out.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
