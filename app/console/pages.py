"""The console's pages: thin routes over the console's functions, which the REST twins call too.

Invariants: every page reads and every form posts without JavaScript; a form that changes something answers 303 to a
page that shows the outcome; `?at=` freezes a group's page and opens no stream.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Final, Literal
from urllib.parse import quote

from fastapi import APIRouter, Form, Query, Request
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import Response

from app.api import operations
from app.api.clusters import add_noted
from app.api.common import ClusterId, ConsoleDep, Cursor, Json, OfALog, Time, ViewerDep, note, time_or_none
from app.console import format as fmt
from app.console import fragments
from app.console.address_pages import token_of
from app.console.console import Console
from app.console.drawing import page, see
from app.console.errors import ConsoleError, Invalid, NotFound
from app.console.fragments import LIVE, install
from app.console.pair_view import context_of
from app.console.waterline import UNITS
from app.health.facts import capital
from app.security.roles import Viewer
from app.times import rfc3339, utc_now

__all__ = ["LIVE", "install", "router"]

Context = Mapping[str, object]
router = APIRouter(include_in_schema=False)
logger = logging.getLogger(__name__)
SUMMARY_POINTS: Final = 120
RANGES_S: Final = {"15m": 900, "1h": 3600, "1d": 86_400, "7d": 7 * 86_400, "30d": 30 * 86_400}
DEFAULT_RANGE: Final = "15m"
EVENTS_PAGE: Final = 30  # on a phone each is a card of its own: of 100 the page was 18,350 px tall
Unit = Annotated[str, Query(max_length=16)]
Text = Annotated[str, Form(max_length=256)]
Node = Annotated[str | None, Query(max_length=64)]


# --- groups --------------------------------------------------------------------------------------------------------


@router.get("/")
async def clusters(request: Request, console: ConsoleDep) -> Response:
    viewer: Viewer = request.state.viewer
    return page(request, "clusters", {**fragments.clusters_context(console, viewer.sight), "role": viewer.role})


@router.get("/clusters/new")
async def new_cluster(request: Request) -> Response:
    return page(request, "cluster_new", {"error": None, "control_url": "", "name": ""})


@router.post("/clusters")
async def add_cluster(
    request: Request, console: ConsoleDep, viewer: ViewerDep, control_url: Text, name: Text = "", node_token: Text = ""
) -> Response:
    """A wrong address comes back in the form, filled in as it was."""
    try:
        view = await add_noted(request, console, viewer, control_url, name.strip() or None, token_of(node_token))
    except ConsoleError as error:
        context = {"error": error.detail, "control_url": control_url, "name": name}
        return page(request, "cluster_new", context, error.status)
    return see(f"/clusters/{view.cluster.id}")


@router.get("/clusters/{cluster_id}")
async def group(
    request: Request,
    cluster_id: ClusterId,
    console: ConsoleDep,
    unit: Unit = "entries",
    at: Time = None,
    window: Annotated[str, Query(alias="range", max_length=8)] = DEFAULT_RANGE,
) -> Response:
    moment = time_or_none(at, "at")
    view = console.group_view(cluster_id) if moment is None else await console.view_at(cluster_id, moment)
    if view.is_pair and moment is None:
        role = request.state.viewer.role_on(cluster_id)
        return page(request, "pair/page", {"view": view, "cluster": view.cluster, "role": role, **context_of(view)})
    window = window if window in RANGES_S else DEFAULT_RANGE
    until = utc_now()
    history = await history_or_none(console, cluster_id, until - timedelta(seconds=RANGES_S[window]), until)
    unit = unit if unit in UNITS else "entries"
    context = {
        "view": view,
        "cluster": view.cluster,
        "unit": unit,
        "fragments": fragments.render_fragments(view, request.state.viewer.role_on(cluster_id), unit),
        "at": None if moment is None else rfc3339(moment),
        "now": rfc3339(until),
        "range": window,
        "range_s": RANGES_S[window],
        "ranges": tuple(RANGES_S),
        "summary": lag_summary(history, unit),
        "history_note": history["note"],
        "history_events": history["events"][:12],
    }
    return page(request, "group", context)


async def history_or_none(console: Console, cluster_id: str, since: datetime, until: datetime) -> Json:
    """The present needs no database: where the past cannot be read, the page says so and shows the rest."""
    try:
        return await console.history(cluster_id, since, until, SUMMARY_POINTS)
    except SQLAlchemyError:
        logger.exception("the history of %s could not be read", cluster_id)
        return {
            "replicas": {},
            "events": [],
            "note": "the history cannot be read: the console's database does not answer",
        }


# The unit of the scale -> the history's column, and how its values are written.
LAG_COLUMNS: Final = {
    "entries": ("lag", fmt.count),
    "bytes": ("lag_bytes", fmt.size),
    "seconds": ("lag_ms", fmt.duration_ms),
}


def lag_summary(history: Json, unit: str) -> list[Context]:
    """The chart in words: each replica's lag now and at its worst, and for how much of the time nobody knows."""
    column, spelled = LAG_COLUMNS[unit]
    rows: list[Context] = []
    for node_id, columns in sorted(history["replicas"].items()):
        lags = [lag for lag in columns[column] if lag is not None]
        rows.append(
            {
                "id": node_id,
                "now": spelled(columns[column][-1] if columns[column] else None),
                "worst": spelled(max(lags, default=None)),
                "samples": len(lags),
                "gaps": len(columns[column]) - len(lags),
            }
        )
    return rows


@router.get("/clusters/{cluster_id}/nodes/{node_id}")
async def node(
    request: Request, cluster_id: ClusterId, node_id: str, console: ConsoleDep, viewer: ViewerDep
) -> Response:
    view = console.group_view(cluster_id)
    if view.is_pair:
        return see(f"/clusters/{cluster_id}#broker-{quote(node_id)}")
    context = fragments.node_context(view, node_id, viewer.role_on(cluster_id))
    if context is None:
        raise NotFound(f"{node_id} is no member of this group.", title="Unknown node")
    return page(request, "node", context)


# --- leadership ----------------------------------------------------------------------------------------------------


@router.get("/clusters/{cluster_id}/leadership", dependencies=[OfALog])
async def leadership(request: Request, cluster_id: ClusterId, console: ConsoleDep, to: Node = None) -> Response:
    return page(request, "leadership", leadership_context(console, cluster_id, to or None))


def leadership_context(console: Console, cluster_id: str, to: str | None) -> Context:
    view = console.group_view(cluster_id)
    return {
        "view": view,
        "cluster": view.cluster,
        "to": to,
        "check": console.preflight(cluster_id, to),
        "key": str(uuid.uuid4()),
    }


@router.post("/clusters/{cluster_id}/leadership", dependencies=[OfALog])
async def move_leadership(
    request: Request,
    cluster_id: ClusterId,
    console: ConsoleDep,
    viewer: ViewerDep,
    to: Text = "",
    if_term: Annotated[int | None, Form()] = None,
    key: Text = "",
    accept_data_loss: Annotated[bool, Form()] = False,
    typed: Text = "",
) -> Response:
    """`if_term` is the term that the page showed: if the term moved meanwhile, the transfer is refused with 412.
    `typed`: the member's name once more, from who accepts that data is lost."""
    asked = {"to": to, "if_term": if_term, "accept_data_loss": accept_data_loss}
    note(request, f"clusters/{cluster_id}/leadership", after=asked)
    if accept_data_loss and typed.strip() != to:
        raise Invalid(f"To accept the loss, type the member's name, {to}, as it is written. Nothing was changed.")
    operation = await console.transfer(
        cluster_id, to or None, if_term=if_term, accept_data_loss=accept_data_loss, caller=viewer,
        idempotency_key=key or None,
    )  # fmt: skip
    note(request, f"clusters/{cluster_id}/leadership", after={**asked, "operation": operation["id"]})
    return see(f"/operations/{operation['id']}")


@router.get("/operations/{operation_id}")
async def operation(request: Request, operation_id: str, console: ConsoleDep, viewer: ViewerDep) -> Response:
    found = await operations.operation_for(console, viewer, operation_id)
    view = next((one for one in console.clusters() if one.cluster.id == found["cluster_id"]), None)
    cluster = view.cluster if view is not None else {"id": found["cluster_id"], "name": found["cluster_id"]}
    context = {
        "operation": found, "view": view, "cluster": cluster, "facts": operation_facts(found),
        "change_words": change_words(found),
    }  # fmt: skip
    return page(request, "operation", context)


# The node's own number of it says nothing to people; the sentence and its own place say the rest.
NOT_SHOWN: Final = frozenset({"type", "status", "title", "node_operation_id", "audit_id"})
PLAIN: Final = {"leader_id": "leads now", "took_ms": "took", "code": "code"}


def operation_facts(operation: Json) -> list[tuple[str, str]]:
    """What is known of it, each thing once: how it ended is the newest word, how far it was the oldest."""
    facts: dict[str, str] = {}
    for part, detail in (("problem", "why"), ("outcome", "how"), ("progress", "what")):
        for name, value in sorted((operation[part] or {}).items()):
            if name in NOT_SHOWN or not isinstance(value, str | int | float):
                continue
            label = detail if name == "detail" else PLAIN.get(name, name.replace("_", " ").removesuffix(" id"))
            text = fmt.duration_ms(value) if name.endswith("_ms") and isinstance(value, int | float) else str(value)
            if name == "index" and isinstance(value, int):
                label, text = "entry", fmt.index(value)
            if text not in facts.values():
                facts.setdefault(label, text)
    order = ("what", "how", "why")
    return sorted(facts.items(), key=lambda fact: order.index(fact[0]) if fact[0] in order else len(order))


def change_words(operation: Json) -> str:
    """What a change of the members that is done has changed, and what comes next; "" of all else."""
    if operation["kind"] != "member_change" or operation["state"] != "done":
        return ""
    what, index = str((operation["progress"] or {}).get("detail") or ""), (operation["outcome"] or {}).get("index")
    then = {
        "add": "" if what.endswith(" as a learner") else " It learns first, and votes by itself once it has caught up.",
        "replace": " The new one learns first; once it has caught up it votes by itself, and the other one leaves.",
        "remove": " End its process on its machine: it would go on running.",
    }.get(what.partition(" ")[0], "")
    committed = f" Entry {index:,} says so, and is committed." if isinstance(index, int) and index >= 0 else ""
    return f"{capital(what)}.{committed}{then}"


# --- what happened -------------------------------------------------------------------------------------------------


@router.get("/clusters/{cluster_id}/events")
async def events(request: Request, cluster_id: ClusterId, console: ConsoleDep, cursor: Cursor = None) -> Response:
    view = console.group_view(cluster_id)
    listed = await console.events(cluster_id, EVENTS_PAGE, cursor)
    return page(request, "events", {"view": view, "cluster": view.cluster, **listed, "cursor": cursor})


# --- the demo ------------------------------------------------------------------------------------------------------


@router.post("/demo/break")
async def demo_break(
    request: Request,
    console: ConsoleDep,
    what: Annotated[Literal["flip", "pause", "kill", "partition", "slow"], Form()],
    node: Text = "",
    cluster_id: Text = "",
) -> Response:
    if not request.app.state.settings.demo:
        raise NotFound("This console belongs to no demo.", title="No demo")
    if cluster_id and cluster_id not in console.watches:
        raise Invalid(f"No group is called {cluster_id!r} here.")
    done = await console.demo.break_one(what, node or None)
    return page(request, "demo_done", {"done": done, "cluster_id": cluster_id})
