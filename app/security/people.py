"""Users by name, without regard to case: `Ann` and `ann` are one person."""

from __future__ import annotations

import re
from typing import Final

from sqlalchemy import ColumnElement, false, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.models import User
from app.security.roles import Role

NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$"


def valid_name(name: str) -> bool:
    return re.fullmatch(NAME.strip("^$"), name) is not None


async def held(db: AsyncSession, which: ColumnElement[bool]) -> list[User]:
    """These users, whom nobody else changes before this transaction has ended.

    In the order of their ids: of two who want the same ones, one waits, and never each for the other.
    """
    await db.execute(update(User).where(false()).values(role=User.role))  # SQLite locks by writing, not by rows
    asked = select(User).where(which).order_by(User.id).with_for_update()
    return list(await db.scalars(asked.execution_options(populate_existing=True)))


async def user_to_change(db: AsyncSession, name: str) -> User | None:
    """The user, held until this transaction has ended: what one reads and writes again, nobody wrote in between.

    Every admin is held with them, so that two who take each other's role away wait here for one another.
    """
    if "\0" in name:
        return None
    found = await held(db, (User.name_key == name.lower()) | (User.role == Role.ADMIN.value))
    return next((one for one in found if one.name_key == name.lower()), None)


async def user_named(db: AsyncSession, name: str) -> User | None:
    if "\0" in name:  # PostgreSQL takes none, not even in a question
        return None
    found: User | None = await db.scalar(select(User).where(User.name_key == name.lower()))
    return found
