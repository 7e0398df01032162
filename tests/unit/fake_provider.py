"""An OpenID provider in this process, which can be made to say what no honest one says.

It checks what a real one checks: a code once, PKCE, redirect address, client. The console is tried against a real one
in tests/api/test_oidc_provider.py.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
from joserfc import jwt
from joserfc.jwk import ECKey, Key, RSAKey

from app.security.limits import LoginLimits
from app.security.secrets import csrf_token_of
from node.config_models import OidcTable
from tests.unit.console_kit import BASE, Kit, Person

ISSUER = "https://login.example"
CLIENT = "quorumscope"
SECRET = "a-secret-of-the-console-s-own"
ROWS = ("log-admins = admin", "sre = operator", "readers = viewer", "billing = operator on demo")
Json = dict[str, Any]
RSA = RSAKey.generate_key(2048, {"kid": "first", "use": "sig"})  # one for all tests: it takes a while
OTHER = RSAKey.generate_key(2048, {"kid": "first"})


def settings_of(tmp_path: Path, **more: Any) -> OidcTable:
    file = tmp_path / "client.secret"
    file.write_text(SECRET)
    file.chmod(0o600)
    return OidcTable(**{"issuer": ISSUER, "client_id": CLIENT, "client_secret_file": file, "roles": ROWS, **more})


class FakeProvider(httpx2.AsyncBaseTransport):
    """`claims` changes an ID token's claims before it is signed, `signed` makes the token, `answer` any answer."""

    def __init__(self) -> None:
        self.key: Key = RSA
        self.published: list[Key] = [RSA]
        self.codes: dict[str, Json] = {}
        self.metadata: Json = {
            "issuer": ISSUER,
            "authorization_endpoint": f"{ISSUER}/authorize",
            "token_endpoint": f"{ISSUER}/token",
            "jwks_uri": f"{ISSUER}/jwks",
            "end_session_endpoint": f"{ISSUER}/logout",
            "authorization_response_iss_parameter_supported": True,
        }
        self.asked: list[str] = []
        self.claims: Callable[[Json], Json] = lambda claims: claims
        self.signed: Callable[[Json], str] = self.sign
        self.answer: Callable[[httpx2.Request], httpx2.Response | None] = lambda _request: None

    def sign(self, claims: Json) -> str:
        algorithm = "ES256" if isinstance(self.key, ECKey) else "RS256"
        return jwt.encode({"alg": algorithm, "kid": self.key.kid}, claims, self.key, [algorithm])

    def authorize(self, location: str, sub: str = "u1", **more: Any) -> str:
        """The browser at the provider, somebody logged in: the way back that it is sent."""
        said = {name: values[0] for name, values in parse_qs(urlsplit(location).query).items()}
        assert location.startswith(self.metadata["authorization_endpoint"]) and said["client_id"] == CLIENT
        assert said["response_type"] == "code" and said["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(8)
        self.codes[code] = {**said, "sub": sub, **more}
        back = {"code": code, "state": said["state"], "iss": self.metadata["issuer"]}
        return f"{said['redirect_uri']}?{urlencode(back)}"

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(str(request.url))
        answer = self.answer(request)
        if answer is not None:
            return answer
        path = request.url.path
        if path == "/.well-known/openid-configuration":
            return httpx2.Response(200, json=self.metadata)
        if path == "/jwks":
            return httpx2.Response(200, json={"keys": [one.as_dict(private=False) for one in self.published]})
        assert path == "/token" and request.method == "POST"
        return self.token(request)

    def token(self, request: httpx2.Request) -> httpx2.Response:
        said = {name: values[0] for name, values in parse_qs(request.content.decode()).items()}
        login = self.codes.pop(said["code"], None)
        basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        challenge = base64.urlsafe_b64encode(hashlib.sha256(said["code_verifier"].encode()).digest()).decode()
        if (
            login is None
            or login["code_challenge"] != challenge.rstrip("=")
            or login["redirect_uri"] != said["redirect_uri"]
            or request.headers.get("authorization") != f"Basic {basic}"
        ):
            return httpx2.Response(400, json={"error": "invalid_grant"})
        now = int(time.time())
        claims = {
            "iss": self.metadata["issuer"], "aud": CLIENT, "sub": login["sub"], "iat": now, "exp": now + 300,
            "nonce": login["nonce"], "groups": login.get("groups", ["sre"]),
            "preferred_username": login.get("name", "olga"),
        }  # fmt: skip
        id_token = self.signed(self.claims(claims))
        return httpx2.Response(200, json={"access_token": "a", "token_type": "Bearer", "id_token": id_token})


def unsigned(claims: Json, header: Json) -> str:
    parts = (base64.urlsafe_b64encode(json.dumps(one).encode()).decode().rstrip("=") for one in (header, claims))
    return ".".join((*parts, ""))


async def begun(client: httpx2.AsyncClient, next: str = "/") -> str:
    """Where the browser is sent."""
    answer = await client.get("/login/oidc", params={"next": next})
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


async def come_in(kit: Kit, provider: FakeProvider, *, next: str = "/", client: Any = None, **who: Any) -> Any:
    """(the browser, what the console answers at the end of the way back)."""
    client = client or kit.client(accept="text/html")
    back = provider.authorize(await begun(client, next), **who)
    assert back.startswith(f"{BASE}/login/oidc/callback?")
    return client, await client.get(back.removeprefix(BASE))


async def person(kit: Kit, provider: FakeProvider, **who: Any) -> Person:
    client, answer = await come_in(kit, provider, client=kit.client(), **who)
    assert answer.status_code == 303, answer.text
    return Person(client, csrf_token_of(client.cookies[kit.app.state.cookie_name()]))


async def refused(kit: Kit, provider: FakeProvider, **who: Any) -> str:
    """Nobody comes in; what the page says."""
    kit.app.state.login_limits = LoginLimits()
    client, answer = await come_in(kit, provider, **who)
    assert answer.status_code == 403, (answer.status_code, answer.text)
    assert (await client.get("/api/v1/me")).status_code == 401
    return str(answer.text)
