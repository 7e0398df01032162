"""The stream routes: `GET /live/{page}` and its polling twin. They answer 401 or 404, never a redirect."""

from __future__ import annotations

import logging
from typing import Annotated

from fastapi import APIRouter, Query, Request
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import HTMLResponse, Response, StreamingResponse

from app.console.errors import ConsoleError, NotFound
from app.console.live import SUBSCRIBERS_MAX, Hub, LiveKey
from app.db.base import utc_now
from app.security.roles import Viewer

log = logging.getLogger(__name__)
router = APIRouter(include_in_schema=False)
STREAM_HEADERS = {"x-accel-buffering": "no", "cache-control": "no-store"}
Id = Annotated[str | None, Query(max_length=64)]


def key_of(request: Request, page: str, cluster: str | None, node: str | None) -> LiveKey:
    if page not in request.app.state.live_pages:
        raise NotFound(f"There is no live page called {page!r}.")
    if cluster is not None:
        request.app.state.console.group_view(cluster)
    return LiveKey(page, cluster, node, request.state.viewer.role)


@router.get("/live/{page}")
async def live(request: Request, page: str, cluster: Id = None, node: Id = None) -> Response:
    hub: Hub = request.app.state.hub
    if hub.count >= SUBSCRIBERS_MAX:
        raise ConsoleError("Too many open pages.", status=503, title="Busy", action="Close some; this page polls.")
    viewer: Viewer = request.state.viewer
    key = key_of(request, page, cluster, node)

    async def alive() -> bool:
        try:
            return bool(await request.app.state.identity.still_valid(viewer))
        except SQLAlchemyError:  # a locked database ends no stream before the session's own time
            log.exception("whether a session still holds could not be looked up")
            return viewer.expires_at is None or utc_now() < viewer.expires_at

    stream = hub.stream(key, alive)
    return StreamingResponse(stream, media_type="text/event-stream", headers=STREAM_HEADERS)


@router.get("/live/{page}/snapshot")
async def snapshot(request: Request, page: str, cluster: Id = None, node: Id = None) -> Response:
    hub: Hub = request.app.state.hub
    fragments = hub.render(key_of(request, page, cluster, node))
    return HTMLResponse("\n".join(one.html for one in fragments))
