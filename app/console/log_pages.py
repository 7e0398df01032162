"""The pages of one log: its entries, and what was ever cut from it.

Invariants: bodies are customers' data: the gate asks for the right to read them, and writes the trail. Whatever a
member answers, there is a page, which says what is wrong with it; a list that goes on says so.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from app.api.common import ClusterId, ConsoleDep, From, Json, OfALog
from app.api.nodes import Member, Seq
from app.console.console import Console
from app.console.cursors import INT64_MAX
from app.console.drawing import page
from app.console.entries_said import CutSaid, EntriesSaid, said
from app.console.errors import ConsoleError
from app.health.group_view import GroupView

router = APIRouter(include_in_schema=False, prefix="/clusters/{cluster_id}", dependencies=[OfALog])
LOG_PAGE: Final = 50
Node = Annotated[str | None, Query(max_length=64)]
ShownAs = Annotated[Literal["text", "json", "hex"], Query(alias="as")]


@router.get("/log")
async def log(
    request: Request,
    cluster_id: ClusterId,
    console: ConsoleDep,
    from_index: From = None,
    node: Node = None,
    as_: ShownAs = "text",
    view: Literal["committed", "raw"] = "committed",
) -> Response:
    group_view = console.group_view(cluster_id)
    error, begin, following, teller = None, 0, None, node or None
    items: list[Json] = []
    start = from_index if from_index is not None else newest_page(group_view, node or None)
    try:
        answer = await console.entries(
            cluster_id, node_id=node or None, from_index=start, limit=LOG_PAGE, view=view, as_=as_
        )
        teller = str(answer["node_id"])
        found = said(EntriesSaid, answer, teller)
        items, begin, following = found.shown(as_), found.begin_index or 0, found.next
    except ConsoleError as problem:
        error, begin = problem.detail, begin_of(problem)
    context = {
        "view": group_view,
        "cluster": group_view.cluster,
        "items": items,
        "broken": [one for one in items if one["problem"]],
        "error": error,
        "node": teller,
        "as_": as_,
        "which": view,
        "from_index": start,
        "begin": begin,
        "before": max(begin, start - LOG_PAGE) if start > begin else None,
        "after": following,
    }
    return page(request, "log", context)


def begin_of(problem: ConsoleError) -> int:
    """Where the log begins, as a member's refusal may say; 0: it does not."""
    begin = problem.extra.get("begin_index")
    return begin if type(begin) is int and 0 <= begin <= INT64_MAX else 0


def newest_page(view: GroupView, node_id: str | None) -> int:
    """Where the last page of that member's committed entries begins (None: the leader's), as far as the view knows."""
    ends = [one.log.committed_index for one in view.members]
    newest = max((end for end in ends if end is not None), default=-1)
    asked = next((one for one in view.members if one.id == (node_id or view.leader_id)), None)
    begin = None if asked is None else asked.log.begin_index
    return max(begin or 0, newest - LOG_PAGE + 1)


@router.get("/truncations")
async def truncations(request: Request, cluster_id: ClusterId, console: ConsoleDep, node: Node = None) -> Response:
    view = console.group_view(cluster_id)
    listed = await console.truncations(cluster_id, node or None)
    return page(request, "truncations", {"view": view, "cluster": view.cluster, "node": node, **listed})


@router.get("/truncations/{node_id}/{seq}")
async def truncation(
    request: Request, cluster_id: ClusterId, node_id: Member, seq: Seq, console: ConsoleDep
) -> Response:
    view, cut = console.group_view(cluster_id), await cut_of(console, cluster_id, node_id, seq)
    context = {"view": view, "cluster": view.cluster, "cut": cut, "node": node_id, "seq": seq, "entries": None}
    return page(request, "truncation", context)


@router.get("/truncations/{node_id}/{seq}/entries")
async def truncation_entries(
    request: Request, cluster_id: ClusterId, node_id: Member, seq: Seq, console: ConsoleDep,
    from_index: From = None, as_: ShownAs = "text",
) -> Response:  # fmt: skip
    view, cut = console.group_view(cluster_id), await cut_of(console, cluster_id, node_id, seq)
    asked = {"from": from_index, "limit": LOG_PAGE, "as": as_}
    found = said(EntriesSaid, await console.truncation_entries(cluster_id, node_id, seq, **asked), node_id)
    context = {
        "view": view, "cluster": view.cluster, "cut": cut, "node": node_id, "seq": seq, "entries": found.shown(as_),
        "as_": as_, "from_index": from_index, "after": found.next,
    }  # fmt: skip
    return page(request, "truncation", context)


async def cut_of(console: Console, cluster_id: str, node_id: str, seq: str) -> CutSaid:
    """Raises ConsoleError."""
    return said(CutSaid, await console.ask(cluster_id, f"truncations/{seq}", node_id=node_id), node_id)
