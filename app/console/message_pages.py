"""The pages "Messages" of a broker group: brokers and their roles, topics and queues, groups of consumers and their
lag, messages as they lie; a test message, and where a group goes on.

Everything is asked of the control planes when a page is drawn, and again while it is open (`message_live`).

Invariants: bodies are read behind the gate's right for them; what changes something is a form, shows first what it
would do where that can be known, and ends on a page that says what came of it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Final, Literal
from urllib.parse import quote

from fastapi import APIRouter, Form, Query, Request
from starlette.responses import Response

from app.api.common import ClusterId, ConsoleDep, ViewerDep
from app.console.console import Console
from app.console.drawing import page, see
from app.console.errors import ConsoleError, Invalid
from app.console.message_live import (
    LIVE,
    Listing,
    ask,
    base,
    change,
    group_context,
    overview_context,
    topic_context,
    would_change,
)
from node.views.message_answers import Messages, OffsetsReset, Produced

__all__ = ["LIVE", "router"]

Context = Mapping[str, object]
router = APIRouter(include_in_schema=False)
FOUND: Final = 16
Name = Annotated[str, Query(max_length=255)]
FormName = Annotated[str, Form(max_length=255)]
To = Literal["earliest", "latest", "offset", "time"]
Status = Literal["SEND_OK", "FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"]
# What a message lacks that a master in classic mode has stored.
LACKS: Final[Mapping[str, str]] = {
    "SEND_OK": "", "FLUSH_DISK_TIMEOUT": "it was not on the master's disk in time",
    "FLUSH_SLAVE_TIMEOUT": "no slave had it in time", "SLAVE_NOT_AVAILABLE": "no slave is connected that could take it",
}  # fmt: skip


# --- what there is ----------------------------------------------------------------------------------------------------
@router.get("/clusters/{cluster_id}/messages")
async def overview(
    request: Request, cluster_id: ClusterId, console: ConsoleDep, viewer: ViewerDep, system: bool = False,
    part: Name = "", topics_after: Name = "", groups_after: Name = "",
) -> Response:  # fmt: skip
    listing = Listing(part.strip(), system, topics_after, groups_after)
    return page(
        request, "messages/overview", await overview_context(console, cluster_id, viewer.role_on(cluster_id), listing)
    )


@router.get("/clusters/{cluster_id}/messages/topics/{topic}")
async def topic_page(
    request: Request, cluster_id: ClusterId, topic: str, console: ConsoleDep, viewer: ViewerDep, sent: Name = "",
    status: Status = "SEND_OK",
) -> Response:  # fmt: skip
    context = await topic_context(console, cluster_id, viewer.role_on(cluster_id), topic)
    more = {"sent": sent, "lacks": LACKS[status], "form": str(uuid.uuid4())}
    return page(request, "messages/topic", {**context, **more})


@router.get("/clusters/{cluster_id}/messages/groups/{group}")
async def group_page(
    request: Request, cluster_id: ClusterId, group: str, console: ConsoleDep, viewer: ViewerDep,
    topic: Name = "", to: To = "latest", offset: Annotated[int | None, Query(ge=0)] = None,
    time: Annotated[str, Query(max_length=64)] = "", done: bool = False,
) -> Response:  # fmt: skip
    """With `topic` also what a reset of its offsets would do."""
    drawn = await group_context(console, cluster_id, viewer.role_on(cluster_id), group)
    would, refused = None, ""
    if topic and not done:
        try:
            would = await reset(console, cluster_id, group, topic, to, offset, time, dry_run=True)
        except ConsoleError as error:
            refused = error.detail
    asked = {"topic": topic, "to": to, "offset": offset, "time": time}
    return page(request, "messages/group", {**drawn, "would": would, "refused": refused, "asked": asked, "done": done})


# --- messages ---------------------------------------------------------------------------------------------------------
@router.get("/clusters/{cluster_id}/messages/find")
async def find(
    request: Request, cluster_id: ClusterId, console: ConsoleDep, viewer: ViewerDep,
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
    drawn = base(view, viewer.role_on(cluster_id))
    return page(request, "messages/find", {**drawn, "asked": asked, "found": found, "error": error})


# --- changes ----------------------------------------------------------------------------------------------------------
@router.post("/clusters/{cluster_id}/messages/topics/{topic}/send")
async def send(
    cluster_id: ClusterId, topic: str, console: ConsoleDep, viewer: ViewerDep,
    body: Annotated[str, Form(max_length=65_536)] = "", key: FormName = "", tag: FormName = "",
    form: Annotated[str, Form(max_length=64)] = "",
) -> Response:  # fmt: skip
    """A test message. `form` is another one on each page. Raises ConsoleError, which says whether it is stored."""
    if not body:
        raise Invalid("A message has a body. Nothing was stored.")
    said: dict[str, str | list[str]] = {"topic": topic, "body": body, "keys": [key.strip()] if key.strip() else []}
    if tag.strip():
        said["tag"] = tag.strip()
    work = partial(change, console, cluster_id, Produced, "messages", said)
    same = (viewer.user_id, cluster_id, topic, body, key, tag, form)
    stored = await (console.messages_sent.send(same, work) if form else work())
    path = f"/clusters/{cluster_id}/messages/topics/{quote(topic, safe='')}?sent={quote(stored.message_id)}"
    return see(path + (f"&status={stored.status}" if LACKS[stored.status] else ""))


@router.post("/clusters/{cluster_id}/messages/groups/{group}/reset")
async def reset_group(
    cluster_id: ClusterId, group: str, console: ConsoleDep, topic: FormName, to: Annotated[To, Form()],
    offset: Annotated[str, Form(max_length=20)] = "", time: Annotated[str, Form(max_length=64)] = "",
) -> Response:  # fmt: skip
    """Where the group goes on in a topic; refused while its consumers run."""
    at = int(offset) if offset.isascii() and offset.isdigit() else None
    await reset(console, cluster_id, group, topic, to, at, time, dry_run=False)
    path = f"/clusters/{cluster_id}/messages/groups/{quote(group, safe='')}?done=true&topic={quote(topic, safe='')}"
    return see(path)


async def reset(
    console: Console, cluster_id: str, group: str, topic: str, to: To, offset: int | None, time: str, *, dry_run: bool
) -> OffsetsReset:
    """Raises ConsoleError."""
    body = {
        "topic": topic, "to": to, "offset": offset if to == "offset" else None,
        "time": (time.strip() or None) if to == "time" else None, "dry_run": dry_run,
    }  # fmt: skip
    path = f"consumer-groups/{quote(group, safe='')}/reset"
    return await (would_change if dry_run else change)(console, cluster_id, OffsetsReset, path, body)
