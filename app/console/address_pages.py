"""The page of a group's addresses: which are asked, which wait for an approval, and the group's token."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Request
from pydantic import TypeAdapter, ValidationError
from starlette.responses import Response

from app.api.addresses import NodeToken, note_address, note_token
from app.api.common import ClusterId, ConsoleDep, ViewerDep
from app.console import attaching
from app.console.drawing import page, see
from app.console.errors import Invalid

router = APIRouter(include_in_schema=False)
Url = Annotated[str, Form(max_length=512)]


def token_of(text: str) -> str | None:
    """A token from a form; None where the field was left empty. Raises Invalid."""
    if not text.strip():
        return None
    try:
        return TypeAdapter(NodeToken).validate_python(text.strip())
    except ValidationError:
        raise Invalid("A token is one word of 16 to 256 visible characters.") from None


def back(cluster_id: str) -> Response:
    return see(f"/clusters/{cluster_id}/addresses")


@router.get("/clusters/{cluster_id}/addresses")
async def addresses(request: Request, cluster_id: ClusterId, console: ConsoleDep, viewer: ViewerDep) -> Response:
    found = attaching.addresses_of(console, cluster_id)
    context = {
        "rows": found.items,
        "token": found.token,
        "cluster": console.watch_of(cluster_id).info,
        "view": console.group_view(cluster_id),
        "admin": viewer.can("admin"),
    }
    return page(request, "addresses", context)


@router.post("/clusters/{cluster_id}/addresses")
async def approve(
    cluster_id: ClusterId, request: Request, console: ConsoleDep, viewer: ViewerDep, control_url: Url
) -> Response:
    note_address(request, cluster_id, control_url, after="approved")
    await attaching.approve_address(console, cluster_id, control_url, viewer.name)
    return back(cluster_id)


@router.post("/clusters/{cluster_id}/addresses/withdraw")
async def withdraw(cluster_id: ClusterId, request: Request, console: ConsoleDep, control_url: Url) -> Response:
    note_address(request, cluster_id, control_url, after="withdrawn")
    await attaching.withdraw_address(console, cluster_id, control_url)
    return back(cluster_id)


@router.post("/clusters/{cluster_id}/node-token")
async def set_token(cluster_id: ClusterId, request: Request, console: ConsoleDep, token: Url = "") -> Response:
    given = token_of(token)
    note_token(request, console, cluster_id, "own" if given else "the console's or none")
    await attaching.set_node_token(console, cluster_id, given)
    return back(cluster_id)
