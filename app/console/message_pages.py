"""The pages "Messages" of a broker group: brokers and their roles, topics and queues, groups of consumers and their
lag, messages as they lie; a test message, and where a group goes on.

Everything is asked of the control planes when a page is drawn (`/api/v1/broker`, `topics`, `consumer-groups`,
`messages` of a node); a page that stays open asks again every few seconds.

Invariants: bodies are read behind the gate's right for them; what changes something is a form, shows first what it
would do where that can be known, and ends on a page that says what came of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import quote

from fastapi import APIRouter, Form, Query, Request
from pydantic import BaseModel, ValidationError
from starlette.responses import RedirectResponse, Response

from app.api.common import ClusterId, ConsoleDep, ViewerDep
from app.console import messages_view as drawn
from app.console import proxy
from app.console.console import Console
from app.console.errors import ConsoleError, Invalid, NodeUnreachable
from app.console.messages_view import MemberBroker
from app.health.group_view import GroupView
from node.views.message_answers import (
    OVERDUE_MS,
    Broker,
    ConsumerGroups,
    Messages,
    OffsetsReset,
    OneConsumerGroup,
    Produced,
    Queues,
    Topic,
    Topics,
)

Context = Mapping[str, object]
A = TypeVar("A", bound=BaseModel)
router = APIRouter(include_in_schema=False)
LISTED: Final = 200
FOUND: Final = 16
Name = Annotated[str, Query(max_length=255)]
FormName = Annotated[str, Form(max_length=255)]
To = Literal["earliest", "latest", "offset", "time"]


def page(request: Request, name: str, context: Context) -> Response:
    answer: Response = request.app.state.templates.TemplateResponse(request, f"messages/{name}.html", dict(context))
    return answer


def read(kind: type[A], said: Any) -> A:
    """Raises NodeUnreachable for what no control plane of ours answers."""
    try:
        return kind.model_validate(said)
    except ValidationError:
        raise NodeUnreachable("The control plane answers something else than is expected here.", code="odd") from None


async def ask(console: Console, cluster_id: str, kind: type[A], path: str, **params: Any) -> A:
    """Of the leader's control plane, or of any that answers. Raises ConsoleError."""
    return read(kind, await console.ask(cluster_id, path, **params))


async def change(console: Console, cluster_id: str, kind: type[A], method: str, path: str, body: Any) -> A:
    """By the leader's control plane. Raises ConsoleError."""
    _, url = console.control_url(cluster_id, None)
    return read(kind, await console.nodes.json(method, url, path, json=body))


async def brokers_of(console: Console, view: GroupView) -> list[MemberBroker]:
    answers = await proxy.from_all(console.nodes, view.members, "broker")
    found: list[MemberBroker] = []
    for one, said in zip(view.members, answers, strict=True):
        try:
            if isinstance(said, ConsoleError):
                raise said
            found.append(MemberBroker(one.id, read(Broker, said)))
        except ConsoleError as error:
            found.append(MemberBroker(one.id, None, error.detail))
    return found


def base(view: GroupView) -> dict[str, object]:
    return {"view": view, "cluster": view.cluster, "drawn": drawn, "path": f"/clusters/{view.cluster.id}/messages"}


# --- what there is ----------------------------------------------------------------------------------------------------
@router.get("/clusters/{cluster_id}/messages")
async def overview(request: Request, cluster_id: ClusterId, console: ConsoleDep, system: bool = False) -> Response:
    view = console.group_view(cluster_id)
    brokers, listed = await asyncio.gather(brokers_of(console, view), lists(console, cluster_id, system))
    context = {
        **base(view),
        "brokers": [drawn.row_of(one) for one in brokers],
        "sentence_": drawn.sentence_of(brokers),
        "changes": drawn.timeline_of(brokers),
        "master": drawn.master_of(brokers),
        "overdue_ms": OVERDUE_MS,
        "kept": drawn.kept_in_words(brokers),
        "topics": listed[0],
        "groups": listed[1],
        "error": listed[2],
        "system": system,
    }
    return page(request, "overview", context)


async def lists(console: Console, cluster_id: str, system: bool) -> tuple[Topics | None, ConsumerGroups | None, str]:
    """Topics and groups, or why they are not known."""
    asked: dict[str, int | str | None] = {"limit": LISTED, "system": "true" if system else None}
    try:
        topics = await ask(console, cluster_id, Topics, "topics", **asked)
        return topics, await ask(console, cluster_id, ConsumerGroups, "consumer-groups", **asked), ""
    except ConsoleError as error:
        return None, None, error.detail


@router.get("/clusters/{cluster_id}/messages/topics/{topic}")
async def topic_page(
    request: Request, cluster_id: ClusterId, topic: str, console: ConsoleDep, sent: Name = ""
) -> Response:
    view, path = console.group_view(cluster_id), f"topics/{quote(topic, safe='')}"
    described, queues, groups = await asyncio.gather(
        ask(console, cluster_id, Topic, path),
        ask(console, cluster_id, Queues, f"{path}/queues", limit=LISTED),
        ask(console, cluster_id, ConsumerGroups, "consumer-groups", limit=LISTED),
    )
    readers = [
        one for one in groups.items if topic in one.topics or topic in {each.topic for each in one.subscriptions}
    ]
    context = {**base(view), "topic": described, "queues": queues, "groups": readers, "sent": sent}
    return page(request, "topic", context)


@router.get("/clusters/{cluster_id}/messages/groups/{group}")
async def group_page(
    request: Request, cluster_id: ClusterId, group: str, console: ConsoleDep, viewer: ViewerDep,
    topic: Name = "", to: To = "latest", offset: Annotated[int | None, Query(ge=0)] = None,
    time: Annotated[str, Query(max_length=64)] = "", done: bool = False,
) -> Response:  # fmt: skip
    """With `topic` also what a reset of its offsets would do."""
    view = console.group_view(cluster_id)
    found = await ask(console, cluster_id, OneConsumerGroup, f"consumer-groups/{quote(group, safe='')}")
    would, refused = None, ""
    if topic and not done:
        try:
            would = await reset(console, cluster_id, group, topic, to, offset, time, dry_run=True)
        except ConsoleError as error:
            refused = error.detail
    asked = {"topic": topic, "to": to, "offset": offset, "time": time}
    queues = sorted(found.queues, key=lambda one: one.lag_messages or 0, reverse=True)
    context = {
        **base(view),
        "group": found,
        "queues": queues,
        "would": would,
        "refused": refused,
        "asked": asked,
        "done": done,
    }
    return page(request, "group", context)


# --- messages ---------------------------------------------------------------------------------------------------------
@router.get("/clusters/{cluster_id}/messages/find")
async def find(
    request: Request, cluster_id: ClusterId, console: ConsoleDep,
    topic: Name = "", key: Annotated[str, Query(max_length=4096)] = "",
    id_: Annotated[str, Query(alias="id", max_length=128)] = "", queue_id: Name = "", queue_offset: Name = "",
    since: Annotated[str, Query(max_length=64)] = "", cursor: Name = "",
) -> Response:  # fmt: skip
    """Bodies are customers' data: the gate asks for the right, and writes the trail."""
    view = console.group_view(cluster_id)
    asked = {
        "topic": topic.strip(), "key": key.strip(), "id": id_.strip(), "queue_id": queue_id.strip(),
        "queue_offset": queue_offset.strip(), "from_time": since.strip(),
    }  # fmt: skip
    found, error = None, ""
    if any(asked.values()):
        given: dict[str, str | None] = {name: value or None for name, value in asked.items()}
        if asked["queue_id"] and not asked["queue_offset"] and not asked["from_time"]:
            given["queue_offset"] = "0"
        try:
            found = await ask(console, cluster_id, Messages, "messages", limit=FOUND, cursor=cursor or None, **given)
        except ConsoleError as problem:
            error = problem.detail
    return page(request, "find", {**base(view), "asked": asked, "found": found, "error": error})


# --- changes ----------------------------------------------------------------------------------------------------------
@router.post("/clusters/{cluster_id}/messages/topics/{topic}/send")
async def send(
    cluster_id: ClusterId, topic: str, console: ConsoleDep, body: Annotated[str, Form(max_length=65_536)] = "",
    key: FormName = "", tag: FormName = "",
) -> Response:  # fmt: skip
    """A test message. Raises ConsoleError, which says whether it is stored."""
    if not body:
        raise Invalid("A message has a body. Nothing was stored.")
    said: dict[str, str | list[str]] = {"topic": topic, "body": body, "keys": [key.strip()] if key.strip() else []}
    if tag.strip():
        said["tag"] = tag.strip()
    stored = await change(console, cluster_id, Produced, "POST", "messages", said)
    path = f"/clusters/{cluster_id}/messages/topics/{quote(topic, safe='')}?sent={quote(stored.message_id)}"
    return RedirectResponse(path, status_code=303)


@router.post("/clusters/{cluster_id}/messages/groups/{group}/reset")
async def reset_group(
    cluster_id: ClusterId, group: str, console: ConsoleDep, topic: FormName, to: Annotated[To, Form()],
    offset: Annotated[str, Form(max_length=20)] = "", time: Annotated[str, Form(max_length=64)] = "",
) -> Response:  # fmt: skip
    """Where the group goes on in a topic; refused while its consumers run."""
    at = int(offset) if offset.isascii() and offset.isdigit() else None
    await reset(console, cluster_id, group, topic, to, at, time, dry_run=False)
    path = f"/clusters/{cluster_id}/messages/groups/{quote(group, safe='')}?done=true&topic={quote(topic, safe='')}"
    return RedirectResponse(path, status_code=303)


async def reset(
    console: Console, cluster_id: str, group: str, topic: str, to: To, offset: int | None, time: str, *, dry_run: bool
) -> OffsetsReset:
    """Raises ConsoleError."""
    body = {
        "topic": topic, "to": to, "offset": offset if to == "offset" else None,
        "time": (time.strip() or None) if to == "time" else None, "dry_run": dry_run,
    }  # fmt: skip
    path = f"consumer-groups/{quote(group, safe='')}/reset"
    return await change(console, cluster_id, OffsetsReset, "POST", path, body)
