"""Every route of the console against every kind of caller: roles, and what identified somebody once and does no more.

`RIGHTS` says for each route that the app has which right it takes; a route without a row, or a row without a route, is
a failure. It is written down apart from the gate's own table: what opens a route there has to be meant here as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from sqlalchemy import update

from app.db.models import ApiToken, LoginSession
from app.times import utc_now
from tests.unit.console_kit import BASE, Kit, Person, run, running

ABSENT: Final = "no-such-group"
PASSWORD: Final = "a long enough passphrase"
ROLES: Final = ("none", "viewer", "operator", "admin")
LEAST: Final = {"own": "none", "view": "viewer", "bodies": "operator", "operate": "operator", "admin": "admin"}
GROUP: Final = "/clusters/{cluster_id}"
API: Final = "/api/v1"
# By right; a word before paths is their methods. "public": before anybody is known.
RIGHTS: Final[dict[str, str]] = {
    "public": f"""
        GET /healthz /readyz {API} /login/oidc /login/oidc/callback
        GET,POST /login /login/link/{{token}} /login/second-factor
        POST /login/oidc/backchannel-logout
        MOUNT /static""",
    "own": f"""
        GET / /live/{{page}} /live/{{page}}/snapshot /operations/{{operation_id}} /docs /docs/{{name}} /audits
        GET /notifications /notifications/problems/{{scope}}/{{problem_id}} {API}/openapi.json
        GET {API}/clusters {API}/problems {API}/events {API}/operations {API}/operations/{{operation_id}}
        GET {API}/audits {API}/audits/{{audit_id}} {API}/audits/{{audit_id}}/findings
        GET {API}/schedules {API}/schedules/{{schedule_id}} {API}/alerts {API}/alerts/windows {API}/alerts/messages
        POST /logout
        GET /account
        POST /account/password /account/tokens /account/tokens/{{token_id}}/revoke /account/sessions/{{session_id}}/end
        GET,POST /account/second-factor
        POST /account/second-factor/confirm /account/second-factor/recovery-codes /account/second-factor/remove
        GET {API}/me {API}/sessions
        PUT {API}/me/password
        DELETE {API}/sessions/{{session_id}} {API}/tokens/{{token_id}}
        GET,POST {API}/tokens
        GET,POST,PUT {API}/me/second-factor
        POST {API}/me/second-factor/recovery-codes {API}/me/second-factor/remove""",
    "view": f"""
        GET /clusters/new {GROUP} {GROUP}/nodes/{{node_id}} {GROUP}/leadership {GROUP}/events {GROUP}/truncations
        GET {GROUP}/truncations/{{node_id}}/{{seq}} {GROUP}/audits {GROUP}/audits/{{audit_id}} {GROUP}/addresses
        GET {GROUP}/nodes/{{node_id}}/repair {GROUP}/nodes/{{node_id}}/restart {GROUP}/members {GROUP}/members/change
        GET {GROUP}/messages {GROUP}/messages/topics/{{topic}} {GROUP}/messages/groups/{{group}}
        GET /notifications/new /metrics {API}/console {API}/demo/state {API}/alerts/routes {API}/alerts/routes/{{name}}
        GET {API}{GROUP} {API}{GROUP}/view {API}{GROUP}/history {API}{GROUP}/problems {API}{GROUP}/events
        GET {API}{GROUP}/addresses {API}{GROUP}/state {API}{GROUP}/ha {API}{GROUP}/watermarks {API}{GROUP}/dispatchers
        GET {API}{GROUP}/closures {API}{GROUP}/truncations {API}{GROUP}/truncations/{{node_id}}/{{seq}}
        GET {API}{GROUP}/segments {API}{GROUP}/digests {API}{GROUP}/leadership-transfer {API}{GROUP}/snapshots
        GET {API}{GROUP}/operations {API}{GROUP}/members""",
    "bodies": f"""
        GET {GROUP}/truncations/{{node_id}}/{{seq}}/entries {GROUP}/log {GROUP}/entries/{{index}}/replicas
        GET {GROUP}/messages/find {API}{GROUP}/entries {API}{GROUP}/entries/{{index}}
        GET {API}{GROUP}/truncations/{{node_id}}/{{seq}}/entries {API}{GROUP}/segments/{{kind}}/{{name}}""",
    "operate": f"""
        POST {GROUP}/leadership /demo/break {GROUP}/audits
        POST {GROUP}/audits/{{audit_id}}/cancel {GROUP}/audits/schedules {GROUP}/audits/schedules/{{schedule_id}}/remove
        POST {GROUP}/nodes/{{node_id}}/repair {GROUP}/nodes/{{node_id}}/restart {GROUP}/members/change
        POST {GROUP}/messages/topics/{{topic}}/send {GROUP}/messages/groups/{{group}}/reset
        POST /notifications/problems/{{scope}}/{{problem_id}}/acknowledge
        POST /notifications/problems/{{scope}}/{{problem_id}}/unacknowledge
        POST /notifications/problems/{{scope}}/{{problem_id}}/mute
        POST /notifications/problems/{{scope}}/{{problem_id}}/unmute
        POST /notifications/windows /notifications/windows/{{window_id}}/remove
        POST {API}{GROUP}/leadership-transfer {API}{GROUP}/entries {API}/demo/break {API}/audits {API}/schedules
        POST {API}/audits/{{audit_id}}/cancel {API}{GROUP}/nodes/{{node_id}}/repair
        POST {API}{GROUP}/nodes/{{node_id}}/restart {API}{GROUP}/scrub {API}{GROUP}/repairs {API}{GROUP}/snapshots
        POST {API}{GROUP}/members {API}{GROUP}/members/{{member_id}}/promotion {API}/alerts/windows
        POST {API}/alerts/problems/{{scope}}/{{problem_id}}/acknowledge
        POST {API}/alerts/problems/{{scope}}/{{problem_id}}/unacknowledge
        POST {API}/alerts/problems/{{scope}}/{{problem_id}}/mute
        POST {API}/alerts/problems/{{scope}}/{{problem_id}}/unmute
        PUT {API}{GROUP}/members/{{member_id}}/address
        DELETE {API}/operations/{{operation_id}} {API}/schedules/{{schedule_id}} {API}{GROUP}/members/{{member_id}}
        DELETE {API}/alerts/windows/{{window_id}}""",
    "admin": f"""
        POST /clusters {GROUP}/addresses {GROUP}/addresses/withdraw {GROUP}/node-token
        GET,POST /users
        POST /users/{{name}}/role /users/{{name}}/group /users/{{name}}/disable /users/{{name}}/enable
        POST /users/{{name}}/second-factor /users/{{name}}/second-factor/reset /users/{{name}}/link
        GET /admin-trail {API}/admin-trail {API}/admin-trail/export
        POST /notifications/routes /notifications/routes/{{name}}/test /notifications/routes/{{name}}/change
        POST /notifications/routes/{{name}}/remove
        POST {API}/clusters {API}/alerts/routes {API}/alerts/routes/{{name}}/test {API}/users/{{name}}/login-link
        POST {API}{GROUP}/addresses
        PATCH,DELETE {API}{GROUP} {API}/alerts/routes/{{name}}
        DELETE {API}{GROUP}/addresses {API}/users/{{name}}/second-factor
        PUT,DELETE {API}{GROUP}/node-token
        GET,POST {API}/users
        GET,PATCH,DELETE {API}/users/{{name}}""",
}
# They end what the caller asks with.
ENDS: Final = {"/logout", "/account/sessions/{session_id}/end", API + "/sessions/{session_id}"}
Route = tuple[str, str]


def rows() -> dict[Route, str]:
    found: dict[Route, str] = {}
    for right, text in RIGHTS.items():
        methods: list[str] = []
        for word in text.split():
            if not word.startswith("/"):
                methods = word.split(",")
                continue
            for method in methods:
                assert (method, word) not in found, f"{method} {word} has two rows"
                found[method, word] = right
    return found


def routes_of(kit: Kit) -> set[Route]:
    """The app's own."""

    def walk(routes: Iterable[Any], before: str) -> Iterator[Route]:
        for one in routes:
            if (inner := getattr(one, "original_router", None)) is not None:
                yield from walk(inner.routes, before + one.include_context.prefix)
            elif methods := getattr(one, "methods", None):
                yield from ((method, before + one.path) for method in methods if method != "HEAD")
            else:
                yield "MOUNT", one.path

    return set(walk(kit.app.routes, ""))


def filled(path: str) -> str:
    """Of a group, and of things, that there are not: no caller changes anything by it."""
    known = {"cluster_id": ABSENT, "page": "group", "kind": "data", "token": "x" * 43, "scope": ABSENT}
    return re.sub(r"\{([^}:]+)[^}]*\}", lambda found: known.get(found[1], "9999999"), path)


class Caller:
    """A browser with a session, or a machine with a token; None is a stranger."""

    def __init__(self, kit: Kit, who: Person | str | None) -> None:
        self.csrf = who.csrf if isinstance(who, Person) else "x"
        self.robot = isinstance(who, str)
        given = {"authorization": f"Bearer {who}"} if isinstance(who, str) else {}
        self.client = who.client if isinstance(who, Person) else kit.client(**given)

    async def ask(self, method: str, path: str) -> httpx2.Response:
        headers = {"origin": BASE} if self.robot else {"x-csrf-token": self.csrf, "origin": BASE}
        body: dict[str, Any] = {}
        if method != "GET":
            body = {"json": {}} if path.startswith("/api/") else {"data": {}}
        return await self.client.request(method, path, headers=headers, **body)


def test_every_route_has_a_row_and_every_row_a_route(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            assert set(rows()) ^ routes_of(kit) == set()

    run(work())


async def caller_of(kit: Kit, role: str, via: str) -> Caller:
    person = await kit.person(f"{role}-{via}", role)
    if via == "session":
        return Caller(kit, person)
    return Caller(kit, await token_of(person, role))


async def token_of(person: Person, role: str) -> str:
    made = await person.change("POST", f"{API}/tokens", json={"name": "ci", "role": role})
    assert made.status_code == 201, made.text
    token: str = made.json()["token"]
    return token


@pytest.mark.parametrize("via", ["session", pytest.param("token", marks=pytest.mark.long)])
@pytest.mark.parametrize("role", ROLES)
def test_who_has_the_right_gets_through_and_nobody_else(tmp_path: Path, role: str, via: str) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            caller = await caller_of(kit, role, via)
            for (method, path), right in sorted(rows().items()):
                if method == "MOUNT" or path in ENDS:
                    continue
                answer = await caller.ask(method, filled(path))
                said = f"{role} by {via}: {method} {path} ({right}): {answer.status_code} {answer.text[:200]}"
                assert answer.status_code < 500 or answer.status_code == 503, said
                if right == "public":
                    continue
                if ROLES.index(role) >= ROLES.index(LEAST[right]):
                    assert answer.status_code not in (401, 403, 405), said
                else:
                    hidden = "{cluster_id}" in path and role == "none"
                    assert answer.status_code == (404 if hidden else 403), said

    run(work())


DEAD: Final = (
    "a stranger", "a session that is over", "a session of a disabled user", "a session from before a new password",
    "a session that was logged out of", "a token that is over", "a token of a disabled user",
    "a token of a removed user", "a token that was revoked", "a token revoked with the password",
    "a token with a letter changed",
)  # fmt: skip


async def dead(kit: Kit, what: str) -> Caller:
    """Somebody who was an admin."""
    if what == "a stranger":
        return Caller(kit, None)
    eve, boss = await kit.person("eve", "admin"), await kit.person("boss", "admin")
    who = Caller(kit, await token_of(eve, "admin") if "token" in what else eve)
    assert (await who.ask("GET", f"{API}/users")).status_code == 200

    async def changed(person: Person, method: str, path: str, **body: Any) -> None:
        answer = await person.change(method, path, json=body)
        assert answer.status_code < 300, answer.text

    if "is over" in what:
        async with kit.app.state.sessions() as db, db.begin():
            for kind in (LoginSession, ApiToken):
                await db.execute(update(kind).values(expires_at=utc_now() - timedelta(seconds=1)))
    elif "disabled" in what:
        await changed(boss, "PATCH", f"{API}/users/eve", disabled=True)
    elif "removed" in what:
        await changed(boss, "DELETE", f"{API}/users/eve")
    elif "password" in what:
        other = await kit.person("eve")
        await changed(other, "PUT", f"{API}/me/password", password=PASSWORD, end_tokens=True)
    elif "logged out" in what:
        cookies = dict(eve.client.cookies)
        assert (await eve.change("POST", "/logout", data={})).status_code == 303
        eve.client.cookies.update(cookies)
    elif "revoked" in what:
        (token,) = [one for one in (await eve.get(f"{API}/tokens")).json()["items"] if one["user"] == "eve"]
        await changed(eve, "DELETE", f"{API}/tokens/{token['id']}")
    else:
        text = who.client.headers["authorization"]
        who.client.headers["authorization"] = text[:-1] + ("a" if text[-1] != "a" else "b")
    return who


@pytest.mark.parametrize("what", DEAD)
def test_what_counted_once_opens_nothing(tmp_path: Path, what: str) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            caller = await dead(kit, what)
            for (method, path), right in sorted(rows().items()):
                if method == "MOUNT" or right == "public":
                    continue
                answer = await caller.ask(method, filled(path))
                said = f"{what}: {method} {path}: {answer.status_code} {answer.text[:200]}"
                if answer.status_code == 303:
                    assert not path.startswith(("/api/", "/live/")), said
                    assert answer.headers["location"].startswith("/login"), said
                else:
                    assert answer.status_code == 401, said

    run(work())


@pytest.mark.parametrize("via", ["session", "token"])
@pytest.mark.parametrize(("before", "after"), [("admin", "viewer"), ("admin", "none"), ("operator", "viewer")])
def test_who_was_given_less_has_less_at_once(tmp_path: Path, before: str, after: str, via: str) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            boss = await kit.person("boss", "admin")
            caller = await caller_of(kit, before, via)
            given = await boss.change("PATCH", f"{API}/users/{before}-{via}", json={"role": after})
            assert given.status_code == 200, given.text
            wrong = []
            for (method, path), right in sorted(rows().items()):
                if method == "MOUNT" or right == "public" or ROLES.index(after) >= ROLES.index(LEAST[right]):
                    continue
                answer = await caller.ask(method, filled(path))
                if answer.status_code not in (401, 403, 404):
                    wrong.append((method, path, answer.status_code))
            assert not wrong

    run(work())
