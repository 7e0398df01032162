"""The console and a real OpenID provider (Canaille, in a process of its own): what each says, the other understands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from app.console.oidc_login import CALLBACK
from app.security import bounded_transport
from app.security.bounded_transport import ProviderError
from app.security.secrets import csrf_token_of
from node.config_models import OidcTable
from tests.unit.console_kit import BASE, Kit, Person, run, running

ROWS = ("log-admins = admin", "sre = operator", "billing = operator on demo")


@dataclass
class Provider:
    issuer: str
    id: str
    secret: str

    def settings(self, place: Path, **more: Any) -> OidcTable:
        file = place / "client.secret"
        file.write_text(more.pop("secret", self.secret))
        file.chmod(0o600)
        whole = {"issuer": self.issuer, "client_id": self.id, "client_secret_file": file, "roles": ROWS, **more}
        return OidcTable(**whole)

    async def sent_back(self, location: str, name: str, groups: str) -> str:
        """What the provider sends a browser to, at which somebody sits who is in these groups."""
        assert location.startswith(f"{self.issuer}/")
        async with httpx2.AsyncClient(trust_env=False, timeout=60) as browser:
            answer = await browser.get(location, headers={"x-user": name, "x-groups": groups})
        assert answer.status_code == 302, answer.text
        return str(answer.headers["location"])


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the provider takes its time; what is bounded is another test's matter."""
    monkeypatch.setattr(bounded_transport, "TOTAL_S", 60.0)


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    command = [sys.executable, "-m", "tests.oidc_server", BASE + CALLBACK, f"{BASE}/login"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        yield Provider(**json.loads(process.stdout.readline()))
    finally:
        process.kill()
        process.communicate()


async def come_in(kit: Kit, provider: Provider, name: str = "olga", groups: str = "sre") -> Any:
    client = kit.client(accept="text/html")
    begun = await client.get("/login/oidc?next=/audits")
    assert begun.status_code == 303, begun.text
    back = await provider.sent_back(begun.headers["location"], name, groups)
    assert back.startswith(BASE + CALLBACK)
    return client, await client.get(back.removeprefix(BASE)), back


def test_somebody_comes_in_and_goes(tmp_path: Path, provider: Provider) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False, oidc=provider.settings(tmp_path)) as kit:
            client, answer, back = await come_in(kit, provider)
            assert (answer.status_code, answer.headers["location"]) == (303, "/audits"), answer.text
            me = (await client.get("/api/v1/me")).json()
            assert (me["name"], me["role"], me["source"]) == ("olga", "operator", "oidc")
            again = await client.get(back.removeprefix(BASE))
            assert again.status_code == 403, "an answer counts once"
            person = Person(client, csrf_token_of(client.cookies[kit.app.state.cookie_name()]))
            out = await person.change("POST", "/logout", headers={"accept": "text/html"})
            assert f'href="{provider.issuer}/oauth/end_session?client_id={provider.id}&amp;' in out.text
            async with httpx2.AsyncClient(trust_env=False, timeout=60) as browser:
                asked = f"{provider.issuer}/oauth/end_session"
                said = {"client_id": provider.id, "post_logout_redirect_uri": f"{BASE}/login"}
                there = await browser.get(asked, params=said, headers={"x-user": "olga"})
            assert there.status_code < 400, "the provider takes the address: it asks, or leads back"

    run(work())


def test_groups_at_the_provider_are_roles_here(tmp_path: Path, provider: Provider) -> None:
    async def work() -> None:
        async with running(tmp_path, oidc=provider.settings(tmp_path)) as kit:
            await kit.watched()
            for groups, role, on in (
                ("log-admins,canteen", "admin", {}),
                ("billing", "none", {"demo": "operator"}),
                ("sre", "operator", {}),
            ):
                client, answer, _ = await come_in(kit, provider, "ann", groups)
                assert answer.status_code == 303, answer.text
                me = (await client.get("/api/v1/me")).json()
                assert (me["name"], me["role"], me["cluster_roles"]) == ("ann", role, on)
            for groups in ("canteen", ""):
                _, refused, _ = await come_in(kit, provider, "ann", groups)
                assert refused.status_code == 403 and "None of your groups" in refused.text
                assert (await client.get("/api/v1/me")).status_code == 401

    run(work())


@pytest.mark.parametrize("wrong", ["verifier", "nonce", "code", "secret", "redirect address"])
def test_the_two_refuse_what_does_not_fit(tmp_path: Path, provider: Provider, wrong: str) -> None:
    """The provider holds the code against PKCE's verifier, the client and the address; the console the nonce."""

    async def work() -> None:
        secret = {"secret": "another-secret-of-nobody"} if wrong == "secret" else {}
        async with running(tmp_path, seeded=False, oidc=provider.settings(tmp_path, **secret)) as kit:
            console = kit.app.state.provider
            url, kept = await console.begin(BASE + CALLBACK)
            back = await provider.sent_back(url, "olga", "sre")
            code = parse_qs(urlsplit(back).query)["code"][0]
            address = BASE + CALLBACK
            if wrong in kept:
                kept[wrong] = kept["state"]
            code = "guessed" if wrong == "code" else code
            address = "http://127.0.0.1:1/elsewhere" if wrong == "redirect address" else address
            with pytest.raises(ProviderError):
                await console.finish(code, kept, address)

    run(work())


def test_an_issuer_that_is_written_otherwise_is_another_one(tmp_path: Path, provider: Provider) -> None:
    async def work() -> None:
        oidc = provider.settings(tmp_path, issuer=f"{provider.issuer}/")
        async with running(tmp_path, seeded=False, oidc=oidc) as kit:
            shown = await kit.client(accept="text/html").get("/login/oidc")
            assert shown.status_code == 502 and "calls itself" in shown.text

    run(work())
