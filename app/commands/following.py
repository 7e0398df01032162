"""`tail -f`: prints entries as they are committed, following the leader's stream of committed positions.

A member that does not know the stream (an older release, a plain DLedger) is asked every TAIL_POLL_S instead.
Invariant: entries are printed once each, in the order of their indexes; nothing is asked for that is not there.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

from app.commands.ledger_calls import failure_of
from app.commands.output import say
from node.client import CommittedPosition, LedgerClient, LedgerError, Trimmed, Unsupported
from node.protocol.entry import Entry, Magic

TAIL_POLL_S: Final = 0.2
TAIL_READ_ENTRIES: Final = 500
READ_BYTES: Final = 1024 * 1024  # then they are shown: of the largest bodies, so many entries are gigabytes


async def print_from(
    client: LedgerClient, at: int, follow: bool, wanted: int | None, show: Callable[[Entry], None], end: int
) -> None:
    """Shows from `at` on, and no more than `wanted` entries: for ever with `follow`, else up to index `end`, which the
    caller took before, so that a log that grows as fast as it is read comes to an end."""
    waiting = Waiting(client)
    async with aclosing(waiting):
        while wanted is None or wanted > 0:
            try:
                entries = await client.read(at, TAIL_READ_ENTRIES, include_all=True, enough_bytes=READ_BYTES)
                waiting.complained = False
            except LedgerError as error:
                if not follow or isinstance(error, Trimmed):  # what was removed does not come back
                    raise
                waiting.complain(error)
                await asyncio.sleep(TAIL_POLL_S)
                continue
            if not follow:
                entries = [entry for entry in entries if entry.index <= end]
            shown = [entry for entry in entries if entry.magic == Magic.NORMAL][:wanted]
            for entry in shown:
                show(entry)
            wanted = None if wanted is None else wanted - len(shown)
            sys.stdout.flush()
            if entries:
                at = entries[-1].index + 1
            elif follow:
                await waiting.beyond(at)
            if not follow and (not entries or at > end):
                return


class Waiting:
    """Until something is committed at an index, or it is time to look whether it is."""

    def __init__(self, client: LedgerClient) -> None:
        self._client = client
        self._positions: AsyncGenerator[CommittedPosition, None] | None = None
        self._polls = False
        self.complained = False

    def complain(self, error: LedgerError) -> None:
        """Once, until it works again."""
        if not self.complained:
            say(f"tail: {failure_of(error)}; waiting")
        self.complained = True

    async def beyond(self, index: int) -> None:
        """Returns when an entry `index` is committed, as far as is known."""
        if self._polls:
            await asyncio.sleep(TAIL_POLL_S)
            return
        if self._positions is None:
            self._positions = self._client.committed()
        try:
            async for position in self._positions:
                if position.committed_index >= index:
                    return
        except Unsupported:
            self._polls = True
        except LedgerError as error:
            self.complain(error)
            self._positions = None
            await asyncio.sleep(TAIL_POLL_S)

    async def aclose(self) -> None:
        if self._positions is not None:
            await self._positions.aclose()
