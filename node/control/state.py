"""The member's state, events, metrics and health."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from node.closed_stream import ClosedStream
from node.control import ha
from node.control.common import Cursor, Json, Limit, Parts, PartsDep, answer, page_answer
from node.control.metrics import exposition
from node.control.problems import Problem
from node.control.rights import ANYBODY, Caller
from node.control.snapshots import now_text
from node.openapi_statuses import TEXT, gives, says
from node.views.answers import Alive, Health
from node.views.base import ITEMS_MAX, TEXT_MAX
from node.views.closures import ClosuresView
from node.views.events import EventsView
from node.views.replication import DispatchersView, WatermarksView
from node.views.state import AlarmView, DiskView, StateView, TimingView

router = APIRouter(prefix="/api/v1", tags=["state"])
health = APIRouter(tags=["health"])
EVENTS_POLL_S = 0.5
EVENT_READERS_MAX = 64
EVENT_READERS_PER_TOKEN = 16  # of those with a name: the one token of all may be shown by many
BEAT_POLLS = 10
Still = Callable[[], bool]  # whether a stream's reader would be let in now
STREAM = 'id: 9089bc6c2133-2\nevent: role\ndata: {"id":"9089bc6c2133-2","kind":"role"}\n\n: beat\n\n'
LastEventId = Annotated[str | None, Header(alias="Last-Event-ID", max_length=128)]


@router.get("/state", response_model=StateView)
async def state(parts: PartsDep) -> Response:
    view = await with_own_alarm(parts, await parts.snapshots.get(StateView))
    own = {"started_with": parts.started_with, "broker": parts.settings.broker.address or None}
    if any(own.values()):
        view = view.model_copy(update={name: value for name, value in own.items() if value is not None})
    return answer(view)


async def with_own_alarm(parts: Parts, view: StateView) -> StateView:
    """The engine's state, what this process itself could not read again, and what is wrong with the broker and the
    data directory."""
    if parts.broker_alarms is not None and view.engine == "ok":
        found = parts.broker_alarms.now()
        view = view.model_copy(update={"alarms": ((*(view.alarms or ()), *found))[:ITEMS_MAX]}) if found else view
    own = [*not_reread(parts)]
    if parts.data_look is not None:
        await parts.data_look.ask()
        own = [*unwritable(parts, view, parts.data_look.known), *own]
    return view.model_copy(update={"alarms": (*(view.alarms or ())[: ITEMS_MAX - len(own)], *own)}) if own else view


def not_reread(parts: Parts) -> Iterator[AlarmView]:
    if parts.rereading.text is not None:
        text, since = parts.rereading.text[:TEXT_MAX], parts.rereading.since_text
        yield AlarmView(code="control_file_not_reread", severity="warning", peer_id=None, text=text, since=since)


def unwritable(parts: Parts, view: StateView, is_denied: bool) -> Iterator[AlarmView]:
    """A file system that met errors is mounted read-only under an engine that has nothing to write just then."""
    if view.engine != "ok" or not is_denied:
        parts.unwritable_since = None
        return
    data = parts.settings.node.data
    parts.unwritable_since = parts.unwritable_since or now_text()
    text = f"nothing can be written to {data} any more (another user's, or mounted read-only): its next write ends it"
    yield AlarmView(
        code="data_unwritable", severity="critical", peer_id=None, text=text[:TEXT_MAX], since=parts.unwritable_since
    )


@router.get("/watermarks", response_model=WatermarksView)
async def watermarks(parts: PartsDep) -> Response:
    """Only a leader knows them; a follower answers with no peers, the reason and the leader's control_url."""
    return answer(await parts.snapshots.get(WatermarksView))


@router.get("/dispatchers", response_model=DispatchersView)
async def dispatchers(parts: PartsDep, limit: Limit = 1000, cursor: Cursor = None) -> Response:
    return page_answer(await parts.snapshots.get(DispatchersView), lambda one: str(one.peer_id), limit, cursor)


@router.get("/closures", response_model=ClosuresView)
async def closures(parts: PartsDep) -> Response:
    return answer(await parts.snapshots.get(ClosuresView))


@router.get("/events", response_model=EventsView, responses=gives("text/event-stream", TEXT, example=STREAM))
async def events(
    request: Request,
    parts: PartsDep,
    limit: Limit = 500,
    cursor: Cursor = None,
    since: Annotated[str | None, Query(max_length=128)] = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Oldest first, after `cursor`; as text/event-stream on demand. A range that is lost shows as a `gap`."""
    after = cursor or since or last_event_id
    if "text/event-stream" in request.headers.get("accept", ""):
        after = last_event_id or after  # who comes again asks at the same address, and says what it has since
        caller: Caller = getattr(request.state, "caller", ANYBODY)
        count, mine = parts.event_readers.total(), parts.event_readers[caller.token_id]
        if count >= EVENT_READERS_MAX or (caller.token_id and mine >= EVENT_READERS_PER_TOKEN):
            text = f"{count} streams are open already, {mine} of this token; ask for the JSON list, or try again."
            raise Problem(503, "Too many readers", text, headers={"retry-after": "5"})
        still: Still = getattr(request.state, "still", always)
        return ClosedStream(event_stream(parts, after, caller, still), media_type="text/event-stream")
    listed = await parts.snapshots.events(after)
    items = listed.items or ()
    if len(items) > limit:
        listed = listed.model_copy(update={"items": items[:limit], "next": items[limit - 1].id})
    return answer(listed)


def always() -> bool:
    return True


async def event_stream(parts: Parts, after: str | None, caller: Caller, still: Still) -> AsyncGenerator[str, None]:
    """Until the control plane stops, or the caller's token would not be let in any more."""
    parts.event_readers[caller.token_id] += 1
    try:
        async for text in events_as_text(parts, after, still):
            yield text
    finally:
        parts.event_readers[caller.token_id] -= 1
        parts.event_readers += Counter()  # without those of whom none is left


async def events_as_text(parts: Parts, after: str | None, still: Still) -> AsyncIterator[str]:
    polls = 0
    while not parts.stopping.is_set():
        listed = await parts.snapshots.events(after, EVENTS_POLL_S * 0.8)
        for item in listed.items or ():
            if not still():  # whoever takes them slowly may take the last one long after the first
                return
            yield f"id: {item.id}\nevent: {item.kind}\ndata: {json.dumps(item.to_json())}\n\n"
        after = listed.next or after
        polls += 1
        if polls % BEAT_POLLS == 0:
            if not still():
                return
            yield ": beat\n\n"
        try:
            async with asyncio.timeout(EVENTS_POLL_S):
                await parts.stopping.wait()
        except TimeoutError:
            continue


@health.get("/healthz", responses=says(Alive))
async def healthz() -> Json:
    """The control plane itself."""
    return {"status": "ok"}


READY: dict[int | str, Json] = says(Health) | says(Health, 503, "not now, and why")


@health.get("/readyz", response_model=None, responses=READY)
async def readyz(parts: PartsDep) -> Response:
    """200 while the engine runs and knows a leader."""
    state = await parts.snapshots.get(StateView)
    return verdict(state.engine == "ok" and state.leader_id is not None, state)


@health.get("/leaderz", response_model=None, responses=READY)
async def leaderz(parts: PartsDep) -> Response:
    """200 only on a leader that can commit."""
    state = await parts.snapshots.get(StateView)
    leads = state.engine == "ok" and state.role == "LEADER" and state.leader_ready is not False
    limit_ms = (state.timing or TimingView()).election_timeout_max_ms or 1000
    full = (state.disk or DiskView()).full is True
    heard = state.quorum_contact_ms is None or state.quorum_contact_ms <= limit_ms
    return verdict(leads and heard and not full, state)


def verdict(fine: bool, state: StateView) -> Response:
    reported = {"engine": state.engine, "role": state.role, "term": state.term, "leader_id": state.leader_id}
    return JSONResponse({"ok": fine, **reported}, status_code=200 if fine else 503)


@health.get(
    "/metrics", response_class=PlainTextResponse, responses=gives("text/plain", TEXT, example="quorumscope_term 4.0\n")
)
async def metrics(parts: PartsDep) -> Response:
    if parts.settings.ha.is_classic:
        return exposed(await ha.metrics(parts))
    get = parts.snapshots.get
    state, watermarks, closures = await asyncio.gather(get(StateView), get(WatermarksView), get(ClosuresView))
    broker = None if parts.broker_alarms is None else parts.broker_alarms.said
    return exposed(exposition(await with_own_alarm(parts, state), watermarks, closures, broker))


def exposed(text: str) -> Response:
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")
