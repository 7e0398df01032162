"""Every sentence of the security paragraph that the gate keeps: Host, Origin, CSRF, roles, headers, the trail."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from app.console.settings import ConsoleSettings, SettingsError
from app.db.models import TrailRow
from app.security import policy
from app.security.gate import client_address
from app.security.roles import RIGHTS, Right, Role
from tests.unit.console_kit import BASE, Kit, run, running


async def trail(kit: Kit) -> list[TrailRow]:
    async with kit.app.state.sessions() as db:
        return list(await db.scalars(select(TrailRow).order_by(TrailRow.id)))


# --- the policy's table ---


@pytest.mark.parametrize(
    ("method", "path", "right"),
    [
        ("GET", "/", Right.OWN),
        ("GET", "/anything/at/all", Right.VIEW),
        ("POST", "/anything/at/all", Right.ADMIN),
        ("DELETE", "/api/v1/clusters/demo", Right.ADMIN),
        ("POST", "/api/v1/clusters", Right.ADMIN),
        ("PATCH", "/api/v1/clusters/demo", Right.ADMIN),
        ("BREW", "/", Right.ADMIN),
        ("GET", "/api/v1/users", Right.ADMIN),
        ("GET", "/api/v1/users/ann", Right.ADMIN),
        ("GET", "/api/v1/admin-trail", Right.ADMIN),
        ("GET", "/admin-trail", Right.ADMIN),
        ("GET", "/users", Right.ADMIN),
        ("GET", "/api/v1/clusters/demo/entries", Right.READ_BODIES),
        ("HEAD", "/api/v1/clusters/demo/entries/7", Right.READ_BODIES),
        ("GET", "/api/v1/clusters/demo/truncations", Right.VIEW),
        ("GET", "/api/v1/clusters/demo/truncations/n1/3/entries", Right.READ_BODIES),
        ("GET", "/api/v1/clusters/demo/segments", Right.VIEW),
        ("GET", "/api/v1/clusters/demo/segments/data/00000000000000000000", Right.READ_BODIES),
        ("GET", "/clusters/demo/log", Right.READ_BODIES),
        ("GET", "/clusters/demo/entries/7", Right.READ_BODIES),
        ("POST", "/api/v1/clusters/demo/entries", Right.OPERATE),
        ("POST", "/api/v1/clusters/demo/leadership-transfer", Right.OPERATE),
        ("POST", "/clusters/demo/leadership", Right.OPERATE),
        ("POST", "/api/v1/audits", Right.OPERATE),
        ("DELETE", "/api/v1/operations/x", Right.OPERATE),
        ("GET", "/live/cluster", Right.OWN),
        ("GET", "/login", None),
        ("POST", "/login/link/abc", None),
        ("GET", "/static/app.js", None),
        ("POST", "/static/app.js", Right.ADMIN),
        ("GET", "/api/v1", None),
        ("GET", "/api/v1/openapi.json", Right.OWN),
    ],
)
def test_the_table(method: str, path: str, right: Right | None) -> None:
    assert policy.find(method, path).right == right


def test_roles_grow_and_unknown_ones_have_nothing() -> None:
    assert RIGHTS[Role.VIEWER] < RIGHTS[Role.OPERATOR] < RIGHTS[Role.ADMIN] == set(Right)
    assert Right.READ_BODIES not in RIGHTS[Role.VIEWER] and Right.READ_BODIES in RIGHTS[Role.OPERATOR]
    assert "root" not in RIGHTS


# --- who gets in ---


def test_every_route_is_closed_to_strangers_but_the_listed_ones(tmp_path: Path) -> None:
    """Walks the real OpenAPI document, so that a route added tomorrow is covered."""

    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            stranger = kit.client(origin=BASE)
            for path, methods in kit.app.openapi()["paths"].items():
                for method in methods:
                    url = path.replace("{", "").replace("}", "")
                    answer = await stranger.request(method.upper(), url)
                    assert answer.status_code == (200 if path == "/api/v1" else 401), (method, path)
                    assert "location" not in answer.headers

    run(work())


def test_pages_send_strangers_to_the_login_and_streams_never_do(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            browser = kit.client(accept="text/html")
            sent = await browser.get("/clusters/demo?at=1")
            assert sent.status_code == 303 and sent.headers["location"] == "/login?next=%2Fclusters%2Fdemo%3Fat%3D1"
            for path in ("/live/cluster", "/live/cluster/snapshot", "/api/v1/clusters"):
                answer = await browser.get(path)
                assert answer.status_code == 401 and "location" not in answer.headers
                assert answer.headers["content-type"] == "application/problem+json"
            fragment = await browser.get("/clusters/demo", headers={"hx-request": "true"})
            assert fragment.status_code == 401

    run(work())


def test_roles(tmp_path: Path) -> None:
    """The last one removes the group."""
    cases = [
        ("viewer", "GET", "/api/v1/clusters", 200),
        ("viewer", "GET", "/api/v1/clusters/demo/entries/3", 403),
        ("operator", "GET", "/api/v1/clusters/demo/entries/3", 200),
        ("viewer", "POST", "/api/v1/clusters/demo/leadership-transfer", 403),
        ("operator", "POST", "/api/v1/clusters/demo/leadership-transfer", 200),
        ("operator", "DELETE", "/api/v1/clusters/demo", 403),
        ("operator", "GET", "/api/v1/users", 403),
        ("operator", "GET", "/api/v1/admin-trail", 403),
        ("admin", "GET", "/api/v1/admin-trail", 200),
        ("admin", "DELETE", "/api/v1/clusters/demo", 204),
    ]

    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            people = {role: await kit.person(role, role) for role in Role}
            for role, method, path, status in cases:
                body: dict[str, Any] = {"json": {"dry_run": True}} if method == "POST" else {}
                answer = await people[Role(role)].change(method, path, **body)
                assert answer.status_code == status, (role, method, path, answer.text)

    run(work())


# --- other sites ---


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8421", 200),
        ("localhost:1", 200),
        ("[::1]:8421", 200),
        ("console.example", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
    ],
)
def test_only_known_hosts_are_answered(tmp_path: Path, host: str, status: int) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False, allowed_hosts=("console.example",)) as kit:
            assert (await kit.client(host=host).get("/api/v1")).status_code == status

    run(work())


def test_changes_come_from_our_own_pages_with_the_token(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, str], int]] = [
        ({"origin": BASE}, 201),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "https://127.0.0.1:8421"}, 403),
        ({"sec-fetch-site": "same-origin"}, 201),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"x-csrf-token": ""}, 403),
        ({"x-csrf-token": "0" * 64}, 403),
        ({"x-csrf-token": "ü"}, 403),
    ]

    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann = await kit.person()
            for number, (headers, status) in enumerate(cases):
                sent = {"x-csrf-token": ann.csrf, **headers}
                raw = [(key.encode(), value.encode()) for key, value in sent.items()]
                answer = await ann.client.post("/api/v1/tokens", json={"name": f"t{number}"}, headers=raw)
                assert answer.status_code == status, (headers, answer.text)

    run(work())


def test_behind_a_proxy_its_own_word_counts_and_not_the_callers() -> None:
    """What stands first the caller wrote; logins are limited by this address."""
    headers = [(b"x-forwarded-for", b"10.0.0.1, 10.0.0.2"), (b"x-forwarded-for", b"192.0.2.7")]
    for sent, address in ((headers, "192.0.2.7"), (headers[:1], "10.0.0.2"), ([], "127.0.0.1")):
        scope = {"type": "http", "headers": sent, "client": ("127.0.0.1", 5)}
        assert client_address(scope, ConsoleSettings(behind_proxy=True)) == address
        assert client_address(scope, ConsoleSettings()) == "127.0.0.1"


def test_no_method_of_any_route_changes_anything_for_a_cookie_alone(tmp_path: Path) -> None:
    """Walks the real OpenAPI document: whatever is not read needs the session's token, by whichever method."""

    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann = await kit.person()
            methods_seen = set()
            for path, methods in kit.app.openapi()["paths"].items():
                for method in map(str.upper, methods):
                    url = path.replace("{", "").replace("}", "")
                    if method in policy.SAFE_METHODS or policy.find(method, url).right is None:
                        continue
                    methods_seen.add(method)
                    answer = await ann.client.request(method, url, json={}, headers={"origin": BASE})
                    assert (answer.status_code, answer.json()["title"]) == (403, "Form expired"), (method, path)
            assert methods_seen >= {"POST", "PUT", "PATCH", "DELETE"}

    run(work())


def test_the_token_of_another_session_does_not_count(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann, bea = await kit.person("ann"), await kit.person("bea")
            crossed = await ann.change("POST", "/api/v1/tokens", json={"name": "t"}, headers={"x-csrf-token": bea.csrf})
            assert crossed.status_code == 403

    run(work())


def test_forms_carry_the_token_in_a_field_and_arrive_whole(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann = await kit.person()
            assert (await ann.client.post("/logout", data={"x": "1"})).status_code == 403
            big = {"x": "a" * (2 << 20), "csrf_token": ann.csrf}
            assert (await ann.client.post("/logout", data=big)).status_code == 413
            multipart = await ann.client.post("/logout", data={"csrf_token": ann.csrf}, files={"f": b"x"})
            assert multipart.status_code == 403, "a multipart form needs the header"
            done = await ann.client.post("/logout", data={"csrf_token": ann.csrf})
            assert done.status_code == 303 and done.headers["location"] == "/login"

    run(work())


@pytest.mark.parametrize("body", [b"&" * 1001, b";" * 1001, b"a=1&" * 1001, b"name=" + b"a" * (128 << 10)])
def test_a_form_of_whoever_is_not_known_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    """What takes forms apart has a look at each byte, on the loop: 8 MiB of separators, from anybody, stopped a console
    for seconds."""

    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            monkeypatch.setattr("starlette.requests.Request.form", None)
            headers = {"content-type": "application/x-www-form-urlencoded"}
            for path in ("/login", "/login/link/abc", "/login/second-factor", "/login/oidc/backchannel-logout"):
                answer = await kit.client().post(path, content=body, headers=headers)
                assert answer.status_code == 413, (path, answer.text)
            ann = await kit.person()
            if len(body) <= 128 << 10:
                fields = b"csrf_token=" + ann.csrf.encode() + b"&" + body
                assert (await ann.client.post("/logout", content=fields, headers=headers)).status_code == 413

    run(work())


def test_the_api_takes_no_plain_form(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann = await kit.person()
            for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
                headers = {"content-type": kind}
                answer = await ann.change("POST", "/api/v1/tokens", content=b'{"name":"t"}', headers=headers)
                assert answer.status_code == 415
            headers = {"content-type": "application/json", "content-encoding": "gzip"}
            packed = gzip.compress(b'{"name":"t"}')
            answer = await ann.change("POST", "/api/v1/tokens", content=packed, headers=headers)
            assert answer.status_code == 415 and "'gzip'" in answer.json()["detail"]

    run(work())


def test_a_foreign_page_may_not_even_read(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann = await kit.person()
            answer = await ann.get("/api/v1/clusters", headers={"origin": "https://evil.example"})
            assert answer.status_code == 403
            assert not any(name.startswith("access-control") for name in answer.headers)

    run(work())


# --- headers ---


@pytest.mark.parametrize("path", ["/api/v1", "/api/v1/clusters", "/nothing", "/static/none.js"])
def test_every_answer_carries_the_headers(tmp_path: Path, path: str) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            headers = (await kit.client().get(path)).headers
            csp = headers["content-security-policy"]
            assert "unsafe" not in csp and "http" not in csp and "default-src 'none'" in csp
            assert "frame-ancestors 'none'" in csp and "base-uri 'none'" in csp and "form-action 'self'" in csp
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "same-origin"
            assert ("cache-control" in headers) == (not path.startswith("/static/"))
            assert "strict-transport-security" not in headers

    run(work())


def test_tls_adds_hsts_and_the_host_cookie(tmp_path: Path) -> None:
    async def work() -> None:
        base = "https://console.example"
        async with running(
            tmp_path, seeded=False, base=base, behind_proxy=True, allowed_hosts=("console.example",)
        ) as kit:
            answer = await kit.client().post(await kit.link("ann", "admin"), headers={"origin": base})
            cookie = answer.headers["set-cookie"]
            assert cookie.startswith("__Host-qs=") and "Secure" in cookie and "Path=/" in cookie
            assert "HttpOnly" in cookie and "SameSite=lax" in cookie and "Domain" not in cookie
            assert "strict-transport-security" in answer.headers

    run(work())


def test_the_loopback_cookie_is_named_after_the_instance(tmp_path: Path) -> None:
    async def work() -> None:
        names = []
        for place in ("a", "b", "a"):
            (tmp_path / place).mkdir(exist_ok=True)
            async with running(tmp_path / place, seeded=False) as kit:
                ann = await kit.person()
                names += list(ann.client.cookies.keys())
        assert names[0].startswith("qs_") and names[0] != names[1] and names[0] == names[2]

    run(work())


@pytest.mark.parametrize(
    ("settings", "starts"),
    [
        ({"host": "127.0.0.1"}, True),
        ({"host": "::1"}, True),
        ({"host": "localhost"}, True),
        ({"host": "0.0.0.0"}, False),
        ({"host": "10.1.2.3"}, False),
        ({"host": "console.example"}, False),
        ({"host": "0.0.0.0", "behind_proxy": True}, True),
        ({"host": "0.0.0.0", "tls_cert_file": Path("c"), "tls_key_file": Path("k")}, True),
        ({"host": "127.0.0.1", "tls_cert_file": Path("c")}, False),
    ],
)
def test_plain_http_beyond_loopback_refuses_to_start(
    settings: dict[str, Any], starts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.console.settings.tls_trouble", lambda *files: None)  # what they hold: test_tls_files.py
    made = ConsoleSettings(**settings)
    if starts:
        made.check()
    else:
        with pytest.raises(SettingsError):
            made.check()


# --- the trail ---


def test_changes_reads_of_bodies_and_refusals_are_in_the_trail(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            ann, vic = await kit.person("ann", "admin"), await kit.person("vic", "viewer")
            await ann.change("POST", "/api/v1/users", json={"name": "olga", "role": "operator"})
            await ann.get("/api/v1/clusters/demo/entries/3")
            await ann.get("/api/v1/clusters/demo/view")
            await vic.get("/api/v1/clusters/demo/entries/3")
            await vic.change("DELETE", "/api/v1/clusters/demo")
            rows = [(one.user_name, one.via, one.action, one.status) for one in await trail(kit)]
            assert ("ann", "session", "POST /api/v1/users", 201) in rows
            assert ("ann", "session", "read bodies", 200) in rows
            assert ("vic", "session", "read bodies", 403) in rows
            assert ("vic", "session", "DELETE /api/v1/clusters/demo", 403) in rows
            assert not any("view" in action for _, _, action, _ in rows), "plain reading is not recorded"
            shown = (await ann.get("/api/v1/admin-trail?limit=2")).json()
            assert len(shown["items"]) == 2 and shown["next"]
            assert (await ann.get(f"/api/v1/admin-trail?cursor={shown['next']}")).json()["items"]

    run(work())


def test_the_trail_holds_no_secret(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            link = await kit.link("ann", "admin")
            await kit.client().post(link, headers={"origin": BASE})
            rows = await trail(kit)
            assert [(one.user_name, one.path) for one in rows] == [("ann", "/login/link/…")]
            assert link.rpartition("/")[2] not in repr([vars(one) for one in rows])

    run(work())


def test_a_change_that_cannot_be_recorded_does_not_happen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            ann = await kit.person()

            async def broken(*_: Any, **__: Any) -> int:
                raise OSError("disk full")

            monkeypatch.setattr("app.security.trail.begin", broken)
            answer = await ann.change("DELETE", "/api/v1/clusters/demo")
            assert answer.status_code == 500 and "disk full" not in answer.text
            assert kit.console.group_view("demo")

    run(work())


def test_odd_requests_get_an_answer(tmp_path: Path) -> None:
    cases: list[tuple[str, dict[str, Any], int]] = [
        ("a lone bracket as host", {"headers": {"host": "[::1"}}, 421),
        ("a port that is none", {"headers": {"host": "127.0.0.1:x"}}, 200),
        ("json that is not UTF-8", {"content": b'{"name":"\xff"}'}, 400),
        ("json that is none", {"content": b"{"}, 422),
        ("a lone surrogate", {"content": rb'{"name":"\ud800"}'}, 422),
        ("an integer without end", {"content": b'{"name":"a","days":' + b"9" * 400 + b"}"}, 422),
        ("a nest", {"content": b'{"name":' + b"[" * 100_000}, 400),
        ("too much", {"content": b" " * (9 << 20)}, 413),
        ("nothing", {}, 422),
        ("a cookie that is none", {"headers": {"cookie": "\x01=;;=,"}}, 401),
    ]

    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann = await kit.person()
            for what, more, status in cases:
                if "host" in what or "port" in what:
                    answer = await kit.client().get("/api/v1", **more)
                elif "cookie" in what:
                    answer = await kit.client().get("/api/v1/me", **more)
                else:
                    headers = {"content-type": "application/json"}
                    answer = await ann.change("POST", "/api/v1/tokens", headers=headers, **more)
                assert answer.status_code == status, (what, answer.text)

    run(work())
