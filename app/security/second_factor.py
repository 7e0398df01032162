"""The second factor of local users: codes of an authenticator app (TOTP, RFC 6238), and recovery codes in its place.

A code counts for the step of 30 seconds that it was made for, and for the one before and after: clocks differ.
Invariants: a code is accepted once (the step that was used is stored, and none before it counts any more), a recovery
code is used up by one login; the secret is sealed in the database (app.security.sealed), and where it cannot be opened
nobody gets in with that factor. Who guesses waits (app.security.limits): whoever asks here has asked there
first. Users of an OpenID provider have none here: it asks for theirs.
"""

from __future__ import annotations

import base64
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import pyotp
from sqlalchemy import delete, func, or_, select, update
from sqlalchemy.engine import CursorResult, Result
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.models import RecoveryCode, User
from app.security.roles import Role
from app.security.sealed import Seal
from app.security.secrets import digest, same
from app.times import utc_now

Wanted = Literal["optional", "admins", "everyone"]
STEP_S: Final = 30
STEPS: Final = (0, -1, 1)
DIGITS: Final = 6
RECOVERY_CODES: Final = 10
RECOVERY_BYTES: Final = 10  # 80 bits, so a plain hash is enough to store
CODE_CHARS_MAX: Final = 40
ISSUER: Final = "Quorumscope"


class FactorError(ValueError):
    """What was asked for cannot be done now; the message says why."""


def is_required(user: User, wanted: Wanted) -> bool:
    """By the console's rule, or by an admin's word on this user."""
    by_rule = wanted == "everyone" or (wanted == "admins" and user.role == Role.ADMIN)
    return user.local and (by_rule or user.second_factor_required)


def must_enrol(user: User, wanted: Wanted) -> bool:
    """Until then their sessions open nothing but the page where they do."""
    return user.totp_confirmed_at is None and is_required(user, wanted)


def account_of(user: User) -> str:
    """Under which wrong codes are counted (app.security.limits)."""
    return f"second factor of {user.name}"


@dataclass(slots=True)
class SecondFactors:
    """See the module's docstring. The caller's transaction holds what changes."""

    seal: Seal
    clock: Callable[[], float] = field(default=time.time)

    async def begin(self, db: AsyncSession, user: User) -> str:
        """A new secret, which counts from `confirm` on; one that was begun before is forgotten. Raises FactorError,
        also where another session confirms one meanwhile: its codes would be those of a secret that is gone."""
        if not user.local:
            raise FactorError(f"{user.name} comes from an OpenID provider, which asks for theirs")
        secret = pyotp.random_base32()
        begun = {"totp_sealed": self.seal.seal(secret, purpose_of(user)), "totp_last_step": None}
        none_yet = (User.id == user.id) & User.totp_confirmed_at.is_(None)
        if not changed_one(await db.execute(update(User).where(none_yet).values(begun))):
            raise FactorError("there is a second factor already: remove it first")
        return secret

    def uri_of(self, user: User, secret: str, place: str) -> str:
        """What the QR code says; `place` tells this console from others in the app."""
        return pyotp.TOTP(secret).provisioning_uri(name=f"{user.name}@{place}", issuer_name=ISSUER)

    async def confirm(self, db: AsyncSession, user: User, code: str) -> list[str] | None:
        """The recovery codes, shown once; None for a wrong code. Raises FactorError."""
        if user.totp_sealed is None or user.totp_confirmed_at is not None:
            raise FactorError("nothing waits to be confirmed: begin again")
        if not await self._used_step(db, user, plain(code)):
            return None
        user.totp_confirmed_at = utc_now()
        return await self.renew_recovery_codes(db, user)

    async def accept(self, db: AsyncSession, user: User, code: str) -> Literal["code", "recovery code"] | None:
        """Which of the two it was, used up by this; None for a wrong one. Raises FactorError."""
        if user.totp_confirmed_at is None:
            raise FactorError(f"{user.name} has no second factor")
        given = plain(code)
        if len(given) == DIGITS:
            return "code" if await self._used_step(db, user, given) else None
        unused = (RecoveryCode.user_id == user.id) & RecoveryCode.used_at.is_(None)
        change = update(RecoveryCode).where(unused, RecoveryCode.code_hash == digest(given)).values(used_at=utc_now())
        return "recovery code" if changed_one(await db.execute(change)) else None

    async def _used_step(self, db: AsyncSession, user: User, code: str) -> bool:
        assert user.totp_sealed is not None
        step = self._step_of(self.seal.open(user.totp_sealed, purpose_of(user)), code)
        if step is None:
            return False
        newer = or_(User.totp_last_step.is_(None), User.totp_last_step < step)
        same_secret = (User.id == user.id) & (User.totp_sealed == user.totp_sealed)
        return changed_one(await db.execute(update(User).where(same_secret, newer).values(totp_last_step=step)))

    def _step_of(self, secret: str, code: str) -> int | None:
        """The step that the code was made for; all of them are computed, whichever it is."""
        made, now = pyotp.TOTP(secret), int(self.clock()) // STEP_S
        matching = [now + one for one in STEPS if same(made.generate_otp(now + one), code)]
        return matching[0] if matching else None

    async def renew_recovery_codes(self, db: AsyncSession, user: User) -> list[str]:
        """New ones; those before are void."""
        await db.execute(delete(RecoveryCode).where(RecoveryCode.user_id == user.id))
        made = [base64.b32encode(secrets.token_bytes(RECOVERY_BYTES)).decode().lower() for _ in range(RECOVERY_CODES)]
        db.add_all(RecoveryCode(user_id=user.id, code_hash=digest(one)) for one in made)
        return ["-".join(re.findall("....", one)) for one in made]


def changed_one(done: Result[Any]) -> bool:
    return isinstance(done, CursorResult) and done.rowcount == 1


async def recovery_codes_left(db: AsyncSession, user_id: int) -> int:
    unused = (RecoveryCode.user_id == user_id) & RecoveryCode.used_at.is_(None)
    return await db.scalar(select(func.count()).select_from(RecoveryCode).where(unused)) or 0


async def remove(db: AsyncSession, user: User) -> bool:
    """Also what only began; whether there was a second factor."""
    had = user.totp_confirmed_at is not None
    user.totp_sealed = user.totp_confirmed_at = user.totp_last_step = None
    await db.execute(delete(RecoveryCode).where(RecoveryCode.user_id == user.id))
    return had


def plain(code: str) -> str:
    """As it is compared: people write codes in groups."""
    return re.sub(r"[\s-]", "", code).lower()


def purpose_of(user: User) -> str:
    return f"second factor of user {user.id}"
