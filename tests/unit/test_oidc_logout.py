"""The provider says that somebody logged out there: whose sessions end, and what it says that does not count."""

from __future__ import annotations

import itertools
import random
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from joserfc import jwt
from joserfc.jwk import OctKey
from sqlalchemy import update

from app.console.oidc_logout import BYTES_MAX, PATH
from app.db.models import User
from app.security.limits import ADDRESS, LoginLimits
from app.security.logout_tokens import EVENT, LIFE_S
from app.security.oidc import SKEW_S
from tests.unit.console_kit import Kit, run, running
from tests.unit.fake_provider import CLIENT, ISSUER, OTHER, RSA, SECRET, FakeProvider, person, settings_of, unsigned

Json = dict[str, Any]
NUMBERS = itertools.count()


def claims(**more: Any) -> Json:
    """Of a logout token; a value None: without that claim."""
    said: Json = {
        "iss": ISSUER, "aud": CLIENT, "iat": int(time.time()), "exp": int(time.time()) + 120,
        "jti": f"number {next(NUMBERS)}", "sub": "u1", "events": {EVENT: {}}, **more,
    }  # fmt: skip
    return {name: value for name, value in said.items() if value is not None}


def signed(said: Json, key: Any = RSA, **header: Any) -> str:
    fields = {"alg": "RS256", "kid": key.kid, "typ": "logout+jwt", **header}
    return jwt.encode({name: value for name, value in fields.items() if value is not None}, said, key)


async def announce(kit: Kit, token: str, **more: Any) -> httpx2.Response:
    """As a provider does it: no cookie, no origin."""
    return await kit.client().post(PATH, data={"logout_token": token}, **more)


async def is_in(one: Any) -> bool:
    return bool((await one.get("/api/v1/me")).status_code == 200)


async def known_since(kit: Kit, subject: str, at: datetime) -> None:
    async with kit.app.state.sessions() as db, db.begin():
        await db.execute(update(User).where(User.oidc_subject == subject).values(created_at=at))


@pytest.mark.parametrize("header", [{}, {"typ": "JWT"}, {"typ": None}, {"typ": "application/logout+jwt"}])
def test_a_logout_at_the_provider_ends_that_session_here(tmp_path: Path, header: Json) -> None:
    async def work() -> None:
        provider = FakeProvider()
        async with running(tmp_path, seeded=False, provider=provider, oidc=settings_of(tmp_path)) as kit:
            boss = await kit.person("boss")
            sids = iter(["s-1", "s-2", "s-1", None, None])
            provider.claims = lambda said: said | ({"sid": sid} if (sid := next(sids)) else {})
            at_work, at_home = await person(kit, provider, sub="u1"), await person(kit, provider, sub="u1")
            other = await person(kit, provider, sub="u2", name="otto")  # of another issuer's sid by the same name
            answer = await announce(kit, signed(claims(sid="s-1"), **header))
            assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store"), answer.text
            assert [await is_in(one) for one in (at_work, at_home, other)] == [False, True, True]
            answer = await announce(kit, signed(claims(sub=None, sid="s-2"), **header))
            assert answer.status_code == 200 and not await is_in(at_home)
            rows = (await boss.get("/api/v1/admin-trail")).json()["items"]
            ended = [one for one in rows if one["action"] == "logout by OpenID"]
            assert [(one["target"], one["detail"]["sessions_ended"]) for one in ended] == [("users/olga", 1)] * 2
            # Of sessions whose ID token had no `sid` all of the subject's go, by a token with or without one.
            for more in ({"sid": "s-9"}, {}):
                one = await person(kit, provider, sub="u1")
                assert (await announce(kit, signed(claims(**more), **header))).status_code == 200
                assert not await is_in(one) and await is_in(other) and await is_in(boss)

    run(work())


NONE_OF_OURS: tuple[tuple[Json, str], ...] = (
    ({"iss": "https://evil.example"}, "iss"),
    ({"iss": ISSUER + "/"}, "iss"),
    ({"iss": None}, "iss"),
    ({"aud": "another-client"}, "aud"),
    ({"aud": ["another-client"]}, "aud"),
    ({"aud": None}, "aud"),
    ({"aud": {"a": CLIENT}}, "aud"),
    ({"iat": None}, "iat"),
    ({"iat": "now"}, "iat"),
    ({"iat": int(time.time()) + 3600}, "iat|issued"),
    ({"iat": int(time.time()) - LIFE_S - SKEW_S - 60}, "too long ago"),
    ({"iat": -(10**30)}, "too long ago|iat"),
    ({"exp": int(time.time()) - 3600}, "exp"),
    ({"exp": "tomorrow"}, "exp"),
    ({"jti": None}, "jti"),
    ({"jti": ""}, "jti"),
    ({"jti": ["a"]}, "jti"),
    ({"jti": "x" * 256}, "jti"),
    ({"events": None}, "events"),
    ({"events": EVENT}, "events"),
    ({"events": [EVENT]}, "events"),
    ({"events": {EVENT: None}}, "events"),
    ({"events": {"another": {}}}, "events"),
    ({"nonce": "n"}, "nonce"),
    ({"nonce": ""}, "nonce"),
    ({"sub": None}, "neither"),
    ({"sub": 7}, "sub"),
    ({"sub": "x" * 256}, "sub"),
    ({"sid": {}}, "sid"),
    ({"sid": "x" * 256}, "sid"),
)


def test_what_is_no_logout_of_this_provider_for_this_console_ends_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        provider, rng = FakeProvider(), random.Random(12)
        async with running(tmp_path, seeded=False, provider=provider, oidc=settings_of(tmp_path)) as kit:
            olga = await person(kit, provider, sub="u1")

            async def refused(token: str, **more: Any) -> str:
                kit.app.state.login_limits = LoginLimits()
                answer = await announce(kit, token, **more)
                assert answer.status_code == 400, (answer.status_code, answer.text)
                assert answer.headers["cache-control"] == "no-store" and answer.json()["error"] == "invalid_request"
                assert await is_in(olga)
                return str(answer.json()["error_description"])

            for more, word in NONE_OF_OURS:
                said = await refused(signed(claims(**more)))
                assert any(one in said for one in word.split("|")), (more, said)
            good = claims()
            by_secret = jwt.encode({"alg": "HS256"}, good, OctKey.import_key(SECRET.encode() * 2), ["HS256"])
            for token in (
                "", "a.b.c", "x" * BYTES_MAX, signed(good, OTHER), signed(good, typ="at+jwt"), by_secret,
                unsigned(good, {"alg": "none"}),
            ):  # fmt: skip
                await refused(token)
            for _ in range(100):
                at, whole = rng.randrange(3), signed(good).split(".")
                part = list(whole[at])
                part[rng.randrange(len(part) - 3)] = rng.choice("AbC9_-")
                broken = ".".join([*whole[:at], "".join(part), *whole[at + 1 :]])
                if broken != signed(good):
                    await refused(broken)
            for body in (b"", b"logout_token", b"\xff=\xff", b"logout_token=a&logout_token=b", b"a=" * 50):
                kit.app.state.login_limits = LoginLimits()
                answer = await kit.client().post(PATH, content=body)
                assert answer.status_code == 400 and await is_in(olga)
            assert (await announce(kit, signed(good))).status_code == 200 and not await is_in(olga)

    run(work())


def test_a_logout_counts_once_and_for_no_session_that_began_after_it(tmp_path: Path) -> None:
    async def work() -> None:
        provider = FakeProvider()
        async with running(tmp_path, seeded=False, provider=provider, oidc=settings_of(tmp_path)) as kit:
            token = signed(claims())
            assert (await announce(kit, token)).status_code == 200
            olga = await person(kit, provider, sub="u1")
            await known_since(kit, "u1", datetime.now(UTC) - timedelta(days=30))
            again = await announce(kit, token)
            assert again.status_code == 400 and "used already" in again.json()["error_description"]
            kept = signed(claims(iat=int(time.time()) - SKEW_S - 30))  # as one that a restart has forgotten
            assert (await announce(kit, kept)).status_code == 200 and await is_in(olga)

    run(work())


def test_many_wrong_ones_have_to_wait_and_are_summed_up(tmp_path: Path) -> None:
    async def work() -> None:
        provider = FakeProvider()
        async with running(tmp_path, seeded=False, provider=provider, oidc=settings_of(tmp_path)) as kit:
            boss = await kit.person("boss")
            statuses = [(await announce(kit, f"wrong {number}")).status_code for number in range(ADDRESS.free + 3)]
            assert set(statuses[: ADDRESS.free]) == {400} and statuses[-1] == 429
            await kit.app.state.failures.flush()
            rows = (await boss.get("/api/v1/admin-trail")).json()["items"]
            (failed,) = [one for one in rows if one["action"] == "logout by OpenID failed"]
            assert failed["detail"]["count"] == ADDRESS.free + 3 and failed["detail"]["limited"]

    run(work())


def test_where_the_provider_is_away_or_there_is_none_nothing_ends(tmp_path: Path) -> None:
    async def work() -> None:
        provider = FakeProvider()
        provider.answer = lambda _request: httpx2.Response(503)
        async with running(tmp_path, seeded=False, provider=provider, oidc=settings_of(tmp_path)) as kit:
            assert (await announce(kit, signed(claims()))).status_code == 503
        async with running(tmp_path, seeded=False) as kit:
            assert (await announce(kit, signed(claims()))).status_code == 404

    run(work())
