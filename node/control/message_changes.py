"""Changing a broker over REST: a message of an operator's own, topics, and where a consumer group goes on.

The broker is asked with RocketMQ's own requests, so its limits are in force; the master alone does it, else 421 with
who leads. Every call is in the node's trail.

Invariants: what is refused has changed nothing (`outcome: not_appended`); what may have happened is 504; a group's
offsets are not moved under consumers that would commit their own over it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter
from pydantic import Field

from node.control.broker_link import NOT_STORED, BrokerLink, Json, broker_away, changed, refusal, unknown
from node.control.common import INT64_MAX, Parts, PartsDep, not_leader, state_to_act_on
from node.control.entries import raw_bytes
from node.control.messages import check_name, epoch_ms, link_of, timed
from node.control.problems import Problem
from node.control.trail import RECORDING
from node.message_client.errors import ClientError, Unavailable
from node.message_client.outgoing import OutgoingMessage, properties_of
from node.message_client.producer import STORED
from node.message_store.java_text import text_of
from node.message_store.new_message import MESSAGE_BYTES_MAX
from node.message_store.properties import UNIQ_KEY, parse_properties
from node.openapi_statuses import says
from node.rocketmq.bodies import NAME_CHARS_MAX, PERM_WRITE
from node.rocketmq.codes import Answer, Request
from node.rocketmq.header_fields import HeaderError, read_header, write_header
from node.rocketmq.headers import (
    CreateTopicRequest,
    DeleteTopicRequest,
    RouteRequest,
    SendAnswer,
    SendRequestV2,
    UpdateOffsetRequest,
)
from node.rocketmq.java_json import BodyError, items_in, load, number_in
from node.views.message_answers import OffsetsReset, Produced, Topic, TopicDeleted
from node.views.request_body import RequestBody

router = APIRouter(prefix="/api/v1", tags=["messages"])
PRODUCER_GROUP: Final = "quorumscope-control"
AT_ONCE: Final = 64  # queues whose offsets are set together
ROUTE_BYTES_MAX: Final = 1 << 20
NO_DEFAULT: Final = ""  # no topic is made by a message that comes this way
Name = Annotated[str, Field(min_length=1, max_length=NAME_CHARS_MAX)]


class NewMessage(RequestBody):
    """`queue_id` left out: one of the topic's, at random. `delay_level`: 1 to 18."""

    topic: Name
    body: Annotated[str, Field(min_length=1)]
    as_: Annotated[Literal["text", "base64"], Field(alias="as")] = "text"
    keys: Annotated[list[Annotated[str, Field(min_length=1, max_length=4096)]], Field(max_length=64)] = Field(
        default_factory=list
    )
    tag: Annotated[str | None, Field(min_length=1, max_length=4096)] = None
    properties: Annotated[dict[str, str], Field(max_length=256)] = Field(default_factory=dict)
    queue_id: Annotated[int | None, Field(ge=0, le=16_383)] = None
    delay_level: Annotated[int, Field(ge=0, le=18)] = 0


class NewTopic(RequestBody):
    """`perm`: 4 to read, 2 to write, 6 both."""

    read_queues: Annotated[int, Field(ge=1, le=16_384)] = 4
    write_queues: Annotated[int, Field(ge=1, le=16_384)] = 4
    perm: Annotated[int, Field(ge=0, le=7)] = 6
    is_ordered: bool = False


class Reset(RequestBody):
    """`to`: where the group goes on; `offset` belongs to "offset", `time` to "time". Without `queue_id` all queues."""

    topic: Name
    to: Literal["earliest", "latest", "offset", "time"]
    offset: Annotated[int | None, Field(ge=0, le=INT64_MAX)] = None
    time: Annotated[datetime | None, Field(strict=False)] = None  # JSON has it as text
    queue_id: Annotated[int | None, Field(ge=0, le=16_383)] = None
    if_term: Annotated[int | None, Field(ge=0, le=INT64_MAX)] = None
    dry_run: bool = False


def asked(**what: Any) -> None:
    """Into the trail's row of this call."""
    recording = RECORDING.get()
    if recording is not None:
        recording.asked = what


# --- a message ------------------------------------------------------------------------------------------------------
@router.post("/messages", responses=says(Produced))
async def produce(parts: PartsDep, body: NewMessage) -> Json:
    """Stores one message of a topic that exists; answered once it is committed and can be read.

    A master in classic mode has it by then, and `status` says whether it is where its broker promises it to be.
    """
    raw = raw_bytes(body.body, body.as_, "body", MESSAGE_BYTES_MAX)
    message = OutgoingMessage(
        body.topic, raw, tuple(body.keys), body.tag, tuple(body.properties.items()), None, body.delay_level
    )
    try:
        properties = properties_of(message)
    except ClientError as error:
        raise Problem(422, "Invalid request", str(error), outcome=NOT_STORED) from None
    asked(topic=body.topic, body_bytes=len(raw), keys=body.keys, tag=body.tag)
    header = SendRequestV2(
        PRODUCER_GROUP, body.topic, NO_DEFAULT, 0, -1 if body.queue_id is None else body.queue_id, 0,
        time.time_ns() // 1_000_000, 0, text_of(properties),
    )  # fmt: skip
    link = link_of(parts)
    await look_at_route(link, body.topic)
    answer = await changed(parts, link, Request.SEND_MESSAGE_V2, write_header(header), raw, done=STORED)
    try:
        said = read_header(SendAnswer, answer.fields)
    except HeaderError as error:
        raise Problem(504, "The outcome is unknown", f"It is stored, but its place in the log is not known: {error}",
                      outcome="unknown", safe_to_retry=False) from None  # fmt: skip
    return {
        "topic": body.topic, "queue_id": said.queue_id, "queue_offset": said.queue_offset, "message_id": said.msg_id,
        "unique_key": dict(parse_properties(properties)).get(UNIQ_KEY, ""), "status": STORED[answer.code],
    }  # fmt: skip


async def look_at_route(link: BrokerLink, topic: str) -> None:
    """Whether senders may use the topic: they look at its route, and brokers take what is sent all the same. Raises
    Problem. Where no route can be read, the broker says what is wrong when it is asked to store.
    """
    try:
        answer = await link.command(Request.GET_ROUTEINFO_BY_TOPIC, write_header(RouteRequest(topic, True)))
        queues = items_in(load(answer.body, ROUTE_BYTES_MAX), "queueDatas") if answer.code == Answer.SUCCESS else []
        is_closed = bool(queues) and not any(number_in(one, "perm") & PERM_WRITE for one in queues)
    except Unavailable as error:
        problem = broker_away(error)
        problem.extra["outcome"] = NOT_STORED
        raise problem from None
    except BodyError:
        return
    if is_closed:
        text = f"the topic[{topic}] sending message is forbidden"
        raise refusal(Answer.NO_PERMISSION, text, outcome=NOT_STORED)


# --- topics ---------------------------------------------------------------------------------------------------------
@router.put("/topics/{topic}", responses=says(Topic))
async def put_topic(parts: PartsDep, topic: str, body: NewTopic) -> Json:
    """Makes a topic, or gives it other queues and permissions. Fewer queues hide what the rest of them hold."""
    asked(topic=check_name(topic), **body.model_dump())
    header = CreateTopicRequest(
        topic, NO_DEFAULT, body.read_queues, body.write_queues, body.perm, order=body.is_ordered
    )
    link = link_of(parts)
    await changed(parts, link, Request.UPDATE_AND_CREATE_TOPIC, write_header(header))
    return await one_topic(parts, topic)


async def one_topic(parts: Parts, topic: str) -> Json:
    """Raises Problem."""
    said = await link_of(parts).json("topic", topic=topic)
    return timed(said, oldest_stored_ms="oldest_at", newest_stored_ms="newest_at")


@router.get("/topics/{topic}", responses=says(Topic))
async def get_topic(parts: PartsDep, topic: str) -> Json:
    """One topic."""
    return await one_topic(parts, check_name(topic))


@router.delete("/topics/{topic}", responses=says(TopicDeleted))
async def delete_topic(parts: PartsDep, topic: str) -> Json:
    """Takes a topic, its queues and all groups' offsets of it away. Its messages lie in the log until they expire."""
    asked(topic=check_name(topic))
    await one_topic(parts, topic)
    link = link_of(parts)
    await changed(parts, link, Request.DELETE_TOPIC_IN_BROKER, write_header(DeleteTopicRequest(topic)))
    return {"topic": topic, "deleted": True}


# --- offsets --------------------------------------------------------------------------------------------------------
@router.post("/consumer-groups/{consumer_group}/reset", responses=says(OffsetsReset))
async def reset(parts: PartsDep, consumer_group: str, body: Reset) -> Json:
    """Sets where a group goes on in a topic; its consumers must not run. `dry_run` says what would be set."""
    if (body.offset is not None) != (body.to == "offset") or (body.time is not None) != (body.to == "time"):
        raise Problem(
            422,
            "Invalid request",
            'give `offset` with to = "offset", `time` with to = "time", neither with another',
        )
    link = link_of(parts)
    group = await link.json("group", group=check_name(consumer_group))
    state = await state_to_act_on(parts, body.if_term)
    if not body.dry_run and (await link.broker()).role != "MASTER":
        raise not_leader(state, outcome=NOT_STORED)
    wants = [one["client_id"] for one in group["members"]]
    if wants and body.topic in {one["topic"] for one in group["subscriptions"]} and not body.dry_run:
        text = f"{len(wants)} consumers of {consumer_group} run and would go on where they are: end them first"
        raise Problem(409, "Consumers run", text, members=wants[:16], outcome=NOT_STORED)
    found = (await link.json("offsets", topic=body.topic, from_ms=epoch_ms(body.time)))["items"]
    if body.queue_id is not None:
        found = [one for one in found if one["queue_id"] == body.queue_id]
        if not found:
            raise refusal(Answer.QUERY_NOT_FOUND, f"{body.topic} has no queue {body.queue_id}", outcome=NOT_STORED)
    committed = {one["queue_id"]: one["committed_offset"] for one in group["queues"] if one["topic"] == body.topic}
    items = [
        {"queue_id": one["queue_id"], "before": committed.get(one["queue_id"]), "after": after_of(one, body)}
        for one in found
    ]
    asked(group=consumer_group, topic=body.topic, to=body.to, offset=body.offset, dry_run=body.dry_run,
          items=items[:AT_ONCE])  # fmt: skip
    if not body.dry_run:
        for first in range(0, len(items), AT_ONCE):
            fields = [
                write_header(UpdateOffsetRequest(consumer_group, body.topic, one["queue_id"], one["after"]))
                for one in items[first : first + AT_ONCE]
            ]
            each = (changed(parts, link, Request.UPDATE_CONSUMER_OFFSET, one) for one in fields)
            ended = await asyncio.gather(*each, return_exceptions=True)
            check_all_set(ended, first, len(items))
    return {"group": consumer_group, "topic": body.topic, "dry_run": body.dry_run, "items": items}


def check_all_set(ended: Sequence[object], before: int, of_all: int) -> None:
    """How the queues of one turn ended; `before` were set already. A refusal of one says nothing of the others: that
    nothing was changed is said where nothing was. Raises Problem."""
    errors = [one for one in ended if isinstance(one, BaseException)]
    if not errors:
        return
    if (odd := next((one for one in errors if not isinstance(one, Problem)), None)) is not None:
        raise odd
    problems = [one for one in errors if isinstance(one, Problem)]
    count = before + len(ended) - len(errors)
    if count or any(one.extra.get("outcome") != NOT_STORED for one in problems):
        raise unknown(f"{problems[0].detail.rstrip('.')}. {count} of {of_all} queues are set.")
    raise problems[0]


def after_of(queue: Json, body: Reset) -> int:
    """Raises Problem."""
    low, high = int(queue["min_offset"]), int(queue["max_offset"])
    if body.to == "earliest":
        return low
    if body.to == "latest":
        return high
    if body.to == "time":
        return int(queue["at"])
    assert body.offset is not None
    if not low <= body.offset <= high:
        text = f"offset: queue {queue['queue_id']} has {low} to {high}; name one with queue_id"
        raise Problem(422, "Invalid request", text, outcome=NOT_STORED)
    return body.offset
