"""A provider that answers oddly: redirects, floods, other people's addresses. Nothing of it is followed or kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.security.bounded_transport import ANSWER_BYTES_MAX
from tests.unit.console_kit import run, running
from tests.unit.fake_provider import ISSUER, FakeProvider, refused, settings_of

Json = dict[str, Any]


def redirected(request: httpx2.Request) -> httpx2.Response:
    return httpx2.Response(302, headers={"location": "https://evil.example/"})


def too_long(request: httpx2.Request) -> httpx2.Response:
    async def pieces() -> Any:
        for _ in range(ANSWER_BYTES_MAX // 65536 + 2):
            yield b" " * 65536

    return httpx2.Response(200, content=pieces())


def compressed(request: httpx2.Request) -> httpx2.Response:
    return httpx2.Response(200, content=b"{}", headers={"content-encoding": "gzip", "content-length": "2"})


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (redirected, "redirect"), (too_long, "more than"), (lambda _r: httpx2.Response(200, content=b"[]"), "JSON"),
        (lambda _r: httpx2.Response(200, content=b"[" * 100_000), "JSON"),
        (lambda _r: httpx2.Response(500, content=b"oops"), "500"),
        (lambda _r: httpx2.Response(200, json={"issuer": ISSUER}), "authorization_endpoint"),
    ],
    ids=["redirect", "long", "list", "deep", "error", "empty"],
)  # fmt: skip
@pytest.mark.parametrize("path", ["openid-configuration", "token"])
def test_an_odd_answer_is_refused_and_bounded(
    tmp_path: Path, path: str, answer: Callable[[httpx2.Request], httpx2.Response], said: str
) -> None:
    async def work() -> None:
        provider = FakeProvider()
        provider.answer = lambda request: answer(request) if str(request.url).endswith(path) else None
        async with running(tmp_path, seeded=False, provider=provider, oidc=settings_of(tmp_path)) as kit:
            if path == "token":
                await refused(kit, provider)
            else:
                shown = await kit.client(accept="text/html").get("/login/oidc")
                assert shown.status_code == 502 and said in shown.text
            assert not any("evil" in one for one in provider.asked), "no redirect is followed"

    run(work())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"issuer": "https://evil.example"}, "calls itself"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "authorization_endpoint"),
        ({"authorization_endpoint": "http://login.example/authorize"}, "authorization_endpoint"),
        ({"token_endpoint": "http://127.0.0.1:1/token"}, "steps down"),
        ({"token_endpoint": "http://169.254.169.254/token"}, "token_endpoint"),
        ({"jwks_uri": "file:///etc/passwd"}, "jwks_uri"),
        ({"jwks_uri": None}, "jwks_uri"),
        ({"end_session_endpoint": "data:text/html,x"}, "end_session_endpoint"),
    ],
)
def test_metadata_that_leads_elsewhere_is_refused(tmp_path: Path, change: Json, said: str) -> None:
    async def work() -> None:
        provider = FakeProvider()
        provider.metadata |= change
        async with running(tmp_path, seeded=False, provider=provider, oidc=settings_of(tmp_path)) as kit:
            shown = await kit.client(accept="text/html").get("/login/oidc")
            assert shown.status_code == 502 and said in shown.text

    run(work())
