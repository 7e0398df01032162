"""Pages of a list that is whole in memory: `limit` items after the one that the cursor names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def page(
    items: Sequence[T], name: Callable[[T], str], limit: int, cursor: str | None
) -> tuple[Sequence[T], str | None]:
    """(what is shown, the cursor for what follows; None at the end). Raises ValueError for a cursor of no item."""
    begin = 0
    if cursor is not None:
        begin = 1 + next((place for place, one in enumerate(items) if name(one) == cursor), -1)
        if begin == 0:
            raise ValueError(f"{cursor!r} is no cursor of this list (any more).")
    shown = items[begin : begin + limit]
    return shown, name(shown[-1]) if begin + limit < len(items) else None
