"""The stream routes: `GET /live/{page}` and its polling twin. They answer 401 or 404, never a redirect."""

from __future__ import annotations

import logging
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import HTMLResponse, Response

from app.api.common import need
from app.console.errors import ConsoleError, NotFound
from app.console.live import Hub, LiveKey
from app.security.roles import Right, Viewer
from app.times import utc_now
from node.closed_stream import ClosedStream

log = logging.getLogger(__name__)
router = APIRouter(include_in_schema=False)
# These name an audit there, and its renderer refuses one that is none.
NODE_IS_AN_AUDIT: Final = frozenset({"audit"})
STREAM_HEADERS = {"x-accel-buffering": "no", "cache-control": "no-store"}
Id = Annotated[str | None, Query(max_length=64)]
Name = Annotated[str, Query(max_length=2048)]  # of a topic, of a group of consumers, or what a page lists


def key_of(request: Request, page: str, cluster: str | None, node: str | None, name: str) -> LiveKey:
    if page not in request.app.state.live_pages:
        raise NotFound(f"There is no live page called {page!r}.")
    viewer: Viewer = request.state.viewer
    if cluster is not None:
        need(viewer, Right.VIEW, cluster)
        view = request.app.state.console.group_view(cluster)
        if node is not None and page not in NODE_IS_AN_AUDIT and view.member(node) is None:
            raise NotFound(f"{node!r} is no member of this group.", title="Unknown node")
    elif node is not None:
        raise NotFound("A node is one of a group: name the cluster as well.", title="Unknown node")
    if cluster is None:
        return LiveKey(page, None, None, viewer.role, viewer.sight)
    return LiveKey(page, cluster, node, viewer.role_on(cluster), name=name)


@router.get("/live/{page}")
async def live(request: Request, page: str, cluster: Id = None, node: Id = None, name: Name = "") -> Response:
    hub: Hub = request.app.state.hub
    viewer: Viewer = request.state.viewer
    key = key_of(request, page, cluster, node, name)
    await hub.check(key)
    if not hub.admits(viewer.name):
        raise ConsoleError(
            "Too many open pages.", status=503, title="Busy", action="Close some; this page polls.",
            headers={"retry-after": "5"},
        )  # fmt: skip

    async def alive() -> bool:
        try:
            return bool(await request.app.state.identity.still_valid(viewer))
        except SQLAlchemyError:  # a locked database ends no stream before the session's own time
            log.exception("whether a session still holds could not be looked up")
            return viewer.expires_at is None or utc_now() < viewer.expires_at

    stream = hub.stream(key, alive, viewer.name)
    return ClosedStream(stream, media_type="text/event-stream", headers=STREAM_HEADERS)


@router.get("/live/{page}/snapshot")
async def snapshot(request: Request, page: str, cluster: Id = None, node: Id = None, name: Name = "") -> Response:
    hub: Hub = request.app.state.hub
    drawn = await hub.drawn(key_of(request, page, cluster, node, name))
    return HTMLResponse("\n".join(one.html for one in drawn.fragments))
