"""Streams that would outlive what let their reader in, and readers who would take all places of streams.

A database may give a session's or token's number to the next one: what ended must not live on as somebody else's.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from sqlalchemy import select
from starlette.requests import Request

from app.console import live
from app.console.live import Fragment, Hub, LiveKey
from app.db.models import LoginSession
from app.times import utc_now
from node.access_rows import Right
from node.closed_stream import ClosedStream
from node.config import load
from node.control import guard, machine_calls, state
from node.control.app import create_app
from node.control.problems import Problem
from node.control_tokens import issue, revoke
from node.transport.machine_frames import QuestionAnswer
from node.views.events import EventsView, EventView
from tests.api.test_control_guard import run as run_control
from tests.attack.remoting_kit import drawn
from tests.attack.test_control_rights import asking
from tests.unit.console_kit import Kit, Person, run, running

HOW: Final = (
    "disabled", "ended", "logged out", "another password", "removed", "less everywhere", "nothing on one group",
    "more everywhere", "over", "idle too long", "issued in a year to come",
)  # fmt: skip
KEY: Final = LiveKey("cluster", "demo", None, "viewer")


ROLES: Final = {
    "less everywhere": {"role": "none"}, "nothing on one group": {"cluster_roles": {"demo": "none"}},
    "more everywhere": {"role": "operator"},  # what it shows is drawn for less: the page opens another one
}  # fmt: skip
CLOCKS: Final = {
    "over": {"expires_at": -1}, "idle too long": {"seen_at": -365}, "issued in a year to come": {"created_at": 365},
}  # fmt: skip


async def end(kit: Kit, boss: Person, eve: Person, how: str) -> None:
    if how == "disabled":
        done = await boss.change("PATCH", "/api/v1/users/eve", json={"disabled": True})
    elif how == "removed":
        done = await boss.change("DELETE", "/api/v1/users/eve")
    elif how in ROLES:
        done = await boss.change("PATCH", "/api/v1/users/eve", json=ROLES[how])
    elif how in CLOCKS:
        async with kit.app.state.sessions() as db, db.begin():
            session = (await db.scalars(select(LoginSession).order_by(LoginSession.id.desc()))).first()
            assert session is not None
            for name, by_days in CLOCKS[how].items():
                setattr(session, name, utc_now() + timedelta(days=by_days))
        kit.app.state.identity.noted.clear()
        return
    elif how == "logged out":
        done = await eve.change("POST", "/logout")
    elif how == "ended":
        listed = (await eve.get("/api/v1/sessions")).json()["items"]
        done = await boss.change("DELETE", f"/api/v1/sessions/{listed[0]['id']}")
    else:
        other = await kit.person("eve", "viewer")
        done = await other.change("PUT", "/api/v1/me/password", json={"password": "correct horse battery"})
        await other.change("POST", "/logout")
    assert done.status_code < 400, done.text


@pytest.mark.parametrize("how", HOW)
def test_a_stream_is_not_carried_on_by_whoever_signs_in_next(tmp_path: Path, how: str) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            identity = kit.app.state.identity
            boss, eve = await kit.person("boss", "admin"), await kit.person("eve", "viewer")
            viewer = await identity.by_cookie(eve.client.cookies[kit.app.state.cookie_name()])
            assert await identity.still_valid(viewer)
            await end(kit, boss, eve, how)
            assert not await identity.still_valid(viewer)
            for name in ("bob", "eva"):
                await kit.person(name, "viewer")
            assert not await identity.still_valid(viewer), "somebody else's session is none of eve's"

    run(work())


def test_a_token_is_not_carried_on_by_the_next_one_of_its_number(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            identity, boss = kit.app.state.identity, await kit.person("boss", "admin")
            eve = await kit.person("eve", "viewer")
            made = (await eve.change("POST", "/api/v1/tokens", json={"name": "ci"})).json()
            viewer = await identity.by_token(made["token"])
            assert await identity.still_valid(viewer)
            await end(kit, boss, eve, "removed")
            again = await kit.person("eve", "viewer")
            await again.change("POST", "/api/v1/tokens", json={"name": "ci"})
            assert not await identity.still_valid(viewer)

    run(work())


def test_a_reader_that_takes_slowly_learns_of_it_no_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beats that were sent were counted, and somebody behind by many of them went on being shown what is new."""
    monkeypatch.setattr(live, "BEAT_S", 0.02)
    monkeypatch.setattr(live, "LOOK_EVERY_S", 0.2)

    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            identity, boss = kit.app.state.identity, await kit.person("boss", "admin")
            eve = await kit.person("eve", "viewer")
            viewer = await identity.by_cookie(eve.client.cookies[kit.app.state.cookie_name()])
            hub = Hub(lambda _: [Fragment("f", "x")])
            stream = hub.stream(KEY, lambda: identity.still_valid(viewer), "eve")
            assert b"event: f" in await anext(stream)
            await end(kit, boss, eve, drawn("slow readers").choice(["disabled", "removed", "ended", *ROLES]))
            await asyncio.sleep(live.LOOK_EVERY_S)  # it takes nothing meanwhile
            assert b"event: expired" in await anext(stream)
            assert await anext(stream, None) is None
            await hub.close()

    run(work())


async def always() -> bool:
    return True


def test_nobody_takes_all_places_of_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many sessions and tokens somebody has: whoever comes gets a place of who has most."""
    monkeypatch.setattr(live, "SUBSCRIBERS_MAX", 24)
    monkeypatch.setattr(live, "SUBSCRIBERS_PER_PERSON", 10)
    rng = drawn("places of streams")

    async def work() -> None:
        hub = Hub(lambda _: [Fragment("f", "x")])
        streams: dict[str, list[Any]] = {}

        async def opened(person: str) -> bool:
            if not hub.admits(person):
                return False
            stream = hub.stream(KEY, always, person)
            await anext(stream)
            streams.setdefault(person, []).append(stream)
            return True

        greedy = [f"eve {n}" for n in range(3)]
        for _ in range(60):
            await opened(rng.choice(greedy))
        assert hub.count == 24 and max(map(len, hub.readers.values())) <= 10
        newcomers = [f"ann {n}" for n in range(rng.randrange(3, 9))]
        for one in newcomers:
            assert await opened(one)
        assert hub.count == 24 and all(len(hub.readers[one]) == 1 for one in newcomers)
        for one in rng.sample(newcomers, 2):  # who has few loses none to those who have many
            assert await anext(streams[one][0])
        ended = sum([True async for _ in drained(streams, greedy)])
        assert ended == sum(len(streams[one]) - len(hub.readers[one]) for one in greedy) >= len(newcomers)
        for stream in [one for of_person in streams.values() for one in of_person]:
            await stream.aclose()
        assert hub.count == 0 and not hub.readers and not hub.topics
        await hub.close()

    async def drained(streams: dict[str, list[Any]], people: list[str]) -> AsyncIterator[bool]:
        """One for each stream that is over."""
        for one in people:
            for stream in streams[one]:
                if await anext(stream, None) is None:
                    yield True

    monkeypatch.setattr(live, "BEAT_S", 0.05)
    asyncio.run(work())


@pytest.mark.parametrize("waits", ["kv-events", "machine/query"])
def test_a_question_that_waited_is_answered_to_nobody_whose_right_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: str
) -> None:
    """It may wait for half a minute, and what it is answered with happens at its end."""
    monkeypatch.setattr(guard, "LOOK_EVERY_S", 0.0)

    async def work() -> None:
        file = tmp_path / "tokens"
        kept, token = issue(file, "bea", Right.READ, 1)
        chosen = {
            "node.id": "n0", "node.data": str(tmp_path), "peers": "n0-127.0.0.1:1", "control.tokens_file": str(file),
            "node.state_machine": "kv",
        }  # fmt: skip
        app = create_app(load(chosen, environ={}))
        ends = [False]

        async def happens(*_asked: Any) -> QuestionAnswer | None:
            if ends[0]:
                revoke(file, kept.id)
            return None

        monkeypatch.setattr(machine_calls, "ask", happens)
        async with asking(app, token) as bea:
            for now, status in ((False, 200), (True, 401)):
                ends[0] = now
                if waits == "kv-events":
                    answer = await bea.get("/api/v1/kv-events?from=1&wait_ms=30000")
                else:
                    body = {"question": "q", "wait_ms": 30000}
                    answer = await bea.post("/api/v1/machine/query", json=body)
                assert answer.status_code == status, answer.text

    run_control(work())


async def events(_after: str | None, _age_s: float) -> EventsView:
    return EventsView(items=(EventView(id="b-1", at="", kind="role", severity="info", detail={}),), next=None)


def test_a_stream_of_a_control_plane_ends_with_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(state, "EVENTS_POLL_S", 0.01)

    async def work() -> None:
        file = tmp_path / "tokens"
        kept, token = issue(file, "bea", Right.OBSERVE, 1)
        issue(file, "ann", Right.OBSERVE, 1)
        chosen = {
            "node.id": "n0", "node.data": str(tmp_path), "peers": "n0-127.0.0.1:1", "control.tokens_file": str(file),
        }  # fmt: skip
        app = create_app(load(chosen, environ={}))
        monkeypatch.setattr(app.state.parts.snapshots, "events", events)
        seen: list[bytes] = []
        over = asyncio.Event()

        async def receive() -> Any:
            await over.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                assert message["status"] == 200
            else:
                seen.append(message["body"])

        head = [(b"host", b"127.0.0.1:8431"), (b"authorization", f"Bearer {token}".encode())]
        scope = {
            "type": "http", "method": "GET", "path": "/api/v1/events", "raw_path": b"/api/v1/events",
            "query_string": b"", "headers": [*head, (b"accept", b"text/event-stream")], "client": ("127.0.0.1", 1),
            "http_version": "1.1", "scheme": "http", "server": ("127.0.0.1", 8431), "root_path": "", "asgi": {},
        }  # fmt: skip
        stream = asyncio.create_task(app(scope, receive, send))
        async with asyncio.timeout(30):
            while sum(b": beat" in one for one in seen) < 3:  # noqa: ASYNC110 - what is awaited has no event
                await asyncio.sleep(0.01)
            assert not stream.done()
            revoke(file, kept.id)
            await stream
        assert not app.state.parts.event_readers
        over.set()

    run_control(work())


def test_nobody_takes_all_streams_of_a_control_plane() -> None:
    async def work() -> None:
        parts = SimpleNamespace(
            event_readers=Counter(), stopping=asyncio.Event(), snapshots=SimpleNamespace(events=events)
        )

        async def opened(token_id: str) -> Any:
            caller = SimpleNamespace(name="bea", token_id=token_id)
            scope = {"type": "http", "headers": [(b"accept", b"text/event-stream")], "state": {"caller": caller}}
            stream = await state.events(Request(scope), parts)  # type: ignore[arg-type]
            assert isinstance(stream, ClosedStream)
            body = aiter(stream.body_iterator)
            await anext(body)
            return body

        held = []
        with pytest.raises(Problem):
            for _ in range(state.EVENT_READERS_MAX):
                held.append(await opened("eve"))
        assert len(held) < state.EVENT_READERS_MAX
        held.append(await opened("ann"))
        for one in held:
            await one.aclose()
        assert not parts.event_readers

    asyncio.run(work())
