"""A page whose connections are lost without a word, as when a router forgets them or a laptop changes its network: what
the browser holds stays open and carries nothing, and new connections are whole."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from app.demo.relay import Relay
from tests.browser.kit import START_S, Console, Visitor, chromium, running_console
from tests.prepare import find_chromium
from tests.unit.fake_control import FakeGroup

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="NOT RUN: no Chromium on this machine"),
]


@contextmanager
def relay_to(console: Console) -> Iterator[Relay]:
    """Between the browser and the console, on the console's own loop."""
    relay = Relay(("127.0.0.1", urlsplit(console.url).port or 0))
    asyncio.run_coroutine_threadsafe(relay.start(), console.loop).result(START_S)
    try:
        yield relay
    finally:
        asyncio.run_coroutine_threadsafe(relay.stop(), console.loop).result(START_S)


def test_a_stream_that_is_lost_without_a_word_is_opened_anew(tmp_path: Path) -> None:
    """Else the page is called stale and fresh in turn, for as long as it is open."""
    with (
        running_console(tmp_path, group=FakeGroup()) as console,
        relay_to(console) as relay,
        chromium() as browser,
    ):
        page = Visitor(browser, console).page
        with page.expect_request(lambda one: one.resource_type == "eventsource"):
            page.goto(f"http://127.0.0.1:{relay.port}/clusters/demo")
        expect(page.locator("#lane-n0 .badge.leader")).to_be_visible()
        with page.expect_request(lambda one: one.resource_type == "eventsource"):
            console.loop.call_soon_threadsafe(relay.lose)
            expect(page.locator("#stale")).to_be_visible()
            expect(page.locator("#stale")).to_be_hidden()
