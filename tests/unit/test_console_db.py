"""Migrations: up, down and up again; what they build is what the models say."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect
from sqlalchemy.engine import Engine

from app.command_line import run as quorumscope
from app.console.cursors import before_id
from app.console.server import serve
from app.console.settings import ConsoleSettings
from app.db import engine as engine_module
from app.db.alerts import Alerts
from app.db.audits import AuditRow, Audits
from app.db.engine import DriverMissing, downgrade, normal_url, open_engine, open_sessions, sync_url, upgrade
from app.db.models import AlertMute, AlertRoute, AlertWindow, Base, Cluster
from app.db.repositories import Clusters, Events, Operations, describe, meta, set_meta
from app.times import parse_time, rfc3339, utc_now
from node.views.events import EventView
from node.views.reading import read
from tests.databases import database_url
from tests.ports import free_ports
from tests.unit.console_kit import run

for tables in ("app.db.audits", "app.db.schedules"):
    if importlib.util.find_spec(tables) is not None:
        importlib.import_module(tables)


def opened(tmp_path: Path) -> tuple[str, Engine]:
    url = database_url(tmp_path / "new" / "console.db")
    upgrade(url)
    return url, create_engine(sync_url(url))


def test_migrations_build_what_the_models_say(tmp_path: Path) -> None:
    _, engine = opened(tmp_path)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
    engine.dispose()


def test_down_and_up_again(tmp_path: Path) -> None:
    url, engine = opened(tmp_path)
    upgrade(url)
    downgrade(url, "base")
    assert set(inspect(engine).get_table_names()) == {"alembic_version"}
    upgrade(url)
    assert set(Base.metadata.tables) <= set(inspect(engine).get_table_names())
    engine.dispose()


@pytest.mark.parametrize(
    ("given", "driver"),
    [
        ("console.db", "sqlite+aiosqlite"),
        ("sqlite:///console.db", "sqlite+aiosqlite"),
        ("postgresql://h/db", "postgresql+psycopg"),
        ("postgresql+asyncpg://h/db", "postgresql+asyncpg"),
    ],
)
def test_urls_get_an_async_driver(given: str, driver: str) -> None:
    assert normal_url(given).drivername == driver


def test_times_keep_their_zone(tmp_path: Path) -> None:
    async def work() -> None:
        engine = open_engine(url)
        sessions = open_sessions(engine)
        there = datetime(2026, 1, 1, 12, 0, tzinfo=timezone(timedelta(hours=5)))
        async with sessions() as db, db.begin():
            db.add(Cluster(id="a", name="a", group="a", created_at=there))
        async with sessions() as db:
            row = await db.get(Cluster, "a")
            assert row is not None and row.created_at == there and row.created_at.tzinfo is UTC
        await engine.dispose()

    url, engine = opened(tmp_path)
    engine.dispose()
    run(work())
    assert parse_time(rfc3339(datetime(2026, 1, 1, tzinfo=UTC))) == datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.raises(ValueError, match="zone"):
        parse_time("2026-01-01T00:00:00")


def test_what_ran_when_the_console_died_is_unknown_afterwards(tmp_path: Path) -> None:
    async def work() -> None:
        engine = open_engine(url)
        operations = Operations(open_sessions(engine))
        first, new = await operations.open("demo", "transfer", "ann", node_id="n0", key="k", progress={})
        same, again = await operations.open("demo", "transfer", "ann", node_id="n0", key="k", progress={})
        other, fresh = await operations.open("demo", "transfer", "bea", node_id="n0", key="k", progress={})
        assert (new, again, fresh) == (True, False, True) and first["id"] == same["id"] != other["id"]
        await operations.set(other["id"], state="done")
        assert await operations.orphaned() == 1
        after = await operations.get(first["id"])
        assert after is not None and after["state"] == "unknown" and "restarted" in after["problem"]["detail"]
        assert [one["state"] for one in await operations.list("demo", 10)] == ["done", "unknown"]
        await engine.dispose()

    url, engine = opened(tmp_path)
    engine.dispose()
    run(work())


def test_a_list_goes_on_behind_what_the_caller_has(tmp_path: Path) -> None:
    async def work() -> None:
        engine = open_engine(url)
        operations = Operations(open_sessions(engine))
        for number in range(5):
            await operations.open("demo", "transfer", "ann", node_id="n0", key=str(number), progress={})
        seen: list[str] = []
        while page := await operations.list("demo", 2, seen[-1] if seen else None):
            seen += [one["id"] for one in page]
            assert len(seen) <= 5
        assert len(set(seen)) == 5
        await engine.dispose()

    url, engine = opened(tmp_path)
    engine.dispose()
    run(work())


def test_a_maintenance_window_is_listed_for_a_week_behind_its_end(tmp_path: Path) -> None:
    async def work() -> None:
        engine = open_engine(url)
        alerts, now = Alerts(open_sessions(engine)), utc_now()
        for ended_ago in (timedelta(hours=1), timedelta(days=8)):
            until = now - ended_ago
            await alerts.add_window(
                AlertWindow(scope=None, begin=until - timedelta(hours=1), until=until, reason="", by="ann", at=until)
            )
        await alerts.trim(now)
        assert [row.until for row in await alerts.windows()] == [now - timedelta(hours=1)]
        await engine.dispose()

    url, engine = opened(tmp_path)
    engine.dispose()
    run(work())


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (
            {
                "kind": "role",
                "detail": {"at_ns": 1, "role": "LEADER", "was": "CANDIDATE", "term": 2, "reason": "elected"},
            },
            "role: CANDIDATE to LEADER, term 2 (elected)",
        ),
        ({"kind": "dispatcher", "detail": {"peer": "n1", "was": "A", "state": "B"}}, "dispatcher: A to B, peer n1"),
        ({"kind": "gap", "detail": {"text": "events are lost"}}, "events are lost"),
        ({"kind": "disk_full", "detail": {"reason": "no space"}}, "disk full: no space"),
        ({"kind": "odd", "detail": "a word"}, "a word"),
        ({"kind": "bare"}, "bare"),
    ],
)
def test_events_in_words(event: dict[str, Any], text: str) -> None:
    assert describe(read(EventView, event)) == text


def test_events_are_listed_in_the_order_of_their_times(tmp_path: Path) -> None:
    """A member that was asked late tells of what happened before the others' events, which are stored already."""

    async def work() -> None:
        engine = open_engine(url)
        events = Events(open_sessions(engine))
        times = [3, 1, 4, 1, 5, 9, 2, 6]
        for number, second in enumerate(times):
            at = rfc3339(datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC))
            reported = EventView(id=f"b-{number}", at=at, kind="role", text=str(second))
            await events.add("demo", f"n{number % 3}", [reported])
        whole = [one["text"] for one in await events.list("demo")]
        assert whole == [str(second) for second in sorted(times, reverse=True)]
        paged, before = [], None
        while page := await events.list("demo", limit=3, before_id=before):
            paged += [one["text"] for one in page]
            before = int(page[-1]["id"])
        assert paged == whole
        await engine.dispose()

    url, engine = opened(tmp_path)
    engine.dispose()
    run(work())


def test_groups_of_one_name_and_two_ids_are_two(tmp_path: Path) -> None:
    async def work() -> None:
        engine = open_engine(url)
        clusters = Clusters(open_sessions(engine))
        nodes: list[tuple[str, str, str | None]] = [("n0", "h:1", "http://h:1")]
        unknown = await clusters.save(None, "demo", nodes)
        one = await clusters.save(None, "demo", nodes, "aa")  # it has got its id since
        other = await clusters.save(None, "demo", nodes, "bb")
        again = await clusters.save(None, "demo", nodes, "aa")
        assert (unknown.id, one.id, other.id, again.id) == ("demo", "demo", "demo-2", "demo")
        await clusters.named("demo-2", "cc")
        assert {row.id: row.group_id for row in await clusters.all()} == {"demo": "aa", "demo-2": "cc"}
        await engine.dispose()

    url, engine = opened(tmp_path)
    engine.dispose()
    run(work())


def test_groups_of_one_name_stay_apart_and_a_known_one_is_updated(tmp_path: Path) -> None:
    async def work() -> None:
        engine = open_engine(url)
        clusters = Clusters(open_sessions(engine))
        first = await clusters.save(None, "Orders & Co", [("n0", "h:1", "http://h:1"), ("n1", "h:2", None)])
        again = await clusters.save(None, "Orders & Co", [("n1", "h:2", "http://h:2")])
        other = await clusters.save(None, "Orders & Co", [("x0", "g:1", "http://g:1")])
        assert (first.id, again.id, other.id) == ("orders-co", "orders-co", "orders-co-2")
        rows = {row.id: {node.node_id: node.control_url for node in row.nodes} for row in await clusters.all()}
        assert rows["orders-co"] == {"n0": "http://h:1", "n1": "http://h:2"}
        await clusters.remove("orders-co")
        assert [row.id for row in await clusters.all()] == ["orders-co-2"]
        sessions = open_sessions(engine)
        assert await meta(sessions, "instance", "a") == await meta(sessions, "instance", "b") == "a"
        await engine.dispose()

    url, engine = opened(tmp_path)
    engine.dispose()
    run(work())


def test_a_missing_driver_is_named_with_the_way_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine_module.importlib.util, "find_spec", lambda _name: None)
    url = "postgresql://u:hush!word@127.0.0.1:1/db"
    for start in (open_engine, sync_url):
        with pytest.raises(DriverMissing, match=r"pip install 'quorumscope\[postgresql\]'"):
            start(url)
    assert quorumscope(["user", "link", "--db", url]) == 64
    said = capsys.readouterr().err
    assert "psycopg" in said and "u:***@127.0.0.1" in said and "hush" not in said
    assert serve(ConsoleSettings(db_url=url, port=free_ports(1)[0])) == 64
    assert "pip install 'quorumscope[postgresql]'" in capsys.readouterr().err


def test_a_cursor_beyond_every_row_is_one_that_any_database_takes(tmp_path: Path) -> None:
    async def work() -> None:
        engine = open_engine(url)
        events = Events(open_sessions(engine))
        await events.add("demo", "n0", [EventView(id="b-1", at=rfc3339(datetime.now(UTC)), kind="role", text="x")])
        (one,) = await events.list("demo")
        assert await events.list("demo", before_id=before_id(str(2**63 - 1))) == []
        assert one["id"]
        await engine.dispose()

    url, engine = opened(tmp_path)
    engine.dispose()
    run(work())


def test_audits_that_are_asked_for_at_the_same_time_are_each_made_once(tmp_path: Path) -> None:
    """On PostgreSQL the second was an error of the console: of another key, it had the first one's number; of the same
    key, the first one's key."""

    async def work() -> None:
        url, engine = opened(tmp_path)
        engine.dispose()
        async_engine = open_engine(url)
        kept = Audits(open_sessions(async_engine))
        order: dict[str, Any] = {"cluster_name": "x", "depth": "bytes", "from_index": None, "to_index": None}

        async def asked(key: str) -> tuple[AuditRow, bool]:
            return await kept.create(
                **order, cluster_id=key, directory="d", requested_by="ann", idempotency_key=key, fingerprint=key
            )

        made = await asyncio.gather(*(asked(key) for key in ("one", "one", "two", "three")))
        assert sorted(row.number for row, fresh in made if fresh) == [1, 2, 3]
        assert made[0][0].id == made[1][0].id and made[0][1] != made[1][1]
        await async_engine.dispose()

    run(work())


def test_what_two_store_under_one_key_at_the_same_time_is_there_once(tmp_path: Path) -> None:
    """Two clicks on PostgreSQL: neither saw the other one's row, and the second was an error of the console."""

    def route(severity: str) -> AlertRoute:
        return AlertRoute(
            name="night", kind="webhook", severity=severity, hold_s=0, enabled=True, settings={}, created_at=utc_now()
        )

    def mute(by: str) -> AlertMute:
        return AlertMute(scope="g", problem_id="p", until=utc_now(), by=by, at=utc_now())

    async def work() -> None:
        url, engine = opened(tmp_path)
        engine.dispose()
        async_engine = open_engine(url)
        kept = Alerts(open_sessions(async_engine))
        assert sorted(await asyncio.gather(*(kept.add_route(route(one)) for one in ("crit", "warn")))) == [False, True]
        await asyncio.gather(*(kept.mute(mute(by)) for by in ("ann", "bea")))
        assert len(await kept.routes()) == len(await kept.mutes()) == 1
        await async_engine.dispose()

    run(work())


FIRST_START = """
import asyncio, sys
from app.db.engine import open_engine, open_sessions, upgrade
from app.db.repositories import meta, set_meta

async def note(url, own):
    engine = open_engine(url)
    sessions = open_sessions(engine)
    print(await meta(sessions, "instance", own))
    await set_meta(sessions, "address", own)
    await engine.dispose()

print("ready", flush=True)
input()
upgrade(sys.argv[1])
asyncio.run(note(*sys.argv[1:]))
"""


def test_consoles_that_are_first_started_at_the_same_moment_share_one_database(tmp_path: Path) -> None:
    """One made the tables, and the others ended with the database's own words: that there were some already."""
    url = database_url(tmp_path / "console.db")
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started = [subprocess.Popen([sys.executable, "-c", FIRST_START, url, str(at)], **pipes) for at in range(3)]
    try:
        assert [one.stdout.readline() for one in started if one.stdout] == ["ready\n"] * 3
        for one in started:
            assert one.stdin
            one.stdin.write("\n")
            one.stdin.flush()
        said = [one.communicate(timeout=60)[0] for one in started]
        assert [one.returncode for one in started] == [0, 0, 0] and len(set(said)) == 1
    finally:
        for one in started:
            one.kill()


def test_a_value_that_two_make_at_the_same_time_is_one(tmp_path: Path) -> None:
    async def work() -> None:
        url, engine = opened(tmp_path)
        engine.dispose()
        async_engine = open_engine(url)
        sessions = open_sessions(async_engine)
        made = await asyncio.gather(*(meta(sessions, "instance", own) for own in ("a", "b", "c")))
        assert len(set(made)) == 1
        await asyncio.gather(*(set_meta(sessions, "address", own) for own in ("a", "b", "c")))
        seen = [("n0", "127.0.0.1:1", None)]
        found = await asyncio.gather(*(Clusters(sessions).save(None, "orders", seen) for _ in range(3)))
        assert {one.id for one in found} == {"orders"}
        await async_engine.dispose()

    run(work())
