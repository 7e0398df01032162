"""The page of one's own second factor. Each action calls the function of its JSON twin (app.api.second_factor).

Invariant: the secret, its QR code and the recovery codes are in the answer to the form that made them, and on no other
page. The QR code is markup without any style or script, so that the page's policy holds.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import segno
from fastapi import APIRouter, Form, Request
from markupsafe import Markup
from starlette.responses import Response

from app.api import second_factor as calls
from app.api.common import Json, SessionsDep, ViewerDep
from app.console.drawing import page, see
from app.console.errors import Invalid
from app.db.models import User
from app.security.second_factor import CODE_CHARS_MAX

router = APIRouter(include_in_schema=False)
PATH: Final = "/account/second-factor"
Code = Annotated[str, Form(min_length=1, max_length=CODE_CHARS_MAX)]


def qr_of(uri: str) -> Markup:
    """Black on white in dark pages too: cameras want it so."""
    drawn = segno.make(uri, error="m", micro=False)
    return Markup(drawn.svg_inline(scale=4, border=4, dark="#000", light="#fff", svgclass="qr", title="QR code"))


async def show(
    request: Request, viewer: ViewerDep, sessions: SessionsDep, *, status: int = 200, made: Json | None = None,
    codes: list[str] | None = None, wrong: str = "",
) -> Response:  # fmt: skip
    async with sessions() as db:
        has_password = (await db.get_one(User, viewer.user_id)).password_hash is not None
    context: dict[str, Any] = {
        "factor": await calls.my_second_factor(request, viewer, sessions),
        "made": made,
        "qr": qr_of(made["uri"]) if made is not None else None,
        "codes": codes,
        "wrong": wrong,
        "has_password": has_password,
    }
    return page(request, "people/second_factor", context, status)


@router.get(PATH)
async def second_factor_page(request: Request, viewer: ViewerDep, sessions: SessionsDep) -> Response:
    return await show(request, viewer, sessions)


@router.post(PATH)
async def begin(
    request: Request, viewer: ViewerDep, sessions: SessionsDep, current: Annotated[str, Form(max_length=256)] = ""
) -> Response:
    made = await calls.begin(calls.Begin(current=current or None), request, viewer, sessions)
    return await show(request, viewer, sessions, status=201, made=made)


@router.post(PATH + "/confirm")
async def confirm(request: Request, viewer: ViewerDep, sessions: SessionsDep, code: Code) -> Response:
    """A wrong code costs nothing: the app has the secret, which is shown no more, and the next code may be right."""
    try:
        made = await calls.confirm(calls.Code(code=code), request, viewer, sessions)
    except Invalid as error:
        return await show(request, viewer, sessions, status=error.status, wrong=error.detail)
    return await show(request, viewer, sessions, codes=made["recovery_codes"])


@router.post(PATH + "/recovery-codes")
async def recovery_codes(request: Request, viewer: ViewerDep, sessions: SessionsDep, code: Code) -> Response:
    made = await calls.new_recovery_codes(calls.Code(code=code), request, viewer, sessions)
    return await show(request, viewer, sessions, codes=made["recovery_codes"])


@router.post(PATH + "/remove")
async def remove(request: Request, viewer: ViewerDep, sessions: SessionsDep, code: Code) -> Response:
    await calls.remove(calls.Code(code=code), request, viewer, sessions)
    return see(PATH)
