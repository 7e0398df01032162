"""A command that waits says for what, before whoever looks at it takes it for one that hangs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final

from app.commands.output import say

SLOW_S: Final = 1.0


@contextlib.contextmanager
def said_if_slow(text: str) -> Iterator[None]:
    """The text goes to stderr where what is inside takes longer than SLOW_S. Only where a loop runs."""
    timer = asyncio.get_running_loop().call_later(SLOW_S, say, text)
    try:
        yield
    finally:
        timer.cancel()
