"""Passwords: what is accepted, and argon2 in a bounded number of threads.

A verification takes some 50 ms of a core and 64 MiB on purpose; so at most WORKERS run at a time, at most WAITING_MAX
wait for their turn, and whoever comes then is asked to try again. Invariant: no caller holds a database session while
it waits here.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from app.security.secrets import PASSWORD_CHARS_MAX, PASSWORD_CHARS_MIN, password_matches, passwords

WORKERS: Final = 2
WAITING_MAX: Final = 16
COMMON_FILE: Final = Path(__file__).with_name("common_passwords.txt")
ROWS: Final = (
    "abcdefghijklmnopqrstuvwxyz",
    "01234567890",
    "qwertyuiop",
    "asdfghjkl",
    "zxcvbnm",
    "qwertzuiop",
    "azertyuiop",
)
SWAPPED: Final = str.maketrans("@$!013457", "asioieast")
R = TypeVar("R")


class TooBusy(RuntimeError):
    """More passwords wait to be checked than are let wait."""


class Hashing:
    """One for a process."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="argon2")
        self.waiting = 0

    async def matches(self, password: str, password_hash: str | None) -> bool:
        """False for users without a password, in the same time. Raises TooBusy."""
        return await self.run(functools.partial(password_matches, password, password_hash))

    async def hash(self, password: str) -> str:
        return await self.run(functools.partial(passwords.hash, password))

    async def run(self, work: Callable[[], R]) -> R:
        if self.waiting >= WORKERS + WAITING_MAX:
            raise TooBusy
        self.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.pool, work)
        finally:
            self.waiting -= 1

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)


@functools.cache
def common_passwords() -> frozenset[str]:
    return frozenset(COMMON_FILE.read_text().split())


def weakness(password: str, user_name: str = "") -> str | None:
    """Why a password is not taken; None where it is."""
    if len(password) < PASSWORD_CHARS_MIN:
        return f"A password has at least {PASSWORD_CHARS_MIN} characters."
    if len(password) > PASSWORD_CHARS_MAX:
        return f"A password has at most {PASSWORD_CHARS_MAX} characters."
    plain = "".join(password.lower().split())
    cores = {plain, plain.translate(SWAPPED)}
    cores |= {re.sub(r"^[\W\d_]+|[\W\d_]+$", "", one) for one in cores}
    if cores & common_passwords():
        return "This password is one of the commonest: it would be tried first."
    if len(set(plain)) < 4 or is_run(plain):
        return "This password is a repetition or a row of keys: it would be tried first."
    if user_name and len(re.sub(re.escape(user_name.lower()), "", plain)) < PASSWORD_CHARS_MIN // 2:
        return "This password is the user's name and hardly anything else."
    return None


def is_run(plain: str) -> bool:
    """A part of the alphabet, the digits or a row of keys, forwards or backwards, perhaps more than once."""
    for length in range(1, len(plain) // 2 + 1):
        if plain == (plain[:length] * len(plain))[: len(plain)] and length <= 4:
            return True
    return any(plain in row * 4 or plain in row[::-1] * 4 for row in ROWS)
