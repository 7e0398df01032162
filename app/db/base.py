"""The declarative base, and a column type that keeps time zones.

Invariant: every time in the database is UTC and comes back timezone-aware, on SQLite too.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import JSON, ColumnElement, DateTime, MetaData, TypeDecorator
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase

from app.security.roles import Sight

CLOCKS_DIFFER: Final = timedelta(minutes=5)  # two consoles' clocks may, on one database
NAMING = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class UtcDateTime(TypeDecorator[datetime]):
    """SQLite drops the zone; this puts it back, and refuses naive times on the way in."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a time without a zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """All tables of the console."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {datetime: UtcDateTime, dict[str, Any]: JSON, list[Any]: JSON}  # noqa: RUF012


def seen(cluster_id: Any, sight: Sight) -> ColumnElement[bool]:
    """The rows of groups that somebody sees."""
    named = cluster_id.in_(sight.groups)
    found: ColumnElement[bool] = ~named if sight.all_but else named
    return found


def utc_now() -> datetime:
    return datetime.now(UTC)


def written_ahead(at: datetime, now: datetime) -> bool:
    """Whether that was written while the clock was ahead: what is reckoned from it would last for as long as it was."""
    return at - now > CLOCKS_DIFFER


def rfc3339(at: datetime) -> str:
    """UTC with milliseconds, as every answer writes times."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_time(text: str) -> datetime:
    """An RFC 3339 time; ValueError without a zone, and where it is in no year that there is in UTC."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(f"{text!r} names no time zone")
    try:
        return at.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{text!r}: {error}") from None
