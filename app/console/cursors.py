"""Cursors of lists ordered by row id: opaque to callers, bounded for the database."""

from __future__ import annotations

from app.console.errors import Invalid

INT64_MAX = (1 << 63) - 1
INT32_MAX = (1 << 31) - 1  # row ids are integers, which PostgreSQL compares with nothing larger


def before_id(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdigit()) or int(cursor) > INT64_MAX:
        raise Invalid(f"{cursor!r} is no cursor of this list")
    return min(int(cursor), INT32_MAX)
