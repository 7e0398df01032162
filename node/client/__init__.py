"""The client of a group: `LedgerClient` for asyncio, `LedgerClientSync` for blocking code, and what they raise.

Invariant: every name that users import comes from here.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from node.client.committed import CommittedPosition
from node.client.errors import (
    AnotherGroup,
    Closed,
    Denied,
    LaneEnded,
    LedgerError,
    NotAppended,
    OutcomeUnknown,
    Refused,
    Trimmed,
    UnknownGroup,
    Unreachable,
    Unsupported,
    WrongLoop,
)
from node.client.lane import Lane
from node.client.ledger_client import AppendResult, LedgerClient
from node.loop_thread import LoopThread
from node.protocol.entry import Entry
from node.transport.slab_frames import ReadMode

__all__ = [
    "AnotherGroup",
    "AppendResult",
    "Closed",
    "CommittedPosition",
    "Denied",
    "Lane",
    "LaneEnded",
    "LedgerClient",
    "LedgerClientSync",
    "LedgerError",
    "NotAppended",
    "OutcomeUnknown",
    "ReadMode",
    "Refused",
    "Trimmed",
    "UnknownGroup",
    "Unreachable",
    "Unsupported",
    "WrongLoop",
]

T = TypeVar("T")


class LedgerClientSync:
    """LedgerClient for blocking code: a loop in a thread of its own. Close it, or use it in a `with`."""

    def __init__(self, peers: str | Mapping[str, str], **options: Any) -> None:
        self._thread = LoopThread("ledger-client", Closed)

        async def make() -> LedgerClient:
            return LedgerClient(peers, **options)

        try:
            self._client = self._wait(make())
        except BaseException:
            self._thread.stop()
            raise

    def _wait(self, work: Awaitable[T]) -> T:
        """Raises Closed where the client is closed, or is being closed by another thread."""
        return self._thread.wait(work)

    def append(self, body: bytes, *, expected_index: int | None = None) -> AppendResult:
        return self._wait(self._client.append(body, expected_index=expected_index))

    def append_many(self, bodies: Sequence[bytes], *, expected_index: int | None = None) -> AppendResult:
        return self._wait(self._client.append_many(bodies, expected_index=expected_index))

    def read(self, from_index: int, limit: int, *, include_all: bool = False) -> list[Entry]:
        return self._wait(self._client.read(from_index, limit, include_all=include_all))

    def committed_index(self) -> int:
        return self._wait(self._client.committed_index())

    def committed(
        self, member_id: str | None = None, *, interval_ms: int = 5, keep_alive_ms: int = 1000
    ) -> Generator[CommittedPosition, None, None]:
        """As `LedgerClient.committed`; each step waits for the next position. It ends when the client is closed; close
        it (`contextlib.closing`) to end the subscription before. Leases are by `time.monotonic()`."""

        async def begin() -> AsyncGenerator[CommittedPosition, None]:
            return self._client.committed(
                member_id, interval_ms=interval_ms, keep_alive_ms=keep_alive_ms, clock=time.monotonic
            )

        try:
            positions = self._wait(begin())
            try:
                while True:
                    yield self._wait(anext(positions))
            finally:
                self._wait(positions.aclose())
        except Closed:
            return

    def introspect(self, node_id: str, what: str, since: str | None = None) -> dict[str, Any]:
        return self._wait(self._client.introspect(node_id, what, since))

    def state(self, node_id: str) -> dict[str, Any]:
        return self._wait(self._client.state(node_id))

    def transfer(
        self,
        to: str | None = None,
        *,
        if_term: int | None = None,
        deadline_ms: int | None = None,
        accept_data_loss: bool = False,
    ) -> dict[str, Any]:
        return self._wait(
            self._client.transfer(to, if_term=if_term, deadline_ms=deadline_ms, accept_data_loss=accept_data_loss)
        )

    def leader(self) -> str:
        return self._wait(self._client.leader())

    def close(self) -> None:
        """What other threads wait for ends with Closed. Closing it again does nothing."""
        with suppress(Closed):
            self._wait(self._client.close())
        self._thread.stop()

    def __enter__(self) -> LedgerClientSync:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
