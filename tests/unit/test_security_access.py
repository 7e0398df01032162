"""Ways in: one-time links, passwords, sessions, API tokens, and the last admin."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pwdlib.hashers import HasherProtocol
from sqlalchemy import select, update

from app.console.login import safe_next
from app.db.engine import Sessions, open_engine, open_sessions
from app.db.models import ApiToken, Cluster, LoginLink, LoginSession, User
from app.security import identity, links, tokens, users
from app.security.grants import GrantError, LastAdmin, change, keep_an_admin
from app.security.people import user_to_change
from app.times import utc_now
from tests.databases import database_url
from tests.unit.console_kit import BASE, Kit, Person, run, running

ORIGIN = {"origin": BASE}


async def forward(kit: Kit, table: type, **values: object) -> None:
    async with kit.app.state.sessions() as db, db.begin():
        await db.execute(update(table).values(**values))


def test_there_is_no_default_user(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit, kit.app.state.sessions() as db:
            assert list(await db.scalars(select(User))) == []

    run(work())


def test_opening_a_link_consumes_nothing_pressing_the_button_does_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            link = await kit.link("ann", "operator")
            for _ in range(3):
                shown = await kit.client(accept="text/html").get(link)
                assert shown.status_code == 200 and "ann" in shown.text and "<form" in shown.text
                assert "set-cookie" not in shown.headers
            first = await kit.client().post(link, headers=ORIGIN)
            assert first.status_code == 303 and "set-cookie" in first.headers
            assert (await kit.client().post(link, headers=ORIGIN)).status_code == 410
            assert (await kit.client().get(link)).status_code == 410

    run(work())


def test_a_link_cannot_be_pressed_from_another_site(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            link = await kit.link("ann", "admin")
            assert (await kit.client().post(link, headers={"origin": "https://evil.example"})).status_code == 403
            assert (await kit.client().post(link, headers=ORIGIN)).status_code == 303

    run(work())


def test_links_expire(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            link = await kit.link("ann", "admin")
            await forward(kit, LoginLink, expires_at=utc_now() - timedelta(seconds=1))
            assert (await kit.client().post(link, headers=ORIGIN)).status_code == 410
            assert (await kit.client().post("/login/link/guess", headers=ORIGIN)).status_code == 410

    run(work())


def test_what_was_issued_while_the_clock_was_ahead_lets_nobody_in(tmp_path: Path) -> None:
    """It would for as long as the clock was ahead."""

    async def work() -> None:
        async with running(tmp_path) as kit:
            ann = await kit.person("ann", "admin")
            link, year = await kit.link("ann", "admin"), timedelta(days=365)
            assert (await ann.get("/api/v1/clusters")).status_code == 200
            ahead = utc_now() + year
            await forward(kit, LoginSession, created_at=ahead, seen_at=ahead, expires_at=ahead + timedelta(hours=1))
            assert (await ann.get("/api/v1/clusters")).status_code == 401
            await forward(kit, LoginLink, issued_at=ahead, expires_at=ahead + timedelta(hours=1))
            assert (await kit.client().post(link, headers=ORIGIN)).status_code == 410
            async with kit.app.state.sessions() as db, db.begin():
                user = await db.scalar(select(User).where(User.name == "ann"))
                assert user is not None
                _, token = await identity.issue_api_token(db, user, "ci", "viewer", days=1)
            by_token = {"authorization": f"Bearer {token}"}
            assert (await kit.client().get("/api/v1/clusters", headers=by_token)).status_code == 200
            await forward(kit, ApiToken, created_at=ahead, expires_at=ahead + timedelta(days=1))
            assert (await kit.client().get("/api/v1/clusters", headers=by_token)).status_code == 401
            await forward(kit, ApiToken, created_at=utc_now() + timedelta(minutes=2))
            assert (await kit.client().get("/api/v1/clusters", headers=by_token)).status_code == 200, "another's clock"

    run(work())


def test_a_session_of_a_clock_that_was_ahead_ends_with_the_next_login(tmp_path: Path) -> None:
    """It let in again once its time had come, for longer than a session may last."""

    async def work() -> None:
        async with running(tmp_path) as kit:
            ann, ahead = await kit.person("ann", "admin"), utc_now() + timedelta(days=1)
            await forward(kit, LoginSession, created_at=ahead, seen_at=ahead, expires_at=ahead + timedelta(hours=1))
            assert (await ann.get("/api/v1/clusters")).status_code == 401
            bob = await kit.person("bob", "viewer")
            async with kit.app.state.sessions() as db:
                assert len(list(await db.scalars(select(LoginSession)))) == 1
            assert (await bob.get("/api/v1/clusters")).status_code == 200

    run(work())


def test_a_session_that_was_seen_by_a_clock_ahead_is_idle_all_the_same(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            ann, settings = await kit.person("ann", "admin"), kit.app.state.settings
            now = utc_now()
            kit.app.state.identity.noted.clear()
            await forward(kit, LoginSession, seen_at=now + timedelta(days=365))
            assert (await ann.get("/api/v1/clusters")).status_code == 200, "it began a moment ago"

            async def seen_at() -> datetime:
                async with kit.app.state.sessions() as db:
                    found: datetime | None = await db.scalar(select(LoginSession.seen_at))
                    assert found is not None
                    return found

            async with asyncio.timeout(60):  # until it is noted anew
                while await seen_at() > now + timedelta(days=1):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            kit.app.state.identity.noted.clear()
            began = now - timedelta(seconds=settings.session_idle_s + 1)
            await forward(kit, LoginSession, created_at=began, seen_at=now + timedelta(days=365))
            assert (await ann.get("/api/v1/clusters")).status_code == 401

    run(work())


def test_the_command_line_issues_links_and_tokens_on_a_fresh_database(tmp_path: Path) -> None:
    url = database_url(tmp_path / "deep" / "console.db")
    assert links.issue(url, "ann", "admin").startswith("/login/link/")
    assert links.issue(url, "ann") != links.issue(url, "ann")
    token = tokens.issue(url, "ann", "ci", "viewer")
    assert token.startswith("qsc_")
    listed = tokens.listing(url)
    assert [(one["user"], one["role"]) for one in listed] == [("ann", "viewer")]
    assert token.startswith(listed[0]["prefix"]) and len(listed[0]["prefix"]) < len(token) // 3
    assert tokens.revoke(url, listed[0]["id"]) and tokens.listing(url) == [] and not tokens.revoke(url, 99)
    with pytest.raises(LookupError):
        tokens.issue(url, "nobody", "ci")
    with pytest.raises(ValueError, match="root"):
        links.issue(url, "bea", "root")


@pytest.mark.sqlite
def test_nothing_in_the_database_lets_anybody_in(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann = await kit.person()
            token = (await ann.change("POST", "/api/v1/tokens", json={"name": "ci"})).json()["token"]
            await ann.change("PUT", "/api/v1/me/password", json={"password": "correct horse"})
            cookie = ann.client.cookies[kit.app.state.cookie_name()]
            link = (await kit.link("ann")).rpartition("/")[2]
            stored = b"".join(one.read_bytes() for one in tmp_path.glob("console.db*"))
            for secret in (token, cookie, link, "correct horse"):
                assert secret.encode() not in stored
            async with kit.app.state.sessions() as db:
                user = await db.scalar(select(User))
                assert user is not None and user.password_hash.startswith("$argon2id$")

    run(work())


def test_passwords(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann = await kit.person()
            short = await ann.change("PUT", "/api/v1/me/password", json={"password": "short"})
            assert short.status_code == 422 and "short" not in short.json()["detail"].replace("shorter", "")
            assert (
                await ann.change("PUT", "/api/v1/me/password", json={"password": "first secret"})
            ).status_code == 204
            wrong = await ann.change("PUT", "/api/v1/me/password", json={"password": "second secret", "current": "x"})
            assert wrong.status_code == 422
            body = {"name": "ann", "password": "first secret", "next": "//evil.example"}
            entered = await kit.client().post("/login", data=body, headers=ORIGIN)
            assert entered.status_code == 303 and entered.headers["location"] == "/"
            foreign = await kit.client().post("/login", data=body, headers={"origin": "https://evil.example"})
            assert foreign.status_code == 403
            for name, password in (("ann", "wrong secret"), ("nobody", "first secret")):
                refused = await kit.client().post("/login", data={"name": name, "password": password}, headers=ORIGIN)
                assert refused.status_code == 403 and "Wrong name or password." in refused.text
                assert "set-cookie" not in refused.headers

    run(work())


def test_a_password_costs_whoever_guesses_it_memory_and_time(costly_hasher: HasherProtocol) -> None:
    assert costly_hasher.hash("correct horse").startswith("$argon2id$v=19$m=65536,t=3,p=4$")


def test_a_user_without_a_password_cannot_log_in_with_any(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            await kit.person("ann")
            for password in ("", "None", "null"):
                answer = await kit.client().post("/login", data={"name": "ann", "password": password}, headers=ORIGIN)
                assert answer.status_code in (403, 422)

    run(work())


@pytest.mark.parametrize(
    ("target", "safe"),
    [
        ("/clusters/demo?at=1", "/clusters/demo?at=1"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
        ("javascript:alert(1)", "/"),
        ("/a\r\nSet-Cookie: x", "/"),
        ("", "/"),
        (None, "/"),
    ],
)
def test_next_never_leaves_this_console(target: str | None, safe: str) -> None:
    assert safe_next(target) == safe


@pytest.mark.parametrize("what", ["expired", "idle", "disabled", "ended", "logged out", "demoted"])
def test_sessions_end(tmp_path: Path, what: str) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann = await kit.person("ann", "admin")
            boss = await kit.person("boss", "admin")
            assert (await ann.get("/api/v1/me")).status_code == 200
            ago = utc_now() - timedelta(days=30)
            if what == "expired":
                await forward(kit, LoginSession, expires_at=ago)
            elif what == "idle":
                await forward(kit, LoginSession, seen_at=ago)
            elif what == "disabled":
                await boss.change("PATCH", "/api/v1/users/ann", json={"disabled": True})
            elif what == "ended":
                mine = (await ann.get("/api/v1/sessions")).json()["items"]
                number = next(one["id"] for one in mine if one["current"])
                assert (await boss.change("DELETE", f"/api/v1/sessions/{number}")).status_code == 204
            elif what == "logged out":
                await ann.change("POST", "/logout")
            else:
                await boss.change("PATCH", "/api/v1/users/ann", json={"role": "viewer"})
                assert (await ann.get("/api/v1/me")).json()["role"] == "viewer"
                assert (await ann.get("/api/v1/users")).status_code == 403
                return
            assert (await ann.get("/api/v1/me")).status_code == 401

    run(work())


def test_people_see_and_end_only_their_own_sessions_and_tokens(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            boss, vic = await kit.person("boss", "admin"), await kit.person("vic", "viewer")
            made = (await boss.change("POST", "/api/v1/tokens", json={"name": "ci", "role": "admin"})).json()
            theirs = (await boss.get("/api/v1/sessions")).json()["items"]
            number = next(one["id"] for one in theirs if one["user"] == "boss")
            assert {one["user"] for one in (await vic.get("/api/v1/sessions")).json()["items"]} == {"vic"}
            assert (await vic.get("/api/v1/tokens")).json()["items"] == []
            assert (await vic.change("DELETE", f"/api/v1/sessions/{number}")).status_code == 404
            assert (await vic.change("DELETE", f"/api/v1/tokens/{made['id']}")).status_code == 404

    run(work())


def test_api_tokens(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            olga = await kit.person("olga", "operator")
            body = {"name": "ci", "role": "admin", "days": 30}
            made = (await olga.change("POST", "/api/v1/tokens", json=body)).json()
            assert made["token"].startswith("qsc_") and made["token"].startswith(made["prefix"])
            assert made["role"] == "operator", "a token never has more rights than its owner"
            robot = kit.client(authorization=f"Bearer {made['token']}")
            me = (await robot.get("/api/v1/me")).json()
            assert (me["name"], me["role"], me["via"]) == ("olga", "operator", "token")
            assert (await robot.get("/api/v1/users")).status_code == 403
            again = await robot.post("/api/v1/tokens", json={"name": "more"})
            assert again.status_code == 409, "tokens do not breed"
            assert "token" not in (await olga.get("/api/v1/tokens")).json()["items"][0]

            await forward(kit, User, role="viewer")
            assert (await robot.get("/api/v1/me")).json()["role"] == "viewer", "nor than its owner has today"
            await forward(kit, ApiToken, expires_at=utc_now() - timedelta(days=1))
            assert (await robot.get("/api/v1/me")).status_code == 401
            await forward(kit, ApiToken, expires_at=None)
            assert (await robot.get("/api/v1/me")).status_code == 200
            await olga.change("DELETE", f"/api/v1/tokens/{made['id']}")
            assert (await robot.get("/api/v1/me")).status_code == 401

    run(work())


def test_one_user_has_a_bounded_number_of_tokens_in_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            monkeypatch.setattr(identity, "TOKENS_MAX", 3)
            olga, ann = await kit.person("olga", "operator"), await kit.person("ann", "viewer")

            async def make(person: Person) -> int:
                made = await person.change("POST", "/api/v1/tokens", json={"name": "ci", "days": 30})
                return made.status_code

            assert [await make(olga) for _ in range(4)] == [201, 201, 201, 409]
            refused = await olga.change("POST", "/account/tokens", data={"name": "ci"})
            assert refused.status_code == 409 and "revoke one first" in refused.text
            db_url = kit.app.state.settings.db_url
            with pytest.raises(GrantError, match="revoke one first"):
                await asyncio.to_thread(tokens.issue, db_url, "olga", "ci")
            assert await make(ann) == 201, "somebody else's are counted apart"
            newest = (await olga.get("/api/v1/tokens")).json()["items"][0]["id"]
            await olga.change("DELETE", f"/api/v1/tokens/{newest}")
            assert [await make(olga) for _ in range(2)] == [201, 409], "one that was revoked makes room"
            await forward(kit, ApiToken, expires_at=utc_now() - timedelta(days=1))
            assert await make(olga) == 201, "and so do those that are over"

    run(work())


@pytest.mark.parametrize("given", ["Bearer nonsense", "Bearer qsc_nonsense", "Basic YTpi", "Bearer", "nonsense"])
def test_a_wrong_token_does_not_fall_back_to_the_cookie(tmp_path: Path, given: str) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann = await kit.person()
            assert (await ann.get("/api/v1/me", headers={"authorization": given})).status_code == 401

    run(work())


def test_a_user_that_two_add_at_the_same_time_is_added_once(tmp_path: Path) -> None:
    """On PostgreSQL neither call saw the other one's row, and the second was the console's own error."""

    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann = await kit.person()
            answers = await asyncio.gather(
                *(ann.change("POST", "/api/v1/users", json={"name": name}) for name in ("bea", "Bea"))
            )
            assert sorted(one.status_code for one in answers) == [201, 409], [one.text for one in answers]
            assert any("There is a user" in one.text for one in answers)

    run(work())


def test_the_last_admin_stays(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann = await kit.person()
            for method, path, body in (
                ("PATCH", "/api/v1/users/ann", {"role": "viewer"}),
                ("PATCH", "/api/v1/users/ann", {"disabled": True}),
                ("DELETE", "/api/v1/users/ann", None),
            ):
                more = {"json": body} if body is not None else {}
                assert (await ann.change(method, path, **more)).status_code == 409
            made = await ann.change("POST", "/api/v1/users", json={"name": "bea", "role": "admin"})
            assert made.json()["login_link"].startswith("/login/link/")
            assert (await ann.change("POST", "/api/v1/users", json={"name": "bea"})).status_code == 409
            assert (await ann.change("POST", "/api/v1/users/bea/login-link")).status_code == 201
            assert (await ann.change("DELETE", "/api/v1/users/ann")).status_code == 204
            assert (await ann.get("/api/v1/me")).status_code == 401, "and whoever is removed is out"

    run(work())


def test_two_admins_who_remove_each_other_at_the_same_time_leave_one(tmp_path: Path) -> None:
    """On PostgreSQL each was one of two when it was looked at, and in the end there was none."""

    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann, bea = await kit.person(), await kit.person("bea")
            answers = await asyncio.gather(
                ann.change("PATCH", "/api/v1/users/bea", json={"role": "viewer"}),
                bea.change("PATCH", "/api/v1/users/ann", json={"disabled": True}),
            )
            assert 200 in [one.status_code for one in answers]
            async with kit.app.state.sessions() as db:
                left = (User.role == "admin") & User.disabled_at.is_(None)
                assert len(list(await db.scalars(select(User).where(left)))) == 1

    run(work())


def test_two_processes_that_remove_each_others_admin_leave_one(tmp_path: Path) -> None:
    """A console and a command, or two consoles, on one database: in SQLite each had looked before either wrote."""

    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            await kit.person()
            await kit.person("bea")
            other = open_engine(kit.console.settings.db_url)

            bea_looked = asyncio.Event()

            async def demoted(sessions: Sessions, name: str, looked: Callable[[], Awaitable[object]]) -> bool:
                async with sessions() as db, db.begin():
                    user = await user_to_change(db, name)
                    assert user is not None
                    try:
                        await keep_an_admin(db, user)
                    except LastAdmin:
                        return False
                    await looked()
                    user.role = "viewer"
                return True

            async def look() -> None:
                bea_looked.set()

            async def let_bea_look() -> None:  # she cannot before this is over
                beas.append(asyncio.create_task(demoted(open_sessions(other), "bea", look)))
                with suppress(TimeoutError):
                    await asyncio.wait_for(bea_looked.wait(), 0.3)

            beas: list[asyncio.Task[bool]] = []
            assert await demoted(kit.app.state.sessions, "ann", let_bea_look)
            assert not await beas[0]
            await other.dispose()

    run(work())


def test_a_link_takes_the_last_admins_role_from_nobody(tmp_path: Path) -> None:
    """`user link ann --role viewer` did, and left nobody who could change it again."""
    url = database_url(tmp_path / "console.db")
    links.issue(url, "ann", "admin")
    with pytest.raises(LastAdmin, match="ann is the last admin"):
        links.issue(url, "ann", "viewer")
    links.issue(url, "bea", "admin")
    links.issue(url, "ann", "viewer")
    assert {one["name"]: one["role"] for one in users.listing(url)} == {"ann": "viewer", "bea": "admin"}


def test_two_changes_of_one_users_roles_at_the_same_time_are_both_kept(tmp_path: Path) -> None:
    """Both had read the roles before either wrote them: two calls on PostgreSQL, a call and a command on SQLite."""

    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann, url = await kit.person(), kit.console.settings.db_url
            await kit.person("bea", "viewer")
            groups = [f"g{at}" for at in range(6)]
            async with kit.app.state.sessions() as db, db.begin():
                db.add_all(Cluster(id=one, name=one, group=one) for one in groups)
            answers = await asyncio.gather(
                *(ann.change("PATCH", "/api/v1/users/bea", json={"cluster_roles": {one: "none"}}) for one in groups[2:])
            )
            assert [one.status_code for one in answers] == [200] * 4
            async with kit.app.state.sessions() as db, db.begin():
                user = await user_to_change(db, "bea")
                assert user is not None
                given = asyncio.create_task(asyncio.to_thread(users.give, url, "bea", "operator", "g1"))
                await asyncio.wait({given}, timeout=0.3)
                await change(db, user, groups={"g0": "none"})
            await given
            kept = (await ann.get("/api/v1/users/bea")).json()["cluster_roles"]
            assert kept == dict.fromkeys(groups, "none") | {"g1": "operator"}

    run(work())


def test_a_key_that_is_there_twice_changes_nothing(tmp_path: Path) -> None:
    """The last one counted, whatever the first one said."""

    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann = await kit.person()
            await kit.person("bea", "viewer")
            sent = {"content-type": "application/json"}
            twice = '{"role": "viewer", "disabled": false, "role": "admin"}'
            refused = await ann.change("PATCH", "/api/v1/users/bea", content=twice, headers=sent)
            assert refused.status_code == 422 and "'role' is there more than once" in refused.text
            assert (await ann.get("/api/v1/users/bea")).json()["role"] == "viewer"

    run(work())


def test_whoever_makes_ways_in_over_and_over_fills_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a token's number is never given again: the trail names tokens by it."""
    monkeypatch.setattr(identity, "SESSIONS_MAX", 3)

    async def rows(kit: Kit, table: type) -> list[int]:
        async with kit.app.state.sessions() as db:
            return [one.id for one in await db.scalars(select(table).order_by(table.id))]  # type: ignore[attr-defined]

    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann = await kit.person("ann", "operator")

            async def make(name: str) -> dict[str, Any]:
                made = await ann.change("POST", "/api/v1/tokens", json={"name": name, "days": 30})
                assert made.status_code == 201
                return dict(made.json())

            kept = await make("kept")
            numbers = [kept["id"]]
            for _ in range(6):
                numbers.append((await make("ci"))["id"])
                assert (await ann.change("DELETE", f"/api/v1/tokens/{numbers[-1]}")).status_code == 204
            assert sorted(set(numbers)) == numbers
            assert await rows(kit, ApiToken) == [numbers[0], numbers[-1]]
            robot = kit.client(authorization=f"Bearer {kept['token']}")
            assert (await robot.get("/api/v1/me")).status_code == 200
            others = await rows(kit, LoginLink)
            for _ in range(6):
                last = await kit.link("bob", "viewer")
            assert len(await rows(kit, LoginLink)) == len(others) + 1
            assert (await kit.client().post(last, headers=ORIGIN)).status_code == 303
            anns = [await kit.person("ann", "operator") for _ in range(6)]
            assert [(await one.get("/api/v1/me")).status_code for one in (ann, *anns)] == [401] * 4 + [200] * 3
            assert len(await rows(kit, LoginSession)) == 4, "and bob's"

    run(work())
