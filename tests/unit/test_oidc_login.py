"""Coming in by an OpenID provider: who gets in as whom, with which rights, for how long, and how they get out."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from app.cli import run as quorumscope
from app.console.settings import ConsoleSettings, SettingsError
from app.db.models import LoginSession, User
from app.security.group_roles import grants_by, groups_in
from app.security.roles import Grants
from app.times import utc_now
from node.config import ConfigError, load
from node.config_models import OidcTable
from node.role_rows import role_rows_of
from tests.databases import database_url
from tests.unit.console_kit import BASE, run, running
from tests.unit.fake_provider import CLIENT, ISSUER, ROWS, SECRET, FakeProvider, come_in, person, settings_of

ORIGIN = {"origin": BASE}


def test_somebody_comes_in_and_is_what_their_groups_say(tmp_path: Path) -> None:
    async def work() -> None:
        provider = FakeProvider()
        async with running(tmp_path, seeded=False, provider=provider, oidc=settings_of(tmp_path)) as kit:
            shown = await kit.client(accept="text/html").get("/login?next=/audits")
            assert 'href="/login/oidc?next=/audits"' in shown.text
            client, answer = await come_in(kit, provider, next="/audits", groups=["sre", "canteen"])
            assert (answer.status_code, answer.headers["location"]) == (303, "/audits")
            me = (await client.get("/api/v1/me")).json()
            assert (me["name"], me["role"], me["source"]) == ("olga", "operator", "oidc")
            assert await client.get("/login/oidc/callback") is not None
            boss = await kit.person("boss")
            rows = (await boss.get("/api/v1/admin-trail")).json()["items"]
            (login,) = [one for one in rows if one["action"] == "login by OpenID"]
            assert login["target"] == "users/olga" and login["path"] == "/login/oidc/callback"
            assert login["detail"]["groups"] == ["sre"], "groups that say nothing here are not kept"
            assert SECRET not in str(rows) and "code=" not in str(rows)
            (listed,) = [one for one in (await boss.get("/api/v1/users")).json()["items"] if one["name"] == "olga"]
            assert listed["source"] == "oidc" and listed["has_password"] is False

    run(work())


def test_each_login_reads_the_groups_again(tmp_path: Path) -> None:
    async def work() -> None:
        provider = FakeProvider()
        async with running(tmp_path, provider=provider, oidc=settings_of(tmp_path)) as kit:
            await kit.watched()
            olga = await person(kit, provider, groups=["billing"])
            me = (await olga.get("/api/v1/me")).json()
            assert (me["role"], me["cluster_roles"]) == ("none", {"demo": "operator"})
            token = (await olga.change("POST", "/api/v1/tokens", json={"name": "t", "role": "operator"})).json()
            robot = kit.client(authorization=f"Bearer {token['token']}")
            again = await person(kit, provider, groups=["log-admins"])
            assert (await again.get("/api/v1/me")).json()["role"] == "admin"
            assert (await olga.get("/api/v1/users")).status_code == 200, "older sessions are as the newest login"
            assert (await robot.get("/api/v1/me")).json()["role"] == "none", "a token keeps what it was given"
            _, refused = await come_in(kit, provider, groups=["canteen"])
            assert refused.status_code == 403 and "None of your groups" in refused.text
            for one in (olga, again):
                assert (await one.get("/api/v1/me")).status_code == 401, "whose groups were taken away is out"
            assert (await robot.get("/api/v1/clusters/demo")).status_code == 404, "and their tokens see nothing"
            boss = await kit.person("boss")
            rows = (await boss.get("/api/v1/admin-trail")).json()["items"]
            taken = next(one for one in rows if one["action"] == "login by OpenID failed" and one["target"])
            assert taken["detail"]["before"]["role"] == "admin" and taken["detail"]["after"]["role"] == "none"
            assert taken["detail"]["sessions_ended"] == 2

    run(work())


def test_whom_an_admin_disabled_stays_out(tmp_path: Path) -> None:
    async def work() -> None:
        provider = FakeProvider()
        async with running(tmp_path, seeded=False, provider=provider, oidc=settings_of(tmp_path)) as kit:
            boss, olga = await kit.person("boss"), await person(kit, provider)
            assert (await boss.change("PATCH", "/api/v1/users/olga", json={"disabled": True})).status_code == 200
            assert (await olga.get("/api/v1/me")).status_code == 401
            _, refused = await come_in(kit, provider, groups=["log-admins"])
            assert refused.status_code == 403 and "disabled" in refused.text
            listed = (await boss.get("/api/v1/users/olga")).json()
            assert listed["role"] == "operator" and listed["disabled_at"] is not None

    run(work())


def test_nobody_from_the_provider_becomes_a_local_user(tmp_path: Path) -> None:
    """By whatever name: people are found by issuer and subject."""

    async def work() -> None:
        provider = FakeProvider()
        async with running(tmp_path, seeded=False, provider=provider, oidc=settings_of(tmp_path)) as kit:
            boss = await kit.person("boss")
            _, refused = await come_in(kit, provider, name="BOSS", groups=["readers"])
            assert refused.status_code == 403 and "Somebody else is called BOSS" in refused.text
            await person(kit, provider, sub="u1", name="olga")
            renamed = await person(kit, provider, sub="u1", name="boss")
            assert (await renamed.get("/api/v1/me")).json()["name"] == "olga"
            _, refused = await come_in(kit, provider, sub="u2", name="olga")
            assert refused.status_code == 403
            odd = await person(kit, provider, sub="u3", name="../Ann Ö <x>")
            assert (await odd.get("/api/v1/me")).json()["name"] == "Ann-x-"[:6]
            names = {one["name"] for one in (await boss.get("/api/v1/users")).json()["items"]}
            assert names == {"boss", "olga", "Ann-x-"}

    run(work())


def test_what_the_provider_gives_is_not_given_here(tmp_path: Path) -> None:
    async def work() -> None:
        provider = FakeProvider()
        async with running(tmp_path, seeded=False, provider=provider, oidc=settings_of(tmp_path)) as kit:
            boss = await kit.person("boss")
            admin = await person(kit, provider, groups=["log-admins"])
            for method, path, body in (
                ("PATCH", "/api/v1/users/olga", {"role": "viewer"}),
                ("PATCH", "/api/v1/users/olga", {"second_factor_required": True}),
                ("POST", "/api/v1/users/olga/login-link", None),
            ):
                done = await boss.change(method, path, **({"json": body} if body else {}))
                assert done.status_code == 409 and "provider" in done.json()["detail"], path
            for method, path, body in (
                ("PUT", "/api/v1/me/password", {"password": "a long enough one"}),
                ("POST", "/api/v1/me/second-factor", {}),
            ):
                assert (await admin.change(method, path, json=body)).status_code == 409
            page = await admin.get("/account", headers={"accept": "text/html"})
            assert page.status_code == 200 and "New password" not in page.text
            assert "by their groups" in (await boss.get("/users", headers={"accept": "text/html"})).text
            last = await admin.change("PATCH", "/api/v1/users/boss", json={"role": "viewer"})
            assert last.status_code == 409, "the last local admin stays: the provider may be away"

    run(work())


def test_the_word_of_the_provider_ages(tmp_path: Path) -> None:
    async def work() -> None:
        provider = FakeProvider()
        oidc = settings_of(tmp_path, session_max_s=3600, tokens_days=10)
        async with running(tmp_path, seeded=False, provider=provider, oidc=oidc) as kit:
            olga = await person(kit, provider)
            async with kit.app.state.sessions() as db:
                session = await db.scalar(select(LoginSession))
            assert session is not None and session.expires_at - session.created_at == timedelta(hours=1)
            token = (await olga.change("POST", "/api/v1/tokens", json={"name": "t", "days": 90})).json()["token"]
            robot = kit.client(authorization=f"Bearer {token}")
            assert (await robot.get("/api/v1/me")).status_code == 200
            async with kit.app.state.sessions() as db, db.begin():
                await db.execute(update(User).values(oidc_confirmed_at=utc_now() - timedelta(days=11)))
            assert (await robot.get("/api/v1/me")).status_code == 401
            await person(kit, provider)
            assert (await robot.get("/api/v1/me")).status_code == 200, "until they log in again"

    run(work())


@pytest.mark.parametrize("now", ["none", "another one"])
def test_without_the_provider_its_users_are_nobody(tmp_path: Path, now: str) -> None:
    async def work() -> None:
        provider = FakeProvider()
        async with running(tmp_path, seeded=False, provider=provider, oidc=settings_of(tmp_path)) as kit:
            olga, boss = await person(kit, provider), await kit.person("boss")
            cookies = [one.client.cookies[kit.app.state.cookie_name()] for one in (olga, boss)]
        oidc = OidcTable() if now == "none" else settings_of(tmp_path, issuer="https://other.example")
        async with running(tmp_path, seeded=False, provider=provider, oidc=oidc) as kit:
            name = kit.app.state.cookie_name()
            statuses = [(await kit.client(cookie=f"{name}={one}").get("/api/v1/me")).status_code for one in cookies]
            assert statuses == [401, 200]
            if now == "none":
                assert (await kit.client().get("/login/oidc")).status_code == 404
                assert "/login/oidc" not in (await kit.client(accept="text/html").get("/login")).text

    run(work())


def test_logging_out_says_how_to_log_out_there_too(tmp_path: Path) -> None:
    async def work() -> None:
        provider = FakeProvider()
        async with running(tmp_path, seeded=False, provider=provider, oidc=settings_of(tmp_path)) as kit:
            olga, boss = await person(kit, provider), await kit.person("boss")
            out = await olga.change("POST", "/logout", headers={"accept": "text/html"})
            assert out.status_code == 200 and f'href="{ISSUER}/logout?client_id={CLIENT}&amp;post_logout' in out.text
            assert "Log out</button>" not in out.text and "id_token" not in out.text
            assert (await olga.get("/api/v1/me")).status_code == 401
            local = await boss.change("POST", "/logout")
            assert (local.status_code, local.headers["location"]) == (303, "/login")

    run(work())


def test_local_users_log_in_while_the_provider_is_away(tmp_path: Path) -> None:
    async def work() -> None:
        provider = FakeProvider()

        def away(_request: Any) -> None:
            raise OSError("no route")

        provider.answer = away
        async with running(tmp_path, seeded=False, provider=provider, oidc=settings_of(tmp_path)) as kit:
            client = kit.client(accept="text/html")
            asked = await client.get("/login/oidc")
            assert asked.status_code == 502 and "no route" in asked.text and "Local users" in asked.text
            before = len(provider.asked)
            for _ in range(20):
                assert (await client.get("/login/oidc")).status_code == 502
            assert len(provider.asked) == before, "a flood of tries is no flood of requests"
            assert (await (await kit.person("boss")).get("/api/v1/me")).status_code == 200

    run(work())


# --- groups and roles ---


@pytest.mark.parametrize(
    ("groups", "given"),
    [
        (["sre"], Grants("operator")),
        (["readers", "sre"], Grants("operator")),
        (["billing"], Grants("none", (("demo", "operator"),))),
        (["readers", "billing"], Grants("viewer", (("demo", "operator"),))),
        (["sre", "readers on demo"], Grants("operator")),
        (["contractors", "sre"], Grants("operator", (("demo", "none"),))),
        (["contractors", "billing"], Grants("none")),
        (["contractors", "log-admins"], Grants("admin")),
        (["SRE"], None),
        ([], None),
    ],
)
def test_the_strongest_role_counts_and_none_withholds(groups: list[str], given: Grants | None) -> None:
    rows = role_rows_of((*ROWS, "contractors = none on demo", "readers on demo = viewer on demo"))
    assert grants_by(rows, groups_in(groups)) == given


@pytest.mark.parametrize(
    "claim",
    ["log-admins", None, {"log-admins": True}, [["log-admins"]], ["log-admins", 1], ["x" * 513, "log-admins"],
     ["log-admins"] * 2001, True],
)  # fmt: skip
def test_a_claim_that_is_no_list_of_texts_gives_no_group(claim: Any) -> None:
    assert groups_in(claim) == frozenset()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("admin", "is no row"), ("sre = root", "no role here"), ("sre = none", "no role here"),
        ("sre = admin on demo", "no role here"), ("sre = viewer on", "is no row"), ("= viewer", "is no row"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_read_is_named(row: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load({"oidc.issuer": ISSUER, "oidc.client_id": CLIENT, "oidc.roles": [row]}, environ={})
    assert role_rows_of(("cn=sre,ou=x = viewer on a.b-c",))[0] == ("cn=sre,ou=x", "viewer", "a.b-c")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"issuer": "http://login.example"}, "neither https nor on this machine"),
        ({"issuer": "http://127.0.0.1.evil.example"}, "neither https nor on this machine"),
        ({"console_url": "https://console.example"}, "at http:"),
    ],
)
def test_an_unsafe_provider_is_refused_at_the_start(tmp_path: Path, more: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        ConsoleSettings(oidc=settings_of(tmp_path, **more)).check()


def test_a_client_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    oidc = settings_of(tmp_path)
    ConsoleSettings(oidc=oidc).check()
    assert oidc.client_secret_file is not None
    oidc.client_secret_file.chmod(0o644)
    with pytest.raises(SettingsError, match="chmod o-rwx"):
        ConsoleSettings(oidc=oidc).check()


@pytest.mark.parametrize("more", [{"oidc.client_id": ""}, {"oidc.roles": []}, {"oidc.scopes": ["profile"]}])
def test_half_a_provider_is_an_error(more: dict[str, Any]) -> None:
    whole = {"oidc.issuer": ISSUER, "oidc.client_id": CLIENT, "oidc.roles": ["sre = operator"]}
    assert load(whole, environ={}).oidc.issuer == ISSUER
    with pytest.raises(ConfigError, match="oidc"):
        load({**whole, **more}, environ={})


def test_the_command_line_knows_whose_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        provider = FakeProvider()
        async with running(tmp_path, seeded=False, provider=provider, oidc=settings_of(tmp_path)) as kit:
            await person(kit, provider)

    run(work())
    db = ["--db", database_url(tmp_path / "console.db")]
    assert quorumscope(["user", "list", *db]) == 0
    assert "by the OpenID provider" in capsys.readouterr().out
    assert quorumscope(["user", "link", "olga", *db]) == 64
    assert quorumscope(["user", "role", "olga", "admin", *db]) == 64
    assert capsys.readouterr().err.count("OpenID provider") == 2
