"""Random tokens and what is kept of them.

A token has 256 random bits, so a plain SHA-256 of it is enough to store; people's passwords go through argon2.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import secrets

from pwdlib import PasswordHash

API_TOKEN_PREFIX = "qsc_"
PASSWORD_CHARS_MIN = 10
PASSWORD_CHARS_MAX = 256

passwords = PasswordHash.recommended()


@functools.cache
def decoy_hash() -> str:
    """Verified when the user is unknown, so that the time of an answer does not tell which names exist."""
    return passwords.hash(secrets.token_urlsafe(16))


def new_token() -> str:
    return secrets.token_urlsafe(32)


def new_api_token() -> tuple[str, str]:
    """(the token, shown once; the prefix people recognise it by)."""
    token = API_TOKEN_PREFIX + secrets.token_urlsafe(32)
    return token, token[: len(API_TOKEN_PREFIX) + 6]


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def csrf_token_of(session_token: str) -> str:
    """Bound to the session: nobody without the cookie can compute it, and it needs no storage."""
    return hmac.new(session_token.encode(), b"quorumscope csrf", hashlib.sha256).hexdigest()


def same(first: str, second: str) -> bool:
    return hmac.compare_digest(first.encode(), second.encode())


def password_matches(password: str, password_hash: str | None) -> bool:
    """False for users without a password, in the same time. Takes some 50 ms on purpose: call it off the loop."""
    matched = passwords.verify(password, password_hash or decoy_hash())
    return matched and password_hash is not None
