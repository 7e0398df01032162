"""The real console on a real port, over a fake group, for a real browser.

The server runs in a thread with a loop of its own; `frozen()` blocks that loop, as a stopped process would: sockets
stay open and nothing answers. Tests change the fake group directly.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from app.console.app import create_app
from app.console.server import bind, make_server
from app.console.settings import ConsoleSettings, Seed
from app.security.links import issue_in
from tests.databases import migrated_file
from tests.ports import free_ports
from tests.prepare import find_chromium
from tests.unit.fake_control import FakeGroup
from tests.unit.fake_pair import FakePair

START_S = 60.0
WITHIN_MS = 60_000
expect.set_options(timeout=WITHIN_MS)  # what is expected comes; a busy machine may take its time


AXE: Final = Path(__file__).with_name("vendor") / "axe.min.js"
# Without the selectors of all that passes, which take as long as the rest.
AXE_RUN: Final = "axe.run({resultTypes: ['violations']}).then((result) => result.violations)"


class Console:
    """A running console; `group` is None when real control planes are watched."""

    def __init__(self, place: Path, seeds: Sequence[str], group: FakeGroup | FakePair | None) -> None:
        self.group = group
        self.sessions: dict[str, Any] = {}  # by role: what a browser holds once somebody has signed in
        self.db = f"sqlite:///{place / 'console.db'}"
        (place / "console.db").write_bytes(migrated_file())
        port = free_ports(1)[0]
        settings = ConsoleSettings(db_url=self.db, port=port, seeds=tuple(map(Seed, seeds)), sample_interval_ms=100)
        self.url = settings.url
        self.app = create_app(settings, transport=group)
        self.server = make_server(settings, self.app)
        self.listener = bind(settings.host, settings.port)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listener]}, daemon=True)

    def start(self) -> None:
        ready = threading.Event()
        startup = self.server.startup

        async def announced(*args: Any, **kwargs: Any) -> None:
            await startup(*args, **kwargs)
            self.loop = asyncio.get_running_loop()
            ready.set()

        self.server.startup = announced  # type: ignore[method-assign]
        self.thread.start()
        assert ready.wait(START_S), "the console did not start"

    def stop(self) -> None:
        self.server.handle_exit(signal.SIGTERM, None)
        self.thread.join(START_S)
        assert not self.thread.is_alive(), "the console did not stop"
        self.listener.close()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        held, thaw = threading.Event(), threading.Event()

        def hold() -> None:
            held.set()
            thaw.wait(2 * START_S)

        self.loop.call_soon_threadsafe(hold)
        assert held.wait(START_S)
        try:
            yield
        finally:
            thaw.set()

    def link(self, name: str, role: str) -> str:
        """A one-time login link, issued on the console's own loop."""

        async def made() -> str:
            async with self.app.state.sessions() as db, db.begin():
                return await issue_in(db, name, role)

        return self.url + asyncio.run_coroutine_threadsafe(made(), self.loop).result(START_S)


@contextmanager
def running_console(
    place: Path, seeds: Sequence[str] = ("http://127.0.0.1:8431",), group: FakeGroup | FakePair | None = None
) -> Iterator[Console]:
    console = Console(place, seeds, group)
    console.start()
    try:
        yield console
    finally:
        console.stop()


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


def axe_violations(page: Page) -> list[dict[str, Any]]:
    """What axe finds on the page as it is now."""
    page.evaluate(AXE.read_text())
    found: list[dict[str, Any]] = page.evaluate(AXE_RUN)
    return found


class Visitor:
    """A signed-in person at a browser; `complaints` is what the browser wrote to its console.

    The first of a role signs in, the next ones have the same session; where it is to end, `alone` has one of its own.
    """

    def __init__(
        self, browser: Browser, console: Console, role: str = "admin", *, alone: bool = False, **context: Any
    ) -> None:
        session = None if alone else console.sessions.get(role)
        self.context: BrowserContext = browser.new_context(base_url=console.url, storage_state=session, **context)
        self.context.set_default_timeout(WITHIN_MS)
        self.complaints: list[str] = []
        self.page = self.tab()
        if session is None:
            self._sign_in(console, role)
            if not alone:
                console.sessions[role] = self.context.storage_state()

    def _sign_in(self, console: Console, role: str) -> None:
        self.page.goto(console.link(f"{role}-{id(self)}", role))
        self.page.get_by_role("main").get_by_role("button").click()
        self.page.wait_for_url(console.url + "/")

    def tab(self) -> Page:
        page = self.context.new_page()
        page.on("console", lambda one: self.complaints.append(one.text) if one.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        return page

    def leave(self) -> None:
        self.context.close()
