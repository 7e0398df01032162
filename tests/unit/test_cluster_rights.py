"""Roles on single groups: who may give which, what a token is left, what ends with a change, what is recorded."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from alembic import command

from app.cli import run as run_cli
from app.db.engine import alembic_config, upgrade
from app.security.grants import GrantError, changed
from app.security.roles import ALL, Grants, Right, Role, grants_of
from tests.unit.console_kit import Kit, run, running


def test_a_role_holds_where_no_other_is_named() -> None:
    grants = grants_of("viewer", {"a": "operator", "b": "none", "c": "viewer"})
    assert [grants.role_on(one) for one in "abcd"] == ["operator", "none", "viewer", "viewer"]
    assert grants.can(Right.OPERATE, "a") and not grants.can(Right.OPERATE, "c") and not grants.can(Right.VIEW, "b")
    assert not grants.can(Right.VIEW), "one group is hidden, so not everything is seen"
    assert grants.can_somewhere(Right.OPERATE) and not grants.can_somewhere(Right.ADMIN)
    assert [grants.sight().sees(one) for one in "abcd"] == [True, False, True, True]
    assert [grants.sight(Right.OPERATE).sees(one) for one in "abcd"] == [True, False, False, False]
    assert grants_of("admin").sight() == ALL and not Grants("root").can(Right.OWN)


def test_a_token_has_what_it_and_its_owner_have() -> None:
    token, owner = grants_of("operator", {"a": "none"}), grants_of("viewer", {"b": "operator", "a": "operator"})
    left = token.within(owner)
    assert [left.role_on(one) for one in "abc"] == ["none", "operator", "viewer"]
    assert owner.within(token) == left and left.within(left) == left


def test_what_cannot_be_given() -> None:
    assert changed("viewer", {"a": "none"}, groups={"a": None, "b": "operator"}) == ("viewer", {"b": "operator"})
    assert changed("viewer", {"a": "none"}, to="admin") == ("admin", {}), "an admin has every group"
    for role, groups in (("admin", {"a": "viewer"}), ("viewer", {"a": "admin"}), ("viewer", {"a": "root"})):
        with pytest.raises(GrantError):
            changed(role, {}, groups=groups)
    with pytest.raises(GrantError, match="at most"):
        changed("none", {}, groups={f"g{n}": "viewer" for n in range(201)})


async def bea(kit: Kit, **grants: object) -> None:
    ann = await kit.person()
    made = await ann.change("POST", "/api/v1/users", json={"name": "bea", **grants})
    assert made.status_code == 201, made.text


def test_an_admin_gives_and_takes_roles_on_groups_and_the_trail_says_so(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            ann = await kit.person()
            await bea(kit, role="none", cluster_roles={"demo": "viewer"})
            eve = await kit.person("bea", "none")
            assert (await eve.get("/api/v1/clusters/demo")).status_code == 200
            patched = await ann.change("PATCH", "/api/v1/users/bea", json={"cluster_roles": {"demo": None}})
            assert patched.json()["cluster_roles"] == {}
            assert (await eve.get("/api/v1/clusters/demo")).status_code == 404
            for body in (
                {"cluster_roles": {"demo": "admin"}},
                {"cluster_roles": {"nothing": "viewer"}},
                {"role": "admin", "cluster_roles": {"demo": "viewer"}},
            ):
                assert (await ann.change("PATCH", "/api/v1/users/bea", json=body)).status_code == 422
            form = {"csrf_token": ann.csrf, "group": "demo", "role": "operator"}
            assert (await ann.client.post("/users/bea/group", data=form)).status_code == 303
            assert (await eve.get("/api/v1/me")).json()["cluster_roles"] == {"demo": "operator"}
            page = (await ann.get("/users")).text
            assert "demo: <b>operator</b>" in page and "Take back" in page
            row = (await ann.get("/api/v1/admin-trail")).json()["items"][0]
            assert row["target"] == "users/bea" and row["detail"]["before"]["cluster_roles"] == {}
            assert row["detail"]["after"]["cluster_roles"] == {"demo": "operator"}
            removed = await ann.change("DELETE", "/api/v1/clusters/demo")
            assert removed.status_code == 204
            assert (await ann.get("/api/v1/users/bea")).json()["cluster_roles"] == {}, "gone with its group"

    run(work())


def test_what_is_withheld_stays_when_a_group_is_removed(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            await bea(kit, role="viewer", cluster_roles={"demo": "none"})
            ann = await kit.person()
            assert (await ann.change("DELETE", "/api/v1/clusters/demo")).status_code == 204
            assert (await ann.get("/api/v1/users/bea")).json()["cluster_roles"] == {"demo": "none"}

    run(work())


def test_a_token_has_no_right_over_its_owners_sessions_and_other_tokens(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            olga = await kit.person("olga", "operator")
            first, second = [
                (await olga.change("POST", "/api/v1/tokens", json={"name": name})).json() for name in ("one", "two")
            ]
            robot = kit.client(authorization=f"Bearer {first['token']}")
            assert (await robot.get("/api/v1/sessions")).json()["items"] == []
            assert [one["name"] for one in (await robot.get("/api/v1/tokens")).json()["items"]] == ["one"]
            number = (await olga.get("/api/v1/sessions")).json()["items"][0]["id"]
            for path in (f"/api/v1/sessions/{number}", f"/api/v1/tokens/{second['id']}"):
                assert (await robot.delete(path)).status_code == 404
            assert (await olga.get("/api/v1/me")).status_code == 200
            assert (await robot.delete(f"/api/v1/tokens/{first['id']}")).status_code == 204, "itself, it may end"
            assert (await robot.get("/api/v1/me")).status_code == 401

    run(work())


def test_a_stream_goes_on_until_what_its_reader_has_changes(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            ann, olga = await kit.person(), await kit.person("olga", "operator")
            made = (await olga.change("POST", "/api/v1/tokens", json={"name": "ci", "role": "viewer"})).json()
            identity = kit.app.state.identity
            viewer = await identity.by_token(made["token"])
            assert viewer is not None and await identity.still_valid(viewer), "a weaker token than its owner lives"
            await ann.change("PATCH", "/api/v1/users/olga", json={"cluster_roles": {"demo": "none"}})
            assert not await identity.still_valid(viewer)
            now = await identity.by_token(made["token"])
            assert now is not None and now.role_on("demo") == Role.NONE

    run(work())


def test_the_command_line_gives_shows_and_records_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def watch() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            await kit.person()

    run(watch())
    db = ["--db", f"sqlite:///{tmp_path / 'console.db'}"]
    assert run_cli(["user", "link", "bea", "--role", "viewer", *db]) == 0
    assert run_cli(["user", "role", "bea", "operator", "--group", "demo", *db]) == 0
    for wrong in (["admin", "--group", "demo"], ["viewer", "--group", "nothing"], ["default"], ["root"]):
        assert run_cli(["user", "role", "bea", *wrong, *db]) == 64
    assert run_cli(["user", "role", "ann", "viewer", *db]) == 64, "the last admin"
    assert run_cli(["user", "role", "zoe", "viewer", *db]) == 1
    capsys.readouterr()
    assert run_cli(["user", "list", "--json", *db]) == 0
    listed = {one["name"]: one for one in json.loads(capsys.readouterr().out)["items"]}
    assert listed["bea"]["cluster_roles"] == {"demo": "operator"} and listed["ann"]["role"] == "admin"
    assert run_cli(["token", "issue", "bea", "--role", "none", "--group", "demo=viewer", *db]) == 0
    assert run_cli(["token", "issue", "bea", "--group", "demo=admin", *db]) == 64
    capsys.readouterr()
    assert run_cli(["token", "list", *db]) == 0
    assert "demo: viewer" in capsys.readouterr().out
    assert run_cli(["trail", "verify", *db]) == 0
    capsys.readouterr()
    assert run_cli(["trail", "export", *db]) == 0
    lines = [json.loads(json.loads(one)["content"]) for one in capsys.readouterr().out.splitlines()]
    ended = [one["detail"] for one in lines if (one.get("detail") or {}).get("after", {}).get("cluster_roles")]
    assert {"role": "viewer", "cluster_roles": {"demo": "operator"}} in [one["after"] for one in ended]


def test_an_older_version_gives_nobody_more(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'console.db'}"
    upgrade(url)
    with sqlite3.connect(tmp_path / "console.db") as db:
        for name, role, on in (("a", "operator", {"x": "viewer"}), ("b", "viewer", {"x": "none"}), ("c", "none", {})):
            db.execute(
                "INSERT INTO users (name, name_key, role, cluster_roles, created_at) VALUES (?, ?, ?, ?, '2026-01-01')",
                (name, name, role, json.dumps(on)),
            )
    db.close()
    command.downgrade(alembic_config(url), "0006_people")
    with sqlite3.connect(tmp_path / "console.db") as db:
        rows = db.execute("SELECT name, role, disabled_at IS NULL FROM users ORDER BY name").fetchall()
    db.close()
    assert rows == [("a", "viewer", 1), ("b", "viewer", 0), ("c", "viewer", 0)]
    upgrade(url)
