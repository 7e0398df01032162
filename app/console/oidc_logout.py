"""`POST /login/oidc/backchannel-logout`: the OpenID provider says that somebody has logged out there.

It is the provider that calls, not a browser: nothing but the token that it signed speaks for it. Invariants: sessions
end in the transaction that puts that into the trail; what does not count ends nothing, is refused with 400 as the
standard wants it, delayed like a wrong password, and summed up in the trail.
"""

from __future__ import annotations

import logging
from typing import Final
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from app.console.oidc_login import ProviderAway, provider_of
from app.security import trail
from app.security.bounded_transport import ProviderError
from app.security.gate import client_address
from app.security.grants import granted
from app.security.logout_tokens import Logout, LogoutTokens, end_sessions_of
from app.security.oidc import printable
from app.security.roles import Viewer
from app.security.secrets import digest

log = logging.getLogger(__name__)
PATH: Final = "/login/oidc/backchannel-logout"
LOGOUT: Final = "logout by OpenID"
FAILED: Final = "logout by OpenID failed"
BYTES_MAX: Final = 64 * 1024
UNSTORED: Final = {"cache-control": "no-store"}
router = APIRouter(include_in_schema=False)


@router.post(PATH)
async def announced(request: Request) -> Response:
    provider = provider_of(request)
    parts, address = request.app.state, client_address(request.scope, request.app.state.settings)
    token = await token_in(request)
    account = f"a logout by OpenID {digest(token)[:16]}"
    wait_s = parts.login_limits.begin(account, address)
    if wait_s:
        parts.failures.note(FAILED, address, 400, limited=True)
        return JSONResponse({"error": "slow_down"}, 429, UNSTORED | {"retry-after": str(wait_s)})
    try:
        await provider.metadata()
    except ProviderError as error:  # its keys are not known, so nothing is known of this token
        parts.login_limits.undo(account, address)
        raise ProviderAway(f"{provider.settings.issuer}: {error}.", status=503) from None
    try:
        tokens: LogoutTokens = parts.logout_tokens
        logout = await tokens.read(token)
    except ProviderError as wrong:
        parts.failures.note(FAILED, address, 400)
        log.warning("a logout by OpenID from %s was refused: %s", printable(address), printable(wrong))
        return JSONResponse({"error": "invalid_request", "error_description": str(wrong)}, 400, UNSTORED)
    parts.login_limits.succeeded(account, address)
    await end(request, logout, address)
    return Response(status_code=200, headers=UNSTORED)


async def token_in(request: Request) -> str:
    """Of a form; empty where there is none, or no single one."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > BYTES_MAX:
            return ""
    try:
        fields = parse_qs(body.decode("ascii"), strict_parsing=True, max_num_fields=20)
    except (ValueError, UnicodeDecodeError):
        return ""
    given = fields.get("logout_token", [])
    return given[0] if len(given) == 1 else ""


async def end(request: Request, logout: Logout, address: str) -> None:
    parts = request.app.state
    async with parts.sessions() as db, db.begin():
        for user, sessions in await end_sessions_of(db, parts.settings.oidc.issuer, logout):
            viewer = Viewer(user.id, user.name, granted(user), "provider", 0)
            asked = {"method": "POST", "path": PATH, "address": address, "target": f"users/{user.name}"}
            await trail.add(db, trail.row_of(viewer, action=LOGOUT, **asked), 200, {"sessions_ended": sessions})
