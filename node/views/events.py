"""`GET events`: what happened on a member, oldest first. A range that is lost shows as a `gap`."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator

from node.views.base import AnswerView, Bounded, JsonObject, Text, View, written_bytes

DETAIL_BYTES_MAX: Final = 16 << 10  # a console keeps 20,000 of a group, and draws hundreds


def _detail(value: Any) -> Any:
    """Other servers give a sentence."""
    return {"text": value} if isinstance(value, str) else value


def _short(value: JsonObject) -> JsonObject:
    size_bytes = written_bytes(value)
    return value if size_bytes <= DETAIL_BYTES_MAX else {"text": f"{size_bytes:,} bytes of detail are left out"}


class EventView(View):
    """One event. `detail` is for people: nothing is decided by what stands in it."""

    id: Text | None = None
    at: Text | None = None
    kind: Text | None = None
    severity: Text | None = None
    text: Text | None = None
    detail: Annotated[JsonObject, BeforeValidator(_detail), AfterValidator(_short)] | None = None


class EventsView(AnswerView):
    """`next`: where to go on."""

    items: Annotated[tuple[EventView, ...], Bounded] | None = None
    next: Text | None = None
