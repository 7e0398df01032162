"""Coming in by the OpenID provider.

`/login/oidc` sends the browser there; what the answer is held against travels in a sealed cookie (state, nonce, PKCE's
verifier), so that an answer counts in the browser that asked, once, within ten minutes. Invariants: the browser is sent
to the provider and to this console only; the code is in no log, no trail and no page; a login is in the trail with the
transaction that makes its session, so is what it changed of somebody's rights, and failures are summed up there. Local
users log in as ever: a provider that is away, or wrong, shuts no admin out.
"""

from __future__ import annotations

import logging
from typing import Annotated, Any, Final
from urllib.parse import quote, urlsplit

from fastapi import APIRouter, FastAPI, Query, Request
from starlette.responses import Response

from app.console.drawing import see
from app.console.errors import ConsoleError, NotFound
from app.console.login import NEXT_CHARS_MAX, cookie_shape, enter, safe_next
from app.db.engine import again_if_taken
from app.security import trail
from app.security.bounded_transport import ProviderError
from app.security.gate import client_address, read_cookie
from app.security.logout_tokens import sid_of
from app.security.oidc import Provider, printable
from app.security.oidc_users import Entry, user_of
from app.security.roles import Grants, Viewer
from app.security.sealed import Seal, SealError
from app.security.sealed_cookies import SealedCookie
from app.security.secrets import digest, same

log = logging.getLogger(__name__)
LOGIN: Final = "login by OpenID"
FAILED: Final = "login by OpenID failed"
CALLBACK: Final = "/login/oidc/callback"
LIFE_S: Final = 600
LOCALLY: Final = "Begin again from the login page. Local users log in there as ever."
Text = Annotated[str, Query(max_length=4096)]
router = APIRouter(include_in_schema=False)


class ProviderAway(ConsoleError):
    status = 502
    title = "The login provider does not answer as it should"


class NotLetIn(ConsoleError):
    status = 403
    title = "Not let in"


class TooOften(ConsoleError):
    status = 429
    title = "Too many tries"


def begun_logins(seal: Seal) -> SealedCookie:
    return SealedCookie(seal, "oidc", "a login by OpenID that was begun", LIFE_S)


async def start(app: FastAPI) -> None:
    provider: Provider | None = app.state.provider
    if provider is None:
        return
    rereading = app.state.console.rereading
    if provider.settings.client_secret_file is not None:
        rereading.add("the OpenID client's secret", provider.read_secret, provider.use_secret)
    if provider.settings.ca_file is not None:
        rereading.add("the authorities of the OpenID provider", provider.read_authorities, provider.use_authorities)


async def stop(app: FastAPI) -> None:
    provider: Provider | None = app.state.provider
    if provider is not None:
        await provider.close()


def provider_of(request: Request) -> Provider:
    provider: Provider | None = request.app.state.provider
    if provider is None:
        raise NotFound("This console knows no OpenID provider.", action="Log in with a name and a password.")
    return provider


def redirect_uri(request: Request) -> str:
    """Never the address that a request names: the one that the provider knows."""
    return str(request.app.state.settings.provider_url) + CALLBACK


@router.get("/login/oidc")
async def begin(request: Request, next: str = "/", here: bool = False) -> Response:
    provider, target = provider_of(request), safe_next(next)
    target = target if len(target) <= NEXT_CHARS_MAX else "/"
    known = request.app.state.settings.provider_url
    if not here and urlsplit(known).netloc != request.url.netloc:  # the answer comes to that address, with its cookie
        return see(f"{known}/login/oidc?here=true&next={quote(target, safe='')}")
    begun: SealedCookie = request.app.state.begun_logins
    try:
        url, kept = await provider.begin(redirect_uri(request))
        said = begun.text_of({**kept, "next": target})
    except ProviderError as error:
        log.warning("the OpenID provider %s cannot be used: %s", provider.settings.issuer, error)
        raise ProviderAway(f"{provider.settings.issuer}: {error}.", action=LOCALLY) from None
    except SealError as error:
        raise ProviderAway(str(error), status=503, title="A secret cannot be read") from None
    answer = see(url)
    answer.set_cookie(**cookie_shape(request, begun.name), value=said, max_age=LIFE_S)
    return answer


@router.get(CALLBACK)
async def callback(
    request: Request, state: Text = "", code: Text = "", iss: Text | None = None, error: Text | None = None
) -> Response:
    provider = provider_of(request)
    parts = request.app.state
    address = client_address(request.scope, parts.settings)
    begun: SealedCookie = parts.begun_logins
    kept = begun.content_of(read_cookie(request.state.cookies, cookie_shape(request, begun.name)["key"]))
    account = f"a login by OpenID {digest(state)[:16]}"  # whoever answers for many states waits by address
    wait_s = parts.login_limits.begin(account, address)
    if wait_s:
        parts.failures.note(FAILED, address, 403, limited=True)
        raise TooOften(f"Wait {wait_s} s, then begin again.", headers={"retry-after": str(wait_s)})
    try:
        claims = await answered(provider, redirect_uri(request), kept, state, code, iss, error)
    except ProviderError as wrong:
        parts.failures.note(FAILED, address, 403)
        log.warning("a login by OpenID from %s was refused: %s", printable(address), printable(wrong))
        raise NotLetIn(f"This login does not count: {wrong}.", action=LOCALLY) from None
    parts.login_limits.succeeded(account, address)
    assert kept is not None
    return await again_if_taken(lambda: let_in(request, claims, safe_next(kept["next"]), address))


async def answered(
    provider: Provider, back: str, kept: dict[str, Any] | None, state: str, code: str, iss: str | None,
    error: str | None,
) -> dict[str, Any]:  # fmt: skip
    """The claims. Raises ProviderError."""
    if kept is None or not same(state, kept["state"]):
        raise ProviderError("it was not begun in this browser, or more than ten minutes ago")
    if provider.used(state):
        raise ProviderError("it was used already")
    known = await provider.metadata()
    named = known.get("authorization_response_iss_parameter_supported") is True
    if iss != provider.settings.issuer and (named or iss is not None):
        raise ProviderError("the answer came from another provider")
    if error is not None:
        raise ProviderError(f"the provider answered {printable(error)!r}")
    if not code:
        raise ProviderError("the provider answered without a code")
    return await provider.finish(code, kept, back)


async def let_in(request: Request, claims: dict[str, Any], target: str, address: str) -> Response:
    parts = request.app.state
    async with parts.sessions() as db, db.begin():
        entry: Entry = await user_of(db, parts.settings.oidc, claims)
        if entry.user is not None and entry.refused is None:
            answer = await enter(request, db, entry.user, target, LOGIN, entry.changed, sid_of(claims))
            answer.delete_cookie(**cookie_shape(request, parts.begun_logins.name))
            return answer
        if entry.user is not None and entry.changed:
            viewer = Viewer(entry.user.id, entry.user.name, Grants(entry.user.role), "login", 0)
            row = trail.row_of(
                viewer, action=FAILED, method="GET", path=CALLBACK, address=address, target=f"users/{entry.user.name}"
            )
            await trail.add(db, row, 403, {**entry.changed, "refused": entry.refused})
    parts.failures.note(FAILED, address, 403, name=entry.name)
    raise NotLetIn(entry.refused or "", action="Ask whoever keeps the groups at the provider, or an admin here.")
