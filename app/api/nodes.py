"""The nodes' own resources, reached through the console: one member's answer, or all members' side by side.

Every answer names the `node_id` it came from. What a node refuses is passed on as it said it.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from app.api import node_models as models
from app.api.common import (
    Begin,
    ClusterId,
    ConsoleDep,
    Cursor,
    From,
    Index,
    Json,
    Limit,
    NodeId,
    Time,
    paged,
    time_or_none,
)
from app.console.cursors import INT64_MAX
from app.console.errors import NotFound
from app.console.nodes import ANSWER_BYTES_MAX
from app.console.proxy import pick
from node.openapi_statuses import BYTES, gives, says

router = APIRouter(prefix="/clusters/{cluster_id}", tags=["nodes"])
SEGMENT_TIMEOUT_S: Final = 30.0
As = Literal["text", "json", "hex", "base64"]
Seq = Annotated[str, Path(max_length=64, pattern=r"^[A-Za-z0-9._-]+$")]
Member = Annotated[str, Path(max_length=64)]
Block = Annotated[int, Query(ge=1, le=1_000_000)]
Range = Annotated[int, Query(ge=0, le=INT64_MAX)]


@router.get("/state", responses=says(models.States))
async def state(
    cluster_id: ClusterId, console: ConsoleDep, node: NodeId = None, limit: Limit = 1000, cursor: Cursor = None
) -> Json:
    """All members' states, as last sampled; one member's, asked now, with `node`."""
    if node is not None:
        return await console.ask(cluster_id, "state", node_id=node)
    view = console.group_view(cluster_id)
    items = [
        {
            "id": one.id,
            "reach": one.reach,
            "last_seen": one.last_seen,
            "state": None if one.state is None else one.state.to_json(),
            "unknown": [missing.to_json() for missing in one.unknown],
        }
        for one in view.members
    ]
    return paged(items, lambda one: str(one["id"]), limit, cursor, as_of=view.as_of)


@router.get("/ha", responses=says(models.Pair))
async def ha(cluster_id: ClusterId, console: ConsoleDep) -> Json:
    """What each broker of a pair in classic master/slave mode said last; 404 where the group is none."""
    view = console.group_view(cluster_id)
    if not view.is_pair:
        raise NotFound("This group has a replicated log: it is no pair in classic mode.", title="No classic pair")
    items = [
        {
            "id": one.id,
            "reach": one.reach,
            "last_seen": one.last_seen,
            "ha": None if one.ha is None else one.ha.to_json(),
        }
        for one in view.members
    ]
    return {
        "items": items, "next": None, "as_of": view.as_of, "severity": view.severity,
        "sentence": view.sentence.to_json(), "master_id": view.leader_id, "epoch": view.term,
    }  # fmt: skip


@router.get("/watermarks", responses=says(models.Watermarks))
async def watermarks(
    cluster_id: ClusterId, console: ConsoleDep, node: NodeId = None, since: Time = None, until: Time = None
) -> Json:
    """The leader's watermarks; with `since`, the replicas' history from then on."""
    if since is not None:
        return await console.history(cluster_id, time_or_none(since, "since"), time_or_none(until, "until"))
    return await console.ask(cluster_id, "watermarks", node_id=node)


@router.get("/dispatchers", responses=says(models.NodeDispatchers))
async def dispatchers(
    cluster_id: ClusterId, console: ConsoleDep, node: NodeId = None, limit: Limit = 1000, cursor: Cursor = None
) -> Json:
    return await console.ask(cluster_id, "dispatchers", node_id=node, limit=limit, cursor=cursor)


@router.get("/closures", responses=says(models.NodeClosures))
async def closures(cluster_id: ClusterId, console: ConsoleDep, node: NodeId = None) -> Json:
    return await console.ask(cluster_id, "closures", node_id=node)


@router.get("/entries", responses=says(models.NodeEntries))
async def entries(
    cluster_id: ClusterId,
    console: ConsoleDep,
    from_: Begin,
    node: NodeId = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    view: Literal["committed", "raw"] = "committed",
    as_: Annotated[As, Query(alias="as")] = "text",
    consistency: Literal["linearizable"] | None = None,
) -> Json:
    """Needs `read_bodies`, and is in the trail."""
    asked = {"node_id": node, "from_index": from_, "limit": limit, "view": view, "as_": as_}
    return await console.entries(cluster_id, consistency=consistency, **asked)  # type: ignore[arg-type]


@router.get("/entries/{index}", responses=says(models.EntrySideBySide))
async def entry(
    cluster_id: ClusterId, index: Index, console: ConsoleDep, as_: Annotated[As, Query(alias="as")] = "text"
) -> Json:
    """One entry as every replica holds it. Needs `read_bodies`, and is in the trail."""
    return await console.entry(cluster_id, index, as_)


@router.get("/truncations", responses=says(models.NodeTruncations))
async def truncations(
    cluster_id: ClusterId, console: ConsoleDep, node: NodeId = None, limit: Limit = 1000, cursor: Cursor = None
) -> Json:
    """All replicas', the newest first."""
    found = await console.truncations(cluster_id, node)
    return paged(found["items"], lambda one: f"{one['node_id']}/{one['seq']}", limit, cursor, unknown=found["unknown"])


@router.get("/truncations/{node_id}/{seq}", responses=says(models.NodeTruncation))
async def truncation(cluster_id: ClusterId, node_id: Member, seq: Seq, console: ConsoleDep) -> Json:
    return await console.ask(cluster_id, f"truncations/{seq}", node_id=node_id)


@router.get("/truncations/{node_id}/{seq}/entries", responses=says(models.NodeTruncatedEntries))
async def truncation_entries(
    cluster_id: ClusterId,
    node_id: Member,
    seq: Seq,
    console: ConsoleDep,
    from_: From = None,
    limit: Limit = 50,
    as_: Annotated[As, Query(alias="as")] = "text",
    cursor: Cursor = None,
) -> Json:
    asked = {"from": from_, "limit": limit, "as": as_, "cursor": cursor}
    return await console.truncation_entries(cluster_id, node_id, seq, **asked)


@router.get("/segments", responses=says(models.NodeSegments))
async def segments(
    cluster_id: ClusterId, console: ConsoleDep, node: NodeId = None, limit: Limit = 1000, cursor: Cursor = None
) -> Json:
    return await console.ask(cluster_id, "segments", node_id=node, limit=limit, cursor=cursor)


@router.get(
    "/segments/{kind}/{name}",
    response_class=Response,
    responses=gives("application/octet-stream", BYTES, 200, 206),
)
async def segment(
    cluster_id: ClusterId,
    kind: Literal["data", "index"],
    name: Annotated[str, Path(pattern=r"^[0-9]{20}$")],
    request: Request,
    console: ConsoleDep,
    node: NodeId = None,
) -> Response:
    """Raw bytes by Range (at most 16 MiB at a time through the console)."""
    _, url = pick(console.group_view(cluster_id), node)
    wanted = request.headers.get("range") or f"bytes=0-{ANSWER_BYTES_MAX - 1}"
    passed = {"range": wanted} | {k: v for k, v in request.headers.items() if k == "if-match"}
    answer = await console.nodes.content(url, f"segments/{kind}/{name}", headers=passed, timeout_s=SEGMENT_TIMEOUT_S)
    headers = {key: answer.headers[key] for key in ("content-range", "accept-ranges", "etag") if key in answer.headers}
    # Whatever a member calls them: to a browser they are bytes.
    return Response(answer.content, answer.status_code, headers, media_type="application/octet-stream")


@router.get("/digests", responses=says(models.NodeDigests))
async def digests(
    cluster_id: ClusterId,
    console: ConsoleDep,
    from_: Begin,
    to: Range | None = None,
    block: Block = 1000,
    node: NodeId = None,
) -> Json:
    asked = {"from": from_, "to": to, "block": block}
    return await console.ask(cluster_id, "digests", node_id=node, **asked)
