"""Calls about the second factor: one's own, from a session; and an admin's reset of somebody's.

Invariants: the secret and the recovery codes are in the answer to the call that made them, and nowhere else; a session
alone is enough neither to set one up (the password is asked for, where there is one) nor to remove it (a code is).
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import Field
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.access import begin_try, check_password
from app.api.common import Json, SessionsDep, ViewerDep, note
from app.api.models import EnrolmentView, RecoveryCodesView, SecondFactorView
from app.api.users import Name, find
from app.console.errors import Conflict, Invalid, SecretUnreadable
from app.db.models import User
from app.security import second_factor
from app.security.identity import end_sessions
from app.security.roles import Viewer
from app.security.sealed import SealError
from app.security.second_factor import CODE_CHARS_MAX, FactorError, SecondFactors, recovery_codes_left
from app.security.secrets import PASSWORD_CHARS_MAX
from app.times import rfc3339
from node.views.request_body import RequestBody

router = APIRouter(tags=["access"])
WRONG = "This code is wrong, or was used already: take the one that the app shows next."


class Begin(RequestBody):
    current: Annotated[
        str | None, Field(max_length=PASSWORD_CHARS_MAX, description="the password, where there is one")
    ] = None


class Code(RequestBody):
    code: Annotated[str, Field(min_length=1, max_length=CODE_CHARS_MAX)]


def need_session(viewer: Viewer) -> None:
    if viewer.via != "session":
        raise Conflict("A second factor is managed from a session, not with an API token.")


@router.get("/me/second-factor", response_model=SecondFactorView)
async def my_second_factor(request: Request, viewer: ViewerDep, sessions: SessionsDep) -> Json:
    async with sessions() as db:
        user = await db.get_one(User, viewer.user_id)
        return {
            "since": rfc3339(user.totp_confirmed_at) if user.totp_confirmed_at is not None else None,
            "required": second_factor.is_required(user, request.app.state.settings.second_factor),
            "recovery_codes_left": await recovery_codes_left(db, user.id),
        }


@router.post("/me/second-factor", status_code=201, response_model=EnrolmentView)
async def begin(body: Begin, request: Request, viewer: ViewerDep, sessions: SessionsDep) -> Json:
    """Begins a second factor: a secret for an authenticator app, which counts once a code of the app confirmed it."""
    need_session(viewer)
    factors: SecondFactors = request.app.state.second_factors
    async with sessions() as db:
        known = (await db.get_one(User, viewer.user_id)).password_hash
    await check_password(request, viewer, known, body.current)
    async with sessions() as db, db.begin():
        user = await db.get_one(User, viewer.user_id)
        try:
            secret = await factors.begin(db, user)
        except FactorError as error:
            raise Conflict(str(error)) from None
        except SealError as error:
            raise SecretUnreadable(str(error)) from None
    note(request, f"users/{viewer.name}", after={"second_factor": "begun"})
    return {"secret": secret, "uri": factors.uri_of(user, secret, request.url.hostname or "console")}


@router.put("/me/second-factor", response_model=RecoveryCodesView)
async def confirm(body: Code, request: Request, viewer: ViewerDep, sessions: SessionsDep) -> Json:
    """Confirms a second factor with a code: from now on each login asks for one. Other sessions end."""
    need_session(viewer)
    account = f"{viewer.name} confirms a second factor"
    limits = begin_try(request, account)
    factors: SecondFactors = request.app.state.second_factors
    async with sessions() as db, db.begin():
        user = await db.get_one(User, viewer.user_id)
        try:
            codes = await factors.confirm(db, user, body.code)
        except FactorError as error:
            limits.undo(account, account)
            raise Conflict(str(error)) from None
        except SealError as error:
            raise SecretUnreadable(str(error)) from None
        if codes is None:
            raise Invalid(WRONG)
        ended = await end_sessions(db, user.id, but=viewer.credential_id)
    limits.succeeded(account, account)
    note(request, f"users/{viewer.name}", after={"second_factor": "set", "sessions_ended": ended})
    return {"recovery_codes": codes}


@router.post("/me/second-factor/recovery-codes", response_model=RecoveryCodesView)
async def new_recovery_codes(body: Code, request: Request, viewer: ViewerDep, sessions: SessionsDep) -> Json:
    """Makes new recovery codes, for a code of the app or one of the old ones."""
    need_session(viewer)
    factors: SecondFactors = request.app.state.second_factors
    async with sessions() as db, db.begin():
        user = await db.get_one(User, viewer.user_id)
        await need_code(request, db, user, body.code)
        codes = await factors.renew_recovery_codes(db, user)
    note(request, f"users/{viewer.name}", after={"recovery_codes": "new"})
    return {"recovery_codes": codes}


@router.post("/me/second-factor/remove", status_code=204)
async def remove(body: Code, request: Request, viewer: ViewerDep, sessions: SessionsDep) -> None:
    """Removes the second factor, for a code or a recovery code; not where one is required."""
    need_session(viewer)
    async with sessions() as db, db.begin():
        user = await db.get_one(User, viewer.user_id)
        if second_factor.is_required(user, request.app.state.settings.second_factor):
            raise Conflict("This account needs a second factor; an admin can reset it, and you set up another one.")
        await need_code(request, db, user, body.code)
        await second_factor.remove(db, user)
    note(request, f"users/{viewer.name}", after={"second_factor": "removed"})


async def need_code(request: Request, db: AsyncSession, user: User, code: str) -> None:
    """Used up by this. Raises Conflict where there is no second factor, Invalid, TooManyTries."""
    factors: SecondFactors = request.app.state.second_factors
    account = second_factor.account_of(user)
    limits = begin_try(request, account)
    try:
        used = await factors.accept(db, user, code)
    except FactorError as error:
        limits.undo(account, account)
        raise Conflict(str(error)) from None
    except SealError as error:
        raise SecretUnreadable(str(error)) from None
    if used is None:
        raise Invalid(WRONG)
    limits.succeeded(account, account)


@router.delete("/users/{name}/second-factor", status_code=204)
async def reset(name: Name, request: Request, sessions: SessionsDep) -> None:
    """For somebody whose app is lost: without it they set up another one. Their sessions end. An admin's own cannot be
    reset by themselves: that takes a code, or the command line."""
    async with sessions() as db, db.begin():
        user = await find(db, name)
        if user.id == request.state.viewer.user_id:
            raise Conflict("Your own second factor is removed with a code of it, on the account's page.")
        had = await second_factor.remove(db, user)
        ended = await end_sessions(db, user.id)
    said = "set" if had else "none"
    note(request, f"users/{user.name}", before={"second_factor": said}, after={"sessions_ended": ended})
