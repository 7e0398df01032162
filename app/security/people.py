"""Users by name, without regard to case: `Ann` and `ann` are one person."""

from __future__ import annotations

import re
from typing import Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.models import User

NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$"


def valid_name(name: str) -> bool:
    return re.fullmatch(NAME.strip("^$"), name) is not None


async def user_named(db: AsyncSession, name: str) -> User | None:
    if "\0" in name:  # PostgreSQL takes none, not even in a question
        return None
    found: User | None = await db.scalar(select(User).where(User.name_key == name.lower()))
    return found
