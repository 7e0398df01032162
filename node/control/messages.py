"""Reading a broker over REST: `/api/v1/broker`, `topics`, `consumer-groups`, `messages`, where the group has brokers.

Each member's own broker is asked, so any member shows them; a slave's are those of its own dispatch, which follows the
commit. Messages are what is committed and dispatched here; where each lies is read from this member's files.

Invariant: nothing is changed; what is listed is bounded, and so are the bodies of one answer.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query

from node.config import Settings
from node.config_models import RetentionTable
from node.control.broker_link import BrokerLink, Json
from node.control.common import INT64_MAX, Limit, Parts, PartsDep
from node.control.entry_pages import text_bytes
from node.control.problems import Problem
from node.control.snapshots import now_text
from node.message_client.consumer import records_of
from node.message_store.bodies import OpensTooLong, opened_body
from node.message_store.described import in_time, message_json, record_json
from node.message_store.errors import MessageFormatError, MessageStoreError
from node.message_store.message_store import MessageStore
from node.message_store.record import Compression, MessageRecord
from node.openapi_statuses import says
from node.protocol.entry import BytesLike
from node.rocketmq.bodies import NAME_CHARS_MAX
from node.views.broker import BrokerSaid
from node.views.message_answers import (
    Broker,
    ConsumerGroups,
    Kept,
    LevelPending,
    Messages,
    NameServer,
    OneConsumerGroup,
    Queues,
    RoleChange,
    Schedule,
    Topics,
    Transactions,
)

router = APIRouter(prefix="/api/v1", tags=["messages"])
STATE_WITHIN_S: Final = 2.0  # whoever asks for it waits 5
OPENED_BYTES_MAX: Final = 4 << 20  # of all bodies of one answer that are compressed
TOO_LONG_MAX: Final = 16  # of one answer: each takes 9 ms until it is seen to be too long
ESCAPES_BYTES_MAX: Final = 4 << 20  # what the control characters of all bodies of one answer take beside themselves
NAMES_BYTES_MAX: Final = 1 << 20  # what tags, keys and properties of all messages of one answer take in it
KEY_CHARS_MAX: Final = 4096
Name = Annotated[str, Query(min_length=1, max_length=NAME_CHARS_MAX)]
NameCursor = Annotated[str | None, Query(max_length=NAME_CHARS_MAX)]
Moment = Annotated[datetime | None, Query()]
System = Annotated[bool, Query(description="also what RocketMQ has for itself")]
Contains = Annotated[str | None, Query(max_length=NAME_CHARS_MAX, description="only names that contain this")]


def link_of(parts: Parts) -> BrokerLink:
    assert parts.broker is not None, "these routes are there where the group has brokers"
    return parts.broker


def timed(value: Json, **names: str) -> Json:
    """Epoch milliseconds under other names, as RFC 3339."""
    for old, new in names.items():
        value[new] = at(value.pop(old))
    return value


# --- the broker -----------------------------------------------------------------------------------------------------
@router.get("/broker", responses=says(Broker))
async def broker(parts: PartsDep) -> Broker:
    """This member's broker: its role and how it came to it, name servers, how far dispatch is."""
    settings = parts.settings
    try:
        said = await link_of(parts).broker(STATE_WITHIN_S)
    except Problem as problem:
        if problem.status != 503:
            raise
        return silent(settings, problem.detail)
    return Broker(
        as_of=now_text(), broker="ok", reason=None, group=settings.node.group, self_id=settings.node.id,
        address=said.address, vip=said.vip, role=said.role, broker_id=said.broker_id, term=said.term,
        leader_id=said.leader_id, dispatch=said.dispatch, connections=said.connections, pulls_held=said.pulls_held,
        counts=said.counts, kept=kept(settings.retention), schedule=schedule(said), transactions=transactions(said),
        name_servers=[
            NameServer(address=one.address, registered_at=at(one.registered_ms)) for one in said.name_servers
        ],
        role_changes=[
            RoleChange(
                at=at(one.began_at_ms), state=one.state, term=one.term, change=one.change, outcome=one.outcome,
                took_ms=one.took_ms, steps=list(one.steps),
            )
            for one in said.role_changes
        ],
        damaged_messages=list(said.damaged_messages),
    )  # fmt: skip


def silent(settings: Settings, reason: str) -> Broker:
    """Of a broker that does not answer, what its node knows."""
    servers = settings.broker.name_server_addresses
    return Broker(
        as_of=now_text(), broker="down", reason=reason, group=settings.node.group, self_id=settings.node.id,
        address=settings.broker.address, vip=settings.broker.vip, role=None, broker_id=None, term=None, leader_id=None,
        dispatch=None, connections=None, pulls_held=None, counts=None, kept=kept(settings.retention), schedule=None,
        transactions=None, name_servers=[NameServer(address=one, registered_at=None) for one in servers],
        role_changes=[], damaged_messages=[],
    )  # fmt: skip


def schedule(said: BrokerSaid) -> Schedule | None:
    if said.schedule is None:
        return None
    levels = [
        LevelPending(
            level=one.level, delay_ms=one.delay_ms, waiting=one.waiting, due_at=at(one.due_ms),
            overdue_ms=one.overdue_ms,
        )
        for one in said.schedule.levels
    ]  # fmt: skip
    return Schedule(waiting=said.schedule.waiting, delivered=said.schedule.delivered, levels=levels)


def transactions(said: BrokerSaid) -> Transactions | None:
    known = said.transactions
    if known is None:
        return None
    return Transactions(
        open=known.open, all_read=known.all_read, oldest_at=at(known.oldest_born_ms), unanswered=known.unanswered,
        checks_max=known.checks_max, groups=list(known.groups),
    )  # fmt: skip


def at(epoch_ms: int | None) -> str | None:
    return None if epoch_ms is None else in_time(epoch_ms)


def kept(retention: RetentionTable) -> Kept | None:
    if not retention.enabled:
        return None
    return Kept(
        hours=retention.file_reserved_hours, delete_when=list(retention.delete_when),
        max_log_bytes=retention.max_log_bytes,
    )  # fmt: skip


# --- topics ---------------------------------------------------------------------------------------------------------
@router.get("/topics", responses=says(Topics))
async def topics(
    parts: PartsDep, limit: Limit = 100, cursor: NameCursor = None, system: System = False, contains: Contains = None
) -> Json:  # fmt: skip
    """By name: queues, messages, how many a second, the newest one's time."""
    said = await link_of(parts).json("topics", limit=limit, cursor=cursor, system=system, contains=contains)
    items = [timed(one, oldest_stored_ms="oldest_at", newest_stored_ms="newest_at") for one in said["items"]]
    return {"as_of": now_text(), "items": items, "next": said["next"]}


@router.get("/topics/{topic}/queues", responses=says(Queues))
async def queues(
    parts: PartsDep, topic: str, limit: Limit = 100,
    cursor: Annotated[str | None, Query(pattern=r"^\d{1,9}$")] = None,
) -> Json:  # fmt: skip
    """The queues of a topic: first and next offset, when the first and the last message were stored."""
    said = await link_of(parts).json("queues", topic=check_name(topic), limit=limit, cursor=cursor)
    items = [timed(one, head_stored_ms="oldest_at", tail_stored_ms="newest_at") for one in said["items"]]
    return {"as_of": now_text(), "topic": topic, "items": items, "next": said["next"]}


def check_name(name: str) -> str:
    """The name that a path holds, if its length is allowed. Raises Problem."""
    if not 0 < len(name) <= NAME_CHARS_MAX:
        raise Problem(422, "Invalid request", f"a name has 1 to {NAME_CHARS_MAX} characters, this one {len(name)}")
    return name


# --- groups ---------------------------------------------------------------------------------------------------------
@router.get("/consumer-groups", responses=says(ConsumerGroups))
async def consumer_groups(
    parts: PartsDep, limit: Limit = 100, cursor: NameCursor = None, system: System = False, contains: Contains = None
) -> Json:  # fmt: skip
    """By name: members, what they subscribed to, and how far the group is behind."""
    said = await link_of(parts).json("groups", limit=limit, cursor=cursor, system=system, contains=contains)
    return {"as_of": now_text(), "items": [group_json(one) for one in said["items"]], "next": said["next"]}


@router.get("/consumer-groups/{consumer_group}", responses=says(OneConsumerGroup))
async def consumer_group(parts: PartsDep, consumer_group: str) -> Json:
    """One group, with what it has committed of which queue."""
    said = await link_of(parts).json("group", group=check_name(consumer_group))
    return {"as_of": now_text(), **group_json(said)}


def group_json(said: Json) -> Json:
    said["members"] = [timed(one, heard_ms="heard_at") for one in said["members"]]
    return timed(said, lag_since_ms="lag_since")


# --- messages -------------------------------------------------------------------------------------------------------
@router.get("/messages", responses=says(Messages))
async def messages(
    parts: PartsDep,
    id_: Annotated[str | None, Query(alias="id", max_length=128)] = None,
    offset: Annotated[int | None, Query(ge=0, le=INT64_MAX)] = None,
    topic: Annotated[str | None, Query(min_length=1, max_length=NAME_CHARS_MAX)] = None,
    key: Annotated[str | None, Query(min_length=1, max_length=KEY_CHARS_MAX)] = None,
    queue_id: Annotated[int | None, Query(ge=0, le=(1 << 31) - 1)] = None,
    queue_offset: Annotated[int | None, Query(ge=0, le=INT64_MAX)] = None,
    from_time: Moment = None,
    to_time: Moment = None,
    limit: Annotated[int, Query(ge=1, le=256)] = 32,
    cursor: Annotated[str | None, Query(pattern=r"^\d{1,19}$")] = None,
) -> Json:
    """By `id` (the broker's), by `offset` in the log, by `topic` and `key` (or the sender's unique key), by `topic`,
    `queue_id` and `queue_offset`, or by `topic` and `from_time`: of one queue from there on, else of all queues in the
    order in which they were stored (`next` may then repeat messages of one millisecond)."""
    from_ms, to_ms = epoch_ms(from_time), epoch_ms(to_time)
    link = link_of(parts)
    if id_ is not None or offset is not None:
        alone(topic=topic, key=key, queue_id=queue_id, queue_offset=queue_offset, from_time=from_time, to_time=to_time)
        if id_ is not None and offset is not None:
            raise bad("give id or offset, not both")
        answer = await link.ask("place", id=id_, offset=offset)
    elif topic is None:
        raise bad("which messages? id, or offset, or topic with key, or topic with queue_id and queue_offset, or topic"
                  " with from_time")  # fmt: skip
    elif key is not None:
        alone(queue_id=queue_id, queue_offset=queue_offset, cursor=cursor)
        answer = await link.ask("key", topic=topic, key=key, limit=limit, from_ms=from_ms, to_ms=to_ms)
    elif queue_id is not None:
        if to_time is not None:
            raise bad("to_time does not go with queue_id: `limit` ends a page of one queue")
        if queue_offset is None and from_time is None and cursor is None:
            raise bad("give queue_offset or from_time with queue_id")
        begin = int(cursor) if cursor is not None else queue_offset or 0
        since = None if cursor is not None or queue_offset is not None else from_ms
        answer = await link.ask("queue", topic=topic, queue_id=queue_id, queue_offset=min(begin, INT64_MAX),
                                limit=limit, from_ms=since)  # fmt: skip
    else:
        if queue_offset is not None or from_ms is None:
            raise bad("give from_time, or key, or queue_id with queue_offset or from_time")
        since = max(from_ms, int(cursor)) if cursor is not None else from_ms
        answer = await link.ask("time", topic=topic, from_ms=since, to_ms=to_ms, limit=limit)
    items = await asyncio.to_thread(described, parts.settings.node.data, answer.body)
    return {"as_of": now_text(), "items": items, "next": (answer.fields or {}).get("next")}


def epoch_ms(at: datetime | None) -> int | None:
    """Without a zone it is UTC. Raises Problem."""
    if at is None:
        return None
    try:
        return int((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1000)
    except (OverflowError, ValueError):
        raise bad("no such time") from None


def alone(**others: Any) -> None:
    """Raises Problem."""
    for name, value in others.items():
        if value is not None:
            raise bad(f"{name} does not go with the other parameters")


def bad(text: str) -> Problem:
    return Problem(422, "Invalid request", text)


class Opener:
    """Opens the bodies of one answer, up to a sum: a record of 4 KiB may open to 4 MiB, and 256 are one answer."""

    def __init__(self) -> None:
        self.left, self.too_long_left = OPENED_BYTES_MAX, TOO_LONG_MAX

    def __call__(self, record: MessageRecord) -> bytes:
        """Raises MessageFormatError."""
        text = f"the compressed bodies of one answer open to {OPENED_BYTES_MAX} bytes at most: ask for this one alone"
        if not self.too_long_left and record.compression is not Compression.NONE:
            raise MessageFormatError(text)
        try:
            body = opened_body(record, self.left)
        except OpensTooLong:
            self.too_long_left -= 1
            if self.left == OPENED_BYTES_MAX:
                raise
            raise MessageFormatError(text) from None
        self.left -= len(body) if record.compression is not Compression.NONE else 0
        return body


def described(data: Path, records: BytesLike) -> Sequence[Json]:
    """Blocking: where each lies is read from the files."""
    found: list[Json] = []
    store: MessageStore | None = None
    opened, escapes_left, names_left = Opener(), ESCAPES_BYTES_MAX, NAMES_BYTES_MAX
    for record in records_of(records):
        try:
            store = MessageStore(data) if store is None else store
            found.append(message_json(store, store.log.message_at(record.physical_offset), opened))
        except (MessageStoreError, MessageFormatError, OSError):  # it expired between the two
            found.append(record_json(record, opened) | {"where": None})
        escapes_left -= bounded(found[-1]["body"], escapes_left)
        names_left -= bounded_names(found[-1], names_left)
    return found


def bounded_names(message: Json, left: int) -> int:
    """How many bytes of an answer its tags, keys and properties take; where fewer are left, they are left out, and it
    says so. Those of one message alone always have room."""
    shown = {name: message[name] for name in ("tags", "keys", "properties")}
    size = len(json.dumps(shown, ensure_ascii=False).encode())
    if size <= left:
        return size
    why = f"tags, keys and properties of one answer take {NAMES_BYTES_MAX} bytes at most: ask for this one alone"
    message |= {"tags": None, "keys": [], "properties": {}, "left_out": why}
    return 0


def bounded(body: Json, left: int) -> int:
    """How many bytes an answer needs for this text beside its own; where fewer are left, it is base64 from now on."""
    if "text" not in body:
        return 0
    text = body["text"].encode()
    escapes = text_bytes(text) - len(text)
    if escapes <= left:
        return escapes
    del body["text"]
    body |= {"base64": base64.b64encode(text).decode(), "why": "its control characters take too much room as text"}
    return 0
