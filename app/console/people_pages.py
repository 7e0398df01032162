"""Pages about people: one's own account, users, the admin trail. Each calls the function of its JSON twin.

Invariant: a token or a login link is shown in the answer to the form that made it, and on no other page.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Form, Request
from pydantic import ValidationError
from starlette.responses import Response

from app.api import access, second_factor, users
from app.api.common import Cursor, Json, Limit, RowId, SessionsDep, ViewerDep
from app.api.models import PRINTABLE
from app.console.drawing import page, see
from app.console.errors import Invalid
from app.health.group_view import ClusterView
from app.security.secrets import PASSWORD_CHARS_MIN

router = APIRouter(include_in_schema=False)
SHOWN: Final = 1000  # of one list on a page
Field = Annotated[str, Form(max_length=256)]
RoleField = Annotated[Literal["none", "viewer", "operator", "admin"], Form()]
GroupRoleField = Annotated[Literal["default", "none", "viewer", "operator"], Form()]


async def show_account(
    request: Request, viewer: ViewerDep, sessions: SessionsDep, *, status: int = 200, made: Json | None = None
) -> Response:
    context = {
        "me": await access.me(viewer),
        "local": viewer.local,
        "factor": await second_factor.my_second_factor(request, viewer, sessions),
        "open_sessions": (await access.list_sessions(viewer, sessions, SHOWN))["items"],
        "tokens": (await access.list_tokens(viewer, sessions, SHOWN))["items"],
        "made": made,
        "groups": groups_of(request),
    }
    return page(request, "people/account", context, status)


def groups_of(request: Request) -> list[ClusterView]:
    return [view.cluster for view in request.app.state.console.clusters(request.state.viewer.sight)]


@router.get("/account")
async def account(request: Request, viewer: ViewerDep, sessions: SessionsDep) -> Response:
    return await show_account(request, viewer, sessions)


@router.post("/account/password")
async def set_password(
    request: Request,
    viewer: ViewerDep,
    sessions: SessionsDep,
    password: Field,
    current: Annotated[str, Form(max_length=256)] = "",
    end_tokens: Annotated[bool, Form()] = False,
) -> Response:
    try:
        body = access.NewPassword(password=password, current=current or None, end_tokens=end_tokens)
    except ValidationError:
        raise Invalid(f"A password has at least {PASSWORD_CHARS_MIN} characters.") from None
    await access.set_password(body, request, viewer, sessions)
    return see("/account")


@router.post("/account/tokens")
async def new_token(
    request: Request,
    viewer: ViewerDep,
    sessions: SessionsDep,
    name: Annotated[str, Form(min_length=1, max_length=64, pattern=PRINTABLE)],
    role: RoleField = "viewer",
    days: Annotated[int, Form(ge=1, le=3650)] = 90,
    group: Annotated[str, Form(max_length=64)] = "",
) -> Response:
    """With a group, the token's role is for that one alone."""
    if group and role == "admin":
        raise Invalid("An admin has all groups: a token for one group is a viewer's or an operator's.")
    asked = access.NewToken(name=name, role="none" if group else role, days=days)
    if group and role != "admin":
        asked.cluster_roles = {group: role}
    made = await access.new_token(asked, request, viewer, sessions, Response())
    return await show_account(request, viewer, sessions, status=201, made=made)


@router.post("/account/tokens/{token_id}/revoke")
async def revoke_token(token_id: RowId, request: Request, viewer: ViewerDep, sessions: SessionsDep) -> Response:
    await access.revoke_token(token_id, request, viewer, sessions)
    return see("/account")


@router.post("/account/sessions/{session_id}/end")
async def end_session(session_id: RowId, request: Request, viewer: ViewerDep, sessions: SessionsDep) -> Response:
    await access.end_session(session_id, request, viewer, sessions)
    return see("/account")


async def show_users(
    request: Request, sessions: SessionsDep, *, status: int = 200, made: Json | None = None
) -> Response:
    origin = f"{request.url.scheme}://{request.url.netloc}"
    listed = await users.list_users(sessions, SHOWN)
    people = listed["items"]
    able = [
        one["name"] for one in people if one["role"] == "admin" and one["source"] != "oidc" and not one["disabled_at"]
    ]
    last_admin = able[0] if len(able) == 1 and not listed["next"] else None
    known = {"people": people, "last_admin": last_admin, "made": made, "origin": origin}
    return page(request, "people/users", {**known, "groups": groups_of(request)}, status)


@router.get("/users")
async def all_users(request: Request, sessions: SessionsDep) -> Response:
    return await show_users(request, sessions)


@router.post("/users")
async def add_user(
    request: Request,
    sessions: SessionsDep,
    name: Annotated[str, Form(pattern=users.NAME)],
    role: RoleField = "viewer",
) -> Response:
    made = await users.add_user(users.NewUser(name=name, role=role), request, sessions, Response())
    return await show_users(request, sessions, status=201, made=made)


@router.post("/users/{name}/role")
async def change_role(name: users.Name, request: Request, sessions: SessionsDep, role: RoleField) -> Response:
    await users.change_user(name, users.UserPatch(role=role), request, sessions)
    return see("/users")


@router.post("/users/{name}/group")
async def change_group_role(
    name: users.Name,
    request: Request,
    sessions: SessionsDep,
    group: Annotated[str, Form(min_length=1, max_length=64)],
    role: GroupRoleField,
) -> Response:
    """The role on one group; `default` takes it back."""
    given = None if role == "default" else role
    await users.change_user(name, users.UserPatch(cluster_roles={group: given}), request, sessions)
    return see("/users")


@router.post("/users/{name}/disable")
async def disable(name: users.Name, request: Request, sessions: SessionsDep) -> Response:
    await users.change_user(name, users.UserPatch(disabled=True), request, sessions)
    return see("/users")


@router.post("/users/{name}/enable")
async def enable(name: users.Name, request: Request, sessions: SessionsDep) -> Response:
    await users.change_user(name, users.UserPatch(disabled=False), request, sessions)
    return see("/users")


@router.post("/users/{name}/second-factor")
async def require_second_factor(
    name: users.Name, request: Request, sessions: SessionsDep, required: Annotated[bool, Form()]
) -> Response:
    await users.change_user(name, users.UserPatch(second_factor_required=required), request, sessions)
    return see("/users")


@router.post("/users/{name}/second-factor/reset")
async def reset_second_factor(name: users.Name, request: Request, sessions: SessionsDep) -> Response:
    await second_factor.reset(name, request, sessions)
    return see("/users")


@router.post("/users/{name}/link")
async def another_link(request: Request, name: users.Name, sessions: SessionsDep) -> Response:
    made = await users.another_link(name, request, sessions)
    return await show_users(request, sessions, status=201, made=made)


@router.get("/admin-trail")
async def admin_trail(request: Request, sessions: SessionsDep, limit: Limit = 100, cursor: Cursor = None) -> Response:
    found = await users.admin_trail(request, sessions, limit, cursor)
    context = {"rows": found["items"], "next": found["next"], "limit": limit, "first": cursor is None}
    return page(request, "people/trail", context)
