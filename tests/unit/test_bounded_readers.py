"""Event streams and digests of a control plane: one question to the engine for all, and a bound on who may ask."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from starlette.requests import Request

from node.closed_stream import ClosedStream
from node.config import load
from node.control import state
from node.control.app import create_app
from node.control.problems import Problem
from node.control.shared_work import SharedWork
from node.control.state import EVENT_READERS_MAX
from node.views.events import EventsView, EventView


def test_a_reader_too_many_is_told_when_to_come_again(tmp_path: Path) -> None:
    async def work() -> None:
        app = create_app(load({"node.id": "n0", "node.data": str(tmp_path), "peers": "n0-127.0.0.1:1"}, environ={}))
        app.state.parts.event_readers[""] = EVENT_READERS_MAX
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:1") as client:
            refused = await client.get("/api/v1/events", headers={"accept": "text/event-stream"})
            assert refused.status_code == 503 and refused.headers["retry-after"] == "5"
            assert refused.headers["content-type"] == "application/problem+json"
            assert (await client.get("/api/v1/events")).status_code == 200, "the list is there for everybody"

    asyncio.run(work())


def test_streams_that_have_come_equally_far_ask_the_engine_once(tmp_path: Path) -> None:
    async def work() -> None:
        app = create_app(load({"node.id": "n0", "node.data": str(tmp_path), "peers": "n0-127.0.0.1:1"}, environ={}))
        snapshots, asked = app.state.parts.snapshots, []

        async def ask_events(since: str | None) -> EventsView:
            asked.append(since)
            await asyncio.sleep(0)
            return EventsView(items=(), next=since)

        snapshots.ask_events = ask_events
        await asyncio.gather(*(snapshots.events("boot-7", 3600.0) for _ in range(50)))
        await asyncio.gather(*(snapshots.events("boot-9", 3600.0) for _ in range(50)))
        assert asked == ["boot-7", "boot-9"]
        for place in range(1000):
            await snapshots.events(f"boot-{place}", 3600.0)
        assert len(snapshots.events_after) <= 16, "what is remembered is bounded"

    asyncio.run(work())


def test_the_same_digests_are_computed_once_and_others_wait_their_turn() -> None:
    async def work() -> None:
        shared, begun = SharedWork[int](2), []
        both, release = asyncio.Event(), asyncio.Event()

        async def compute(key: int) -> int:
            begun.append(key)
            if len(begun) == 2:
                both.set()
            await release.wait()
            return key

        def ask(key: int) -> Any:
            return asyncio.ensure_future(shared.get(key, lambda: compute(key)))

        asking = [ask(key) for key in (1, 2) for _ in range(20)]
        await both.wait()
        with pytest.raises(Problem) as refused:
            await shared.get(3, lambda: compute(3))
        assert refused.value.status == 503 and refused.value.headers["retry-after"] == "1"
        asking[0].cancel()  # who goes away leaves the work to the others
        release.set()
        assert await asyncio.gather(*asking[1:]) == [1] * 19 + [2] * 20 and begun == [1, 2]
        assert await shared.get(3, lambda: compute(3)) == 3, "there is room again"

    asyncio.run(work())


@pytest.mark.parametrize(
    ("query", "last", "after"), [("boot-3", "boot-9", "boot-9"), ("boot-3", None, "boot-3"), (None, "boot-9", "boot-9")]
)
def test_a_stream_that_is_opened_again_goes_on_where_it_ended(
    query: str | None, last: str | None, after: str | None
) -> None:
    """A browser asks again at the same address: what `since` names there came again each time."""
    asked: list[str | None] = []

    async def events(known: str | None, _age_s: float) -> EventsView:
        asked.append(known)
        return EventsView(items=(EventView(id="boot-10", at="", kind="role", severity="info", detail={}),), next=None)

    async def work() -> None:
        parts = SimpleNamespace(
            event_readers=Counter(), stopping=asyncio.Event(), snapshots=SimpleNamespace(events=events)
        )
        request = Request({"type": "http", "headers": [(b"accept", b"text/event-stream")]})
        stream = await state.events(request, parts, since=query, last_event_id=last)  # type: ignore[arg-type]
        assert isinstance(stream, ClosedStream)
        assert "id: boot-10" in str(await anext(aiter(stream.body_iterator)))

    asyncio.run(work())
    assert asked == [after]
