"""Attacks on a login by OpenID: each answer of a provider, a browser or a stranger that must let nobody in."""

from __future__ import annotations

import asyncio
import hmac
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

from app.security import oidc as oidc_module
from app.security.limits import ADDRESS
from tests.unit.console_kit import BASE, run, running
from tests.unit.fake_provider import (
    CLIENT,
    ISSUER,
    OTHER,
    RSA,
    SECRET,
    FakeProvider,
    begun,
    come_in,
    person,
    refused,
    settings_of,
    unsigned,
)

Json = dict[str, Any]
NOW = int(time.time())


NOT_FOR_THIS_LOGIN: tuple[tuple[Json, str], ...] = (
    ({"iss": "https://evil.example"}, "iss"),
    ({"iss": ISSUER + "/"}, "iss"),
    ({"aud": "another-client"}, "aud"),
    ({"aud": [CLIENT, "another-client"]}, "azp"),
    ({"aud": [CLIENT, "another-client"], "azp": "another-client"}, "azp"),
    ({"nonce": "of another login"}, "nonce"),
    ({"nonce": None}, "nonce"),
    ({"exp": NOW - 3600}, "exp"),
    ({"exp": "tomorrow"}, "exp"),
    ({"exp": None}, "exp"),
    ({"iat": NOW + 3600}, "issued in the future"),
    ({"nbf": NOW + 3600}, "not yet valid"),
    ({"sub": None}, "sub"),
    ({"sub": ""}, "sub"),
    ({"sub": 7}, "sub"),
    ({"sub": "x" * 256}, "sub"),
    ({"at_hash": "of another access token"}, "at_hash"),
)


def test_a_token_that_is_not_for_this_login_lets_nobody_in(tmp_path: Path) -> None:
    async def work() -> None:
        provider = FakeProvider()
        async with running(tmp_path, seeded=False, provider=provider, oidc=settings_of(tmp_path)) as kit:
            for change, said in NOT_FOR_THIS_LOGIN:
                provider.claims = lambda claims, change=change: without_none({**claims, **change})
                assert said in await refused(kit, provider), change
            provider.claims = lambda claims: {**claims, "aud": [CLIENT], "azp": CLIENT}
            await person(kit, provider)

    run(work())


def without_none(claims: Json) -> Json:
    return {name: one for name, one in claims.items() if one is not None}


def by_another_key(claims: Json) -> str:
    return jwt.encode({"alg": "RS256", "kid": "first"}, claims, OTHER)


def by_secret(claims: Json, secret: bytes) -> str:
    said = unsigned(claims, {"alg": "HS256", "kid": "first"}).rstrip(".")
    return f"{said}.{urlsafe_b64encode(hmac.digest(secret, said.encode(), 'sha256')).decode().rstrip('=')}"


def with_the_public_key_as_a_secret(claims: Json) -> str:
    return by_secret(claims, RSA.as_pem(private=False))


def with_the_client_secret(claims: Json) -> str:
    return by_secret(claims, SECRET.encode())


def with_its_own_key_inside(claims: Json) -> str:
    key = RSAKey.generate_key(2048)
    return jwt.encode({"alg": "RS256", "jwk": key.as_dict(private=False)}, claims, key)


def of_an_unknown_key(claims: Json) -> str:
    return jwt.encode({"alg": "RS256", "kid": "unknown"}, claims, OTHER)


def with_claims_changed_afterwards(claims: Json) -> str:
    header, _, signature = jwt.encode({"alg": "RS256", "kid": "first"}, claims, RSA).split(".")
    return f"{header}.{unsigned({**claims, 'groups': ['log-admins']}, {}).split('.')[1]}.{signature}"


FORGED: tuple[Callable[[Json], str], ...] = (
    by_another_key,
    with_the_public_key_as_a_secret,
    with_the_client_secret,
    with_its_own_key_inside,
    of_an_unknown_key,
    with_claims_changed_afterwards,
    lambda claims: unsigned(claims, {"alg": "none"}),
    lambda claims: unsigned(claims, {"alg": "NONE"}),
    lambda claims: unsigned(claims, {"alg": "none", "kid": "first"}),
    lambda _claims: "no.token.atall",
    lambda _claims: "",
    lambda _claims: "x" * 300_000,
)


def test_a_token_that_the_provider_did_not_sign_lets_nobody_in(tmp_path: Path) -> None:
    async def work() -> None:
        provider = FakeProvider()
        async with running(tmp_path, seeded=False, provider=provider, oidc=settings_of(tmp_path)) as kit:
            for forged in FORGED:
                provider.signed = forged
                said = await refused(kit, provider, groups=["log-admins"])
                assert "ID token does not count" in said, (forged, said)
            provider.signed = provider.sign
            await person(kit, provider, groups=["log-admins"])

    run(work())


def test_clocks_may_differ_by_a_minute_and_no_more(tmp_path: Path) -> None:
    async def work() -> None:
        provider = FakeProvider()
        async with running(tmp_path, seeded=False, provider=provider, oidc=settings_of(tmp_path)) as kit:
            now_s = time.time()
            kit.app.state.provider.clock = lambda: now_s
            for ahead_s, lets_in in ((50, True), (-350, False), (355, True), (365, False)):
                # The token is of now, for 300 s; the console's clock is ahead of it, or behind.
                provider.claims = lambda claims: {**claims, "iat": int(now_s), "exp": int(now_s) + 300}
                kit.app.state.provider.clock = lambda ahead_s=ahead_s: now_s + ahead_s
                _, answer = await come_in(kit, provider)
                assert (answer.status_code == 303) is lets_in, ahead_s

    run(work())


def test_the_provider_may_change_its_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oidc_module, "AGAIN_S", 0.0)

    async def work() -> None:
        provider = FakeProvider()
        async with running(tmp_path, seeded=False, provider=provider, oidc=settings_of(tmp_path)) as kit:
            await person(kit, provider)
            provider.key = ECKey.generate_key("P-256", {"kid": "second"})
            await refused(kit, provider)
            provider.published = [RSA, provider.key]
            await person(kit, provider)

    run(work())


# --- the way back ---


def changed(back: str, **more: str | None) -> str:
    """That way back with other parameters, without the origin."""
    parts = urlsplit(back)
    said = {name: values[0] for name, values in parse_qs(parts.query).items()} | more
    return f"{parts.path}?{urlencode({name: one for name, one in said.items() if one is not None})}"


UNFIT: tuple[tuple[dict[str, str | None], str], ...] = (
    ({"state": "of another login"}, "not begun in this browser"),
    ({"state": None}, "not begun in this browser"),
    ({"iss": "https://evil.example"}, "another provider"),
    ({"iss": None}, "another provider"),
    ({"code": "guessed"}, "did not take the code"),
    ({"code": None}, "without a code"),
    ({"error": "access_denied"}, "access_denied"),
    ({"error": "<script>\x1b[31m\n"}, "&lt;script&gt;·[31m·"),
)


def test_an_answer_that_does_not_fit_lets_nobody_in(tmp_path: Path) -> None:
    async def work() -> None:
        provider = FakeProvider()
        async with running(tmp_path, seeded=False, provider=provider, oidc=settings_of(tmp_path)) as kit:
            for more, said in UNFIT:
                client = kit.client(accept="text/html")
                back = provider.authorize(await begun(client))
                answer = await client.get(changed(back, **more))
                assert answer.status_code == 403 and said in answer.text, answer.text
                assert (await client.get("/api/v1/me")).status_code == 401

    run(work())


def test_an_answer_counts_in_the_browser_that_asked_and_once(tmp_path: Path) -> None:
    """A stranger's answer in a victim's browser (login CSRF), a code that was seen, and the same answer again."""

    async def work() -> None:
        provider = FakeProvider()
        async with running(tmp_path, seeded=False, provider=provider, oidc=settings_of(tmp_path)) as kit:
            stranger, victim = kit.client(accept="text/html"), kit.client(accept="text/html")
            back = provider.authorize(await begun(stranger), sub="stranger", name="stranger")
            assert (await victim.get(changed(back))).status_code == 403, "a browser that began nothing"
            theirs = provider.authorize(await begun(victim))
            assert (await victim.get(changed(back))).status_code == 403, "or something else"
            stolen = parse_qs(urlsplit(theirs).query)["code"][0]
            state = {"state": parse_qs(urlsplit(back).query)["state"][0]}
            injected = await stranger.get(changed(theirs, code=stolen, **state))
            assert injected.status_code == 403, "a code belongs to the browser whose verifier it was made for (PKCE)"
            client = kit.client(accept="text/html")
            own = provider.authorize(await begun(client))
            cookies = dict(client.cookies)
            done = await asyncio.gather(*(client.get(changed(own)) for _ in range(4)))
            assert sorted(one.status_code for one in done) == [303, 403, 403, 403]
            replayed = kit.client(cookie="; ".join(f"{name}={one}" for name, one in cookies.items()))
            assert (await replayed.get(changed(own))).status_code == 403, "also with the cookie put back"

    run(work())


def test_a_login_that_took_too_long_is_begun_again(tmp_path: Path) -> None:
    async def work() -> None:
        provider = FakeProvider()
        async with running(tmp_path, seeded=False, provider=provider, oidc=settings_of(tmp_path)) as kit:
            client = kit.client(accept="text/html")
            back = provider.authorize(await begun(client))
            object.__setattr__(kit.app.state.begun_logins, "clock", lambda: time.time() + 601)
            answer = await client.get(changed(back))
            assert answer.status_code == 403 and "ten minutes" in answer.text

    run(work())


def test_a_login_ends_on_this_console(tmp_path: Path) -> None:
    async def work() -> None:
        provider = FakeProvider()
        async with running(tmp_path, seeded=False, provider=provider, oidc=settings_of(tmp_path)) as kit:
            for target in ("//evil.example", "https://evil.example", "/\\evil.example", "javascript:x", "/a\r\nX: y"):
                _, answer = await come_in(kit, provider, next=target)
                assert (answer.status_code, answer.headers["location"]) == (303, "/"), target

    run(work())


def test_the_way_back_is_never_what_a_request_names(tmp_path: Path) -> None:
    async def work() -> None:
        provider = FakeProvider()
        async with running(tmp_path, seeded=False, provider=provider, oidc=settings_of(tmp_path)) as kit:
            evil = await kit.client().get("/login/oidc", headers={"host": "evil.example"})
            assert evil.status_code == 421
            other = await kit.client().get("/login/oidc?next=/audits", headers={"host": "localhost:8421"})
            assert other.headers["location"] == f"{BASE}/login/oidc?here=true&next=%2Faudits"
            here = await kit.client().get("/login/oidc?here=true", headers={"host": "localhost:8421"})
            said = parse_qs(urlsplit(here.headers["location"]).query)
            assert said["redirect_uri"] == [f"{BASE}/login/oidc/callback"]
            assert here.headers["location"].startswith(f"{ISSUER}/authorize?")
            cookie = here.headers["set-cookie"].lower()
            assert "httponly" in cookie and "samesite=lax" in cookie
            for secret in ("nonce", "verifier"):
                assert secret not in here.headers["set-cookie"]
            assert "code_verifier" not in said

    run(work())


def test_who_fails_again_and_again_waits(tmp_path: Path) -> None:
    async def work() -> None:
        provider = FakeProvider()
        async with running(tmp_path, seeded=False, provider=provider, oidc=settings_of(tmp_path)) as kit:
            client = kit.client(accept="text/html")
            answers = [await client.get(f"/login/oidc/callback?state=s{n}&code=c") for n in range(ADDRESS.free + 3)]
            statuses = [one.status_code for one in answers]
            assert statuses == [403] * ADDRESS.free + [429] * 3
            assert int(answers[-1].headers["retry-after"]) >= 1
            assert [one for one in provider.asked if one.endswith("/token")] == []
            boss = await kit.person("boss")
            rows = (await boss.get("/api/v1/admin-trail")).json()["items"]
            (row,) = [one for one in rows if one["action"] == "login by OpenID failed"]
            assert row["detail"]["count"] == ADDRESS.free + 3 and row["detail"]["limited"] == 3

    run(work())


# --- whose word it is ---


def test_groups_that_were_not_signed_say_nothing(tmp_path: Path) -> None:
    """Beside the ID token, in a claim that points elsewhere, or in one that was not configured."""

    async def work() -> None:
        provider = FakeProvider()
        provider.claims = lambda claims: {
            **{name: one for name, one in claims.items() if name != "groups"},
            "roles": ["log-admins"], "_claim_names": {"groups": "src1"}, "_claim_sources": {"src1": {"endpoint": "x"}},
        }  # fmt: skip
        beside = provider.token

        def token(request: httpx2.Request) -> httpx2.Response:
            return httpx2.Response(200, json={**beside(request).json(), "groups": ["log-admins"]})

        provider.token = token  # type: ignore[method-assign]
        async with running(tmp_path, seeded=False, provider=provider, oidc=settings_of(tmp_path)) as kit:
            assert "None of your groups" in await refused(kit, provider)

    run(work())


def test_a_session_that_was_there_before_is_not_taken_over(tmp_path: Path) -> None:
    async def work() -> None:
        provider = FakeProvider()
        async with running(tmp_path, seeded=False, provider=provider, oidc=settings_of(tmp_path)) as kit:
            boss = await kit.person("boss")
            planted = boss.client.cookies[kit.app.state.cookie_name()]
            client, answer = await come_in(kit, provider, client=boss.client)
            assert answer.status_code == 303
            assert client.cookies[kit.app.state.cookie_name()] != planted
            old = kit.client(cookie=f"{kit.app.state.cookie_name()}={planted}")
            assert (await old.get("/api/v1/me")).status_code == 401

    run(work())
