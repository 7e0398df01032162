"""Entries: read from the files, or linearizable through the engine; and appends.

Invariants: committed entries from the files may be older than the newest commit, and the answer says so; nothing above
the committed index is shown unless `view=raw` asks for the local log. An append that may have happened is 504 with
`outcome: unknown` and never invites to be repeated.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, TypeVar

from fastapi import APIRouter, Query
from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from node.control.common import INT64_MAX, Begin, Index, Json, Parts, PartsDep, below_begin, not_leader
from node.control.engine_link import EngineAway, EngineDeclined, EngineRefused, EngineSilent
from node.control.entry_pages import As, EntryPage, entry_json
from node.control.log_files import FileMarks
from node.control.problems import Problem
from node.control.read_modes import MODES, Consistency
from node.control.snapshots import now_text
from node.openapi_statuses import says
from node.protocol.codes import RequestCode, ResponseCode
from node.protocol.entry import BODY_BYTES_MAX, BytesLike, EntryError, unpack_record
from node.store.errors import StoreCorrupt
from node.store.reader import StoreReader
from node.strict_query import GROUP, NO_NUMBER, NOT_THERE, WHOLE_NUMBER
from node.transport.remoting import FrameError
from node.transport.slab_frames import (
    AppendAnswer,
    AppendedByte,
    AppendRequest,
    BodyError,
    ReadAnswer,
    ReadMode,
    ReadRequest,
    decode_append_answer,
    decode_read_answer,
    encode_append,
    encode_read,
    response_code,
)
from node.views.answers import Entries, OneEntry
from node.views.request_body import BODY, parsed, whole
from node.views.state import LogView, StateView

router = APIRouter(prefix="/api/v1", tags=["entries"])
T = TypeVar("T")
View = Literal["committed", "raw"]
APPEND_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 5.0
CONSISTENCY: Final[dict[View, str]] = {
    "committed": "stale: committed here when it was read", "raw": "local: may be truncated",
}  # fmt: skip
RETRY = {"retry-after": "1"}
BUSY = frozenset(
    {
        ResponseCode.LEADER_PENDING_FULL,
        ResponseCode.LEADER_NOT_READY,
        ResponseCode.LEADER_TRANSFERRING,
        ResponseCode.DISK_FULL,
        ResponseCode.TERM_NOT_READY,
    }
)


@router.get("/entries", responses=says(Entries))
async def entries(
    parts: PartsDep,
    from_: Begin,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    as_: As = "text",
    view: View = "committed",
    consistency: Consistency | None = None,
) -> Json:
    """Without `from`: the newest `limit` entries. `next` is the `cursor` (or the `from`) of what follows.

    Without `consistency`, or `stale`, from this member's files, perhaps behind the others. `linearizable`: as the group
    usually confirms reads; by name `lease` (where the group has lease reads on), `read-index` (a round trip to a
    quorum) or `log` (an entry through the log).
    """
    if consistency not in (None, "stale"):
        check_view(view)
        return await linearizable(parts, from_, limit, as_, MODES[consistency])
    state = await parts.snapshots.get(StateView)
    top = await top_of(parts, state, view)
    begin = top["begin_index"]
    first = max(begin, top["last_index"] - limit + 1) if from_ is None else from_
    if first < begin:
        raise below_begin(first, begin)
    found = await parts.files.read(
        lambda reader: collect(reader, first, min(top["last_index"], first + limit - 1), as_),
        upto_index=top["last_index"],
    )
    following = found[-1]["index"] + 1 if found else first
    return {
        "as_of": now_text(),
        "engine": state.engine,
        "view": view,
        "consistency": CONSISTENCY[view],
        **top,
        "items": found,
        "next": str(following) if following <= top["last_index"] else None,
    }


def collect(reader: StoreReader, first: int, last: int, as_: str) -> list[Json]:
    """As many as one answer has room for. A damaged record is shown as what it is, among its sound neighbours."""
    page = EntryPage(as_)
    for index in range(first, last + 1):
        try:
            entry = reader.entry(index)
        except (StoreCorrupt, EntryError) as error:
            page.items.append({"index": index, "body": None, "problem": str(error)})
            continue
        if entry is None or not page.add(entry):
            break
    return page.items


async def top_of(parts: Parts, state: StateView, view: View) -> Json:
    """The range that may be shown, from the engine where it answers, else from the files. Raises Problem."""
    marks: LogView | FileMarks | None = state.log
    if state.engine != "ok" or marks is None or marks.committed_index is None:
        marks = await parts.files.marks()
        if marks is None:
            raise Problem(503, "No log yet", "Neither the engine nor the files tell what the log holds.", headers=RETRY)
    committed = marks.committed_index
    if view == "committed" and committed is None:
        raise Problem(503, "Unknown", "Nobody knows what is committed; view=raw shows the local log.", headers=RETRY)
    last = committed if view == "committed" else marks.end_index
    return {"begin_index": marks.begin_index, "committed_index": committed, "last_index": last}


async def linearizable(
    parts: Parts, from_: int | None, limit: int, as_: str, mode: ReadMode = ReadMode.LINEARIZABLE
) -> Json:
    """Through the engine, which asks the quorum first; so many entries as fit one answer. Raises Problem."""
    if from_ is None:
        raise Problem(422, "Invalid request", "A linearizable read names where it begins with `from`.")
    sent = encode_read(ReadRequest(from_, 1 << 20, mode))
    try:
        answer = decode_read_answer(await parts.link.request(RequestCode.FAST_READ, [sent], READ_TIMEOUT_S))
    except (EngineAway, EngineSilent, EngineRefused, BodyError) as error:
        raise Problem(503, "The engine does not answer", str(error), headers=RETRY) from None
    if answer.code != ResponseCode.SUCCESS:
        if answer.code == ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN:
            raise below_begin(from_, answer.first_index)
        raise not_read(from_, answer)
    try:
        items = await asyncio.to_thread(unpacked, answer.records, limit, as_)
    except EntryError as error:
        raise Problem(500, "A broken entry", str(error), code=int(ResponseCode.DISK_ERROR)) from None
    following = from_ + len(items)
    known = {"as_of": now_text(), "engine": "ok", "view": "committed", "consistency": "linearizable"}
    more = str(following) if items and following <= answer.committed_index else None
    return {**known, "committed_index": answer.committed_index, "items": items, "next": more}


def not_read(from_index: int, answer: ReadAnswer) -> Problem:
    """Damage here is no quorum's doing, and no repetition's; nor is a member that has not caught up with what it is."""
    code = int(answer.code)
    if code == ResponseCode.DISK_ERROR:
        text = f"Entry {from_index} is damaged on this member's disk, or cannot be read there; ask another member."
        return Problem(500, "A broken entry", text, code=code)
    text = "The quorum could not confirm the read; try again."
    if code == ResponseCode.TIMEOUT:
        text = (
            "Not confirmed in time: no quorum answered, or this member has not caught up with what is committed (here"
            f" that is entry {answer.committed_index}); try again, or ask another member."
        )
    return Problem(503, "Not confirmed", text, headers=RETRY, code=code)


def unpacked(records: BytesLike, limit: int, as_: str) -> list[Json]:
    """As many of these records as one answer has room for. Raises EntryError."""
    page, offset = EntryPage(as_), 0
    while offset < len(records) and len(page.items) < limit:
        entry = unpack_record(records, offset)
        if not page.add(entry):
            break
        offset += entry.size
    return page.items


@router.get("/entries/{index}", responses=says(OneEntry))
async def entry(
    parts: PartsDep, index: Index, as_: As = "text", view: View = "committed", consistency: Consistency | None = None
) -> Json:
    """One entry; `consistency` as for the list."""
    if consistency not in (None, "stale"):
        check_view(view)
        answer = await linearizable(parts, index, 1, as_, MODES[consistency])
        if not answer["items"]:
            raise no_entry(view, committed_index=answer["committed_index"])
        found_there: Json = answer["items"][0]
        return {name: answer[name] for name in ("as_of", "engine", "view", "consistency")} | found_there
    state = await parts.snapshots.get(StateView)
    top = await top_of(parts, state, view)
    if index < top["begin_index"]:
        raise below_begin(index, top["begin_index"])
    try:
        found = None
        if index <= top["last_index"]:
            found = await parts.files.read(lambda reader: reader.entry(index), upto_index=index)
    except (EntryError, StoreCorrupt) as error:
        raise Problem(500, "A broken entry", str(error), code=int(ResponseCode.DISK_ERROR)) from None
    if found is None:
        raise no_entry(view, **top)
    known = {"as_of": now_text(), "engine": state.engine, "view": view, "consistency": CONSISTENCY[view]}
    return known | await asyncio.to_thread(entry_json, found, as_)


def check_view(view: View) -> None:
    if view == "raw":
        text = "view=raw shows what this member holds; what the group vouches for is committed: leave view out."
        raise Problem(422, "Invalid request", text)


def no_entry(view: View, **known: Any) -> Problem:
    end = known.get("last_index", known["committed_index"])
    text = f"{'The committed log' if view == 'committed' else 'This log'} ends at {end}"
    return Problem(404, "No such entry", text, code=int(ResponseCode.INDEX_OUT_OF_RANGE), **known)


class NewEntries(BaseModel):
    model_config = BODY
    entries: Annotated[list[str], Field(min_length=1, max_length=10_000)]
    as_: Annotated[Literal["text", "base64"], Field(alias="as")] = "text"
    expected_index: Annotated[Annotated[int, Field(ge=0, le=INT64_MAX)] | None, BeforeValidator(whole)] = None


EXPECTED_INDEX: TypeAdapter[int] = TypeAdapter(Annotated[int, Field(ge=0, le=INT64_MAX)])
APPEND: Json = {
    "parameters": [
        {
            "name": "expected_index",
            "in": "query",
            "required": False,
            "schema": {"anyOf": [EXPECTED_INDEX.json_schema(), {"type": "null"}], "title": "Expected Index"},
        }
    ],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": NewEntries.model_json_schema()},
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        },
    },
}


async def append(request: Request) -> Response:
    """JSON with entries, or one body as an octet-stream. Goes through the leader's engine, else 421."""
    parts: Parts = request.app.state.parts
    bodies, expected = await bodies_of(request)
    sent = encode_append(AppendRequest(bodies, -1 if expected is None else expected))
    answer = await asked_to_append(parts, RequestCode.FAST_APPEND, sent, APPEND_TIMEOUT_S, decode_append_answer)
    parts.snapshots.outdate()
    if answer.appended is AppendedByte.YES:
        durable = await parts.flush() == "sync"
        indexes = {"first_index": answer.first_index, "last_index": answer.last_index, "term": answer.term}
        return JSONResponse({**indexes, "durable": durable})
    if answer.appended is AppendedByte.UNKNOWN:
        raise unknown_outcome(answer.detail, answer)
    raise await refused(parts, answer)


def expected_index_of(request: Request) -> int | None:
    """What the query names, checked. Raises Problem."""
    asked: list[str] = []
    if request.scope["query_string"]:
        for name in request.query_params:
            if name not in ("expected_index", GROUP):
                fields = [{"field": f"query.{name}", "reason": NOT_THERE}]
                text = f"query.{name}: {NOT_THERE}"
                raise Problem(422, "Invalid request", text, fields=fields, outcome="not_appended")
        asked = request.query_params.getlist("expected_index")
    if len(set(asked)) > 1:
        text = f"query.expected_index: {' and '.join(asked[:2])}; name it once."
        raise Problem(422, "Invalid request", text, outcome="not_appended")
    if not asked:
        return None
    reason = NO_NUMBER
    try:
        if WHOLE_NUMBER.fullmatch(asked[0]) is not None:
            return EXPECTED_INDEX.validate_python(asked[0])
    except ValidationError as error:
        reason = "; ".join(one["msg"] for one in error.errors())
    fields = [{"field": "query.expected_index", "reason": reason}]
    raise Problem(422, "Invalid request", f"query.expected_index: {reason}", fields=fields, outcome="not_appended")


def raw_bytes(text: str, as_: str, field: str, bytes_max: int) -> bytes:
    """What a field holds as text or as base64. Raises Problem."""
    try:
        raw = text.encode() if as_ == "text" else base64.b64decode(text, validate=True)
    except (UnicodeEncodeError, binascii.Error, ValueError) as error:
        raise Problem(422, "Invalid request", f"{field}: {error}", outcome="not_appended") from None
    if len(raw) > bytes_max:
        raise too_large(field, len(raw), bytes_max)
    return raw


def too_large(field: str, size_bytes: int, bytes_max: int) -> Problem:
    text = f"{field}: {size_bytes} bytes; up to {bytes_max} are allowed"
    return Problem(413, "Too large", text, outcome="not_appended")


async def bodies_of(request: Request) -> tuple[list[bytes], int | None]:
    """The bodies, and the index that the first one is to get. Raises Problem."""
    expected_index = expected_index_of(request)
    raw = await request.body()
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/octet-stream":
        if len(raw) > BODY_BYTES_MAX:
            raise too_large("body", len(raw), BODY_BYTES_MAX)
        return [raw], expected_index
    try:
        given = NewEntries.model_validate(parsed(raw))
    except ValidationError as error:
        reason = "; ".join(f"{'.'.join(map(str, one['loc'])) or 'body'}: {one['msg']}" for one in error.errors())
        raise Problem(422, "Invalid request", reason, outcome="not_appended") from None
    except ValueError as error:
        raise Problem(422, "Invalid request", f"body: {error}", outcome="not_appended") from None
    bodies = [raw_bytes(one, given.as_, f"entries.{at}", BODY_BYTES_MAX) for at, one in enumerate(given.entries)]
    if None not in (given.expected_index, expected_index) and given.expected_index != expected_index:
        text = f"expected_index is {given.expected_index} in the body and {expected_index} in the query: name it once."
        raise Problem(422, "Invalid request", text, outcome="not_appended")
    return bodies, given.expected_index if given.expected_index is not None else expected_index


async def asked_to_append(
    parts: Parts, code: RequestCode, sent: list[bytes], timeout_s: float, decode: Callable[[BytesLike], T]
) -> T:
    """What the engine answers to a request that appends. Raises Problem, which says whether it may have been begun."""
    try:
        return decode(await parts.link.request(code, sent, timeout_s))
    except EngineAway as error:
        reason = await parts.snapshots.down_reason(error)
        raise Problem(503, "The engine is down", reason, headers=RETRY, outcome="not_appended") from None
    except FrameError as error:
        raise Problem(413, "Too large", f"body: {error}", outcome="not_appended") from None
    except EngineDeclined as error:
        text = f"The engine serves no such request: {error}"
        raise Problem(422, "Refused", text, code=int(ResponseCode.UNSUPPORTED), outcome="not_appended") from None
    except (EngineSilent, EngineRefused, BodyError) as error:
        if isinstance(error, EngineSilent) and not error.sent:
            text = f"The engine was asked nothing yet: {error}"
            raise Problem(503, "The engine does not answer", text, headers=RETRY, outcome="not_appended") from None
        raise unknown_outcome(str(error), None) from None


def unknown_outcome(detail: str, answer: AppendAnswer | None) -> Problem:
    known: Json = {}
    where = "where the log ended"
    if answer is not None:
        known = {"code": int(answer.code)}
        if answer.first_index >= 0:
            known |= {"first_index": answer.first_index, "last_index": answer.last_index, "term": answer.term}
            where = "first_index"
    said = detail.rstrip(".") or "No quorum acknowledged in time"
    text = f"{said}. The entries may still commit: read from {where} before appending them again."
    return Problem(504, "Outcome unknown", text, outcome="unknown", safe_to_retry=False, **known)


async def refused(parts: Parts, answer: AppendAnswer) -> Problem:
    code, outcome = response_code(answer.code), "not_appended"
    if code is ResponseCode.NOT_LEADER:
        state = await parts.snapshots.get(StateView)
        if answer.leader_id:
            state = state.model_copy(update={"leader_id": answer.leader_id})
        return not_leader(state, outcome=outcome)
    text = answer.detail or f"The leader refused: {code.name}"
    if code in BUSY:
        after_s = max(1, -(-answer.retry_after_ms // 1000))
        known = {"retry_after_ms": answer.retry_after_ms} if answer.retry_after_ms else {}
        headers = {"retry-after": str(after_s)}
        return Problem(503, "Not now", text, headers=headers, code=int(code), outcome=outcome, **known)
    if code is not ResponseCode.INCONSISTENT_INDEX:
        return Problem(422, "Refused", text, code=int(code), outcome=outcome)
    # The text has the end of that moment; this one is of right behind it, and may have moved on (SAFETY C3).
    state = await parts.snapshots.get(StateView)
    end_index = state.marks.end_index if state.engine == "ok" else None
    return Problem(409, "Refused", text, code=int(code), outcome=outcome, end_index=end_index)
