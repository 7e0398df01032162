"""The admin trail: before and after, the hash chain, retention, export, and a database that is busy."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError

from app.command_line import run as quorumscope
from app.db.engine import open_engine, open_sessions
from app.db.models import TrailLink, TrailRow
from app.security import links, trail, trail_chain
from app.times import utc_now
from tests.databases import database_url, opened, prepared_url
from tests.unit.console_kit import Kit, run, running
from tests.unit.test_login_limits import login

SEED = int(os.environ.get("ATTACK_SEED", 12))  # `make prove` draws others


async def some_history(kit: Kit) -> None:
    ann = await kit.person("ann")
    await ann.change("POST", "/api/v1/users", json={"name": "bea", "role": "operator"})
    await ann.change("PATCH", "/api/v1/users/bea", json={"role": "viewer"})
    token = (await ann.change("POST", "/api/v1/tokens", json={"name": "ci", "role": "admin"})).json()["token"]
    robot = kit.client(authorization=f"Bearer {token}")
    await robot.request("DELETE", "/api/v1/users/bea")
    await login(kit, "nobody", "wrong secret")


def test_it_says_who_what_to_what_before_and_after_and_through_which_token(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            await some_history(kit)
            ann = await kit.person("ann")
            rows = {one["action"]: one for one in (await ann.get("/api/v1/admin-trail")).json()["items"]}
            changed = rows["PATCH /api/v1/users/bea"]
            assert changed["target"] == "users/bea" and changed["credential"].startswith("session ")
            assert changed["detail"]["before"]["role"] == "operator" and changed["detail"]["after"]["role"] == "viewer"
            gone = rows["DELETE /api/v1/users/bea"]
            assert gone["credential"].startswith("token ") and gone["user"] == "ann" and gone["detail"]["before"]
            assert "qsc_" not in json.dumps(rows["POST /api/v1/tokens"]["detail"]).replace(
                rows["POST /api/v1/tokens"]["detail"]["after"]["prefix"], ""
            )
            page = await ann.get("/admin-trail")
            assert "users/bea" in page.text

    run(work())


async def verified(kit: Kit, head: str | None = None) -> trail_chain.Verified:
    async with kit.app.state.sessions() as db:
        return await trail_chain.verify(db, head)


def test_the_chain_is_intact_and_exported_so_that_others_can_check_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            await some_history(kit)
            ann = await kit.person("ann")
            answer = await ann.get("/api/v1/admin-trail/export")
            lines = [json.loads(line) for line in answer.text.splitlines()]
            previous = trail_chain.ORIGIN
            for n, line in enumerate(lines, 1):
                assert (line["seq"], line["previous_hash"]) == (n, previous)
                assert line["hash"] == trail_chain.hash_of(previous, line["content"])
                previous = line["hash"]
            done = await verified(kit, previous)
            assert done.problems == [] and done.head_found and done.rows >= 7 and done.older_rows == 0
            vic = await kit.person("vic", "viewer")
            assert (await vic.get("/api/v1/admin-trail/export")).status_code == 403

    run(work())


SPOILED = {
    "a status": "UPDATE admin_trail SET status = 200 WHERE id = {row} AND status != 200",
    "a name": "UPDATE admin_trail SET user_name = 'eve' WHERE id = {row}",
    "a detail": "UPDATE admin_trail SET detail = '{{\"x\": 1}}' WHERE id = {row}",
    "a target": "UPDATE admin_trail SET target = 'users/eve' WHERE id = {row}",
    "a time": "UPDATE admin_trail SET at = '2020-01-01 00:00:00.000000' WHERE id = {row}",
    "a row away": "DELETE FROM admin_trail WHERE id = {row}",
    "a row slipped in": "INSERT INTO admin_trail SELECT 1000, at, user_name, role, via, address, action, method, path,"
    " status, detail, target, credential FROM admin_trail WHERE id = {row}",
    "an entry away": "DELETE FROM trail_chain WHERE seq = {link}",
    "an entry's content": "UPDATE trail_chain SET content = replace(content, ':', ': ') WHERE seq = {link}",
    "an entry's content, but not what it says": "UPDATE trail_chain SET content = content || ' ' WHERE seq = {link}",
    "an entry's hash": "UPDATE trail_chain SET hash = '{zeros}' WHERE seq = {link}",
    "an entry's time": "UPDATE trail_chain SET at = '2020-01-01 00:00:00.000000' WHERE seq = {link}",
    "a row slipped in before all": "INSERT INTO admin_trail SELECT 0, at, user_name, role, via, address, action,"
    " method, path, status, detail, target, credential FROM admin_trail WHERE id = {row}",
    "a nest": "UPDATE trail_chain SET content = '{nest}' WHERE seq = {link}",
    "the beginning away": "DELETE FROM trail_chain WHERE seq <= {link}",
}


@pytest.mark.parametrize("what", SPOILED)
def test_whatever_is_changed_afterwards_is_found(tmp_path: Path, what: str) -> None:
    print(f"seed {SEED}")
    chosen = random.Random(f"{SEED} {what}")

    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            await some_history(kit)
            assert (await verified(kit)).problems == []
            engine = opened(tmp_path / "console.db")
            with engine.begin() as db:
                rows = sorted(db.scalars(text("SELECT id FROM admin_trail WHERE status != 200")))
                last = db.scalar(text("SELECT max(seq) FROM trail_chain"))
                said = SPOILED[what].format(
                    row=chosen.choice(rows), link=chosen.randrange(1, last), zeros="0" * 64, nest="[" * 60_000
                )
                assert db.exec_driver_sql(said).rowcount >= 1, said
            engine.dispose()
            assert (await verified(kit)).problems, said

    run(work())


def test_what_is_cut_off_the_end_is_found_by_a_hash_that_was_noted(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            await some_history(kit)
            head = (await verified(kit)).head
            async with kit.app.state.sessions() as db, db.begin():
                last = await db.scalar(select(func.max(TrailLink.seq)))
                link = await db.get_one(TrailLink, last)
                await db.delete(link)
                await db.delete(await db.get_one(TrailRow, link.row_id))
            done = await verified(kit, head)
            assert done.head_found is False and done.problems

    run(work())


def test_retention_removes_what_is_older_and_the_chain_still_holds(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            await some_history(kit)
            middle = utc_now()
            await some_history(kit)
            async with kit.app.state.sessions() as db:
                before = await db.scalar(select(func.count()).select_from(TrailRow))
            async with kit.app.state.sessions() as db, db.begin():
                gone = await trail_chain.trim(db, middle)
            done = await verified(kit)
            assert 0 < gone < before and done.problems == [], done.problems
            async with kit.app.state.sessions() as db, db.begin():
                forged = TrailRow(
                    id=1, at=middle, user_name="eve", role="admin", via="session", address="", method="GET"
                )
                forged.action, forged.path = "approved", "/"
                db.add(forged)
            assert any("there are none any more" in one for one in (await verified(kit)).problems)
            async with kit.app.state.sessions() as db, db.begin():
                await db.delete(await db.get_one(TrailRow, 1))
            await some_history(kit)
            async with kit.app.state.sessions() as db, db.begin():
                await trail_chain.trim(db, utc_now() + timedelta(seconds=1))
            assert (await verified(kit)).problems == [], "even when nothing is left"
            await some_history(kit)
            assert (await verified(kit)).problems == []

    run(work())


def test_the_command_line_verifies_exports_and_is_in_the_trail_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "console.db"
    links.issue(database_url(path), "ann", "admin")
    assert quorumscope(["trail", "verify", "--db", database_url(path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["entries"], said["rows"], said["problems"]) == (2, 1, [])
    assert quorumscope(["trail", "verify", "--db", database_url(path), "--head", said["head"]]) == 0
    assert quorumscope(["trail", "verify", "--db", database_url(path), "--head", "0" * 63 + "1"]) == 1
    capsys.readouterr()
    assert quorumscope(["trail", "export", "--db", database_url(path)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [json.loads(one["content"])["kind"] for one in lines] == ["begun", "ended"]
    assert json.loads(lines[0]["content"])["via"] == "command line"
    engine = opened(path)
    with engine.begin() as db:
        db.execute(text("UPDATE admin_trail SET user_name = 'eve'"))
    engine.dispose()
    assert quorumscope(["trail", "verify", "--db", database_url(path)]) == 1
    assert "user_name" in capsys.readouterr().out


@pytest.mark.sqlite
def test_a_database_that_somebody_else_writes_costs_no_reader_a_page(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann = await kit.person()
            kit.app.state.identity.noted.clear()
            with closing(sqlite3.connect(tmp_path / "console.db", isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                async with asyncio.timeout(60):
                    for path in ("/", "/account", "/api/v1/me", "/api/v1/events"):
                        assert (await ann.get(path)).status_code == 200
                other.execute("ROLLBACK")

    run(work())


def test_writers_of_one_process_take_turns(tmp_path: Path) -> None:
    """Many at once all get through: none meets SQLite's "database is locked". A machine that stands still is not it."""

    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            sessions = kit.app.state.sessions

            async def one(n: int) -> None:
                row = trail.row_of(None, action=f"a{n}")
                await trail.note(sessions, row, 0)

            began = time.monotonic()
            await asyncio.gather(*(one(n) for n in range(100)))
            done = await verified(kit)
            assert done.problems == [] and done.rows == 100, f"after {time.monotonic() - began:.1f} s"

    run(work())


WRITERS, ROWS = 3, 40
WRITER = """
import asyncio, sys
from app.db.engine import open_engine, open_sessions, until_taken
from app.security import trail

async def work():
    engine = open_engine(sys.argv[1])
    sessions = open_sessions(engine)
    for n in range(int(sys.argv[3])):
        row = trail.row_of(None, action=f"{sys.argv[2]} {n}")
        await until_taken(lambda: trail.note(sessions, row, 200, {"n": n}), "a row")
    await engine.dispose()

asyncio.run(work())
"""


@pytest.mark.process
def test_a_chain_that_several_processes_write_is_whole_also_to_who_looks_meanwhile(tmp_path: Path) -> None:
    """`trail verify` beside a busy console called rows changed that had just ended: each statement saw newer ones."""
    url = prepared_url(tmp_path / "console.db")
    command, root = [sys.executable, "-c", WRITER, url], Path(__file__).parents[2]
    writers = [subprocess.Popen([*command, f"writer {number}", str(ROWS)], cwd=root) for number in range(WRITERS)]

    async def look() -> tuple[int, trail_chain.Verified]:
        engine = open_engine(url)
        looks = 0
        while True:
            last = all(one.poll() is not None for one in writers)
            async with open_sessions(engine)() as db:
                done = await trail_chain.verify(db)
            assert done.problems == [], f"look {looks}"
            looks += 1
            if last:
                await engine.dispose()
                return looks, done

    try:
        looks, done = asyncio.run(look())
    finally:
        for one in writers:
            one.kill()
            one.wait()
    assert [one.returncode for one in writers] == [0] * WRITERS
    assert (done.rows, done.entries, done.rows_without_end) == (WRITERS * ROWS, 2 * WRITERS * ROWS, 0), looks


@pytest.mark.process
def test_retention_beside_writers_removes_nothing_that_the_chain_still_speaks_of(tmp_path: Path) -> None:
    """On PostgreSQL a row may have its number before another one and its place in the chain behind it. Retention that
    ended between the two removed both rows, and `trail verify` called one missing."""
    url = prepared_url(tmp_path / "console.db")
    command, root = [sys.executable, "-c", WRITER, url], Path(__file__).parents[2]
    writers = [subprocess.Popen([*command, f"writer {number}", str(ROWS)], cwd=root) for number in range(WRITERS)]

    async def trim_and_look() -> int:
        engine = open_engine(url)
        sessions = open_sessions(engine)
        removed = 0

        async def trimmed(before: datetime) -> int:
            async with sessions() as db, db.begin():
                return await trail_chain.trim(db, before)

        while any(one.poll() is None for one in writers):
            async with sessions() as db:
                links = list(await db.scalars(select(TrailLink.at).order_by(TrailLink.seq)))
            if links:
                with suppress(DBAPIError):  # somebody else took the chain's next place first
                    removed += await trimmed(links[len(links) // 2])
            async with sessions() as db:
                assert (await trail_chain.verify(db)).problems == []
        await engine.dispose()
        return removed

    try:
        removed = asyncio.run(trim_and_look())
    finally:
        for one in writers:
            one.kill()
            one.wait()
    assert [one.returncode for one in writers] == [0] * WRITERS and removed > 0
