"""Forms that append, sent once: a double click, or a reload of the answer, stores nothing twice.

Invariants: the same form with the same content has one outcome for as long as it is remembered, also while it is
on its way; one that changed nothing is forgotten, so that it can be sent again; FORMS_MAX are remembered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

from app.console.errors import ConsoleError

T = TypeVar("T")
FORMS_MAX: Final = 256


class SentOnce(Generic[T]):
    """Of one kind of form; `form` says which it is, and what it holds."""

    def __init__(self) -> None:
        self.sent: dict[Hashable, asyncio.Future[T]] = {}

    async def send(self, form: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """What came of it, the first time. Raises what `work` raises."""
        first = self.sent.get(form)
        if first is not None:
            return await asyncio.shield(first)
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.sent[form] = outcome
        while len(self.sent) > FORMS_MAX:
            del self.sent[next(iter(self.sent))]
        try:
            outcome.set_result(await work())
        except BaseException as error:
            if not isinstance(error, ConsoleError) or error.extra.get("outcome") != "unknown":
                self.sent.pop(form, None)
            if isinstance(error, asyncio.CancelledError):
                outcome.cancel()
            else:
                outcome.set_exception(error)
                outcome.exception()  # whether or not anybody else waits for it
            raise
        return outcome.result()
