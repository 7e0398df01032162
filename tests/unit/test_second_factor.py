"""The second factor: set up, asked for, used once, guessed at, lost and reset."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from sqlalchemy import select, update

from app.cli import run as quorumscope
from app.db.models import LoginSession, RecoveryCode, User
from app.security.limits import ACCOUNT
from app.security.second_factor import RECOVERY_CODES, STEP_S, FactorError
from tests.databases import database_url
from tests.unit.console_kit import Kit, run, running
from tests.unit.second_factor_kit import FACTOR, ORIGIN, PASSWORD, App, give, half_in, with_password


def test_each_login_asks_for_a_code_once_there_is_a_second_factor(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann, other, app = await with_password(kit), await kit.person(), App(kit)
            assert (await ann.change("POST", FACTOR, json={"current": "not this one"})).status_code == 422
            codes = await app.enrol(ann, PASSWORD)
            assert len(set(codes)) == RECOVERY_CODES
            assert (await other.get("/api/v1/me")).status_code == 401, "other sessions end"
            client = await half_in(kit, next="/users")
            shown = await client.get("/login/second-factor", headers={"accept": "text/html"})
            assert shown.status_code == 200 and "one-time-code" in shown.text
            assert (await give(client, app.wrong_code())).status_code == 403
            entered = await give(client, f" {app.next_code()[:3]} {app.code()[3:]} ")
            assert entered.status_code == 303 and entered.headers["location"] == "/users"
            assert (await client.get("/api/v1/me")).json()["name"] == "ann"
            rows = (await ann.get("/api/v1/admin-trail")).json()["items"]
            (login,) = [one for one in rows if one["action"] == "login"]
            assert login["detail"] == {"second_factor": "code", "recovery_codes_left": RECOVERY_CODES}
            (failed,) = [one for one in rows if one["action"] == "second factor failed"]
            assert failed["detail"]["names"] == ["ann"] and failed["detail"]["count"] == 1
            said = str(rows)
            assert app.secret not in said and app.code() not in said and not any(one in said for one in codes)
            assert any((one["detail"] or {}).get("after", {}).get("second_factor") == "set" for one in rows)

    run(work())


def test_a_login_link_asks_for_the_code_too(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            app = App(kit)
            await app.enrol(await kit.person())
            client = kit.client()
            pressed = await client.post(await kit.link("ann"), headers=ORIGIN)
            assert pressed.headers["location"] == "/login/second-factor"
            assert (await client.get("/api/v1/me")).status_code == 401
            assert (await give(client, app.next_code())).status_code == 303
            assert (await client.get("/api/v1/me")).status_code == 200

    run(work())


def test_a_code_works_once_and_so_does_none_before_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            app = App(kit)
            ann = await with_password(kit)
            await app.enrol(ann, PASSWORD)
            assert (await give(await half_in(kit), app.code())).status_code == 403, "it confirmed the app already"
            clients = [await half_in(kit) for _ in range(4)]
            code = app.next_code()
            statuses = [one.status_code for one in await asyncio.gather(*(give(one, code) for one in clients))]
            assert sorted(statuses) == [303, 403, 403, 403], "seen over a shoulder, it opens nothing more"
            assert (await give(await half_in(kit), app.code(-1))).status_code == 403
            assert (await give(await half_in(kit), app.code(1))).status_code == 303, "a clock may be ahead by a step"
            app.now_s += 10 * STEP_S
            assert (await give(await half_in(kit), app.code(-2))).status_code == 403
            assert (await give(await half_in(kit), app.code(2))).status_code == 403
            assert (await give(await half_in(kit), app.code(-1))).status_code == 303, "or behind"

    run(work())


@pytest.mark.parametrize("first", ["begin", "confirm"])
def test_of_two_who_set_one_up_at_once_one_begins_again(tmp_path: Path, first: str) -> None:
    """Each has read what there was before the other's change: PostgreSQL lets them. Whichever comes first, what counts
    afterwards is the secret that its codes were shown for."""

    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            app = App(kit)
            ann = await kit.person("ann", "admin")
            begun = await ann.change("POST", FACTOR, json={})
            app.secret = begun.json()["secret"]
            factors, sessions = kit.app.state.second_factors, kit.app.state.sessions
            async with sessions() as one:
                stale = await one.scalar(select(User).where(User.name == "ann"))
                assert stale is not None
                if first == "confirm":
                    done = await ann.change("PUT", FACTOR, json={"code": app.code()})
                    assert done.status_code == 200, done.text
                    with pytest.raises(FactorError, match="there is a second factor already"):
                        await factors.begin(one, stale)
                else:
                    again = await ann.change("POST", FACTOR, json={})
                    assert again.status_code == 201, again.text
                    assert await factors.confirm(one, stale, app.code()) is None

    run(work())


def test_a_recovery_code_works_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            app = App(kit)
            ann = await with_password(kit)
            codes = await app.enrol(ann, PASSWORD)
            assert (await give(await half_in(kit), codes[0].upper())).status_code == 303
            assert (await give(await half_in(kit), codes[0])).status_code == 403
            clients = [await half_in(kit) for _ in range(3)]
            done = await asyncio.gather(*(give(one, codes[1].replace("-", " ")) for one in clients))
            assert sorted(one.status_code for one in done) == [303, 403, 403]
            assert (await ann.get(FACTOR)).json()["recovery_codes_left"] == RECOVERY_CODES - 2
            renewed = await ann.change("POST", f"{FACTOR}/recovery-codes", json={"code": codes[2]})
            assert renewed.status_code == 200 and not set(renewed.json()["recovery_codes"]) & set(codes)
            assert (await give(await half_in(kit), codes[3])).status_code == 403, "those before are void"
            async with kit.app.state.sessions() as db:
                stored = str(list(await db.scalars(select(RecoveryCode.code_hash))))
                user = await db.scalar(select(User))
            assert renewed.json()["recovery_codes"][0].replace("-", "") not in stored
            assert user is not None and app.secret.encode() not in (user.totp_sealed or b"")

    run(work())


def test_who_guesses_waits_and_the_right_code_waits_too(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            app = App(kit)
            ann = await with_password(kit)
            await app.enrol(ann, PASSWORD)
            clock_s = 1000.0
            kit.app.state.own_limits.accounts.clock = lambda: clock_s
            clients = [await half_in(kit) for _ in range(3)]
            tries = [give(clients[n % 3], app.wrong_code()) for n in range(24)]
            statuses = [one.status_code for one in await asyncio.gather(*tries)]
            assert statuses.count(403) == ACCOUNT.free and statuses.count(429) == 24 - ACCOUNT.free
            limited = await give(await half_in(kit), app.next_code())
            assert limited.status_code == 429 and int(limited.headers["retry-after"]) >= 1
            on_the_page = await ann.change("POST", f"{FACTOR}/remove", json={"code": app.code()})
            assert on_the_page.status_code == 429, "one count for all places where a code is asked for"
            clock_s += 600
            assert (await give(await half_in(kit), app.code())).status_code == 303, "nobody is shut out for good"

    run(work())


@pytest.mark.parametrize("what", ["password", "disabled", "reset", "old", "of another purpose", "changed"])
def test_half_a_login_is_void(tmp_path: Path, what: str) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            app, boss = App(kit), await kit.person("boss")
            ann = await with_password(kit)
            await app.enrol(ann, PASSWORD)
            client = await half_in(kit)
            name = kit.app.state.cookie_name() + "-half"
            if what == "password":
                body = {"password": PASSWORD + "r", "current": PASSWORD}
                assert (await ann.change("PUT", "/api/v1/me/password", json=body)).status_code == 204
            elif what == "disabled":
                await boss.change("PATCH", "/api/v1/users/ann", json={"disabled": True})
            elif what == "reset":
                await boss.change("DELETE", "/api/v1/users/ann/second-factor")
            elif what == "old":
                now_s = kit.app.state.half_logins.clock()
                object.__setattr__(kit.app.state.half_logins, "clock", lambda: now_s + 301)
            elif what == "of another purpose":
                content = kit.app.state.half_logins.content_of(client.cookies[name])
                sealed = kit.app.state.half_logins.seal.seal(str(content), "something else")
                client.cookies.set(name, sealed.hex(), domain="127.0.0.1")
            else:
                client.cookies.set(name, client.cookies[name][:-8] + "AAAAAAA=", domain="127.0.0.1")
            answer = await give(client, app.next_code())
            assert (answer.status_code, answer.headers["location"]) == (303, "/login")
            assert (await client.get("/api/v1/me")).status_code == 401

    run(work())


def test_no_code_without_a_first_factor_and_none_from_another_site(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            app = App(kit)
            await app.enrol(await with_password(kit), PASSWORD)
            answer = await give(kit.client(), app.next_code())
            assert (answer.status_code, answer.headers["location"]) == (303, "/login")
            client = await half_in(kit)
            foreign = {"origin": "https://evil.example"}
            refused = await client.post("/login/second-factor", data={"code": app.code()}, headers=foreign)
            assert refused.status_code == 403
            assert (await give(client, app.code())).status_code == 303

    run(work())


def test_an_admin_resets_it_but_not_their_own(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            boss, app, mine = await kit.person("boss"), App(kit), App(kit)
            vic = await with_password(kit, "vic", "viewer")
            await app.enrol(vic, PASSWORD)
            mine.now_s = app.now_s
            await mine.enrol(boss)
            refused = await vic.change("DELETE", "/api/v1/users/boss/second-factor")
            assert refused.status_code == 403
            assert (await boss.change("DELETE", "/api/v1/users/boss/second-factor")).status_code == 409
            assert (await boss.change("DELETE", "/api/v1/users/nobody/second-factor")).status_code == 404
            assert (await boss.change("DELETE", "/api/v1/users/VIC/second-factor")).status_code == 204
            assert (await vic.get("/api/v1/me")).status_code == 401
            entered = await kit.client().post("/login", data={"name": "vic", "password": PASSWORD}, headers=ORIGIN)
            assert entered.headers["location"] == "/"
            rows = (await boss.get("/api/v1/admin-trail")).json()["items"]
            (reset,) = [one for one in rows if one["target"] == "users/vic" and one["method"] == "DELETE"]
            assert reset["detail"]["before"] == {"second_factor": "set"} and reset["status"] == 204

    run(work())


def test_it_is_removed_with_a_code_and_not_with_a_session_alone(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            app = App(kit)
            ann = await with_password(kit)
            await app.enrol(ann, PASSWORD)
            again = await ann.change("POST", FACTOR, json={"current": PASSWORD})
            assert again.status_code == 409, "nobody puts another app in its place"
            assert (await ann.change("POST", f"{FACTOR}/remove", json={"code": app.wrong_code()})).status_code == 422
            token = (await ann.change("POST", "/api/v1/tokens", json={"name": "t"})).json()["token"]
            robot = kit.client(authorization=f"Bearer {token}")
            by_token = await robot.post(f"{FACTOR}/remove", json={"code": app.code()})
            assert by_token.status_code == 409 and "session" in by_token.json()["detail"]
            assert (await ann.change("POST", f"{FACTOR}/remove", json={"code": app.next_code()})).status_code == 204
            entered = await kit.client().post("/login", data={"name": "ann", "password": PASSWORD}, headers=ORIGIN)
            assert entered.headers["location"] == "/"

    run(work())


@pytest.mark.parametrize("by", ["rule for admins", "rule for everyone", "an admin's word"])
def test_where_it_is_required_nothing_else_is_open_before(tmp_path: Path, by: str) -> None:
    rules = {"rule for admins": "admins", "rule for everyone": "everyone", "an admin's word": "optional"}

    async def work() -> None:
        async with running(tmp_path, seeded=False, second_factor=rules[by]) as kit:
            role = "admin" if by == "rule for admins" else "viewer"
            app, ann = App(kit), await kit.person("ann", role)
            if by == "an admin's word":
                boss = await kit.person("boss")
                done = await boss.change("PATCH", "/api/v1/users/ann", json={"second_factor_required": True})
                assert done.json()["second_factor_required"] is True
            for path in ("/api/v1/clusters", "/api/v1/tokens", "/api/v1/users", "/live/own", "/docs"):
                refused = await ann.get(path)
                assert refused.status_code == 403 and "second factor" in refused.text.lower(), path
            assert (await ann.change("POST", "/api/v1/tokens", json={"name": "t"})).status_code == 403
            led = await ann.get("/", headers={"accept": "text/html"})
            assert (led.status_code, led.headers["location"]) == (303, "/account/second-factor")
            page = await ann.get("/account/second-factor", headers={"accept": "text/html"})
            assert page.status_code == 200 and "needs a second factor" in page.text
            await app.enrol(ann)
            assert (await ann.get("/api/v1/clusters")).status_code == 200
            refused = await ann.change("POST", f"{FACTOR}/remove", json={"code": app.next_code()})
            assert refused.status_code == 409
            if by == "rule for admins":
                vic = await kit.person("vic", "viewer")
                assert (await vic.get("/api/v1/clusters")).status_code == 200

    run(work())


def test_a_secret_that_cannot_be_opened_lets_nobody_in(tmp_path: Path) -> None:
    async def work(kit: Kit, app: App) -> None:
        await app.enrol(await with_password(kit), PASSWORD)
        async with kit.app.state.sessions() as db, db.begin():
            await db.execute(update(User).values(totp_sealed=b"\x01" + bytes(40)))
        refused = await give(await half_in(kit), app.next_code())
        assert refused.status_code == 503 and "key" in refused.text

    async def whole() -> None:
        async with running(tmp_path, seeded=False) as kit:
            await work(kit, App(kit))

    run(whole())


def test_the_command_line_resets_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def enrolled() -> None:
        async with running(tmp_path, seeded=False) as kit:
            await App(kit).enrol(await kit.person())

    run(enrolled())
    db = ["--db", database_url(tmp_path / "console.db")]
    assert quorumscope(["user", "reset-second-factor", "nobody", *db]) == 1
    assert quorumscope(["user", "reset-second-factor", "ANN", *db]) == 0
    assert "is removed" in capsys.readouterr().err

    async def after() -> None:
        async with running(tmp_path, seeded=False) as kit:
            async with kit.app.state.sessions() as session:
                user = await session.scalar(select(User))
                assert user is not None and user.totp_sealed is None
                assert list(await session.scalars(select(LoginSession))) == []
            rows = (await (await kit.person()).get("/api/v1/admin-trail")).json()["items"]
            (row,) = [one for one in rows if one["action"] == "user reset-second-factor"]
            assert row["target"] == "users/ann" and row["detail"]["before"] == {"second_factor": "set"}
            assert row["via"] == "command line"

    run(after())


def test_the_pages_show_what_is_secret_once_and_without_any_style(tmp_path: Path) -> None:
    """The QR code is markup that the page's policy allows: no script, no style, nothing from elsewhere."""

    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            app, ann = App(kit), await with_password(kit, "vic", "viewer")
            path, as_page = "/account/second-factor", {"accept": "text/html"}
            assert "Set it up" in (await ann.get(path, headers=as_page)).text
            wrong = await ann.change("POST", path, data={"current": "not this one"}, headers=as_page)
            assert wrong.status_code == 422 and "<svg width" not in wrong.text
            begun = await ann.change("POST", path, data={"current": PASSWORD}, headers=as_page)
            assert begun.status_code == 201 and begun.headers["cache-control"] == "no-store"
            drawn = re.search(r'<svg width=.*?class="qr".*?</svg>', begun.text, re.DOTALL)
            assert drawn is not None and not re.search("style|script|href|url", drawn[0])
            app.secret = re.search(r"<code class=\"break\">([A-Z2-7]{32})</code>", begun.text)[1]  # type: ignore[index]
            no = await ann.change("POST", f"{path}/confirm", data={"code": app.wrong_code()}, headers=as_page)
            assert no.status_code == 422 and "This code is wrong" in no.text and app.secret not in no.text
            assert f'action="{path}/confirm"' in no.text, "the next code may be right"
            confirmed = await ann.change("POST", f"{path}/confirm", data={"code": app.code()}, headers=as_page)
            codes = re.findall(r"(?:[a-z2-7]{4}-){3}[a-z2-7]{4}", confirmed.text)
            assert len(codes) == RECOVERY_CODES
            for shown in (path, "/account"):
                later = (await ann.get(shown, headers=as_page)).text
                assert codes[0] not in later and app.secret not in later and "10" in later
            renewed = await ann.change("POST", f"{path}/recovery-codes", data={"code": codes[0]}, headers=as_page)
            assert renewed.status_code == 200 and codes[1] not in renewed.text
            boss = await kit.person("boss")
            required = {"required": "true"}
            done = await boss.change("POST", "/users/vic/second-factor", data=required, headers=as_page)
            assert done.status_code == 303
            assert "required" in (await boss.get("/users", headers=as_page)).text
            await boss.change("POST", "/users/vic/second-factor/reset", headers=as_page)
            listed = (await boss.get("/api/v1/users/vic")).json()
            assert (listed["second_factor"], listed["second_factor_required"]) == (False, True)
            forged = await ann.client.post(path, data={"current": PASSWORD}, headers=ORIGIN)
            assert forged.status_code in (401, 403), "a form without the session's token changes nothing"

    run(work())
