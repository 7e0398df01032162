"""Migrations up and down over tables that hold rows: what was there stays there."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic.script import ScriptDirectory

from app.db.engine import alembic_config, downgrade, sync_url, upgrade
from tests.databases import database_url

AT = datetime(2026, 11, 22, 3, 0, tzinfo=UTC)


def revisions(url: str) -> list[str]:
    """Oldest first."""
    found = ScriptDirectory.from_config(alembic_config(url)).walk_revisions()
    return [one.revision for one in found][::-1]


def value_for(column: sa.Column[Any]) -> object:
    kind = column.type
    if isinstance(kind, sa.Boolean):
        return True
    if isinstance(kind, sa.Integer):
        return 1
    if isinstance(kind, sa.DateTime):
        return AT
    if isinstance(kind, sa.JSON):
        return {"Ann": "viewer"}
    if isinstance(kind, sa.LargeBinary):
        return b"\x00packed"
    return "viewer" if column.name == "role" else "Ann"  # the same everywhere: what refers to another row finds it


def tables_of(engine: sa.Engine) -> sa.MetaData:
    metadata = sa.MetaData()
    metadata.reflect(engine)
    metadata.remove(metadata.tables["alembic_version"])
    return metadata


def fill(engine: sa.Engine) -> None:
    """A row in each table that has none."""
    tables = tables_of(engine)
    with engine.begin() as db:
        for table in tables.sorted_tables:
            if db.execute(sa.select(sa.func.count()).select_from(table)).scalar_one() == 0:
                db.execute(table.insert().values({column.name: value_for(column) for column in table.columns}))


def content(engine: sa.Engine) -> dict[str, dict[str, object]]:
    """Each table's row; times without their zone, which SQLite does not keep."""
    found: dict[str, dict[str, object]] = {}
    with engine.connect() as db:
        for name, table in tables_of(engine).tables.items():
            rows = db.execute(sa.select(table)).mappings().all()
            assert len(rows) == 1, f"{name} holds {len(rows)} rows"
            found[name] = {
                key: one.astimezone(UTC).replace(tzinfo=None) if isinstance(one, datetime) and one.tzinfo else one
                for key, one in rows[0].items()
            }
    return found


def test_every_step_up_and_down_keeps_what_there_is(tmp_path: Path) -> None:
    url = database_url(tmp_path / "console.db")
    steps = revisions(url)
    upgrade(url, steps[0])
    engine = sa.create_engine(sync_url(url))
    fill(engine)
    at_each = [content(engine)]
    for revision in steps[1:]:
        before = at_each[-1]
        upgrade(url, revision)
        with engine.connect() as db:
            for name, row in before.items():
                table = sa.Table(name, sa.MetaData(), autoload_with=engine)
                (now,) = db.execute(sa.select(*[table.c[key] for key in row if key in table.c])).mappings().all()
                kept = {key: one for key, one in row.items() if key in table.c}
                assert [str(now[key])[:19] for key in kept] == [str(kept[key])[:19] for key in kept], (revision, name)
        fill(engine)
        at_each.append(content(engine))
    assert "trail_chain" in at_each[-1] and len(at_each[-1]) > len(at_each[0])
    for revision, before in reversed(list(zip(steps[:-1], at_each[:-1], strict=True))):
        downgrade(url, revision)
        assert content(engine) == before, revision
    downgrade(url, "base")
    assert sa.inspect(engine).get_table_names() == ["alembic_version"]
    engine.dispose()


def test_users_whose_names_differ_in_case_only_are_told_apart_by_the_step(tmp_path: Path) -> None:
    url = database_url(tmp_path / "console.db")
    upgrade(url, "0005_alerts")
    engine = sa.create_engine(sync_url(url))
    with engine.begin() as db:
        users = sa.Table("users", sa.MetaData(), autoload_with=engine)
        for number, name in enumerate(("Ann", "ann", "bea"), 1):
            db.execute(users.insert().values(id=number, name=name, role="viewer", created_at=AT))
    upgrade(url)
    with engine.connect() as db:
        found = db.execute(sa.text("SELECT name, name_key FROM users ORDER BY id")).all()
    assert [tuple(one) for one in found] == [("Ann", "ann"), ("ann.2", "ann.2"), ("bea", "bea")]
    engine.dispose()
