"""The addresses of a group's control planes and its token for them (app.console.addresses); changes are an admin's."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field

from app.api.common import ClusterId, ConsoleDep, ViewerDep, note
from app.console import attaching
from app.console.addresses import AddressesView, normal_control_url
from app.console.console import Console
from node.views.request_body import RequestBody

router = APIRouter(prefix="/clusters/{cluster_id}", tags=["clusters"])
Url = Annotated[str, Field(min_length=1, max_length=512)]
NodeToken = Annotated[
    str,
    Field(
        min_length=16, max_length=256, pattern=r"^[\x21-\x7e]+$",
        description="what this group's control planes ask for; without it the one that the console was started with",
    ),
]  # fmt: skip


class Approval(RequestBody):
    """Scheme, host and port, as `GET addresses` lists it. `node_id`: whose it is, where no member named it."""

    control_url: Url
    node_id: Annotated[str | None, Field(min_length=1, max_length=64)] = None


class NewNodeToken(RequestBody):
    token: NodeToken


def note_address(request: Request, cluster_id: str, control_url: str, *, after: str) -> None:
    """Which address it was about, and what it is from then on. Raises Invalid."""
    note(
        request, f"clusters/{cluster_id}/addresses", after={"control_url": normal_control_url(control_url), "is": after}
    )


def note_token(request: Request, console: Console, cluster_id: str, after: str) -> None:
    """Whose token was shown to the group's control planes, and whose is from then on."""
    before = attaching.addresses_of(console, cluster_id).token
    note(request, f"clusters/{cluster_id}/node-token", before={"shown": before}, after={"shown": after})


@router.get("/addresses")
async def list_addresses(cluster_id: ClusterId, console: ConsoleDep) -> AddressesView:
    return attaching.addresses_of(console, cluster_id)


@router.post("/addresses")
async def approve_address(
    cluster_id: ClusterId, body: Approval, request: Request, console: ConsoleDep, viewer: ViewerDep
) -> AddressesView:
    note_address(request, cluster_id, body.control_url, after="approved")
    return await attaching.approve_address(console, cluster_id, body.control_url, viewer.name, body.node_id)


@router.delete("/addresses")
async def withdraw_address(
    cluster_id: ClusterId, request: Request, console: ConsoleDep, control_url: Annotated[str, Query(max_length=512)]
) -> AddressesView:
    """Stops using an address; one that waits for approval is dropped until a member names it again."""
    note_address(request, cluster_id, control_url, after="withdrawn")
    return await attaching.withdraw_address(console, cluster_id, control_url)


@router.put("/node-token", status_code=204)
async def set_node_token(cluster_id: ClusterId, body: NewNodeToken, request: Request, console: ConsoleDep) -> None:
    """Stores the group's own token, sealed (app.security.sealed); it is never shown again."""
    note_token(request, console, cluster_id, "own")
    await attaching.set_node_token(console, cluster_id, body.token)


@router.delete("/node-token", status_code=204)
async def drop_node_token(cluster_id: ClusterId, request: Request, console: ConsoleDep) -> None:
    """Removes the group's own token: the one that the console was started with is used again, if there is one."""
    note_token(request, console, cluster_id, "the console's or none")
    await attaching.set_node_token(console, cluster_id, None)
