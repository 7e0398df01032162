"""Logging in under attack: who fails waits longer and longer, nobody else does; links and passwords void each other."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from app.db.models import TrailRow, User
from app.security import passwords as passwords_module
from app.security import secrets
from app.security.limits import ACCOUNT, ADDRESS, Limit, LoginLimits, place_of
from app.security.passwords import Hashing, TooBusy, weakness
from tests.unit.console_kit import BASE, Kit, Person, run, running

ORIGIN = {"origin": BASE}
PASSWORD = "a long enough one"


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


async def with_password(kit: Kit, name: str = "ann", role: str = "admin") -> Person:
    person = await kit.person(name, role)
    done = await person.change("PUT", "/api/v1/me/password", json={"password": PASSWORD})
    assert done.status_code == 204, done.text
    return person


async def login(kit: Kit, name: str, password: str) -> Any:
    return await kit.client().post("/login", data={"name": name, "password": password}, headers=ORIGIN)


def test_the_delay_grows_up_to_a_bound_and_a_success_ends_it() -> None:
    clock = Clock()
    limits = LoginLimits(clock)
    waits = []
    for _ in range(20):
        while wait_s := limits.begin("ann", "10.0.0.1"):
            waits.append(wait_s)
            clock.now_s += wait_s
    assert waits[:4] == [1, 2, 4, 8] and max(waits) <= ACCOUNT.longest_s
    assert limits.begin("Ann", "10.0.0.2") > 0, "the account waits wherever it is tried from, in any case"
    assert limits.begin("bea", "10.0.0.2") == 0
    clock.now_s += ACCOUNT.longest_s
    assert limits.begin("ann", "10.0.0.3") == 0
    limits.succeeded("ann", "10.0.0.3")
    assert [limits.begin("ann", "10.0.0.3") for _ in range(ACCOUNT.free)] == [0] * ACCOUNT.free


def test_an_address_that_tries_every_name_waits() -> None:
    limits = LoginLimits(Clock())
    tried = [limits.begin(f"user{n}", "2001:db8::1") for n in range(ADDRESS.free)]
    assert not any(tried)
    assert limits.begin("another", "2001:db8::2") > 0, "one /64 is one address"
    assert limits.begin("another", "2001:db8:0:1::2") == 0
    limits.succeeded("user1", "2001:db8::1")
    assert limits.begin("another", "2001:db8::1") == 0 and limits.begin("yet", "2001:db8::1") > 0


def test_waiting_does_not_lengthen_the_wait_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    limits = LoginLimits(clock)
    for _ in range(ACCOUNT.free):
        limits.begin("ann", "10.0.0.1")
    assert {limits.begin("ann", f"10.0.1.{n}") for n in range(200)} == {1}
    monkeypatch.setattr("app.security.limits.KEPT_MAX", 50)
    for n in range(500):
        limits.begin(f"name{n}", f"10.1.{n // 250}.{n % 250}")
    assert len(limits.accounts.tries) <= 50 and len(limits.addresses.tries) <= 50
    assert place_of("::ffff:10.0.0.1") == place_of("10.0.0.1") and place_of("somewhere") == "somewhere"


def test_wrong_passwords_get_429_and_one_row_of_the_trail(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann = await with_password(kit)
            clock = kit.app.state.login_limits.accounts.clock = Clock()
            answers = await asyncio.gather(*(login(kit, "ANN", f"wrong secret {n}") for n in range(32)))
            statuses = [one.status_code for one in answers]
            assert statuses.count(403) == ACCOUNT.free and statuses.count(429) == 32 - ACCOUNT.free
            limited = next(one for one in answers if one.status_code == 429)
            assert int(limited.headers["retry-after"]) >= 1 and "Too many tries" in limited.text
            assert (await login(kit, "ann", PASSWORD)).status_code == 429, "the right one waits too"
            rows = (await ann.get("/api/v1/admin-trail")).json()["items"]
            (failed,) = [one for one in rows if one["action"] == "login failed"]
            assert failed["detail"]["count"] == 33 and failed["detail"]["limited"] == 28
            assert failed["detail"]["names"] == ["ANN", "ann"] and failed["status"] == 403
            clock.now_s += 600
            entered = await login(kit, "aNN", PASSWORD)
            assert entered.status_code == 303, "user names have no case"

    run(work())


def test_a_flood_of_wrong_logins_holds_no_page_and_no_database_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each check waits until it is let go: pages answer meanwhile, at most WORKERS threads run, the rest is bounded."""
    go, running_now, most = threading.Event(), 0, 0
    lock = threading.Lock()

    def slow(_password: str, _hash: str | None) -> bool:
        nonlocal running_now, most
        with lock:
            running_now += 1
            most = max(most, running_now)
        go.wait(60)
        with lock:
            running_now -= 1
        return False

    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann = await kit.person()
            monkeypatch.setattr(passwords_module, "password_matches", slow)
            kit.app.state.login_limits.addresses.limit = Limit(10_000, 1.0)
            tries = [asyncio.create_task(login(kit, f"user{n}", "wrong secret")) for n in range(40)]
            await kit.until(lambda: sum(one.done() for one in tries) == 40 - passwords_module.WORKERS - 16)
            assert (await ann.get("/account")).status_code == 200, "a page is drawn while they wait"
            made = await ann.change("POST", "/api/v1/tokens", json={"name": "t"})
            assert made.status_code == 201, "and a change is made: no session holds the database"
            go.set()
            statuses = [one.status_code for one in await asyncio.gather(*tries)]
            assert statuses.count(403) == passwords_module.WORKERS + 16 and set(statuses) == {403, 429}
            assert most == passwords_module.WORKERS

    try:
        run(work())
    finally:
        go.set()


def test_hashing_refuses_more_than_it_lets_wait() -> None:
    async def work() -> None:
        hashing, go = Hashing(), threading.Event()
        many = [asyncio.create_task(hashing.run(go.wait)) for _ in range(18)]
        await asyncio.sleep(0)
        with pytest.raises(TooBusy):
            await hashing.run(go.wait)
        go.set()
        await asyncio.gather(*many)
        hashing.close()

    run(work())


# --- links ---


@pytest.mark.parametrize("what", ["a newer one", "another is used", "a password"])
def test_a_link_is_void(tmp_path: Path, what: str) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            first = await kit.link("ann", "admin")
            if what == "a newer one":
                second = await kit.link("ANN")
                assert (await kit.client().post(first, headers=ORIGIN)).status_code == 410
                assert (await kit.client().post(second, headers=ORIGIN)).status_code == 303
                return
            person = kit.client()
            assert (await person.post(first, headers=ORIGIN)).status_code == 303
            csrf = secrets.csrf_token_of(person.cookies[kit.app.state.cookie_name()])
            ann = Person(person, csrf)
            pending = await kit.link("ann")
            if what == "another is used":
                assert (await kit.client().post(pending, headers=ORIGIN)).status_code == 303
                assert (await kit.client().post(pending, headers=ORIGIN)).status_code == 410
                return
            assert (await ann.change("PUT", "/api/v1/me/password", json={"password": PASSWORD})).status_code == 204
            assert (await kit.client().post(pending, headers=ORIGIN)).status_code == 410

    run(work())


def test_making_a_link_lets_no_disabled_user_in(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            boss, _ = await kit.person("boss"), await kit.person("vic", "viewer")
            pending = await kit.link("vic")
            await boss.change("PATCH", "/api/v1/users/vic", json={"disabled": True})
            refused = await boss.change("POST", "/api/v1/users/VIC/login-link")
            assert refused.status_code == 409 and "disabled" in refused.json()["detail"]
            await boss.change("PATCH", "/api/v1/users/vic", json={"disabled": False})
            assert (await kit.client().post(pending, headers=ORIGIN)).status_code == 410, (
                "void since they were disabled"
            )
            async with kit.app.state.sessions() as db:
                assert (await db.scalar(select(User).where(User.name == "vic"))).disabled_at is None

    run(work())


def test_a_password_ends_other_sessions_and_tokens_when_asked(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann, other = await kit.person(), await kit.person()
            token = (await ann.change("POST", "/api/v1/tokens", json={"name": "ci"})).json()["token"]
            robot = kit.client(authorization=f"Bearer {token}")
            await ann.change("PUT", "/api/v1/me/password", json={"password": PASSWORD})
            assert (await other.get("/api/v1/me")).status_code == 401
            assert (await ann.get("/api/v1/me")).status_code == 200 and (
                await robot.get("/api/v1/me")
            ).status_code == 200
            body = {"password": PASSWORD + "r", "current": PASSWORD, "end_tokens": True}
            assert (await ann.change("PUT", "/api/v1/me/password", json=body)).status_code == 204
            assert (await robot.get("/api/v1/me")).status_code == 401

    run(work())


def test_two_names_that_differ_in_case_are_one_user(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann = await kit.person("Ann")
            again = await ann.change("POST", "/api/v1/users", json={"name": "aNN"})
            assert again.status_code == 409 and "Ann" in again.json()["detail"]
            assert (await ann.get("/api/v1/users/ann")).json()["name"] == "Ann"
            for name in ("", "a b", "x" * 65, "<b>"):
                with pytest.raises(ValueError, match="no user's name"):
                    await kit.link(name)

    run(work())


@pytest.mark.parametrize(
    ("password", "fine"),
    [
        ("tidal-otter-quartz", True), ("long walks at 5 am", True), ("short", False), ("1234567890", False),
        ("Password123!", False), ("P@ssw0rd2026", False), ("qwertyuiopqwerty", False), ("abababababab", False),
        ("aaaaaaaaaaaaaa", False), ("Welcome 2026", False), ("annannannann", False), ("ann-ann-ann-1", False),
    ],
)  # fmt: skip
def test_the_commonest_passwords_are_refused(password: str, fine: bool) -> None:
    assert (weakness(password, "ann") is None) == fine


def test_a_login_is_in_the_trail(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            await with_password(kit)
            assert (await login(kit, "ann", PASSWORD)).status_code == 303
            async with kit.app.state.sessions() as db:
                rows = list(await db.scalars(select(TrailRow).order_by(TrailRow.id)))
            assert [(one.user_name, one.action, one.status) for one in rows] == [
                ("ann", "login by link", 303), ("ann", "PUT /api/v1/me/password", 204), ("ann", "login", 303),
            ]  # fmt: skip

    run(work())
