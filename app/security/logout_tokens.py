"""Logouts that the OpenID provider announces (OpenID Connect Back-Channel Logout 1.0): which of its words count.

joserfc checks the signature and the times; here is what it does not decide. A logout token counts once, for LIFE_S: if
one of the provider's public keys signed it, for this issuer and this client, if it is about a session or a subject, and
if it is no ID token (`events` says logout, there is no `nonce`).

Invariants: what ends are sessions of users whom this provider vouched for, and none that began after the token was
issued, so that one that is kept and shown again after a restart ends nothing new; API tokens stay, as they do when
somebody logs out here.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from joserfc import jwt
from joserfc.errors import JoseError
from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.models import LoginSession, User
from app.security.bounded_transport import ProviderError
from app.security.oidc import SKEW_S, SUBJECT_CHARS_MAX, USED_MAX, Provider, printable

EVENT: Final = "http://schemas.openid.net/event/backchannel-logout"
TYPES: Final = ("logout+jwt", "jwt")
LIFE_S: Final = 600
SID_CHARS_MAX: Final = 255
Json = dict[str, Any]


class Logout(NamedTuple):
    """Whose sessions end: that one session's at the provider, or all of the subject's."""

    subject: str | None
    session: str | None
    issued_at: datetime


class Ended(NamedTuple):
    """How many sessions of a user ended."""

    user: User
    sessions: int


def sid_of(claims: Json) -> str | None:
    """The provider's session that an ID token belongs to, if it says so."""
    sid = claims.get("sid")
    return sid if isinstance(sid, str) and 0 < len(sid) <= SID_CHARS_MAX else None


class LogoutTokens:
    """One provider's. What was used is known for as long as it would count."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._used: OrderedDict[str, float] = OrderedDict()  # `jti` -> when it was shown

    async def read(self, token: str) -> Logout:
        """Raises ProviderError."""
        await self._provider.metadata()
        try:
            signed = await self._provider.signed(token)
            return self._checked(dict(signed.claims), dict(signed.header))
        except (JoseError, ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
            raise ProviderError(f"this logout token does not count: {printable(error)}") from None

    def _checked(self, claims: Json, header: Json) -> Logout:
        """Raises ValueError, JoseError."""
        settings, now_s = self._provider.settings, self._provider.clock()
        kind = header.get("typ", TYPES[0])
        if not isinstance(kind, str) or kind.lower().removeprefix("application/") not in TYPES:
            raise ValueError("its `typ` is none of a logout token")
        audience = claims.get("aud")
        if claims.get("iss") != settings.issuer:
            raise ValueError("its `iss` is another provider")
        if settings.client_id not in (audience if isinstance(audience, list) else [audience]):
            raise ValueError("its `aud` is another client")
        events = claims.get("events")
        if not isinstance(events, dict) or not isinstance(events.get(EVENT), dict):
            raise ValueError("its `events` says no logout")
        if "nonce" in claims:
            raise ValueError("it has a `nonce`: it is an ID token")
        jwt.JWTClaimsRegistry(now=int(now_s), leeway=SKEW_S, iat={"essential": True}).validate(claims)
        issued_s = claims["iat"]
        if now_s - issued_s > LIFE_S + SKEW_S:
            raise ValueError("it was issued too long ago")
        subject, session = text_in(claims, "sub", SUBJECT_CHARS_MAX), text_in(claims, "sid", SID_CHARS_MAX)
        if subject is None and session is None:
            raise ValueError("it names neither `sub` nor `sid`")
        self._use(text_in(claims, "jti", SID_CHARS_MAX), now_s)
        return Logout(subject, session, datetime.fromtimestamp(issued_s, UTC))

    def _use(self, number: str | None, now_s: float) -> None:
        """Raises ValueError."""
        if number is None:
            raise ValueError("it has no `jti`")
        if number in self._used:
            raise ValueError("it was used already")
        while self._used and (len(self._used) >= USED_MAX or self._oldest_s() < now_s - LIFE_S - 2 * SKEW_S):
            self._used.popitem(last=False)
        self._used[number] = now_s

    def _oldest_s(self) -> float:
        return next(iter(self._used.values()))


def text_in(claims: Json, name: str, chars_max: int) -> str | None:
    """Raises ValueError."""
    value = claims.get(name)
    if value is not None and not (isinstance(value, str) and 0 < len(value) <= chars_max):
        raise ValueError(f"nobody has such a `{name}`")
    return value


async def end_sessions_of(db: AsyncSession, issuer: str, logout: Logout) -> list[Ended]:
    """In the caller's transaction. Of those that have no `sid`, as the ID token had none, all of the subject's go."""
    since = logout.issued_at + timedelta(seconds=SKEW_S)
    which = (User.oidc_issuer == issuer) & (LoginSession.created_at <= since)
    if logout.subject is not None:
        which &= User.oidc_subject == logout.subject
    if logout.session is not None:
        mine = LoginSession.oidc_sid == logout.session
        which &= mine if logout.subject is None else mine | LoginSession.oidc_sid.is_(None)
    asked = select(LoginSession).join(User, LoginSession.user_id == User.id).where(which)
    found = list((await db.scalars(asked)).unique())
    await db.execute(delete(LoginSession).where(LoginSession.id.in_([one.id for one in found])))
    users = {one.user_id: one.user for one in found}
    return [Ended(user, sum(one.user_id == number for one in found)) for number, user in users.items()]
