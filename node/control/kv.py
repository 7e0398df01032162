"""The key-value store over REST: `/api/v1/kv`, where the group has one (`--state-machine kv`).

Keys are text here, values text or base64. Reads are linearizable, at any member; writes go to the leader, else 421.

Invariants: a write that may have happened is 504 with `outcome: unknown`, and never invites to be repeated; a condition
that did not hold is 409 with what the key holds, and changed nothing.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field

from node.control.common import INT64_MAX, Begin, Json, Parts, PartsDep
from node.control.entries import raw_bytes
from node.control.machine_calls import ask_waiting, commands, found, shown
from node.control.problems import Problem
from node.control.read_modes import Consistency
from node.openapi_statuses import says
from node.protocol.kv import (
    ABSENT,
    KEY_BYTES_MAX,
    NEVER,
    TTL_MS_MAX,
    VALUE_BYTES_MAX,
    If,
    KvCommand,
    KvError,
    KvEvent,
    KvItem,
    KvResult,
    Op,
    Status,
    ask_get,
    ask_range,
    ask_watch,
    decode_got,
    decode_items,
    decode_result,
    decode_watched,
    encode_command,
)
from node.views.kv_answers import Deleted, Events, Item, Items, Written
from node.views.request_body import RequestBody

router = APIRouter(prefix="/api/v1", tags=["key-value store"])
Key = Annotated[str, Path(min_length=1, max_length=KEY_BYTES_MAX)]
As = Annotated[Literal["text", "base64"], Query(alias="as")]
Cursor = Annotated[str | None, Query(max_length=(KEY_BYTES_MAX + 3) // 3 * 4)]  # the key behind the last one, in base64


def key_of(text: str, outcome: str | None = None) -> bytes:
    """Raises Problem, with that outcome."""
    key = text.encode("utf-8", "surrogatepass")
    if not 0 < len(key) <= KEY_BYTES_MAX:
        text = f"key: {len(key)} bytes; 1 to {KEY_BYTES_MAX} are allowed"
        raise Problem(422, "Invalid request", text, outcome=outcome)
    return key


def named(key: bytes) -> Json:
    """A key: text, and what is none in base64 as well."""
    try:
        return {"key": key.decode()}
    except UnicodeDecodeError:
        return {"key": key.decode(errors="replace"), "key_base64": base64.b64encode(key).decode()}


def item_json(item: KvItem, as_: str) -> Json:
    expires = None
    if item.expires_ms != NEVER:
        expires = datetime.fromtimestamp(item.expires_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return {**named(item.key), **shown(item.value, as_), "index": item.index, "expires_at": expires}


# --- reads --------------------------------------------------------------------------------------------------------
@router.get("/kv", responses=says(Items))
async def items(
    parts: PartsDep,
    from_: Annotated[str | None, Query(alias="from", max_length=KEY_BYTES_MAX)] = None,
    to: Annotated[str | None, Query(max_length=KEY_BYTES_MAX)] = None,
    prefix: Annotated[str | None, Query(max_length=KEY_BYTES_MAX)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Cursor = None,
    as_: As = "text",
    consistency: Consistency = "linearizable",
) -> Json:
    """Keys from `from` on, up to and without `to`, or those that begin with `prefix`; `next` continues."""
    begin, end = (from_ or "").encode(), (to or "").encode()
    if prefix:
        if from_ is not None or to is not None:
            raise Problem(422, "Invalid request", "give prefix, or from and to")
        begin, end = prefix.encode(), behind(prefix.encode())
    if cursor is not None:
        try:
            begin = base64.b64decode(cursor.encode(), b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise Problem(422, "Invalid request", "cursor: give the `next` of the page before") from None
    try:
        answer = await found(parts, ask_range(begin, end, limit), consistency)
        listed, more = decode_items(answer.content)
    except KvError as error:
        raise Problem(422, "Invalid request", str(error)) from None
    following = base64.urlsafe_b64encode(listed[-1].key + b"\0").decode() if more and listed else None
    return {
        "applied_index": answer.applied_index,
        "consistency": consistency,
        "items": [item_json(one, as_) for one in listed],
        "next": following,
    }


def behind(prefix: bytes) -> bytes:
    """The first key behind all that begin so; b"": there is none."""
    rest = prefix.rstrip(b"\xff")
    return rest[:-1] + bytes([rest[-1] + 1]) if rest else b""


@router.get("/kv-events", responses=says(Events))
async def events(
    request: Request,
    parts: PartsDep,
    from_: Begin,
    prefix: Annotated[str, Query(max_length=KEY_BYTES_MAX)] = "",
    wait_ms: Annotated[int, Query(ge=1, le=30_000)] = 20_000,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
    as_: As = "text",
) -> Json:
    """What happened to keys that begin with `prefix`, from entry `from` on (without it: from now on).

    Waits until there is something, `wait_ms` at most. `next` is the next `cursor` (or `from`); 410 where events from
    there on are not kept any more: read the keys, then go on from `next_index`.
    """
    if from_ is None:
        from_ = (await found(parts, ask_range(b"", b"", 1), "linearizable")).applied_index + 1
    try:
        asked = ask_watch(prefix.encode(), from_, limit)
        answer = await ask_waiting(request, parts, asked, "linearizable", wait_ms)
    except KvError as error:
        raise Problem(422, "Invalid request", str(error)) from None
    if answer is None:
        return {"items": [], "next": str(from_)}
    watched = decode_watched(answer.content)
    if watched.is_gone:
        text = f"Events from entry {from_} on are not kept any more: read the keys, then go on from next_index."
        raise Problem(410, "Gone", text, next_index=watched.next_index)
    return {"items": [event_json(one, as_) for one in watched.events], "next": str(watched.next_index)}


def event_json(event: KvEvent, as_: str) -> Json:
    known = {"type": event.type.name.lower(), **named(event.key), "index": event.index}
    return {**known, **shown(event.value, as_)} if event.type.name == "PUT" else known


@router.get("/kv/{key:path}", responses=says(Item))
async def get(parts: PartsDep, key: Key, as_: As = "text", consistency: Consistency = "linearizable") -> Json:
    """What a key holds; 404 where it is not there. `stale`: as this member knows it, perhaps behind the others."""
    raw = key_of(key)
    answer = await found(parts, ask_get(raw), consistency)
    item = decode_got(raw, answer.content)
    known: Json = {"applied_index": answer.applied_index, "consistency": consistency}
    if item is None:
        raise Problem(404, "No such key", f"There is no key {key!r}.", found=False, **known)
    return {**item_json(item, as_), "found": True, **known}


# --- writes -------------------------------------------------------------------------------------------------------
class NewValue(RequestBody):
    """`expected` or `expected_index`: only if the key holds that now, or was written by that entry (-1: not there)."""

    value: str
    as_: Annotated[Literal["text", "base64"], Field(alias="as")] = "text"
    ttl_ms: Annotated[int, Field(ge=0, le=TTL_MS_MAX)] = 0
    expected: str | None = None
    expected_index: Annotated[int | None, Field(ge=-1, le=INT64_MAX)] = None


def written(text: str) -> bytes:
    """The key of a write. Raises Problem."""
    return key_of(text, outcome="not_appended")


def raw_of(text: str, as_: str, field: str) -> bytes:
    """Raises Problem."""
    return raw_bytes(text, as_, field, VALUE_BYTES_MAX)


def condition_of(expected: bytes | None, expected_index: int | None) -> Mapping[str, Any]:
    """Raises Problem."""
    if expected is not None and expected_index is not None:
        text = "expected_index: give it, or expected; not both"
        raise Problem(422, "Invalid request", text, outcome="not_appended")
    if expected is not None:
        return {"condition": If.VALUE_IS, "expected_value": expected}
    if expected_index is not None:
        return {"condition": If.INDEX_IS, "expected_index": expected_index}
    return {}


async def carry_out(parts: Parts, command: KvCommand, as_: str) -> tuple[KvResult, int, int]:
    """The result, and the index and the term of the command's entry. Raises Problem, which shows a value that way."""
    carried = await commands(parts, [encode_command(command)])
    result = decode_result(carried.results[0])
    if result.status is Status.BAD_COMMAND:
        text = "The group does not understand this command: it is of another release. Nothing was changed."
        raise Problem(422, "Not understood", text)
    if result.status is Status.CONDITION_FAILED:
        text = "The key holds something else; nothing was changed." if result.found else "There is no such key."
        holds = {"index": result.index, **shown(result.value, as_)} if result.found else {"index": ABSENT}
        raise Problem(409, "Condition failed", text, found=result.found, **holds)
    return result, carried.first_index, carried.term


@router.put("/kv/{key:path}", responses=says(Written))
async def put(parts: PartsDep, key: Key, body: NewValue) -> Json:
    """Sets a key; with `expected` or `expected_index` only if it holds that (409 otherwise)."""
    expected = None if body.expected is None else raw_of(body.expected, body.as_, "expected")
    value = raw_of(body.value, body.as_, "value")
    condition = condition_of(expected, body.expected_index)
    command = KvCommand(Op.PUT, written(key), value, body.ttl_ms, **condition)
    result, _, term = await carry_out(parts, command, body.as_)
    return {**named(command.key), "index": result.index, "term": term}


@router.delete("/kv/{key:path}", responses=says(Deleted))
async def delete(
    parts: PartsDep,
    key: Key,
    expected: Annotated[str | None, Query(max_length=4096)] = None,
    expected_index: Annotated[int | None, Query(ge=-1, le=INT64_MAX)] = None,
    as_: As = "text",
) -> Json:
    """Removes a key; `deleted` says whether it was there."""
    condition = condition_of(None if expected is None else raw_of(expected, as_, "expected"), expected_index)
    command = KvCommand(Op.DELETE, written(key), **condition)
    result, index, term = await carry_out(parts, command, as_)
    return {**named(command.key), "deleted": result.status is Status.DONE, "index": index, "term": term}
