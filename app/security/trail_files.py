"""The trail from the command line: verified and exported without a console."""

from __future__ import annotations

import asyncio
import sys

from sqlalchemy.ext.asyncio import AsyncSession

from app.security.tokens import within
from app.security.trail_chain import ORIGIN, Verified, entries, line_of, verify


def verified(db_url: str, head: str | None = None) -> Verified:
    async def work(db: AsyncSession) -> Verified:
        return await verify(db, head)

    return asyncio.run(within(db_url, work))


def print_all(db_url: str) -> str:
    """Everything to stdout; the newest hash."""

    async def work(db: AsyncSession) -> str:
        head = ORIGIN
        async for chunk in entries(db):
            sys.stdout.write("".join(line_of(one) for one in chunk))
            head = chunk[-1].hash
        return head

    return asyncio.run(within(db_url, work))
