"""Runs what asks a group by the ledger's client, and what that client raises means for a command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from app.commands.endings import Exit, Failure
from node.client import Denied, LedgerError, NotAppended, OutcomeUnknown, Refused, Unreachable

T = TypeVar("T")


def run_async(work: Callable[[], Awaitable[T]]) -> T:
    """Runs a coroutine function; what the ledger's client raises becomes the exit code that it means."""

    async def awaited() -> T:
        return await work()

    try:
        return asyncio.run(awaited())
    except LedgerError as error:
        raise failure_of(error) from error


def failure_of(error: LedgerError) -> Failure:
    """The exit code for what the ledger's client raised."""
    if isinstance(error, Denied):
        hint = "; say which group with --group" if "UNKNOWN_GROUP" in str(error) else ""
        if "token_file" in str(error):
            hint = "; show it with --token-file FILE, or in $QUORUMSCOPE_TOKEN"
        return Failure(Exit.DENIED, f"denied: {error}{hint}")
    if isinstance(error, OutcomeUnknown):
        return Failure(Exit.UNKNOWN_OUTCOME, f"outcome unknown: {error}")
    if isinstance(error, Unreachable):
        return Failure(Exit.UNREACHABLE, f"unreachable: {error}")
    if isinstance(error, Refused):
        return Failure(Exit.FINDING, f"refused: {error}")
    if isinstance(error, NotAppended):
        return Failure(Exit.FINDING, f"not appended: {error}")
    return Failure(Exit.UNDETERMINED, str(error))
