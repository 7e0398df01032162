"""What the console's tests share: an app in this process, over a fake group, and people who are signed in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from fastapi import FastAPI

from app.console.app import create_app
from app.console.console import Console
from app.console.settings import ConsoleSettings, Seed
from app.health.group_view import GroupView
from app.security.links import issue_in
from app.security.secrets import csrf_token_of
from tests.databases import prepared_url
from tests.openapi_kit import Document
from tests.unit.fake_control import FakeGroup

BASE = "http://127.0.0.1:8421"


@dataclass
class Person:
    """A signed-in browser; `csrf` goes into forms or the header."""

    client: httpx2.AsyncClient
    csrf: str

    async def get(self, path: str, **more: Any) -> httpx2.Response:
        return await self.client.get(path, **more)

    async def change(self, method: str, path: str, **more: Any) -> httpx2.Response:
        headers = {
            "x-csrf-token": self.csrf,
            "origin": str(self.client.base_url).rstrip("/"),
            **more.pop("headers", {}),
        }
        return await self.client.request(method, path, headers=headers, **more)


class Documented(httpx2.ASGITransport):
    """Every test's requests, by the way, hold the API to its document: a status that occurs is documented, and what
    is no success is problem+json; every field of an answer is named there, with its type."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = await super().handle_async_request(request)
        if "/api/" in request.url.path:
            content = await answer.aread()
            documented(self.app).check(request.method, request.url.path, answer.status_code, answer.headers, content)
        return answer


DOCUMENT: list[Document] = []


def documented(app: Any) -> Document:
    """Made once: all consoles have one document."""
    if not DOCUMENT:
        DOCUMENT.append(Document(app.openapi()))
    return DOCUMENT[0]


@dataclass
class Kit:
    app: FastAPI
    group: FakeGroup
    base: str = BASE

    @property
    def console(self) -> Console:
        console: Console = self.app.state.console
        return console

    def client(self, **headers: str) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=Documented(self.app), base_url=self.base, headers=headers)

    async def link(self, name: str, role: str | None = None) -> str:
        async with self.app.state.sessions() as db, db.begin():
            return await issue_in(db, name, role)

    async def person(self, name: str = "ann", role: str = "admin") -> Person:
        client = self.client()
        answer = await client.post(await self.link(name, role), headers={"origin": self.base})
        assert answer.status_code == 303, answer.text
        return Person(client, csrf_token_of(client.cookies[self.app.state.cookie_name()]))

    async def until(self, wanted: Callable[[], Any], seconds: float = 60.0) -> Any:
        """Waits for a condition, not for a time."""
        async with asyncio.timeout(seconds):
            while not (found := wanted()):  # noqa: ASYNC110 - what is awaited has no event
                await asyncio.sleep(0.02)
        return found

    async def watched(self, cluster_id: str = "demo") -> GroupView:
        """The view once every node has been asked and the leader's views are in."""

        def complete() -> Any:
            watch = self.console.watches.get(cluster_id)
            if watch is None or not (watch.view.leader_id and watch.view.closures):
                return None
            missed = {one.node_id for one in watch.samples if one.misses}
            return watch.view if all(one.reach != "never" or one.id in missed for one in watch.view.members) else None

        found: GroupView = await self.until(complete)
        return found


@asynccontextmanager
async def running(
    tmp_path: Path, group: FakeGroup | None = None, *, seeded: bool = True, base: str = BASE,
    provider: httpx2.AsyncBaseTransport | None = None, **settings: Any,
) -> AsyncIterator[Kit]:  # fmt: skip
    group = group or FakeGroup()
    seeds = (Seed("http://127.0.0.1:8431"),) if seeded else ()
    path = tmp_path / "console.db"
    chosen = {"db_url": prepared_url(path), "seeds": seeds, "sample_interval_ms": 100, **settings}
    app = create_app(ConsoleSettings(**chosen), transport=group, provider_transport=provider)
    async with app.router.lifespan_context(app):
        yield Kit(app, group, base)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)
