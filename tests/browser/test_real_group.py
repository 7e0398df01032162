"""End to end: three real nodes, the real console, a real browser, and a click that moves leadership."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Error, expect

from tests.api.group import TRIES, Group, running_group
from tests.browser.kit import Console, Visitor, chromium, running_console
from tests.prepare import find_chromium

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="NOT RUN: no Chromium on this machine"),
]


def move_by_a_click(group: Group, console: Console, browser: Browser, leader: str, target: str) -> None:
    visitor = Visitor(browser, console, "operator")
    page, watching = visitor.page, visitor.tab()
    watching.goto("/clusters/api")
    expect(watching.locator(f"#lane-{leader} .badge.leader")).to_be_visible()
    end = watching.locator(f"#lane-{target} td").nth(1)
    before = str(end.text_content())
    answer = group.post(leader, "/api/v1/entries", json={"entries": ["one", "two"], "as": "text"})
    assert answer.status_code == 200, answer.text
    expect(end).not_to_have_text(before)
    expect(watching.locator(f"#dispatcher-{target} .box.now")).to_be_visible()

    page.goto("/clusters/api")
    page.get_by_role("link", name=f"Make {target} leader").click()
    page.get_by_role("button", name=f"Make {target} leader").click()
    expect(page.locator("#operation")).to_contain_text(f"{target} leads")
    expect(watching.locator(f"#lane-{target} .badge.leader")).to_be_visible()

    page.goto("/clusters/api/log?from=0")
    expect(page.locator(".entries")).to_contain_text("two")
    page.goto(f"/clusters/api/nodes/{target}")
    expect(page.locator(".sentence")).to_contain_text(f"{target} leads")
    visitor.leave()
    assert visitor.complaints == []
    assert group.leader() == target


@pytest.mark.timeout(600)
def test_a_click_moves_leadership_of_a_real_group(tmp_path: Path) -> None:
    """Tried again where an election of the group's own moved it, too."""
    with (
        running_group(tmp_path) as group,
        running_console(tmp_path, (group.urls["n0"],)) as console,
        chromium() as browser,
    ):
        for number in range(TRIES):
            leader = group.leader()
            ((term, _), *_) = group.standing()
            target = next(one for one in group.ids if one != leader)
            try:
                move_by_a_click(group, console, browser, leader, target)
                return
            except (AssertionError, Error):
                moved = {(term, leader)}, {((term or 0) + 1, target)}
                if number == TRIES - 1 or set(group.standing()) in moved:
                    raise
