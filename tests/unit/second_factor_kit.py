"""What tests of the second factor share: a clock that they set, and an authenticator app."""

from __future__ import annotations

from typing import Any

import httpx2
import pyotp

from app.security.second_factor import STEP_S
from tests.unit.console_kit import BASE, Kit, Person

ORIGIN = {"origin": BASE}
PASSWORD = "a long enough one"
FACTOR = "/api/v1/me/second-factor"


class App:
    """An authenticator app, and the console's clock: `next_code` waits for a step that was not used yet."""

    def __init__(self, kit: Kit) -> None:
        self.now_s = 1_700_000_000.0
        kit.app.state.second_factors.clock = lambda: self.now_s
        self.secret = pyotp.random_base32()

    def code(self, steps: int = 0) -> str:
        return pyotp.TOTP(self.secret).at(int(self.now_s) + steps * STEP_S)

    def next_code(self) -> str:
        self.now_s += STEP_S
        return self.code()

    def wrong_code(self) -> str:
        taken = {self.code(steps) for steps in (-1, 0, 1)}
        return next(text for number in range(10) if (text := f"{number:06}") not in taken)

    async def enrol(self, person: Person, password: str | None = None) -> list[str]:
        """The recovery codes."""
        begun = await person.change("POST", FACTOR, json={"current": password} if password else {})
        assert begun.status_code == 201, begun.text
        self.secret = begun.json()["secret"]
        done = await person.change("PUT", FACTOR, json={"code": self.next_code()})
        assert done.status_code == 200, done.text
        codes: list[str] = done.json()["recovery_codes"]
        return codes


async def with_password(kit: Kit, name: str = "ann", role: str = "admin") -> Person:
    person = await kit.person(name, role)
    done = await person.change("PUT", "/api/v1/me/password", json={"password": PASSWORD})
    assert done.status_code == 204, done.text
    return person


async def half_in(kit: Kit, name: str = "ann", next: str = "/") -> httpx2.AsyncClient:
    """A browser after a right password, before the code."""
    client = kit.client()
    body = {"name": name, "password": PASSWORD, "next": next}
    answer = await client.post("/login", data=body, headers=ORIGIN)
    assert answer.status_code == 303 and answer.headers["location"] == "/login/second-factor", answer.text
    assert (await client.get("/api/v1/me")).status_code == 401, "the first factor alone opens nothing"
    return client


async def give(client: httpx2.AsyncClient, code: str) -> Any:
    return await client.post("/login/second-factor", data={"code": code}, headers=ORIGIN)
