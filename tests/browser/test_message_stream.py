"""The pages of messages in a browser: what changes shows without a reload, and what is typed meanwhile stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.kit import Visitor, chromium, running_console
from tests.prepare import find_chromium
from tests.unit.fake_brokers import BrokerGroup

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="NOT RUN: no Chromium on this machine"),
]
PAGE = "/clusters/demo/messages"
WITHIN_MS = 60_000


def test_pages_of_messages_change_while_they_are_open(tmp_path: Path) -> None:
    group = BrokerGroup()
    with running_console(tmp_path, group=group) as console, chromium() as browser:
        visitor = Visitor(browser, console, "operator")
        overview, topic, consumers = visitor.tab(), visitor.tab(), visitor.tab()
        for page, path in ((overview, PAGE), (topic, f"{PAGE}/topics/new"), (consumers, f"{PAGE}/groups/boards")):
            page.goto(path)
            page.locator(".live").first.wait_for(timeout=WITHIN_MS)
        topic.get_by_label("Body").fill("half a mess")
        for page in (overview, topic, consumers):
            page.evaluate("window.sameDocument = true")
        group.silent = frozenset({"n2"})
        group.changed = {
            "topics/new": {"messages_ever": 98_204_993},
            "consumer-groups/boards": {"lag_messages": 77_084},
        }
        overview.get_by_text("The broker of n2 is down.").wait_for(timeout=WITHIN_MS)
        topic.get_by_text("98,204,993 were stored").wait_for(timeout=WITHIN_MS)
        consumers.get_by_text("77,084 messages").first.wait_for(timeout=WITHIN_MS)
        for page in (overview, topic, consumers):
            assert page.evaluate("window.sameDocument") is True
        assert topic.get_by_label("Body").input_value() == "half a mess"
        complaints = visitor.complaints
        visitor.leave()
        assert complaints == []
