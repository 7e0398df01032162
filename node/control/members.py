"""Who belongs to the group, and changes of it: each an operation at the leader, with a pre-flight as its dry run.

`POST members` adds one (or replaces another), `DELETE members/{id}` removes one; a learner is promoted by
`POST members/{id}/promotion`, and an address is changed by `PUT members/{id}/address`. A new member becomes a voter by
itself once it has caught up: its operation is done as soon as it is a learner, and `GET members` says how far it is.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from node.control.common import (
    INT64_MAX,
    Cursor,
    Json,
    Limit,
    Parts,
    PartsDep,
    not_leader,
    page_answer,
    state_to_act_on,
)
from node.control.engine_link import EngineAway, EngineRefused, EngineSilent
from node.control.leadership import STARTED, Key, name_of
from node.control.operations import located, unknown
from node.control.problems import Problem
from node.protocol.codes import RequestCode, ResponseCode
from node.views.member_requests import Change, Moved, NewMember
from node.views.members import MembersView

router = APIRouter(prefix="/api/v1", tags=["members"])
ASK_S = 30.0  # a quorum's disks; without a quorum the leader steps down, and says so
PREFLIGHT_S = 5.0
MemberId = Annotated[str, Path(min_length=1, max_length=64)]


@router.get("/members", response_model=MembersView)
async def members(parts: PartsDep, limit: Limit = 1000, cursor: Cursor = None) -> Response:
    """By this member's own log; the leader's is what counts."""
    return page_answer(await parts.snapshots.get(MembersView), lambda one: str(one.id), limit, cursor)


@router.post("/members", status_code=202, responses=STARTED)
async def add(parts: PartsDep, response: Response, body: NewMember, key: Key = None) -> Json:
    """A new member, started with `--join` and an empty directory: it learns first."""
    if body.learner and body.replaces:
        raise Problem(422, "Invalid request", "`replaces` goes without `learner`: only a voter replaces one.")
    asked = {"memberId": body.id, "address": body.address, "promote": not body.learner, "replaces": body.replaces or ""}
    return await start(parts, response, body, key, {"kind": "add", **asked})


@router.delete("/members/{member_id}", status_code=202, responses=STARTED)
async def remove(
    parts: PartsDep, response: Response, member_id: MemberId, dry_run: bool = False, key: Key = None,
    if_term: Annotated[int | None, Query(ge=0, le=INT64_MAX)] = None,
) -> Json:  # fmt: skip
    """The member leaves; a leader that removes itself hands over."""
    body = Change(if_term=if_term, dry_run=dry_run)
    return await start(parts, response, body, key, {"kind": "remove", "memberId": member_id})


@router.post("/members/{member_id}/promotion", status_code=202, responses=STARTED)
async def promote(parts: PartsDep, response: Response, member_id: MemberId, body: Change, key: Key = None) -> Json:
    """A learner becomes a voter; refused while it has not caught up."""
    return await start(parts, response, body, key, {"kind": "promote", "memberId": member_id})


@router.put("/members/{member_id}/address", status_code=202, responses=STARTED)
async def move(parts: PartsDep, response: Response, member_id: MemberId, body: Moved, key: Key = None) -> Json:
    """The same member, reached elsewhere."""
    return await start(parts, response, body, key, {"kind": "address", "memberId": member_id, "address": body.address})


async def start(parts: Parts, response: Response, body: Change, key: str | None, fields: Json) -> Json:
    """One operation; the same Idempotency-Key finds the one that it started."""
    asked = {**fields, "if_term": body.if_term}
    known = parts.operations.earlier("members", key, asked)
    if known is not None and not body.dry_run:
        return located(response, known)
    state = await state_to_act_on(parts, body.if_term)
    if state.role != "LEADER":
        raise not_leader(state)
    if body.if_term is not None:
        fields = {**fields, "ifTerm": body.if_term}
    would = await preflight(parts, fields)
    if body.dry_run:
        response.status_code = 200
        return {"dry_run": True, "would": in_words(fields), "members": would}
    refused = would["refused"]
    if refused is not None:
        raise Problem(409, "Refused", refused["detail"], code=refused["code"], outcome="not_appended")
    operation = parts.operations.start("members", key, asked, in_words(fields), lambda: carry_out(parts, fields))
    return located(response, operation)


async def preflight(parts: Parts, fields: Json) -> Json:
    """What the leader says would follow, with our names. Raises Problem."""
    sent = {"what": "members", **fields, "dryRun": True}
    try:
        said = await parts.link.json(RequestCode.OPERATOR_ACTION, sent, PREFLIGHT_S)
    except (EngineAway, EngineSilent, EngineRefused) as error:
        raise Problem(503, "The engine does not answer", str(error), headers={"retry-after": "1"}) from None
    code = said.get("code")
    if code != ResponseCode.SUCCESS:
        raise Problem(409, "Refused", str(said.get("detail") or name_of(code)), code=code)
    return {
        "refused": said.get("refused"), "before": said.get("before"), "after": said.get("after"),
        "lag_entries": said.get("lagEntries"), "lag_bytes": said.get("lagBytes"),
        "catch_up_s_at_most": said.get("catchUpSAtMost"), "needs_disk_bytes": said.get("needsDiskBytes"),
    }  # fmt: skip


def in_words(fields: Json) -> str:
    member_id = fields["memberId"]
    match fields["kind"]:
        case "add" if fields["replaces"]:
            return f"replace {fields['replaces']} by {member_id} at {fields['address']}"
        case "add":
            return f"add {member_id} at {fields['address']}" + ("" if fields["promote"] else " as a learner")
        case "address":
            return f"take {member_id} to be at {fields['address']}"
        case kind:
            return f"{kind} {member_id}"


async def carry_out(parts: Parts, fields: Json) -> Json:
    said = await parts.link.json(RequestCode.OPERATOR_ACTION, {"what": "members", **fields}, ASK_S)
    parts.snapshots.outdate()
    code = said.get("code")
    if code == ResponseCode.SUCCESS:
        outcome = {"index": said.get("index"), "term": said.get("term"), "leader_id": said.get("leaderId")}
        return {"state": "done", "progress": None, "outcome": outcome}
    detail = str(said.get("detail") or name_of(code))
    if said.get("appended") == "unknown":
        return unknown(f"{detail}; entry {said.get('index')} may still be committed: look at members")
    return {"state": "failed", "problem": {"title": "The members did not change", "detail": detail, "code": code}}
