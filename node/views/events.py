"""`GET events`: what happened on a member, oldest first. A range that is lost shows as a `gap`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from node.views.base import AnswerView, Bounded, JsonObject, Text, View


def _detail(value: Any) -> Any:
    """Other servers give a sentence."""
    return {"text": value} if isinstance(value, str) else value


class EventView(View):
    """One event. `detail` is for people: nothing is decided by what stands in it."""

    id: Text | None = None
    at: Text | None = None
    kind: Text | None = None
    severity: Text | None = None
    text: Text | None = None
    detail: Annotated[JsonObject, BeforeValidator(_detail)] | None = None


class EventsView(AnswerView):
    """`next`: where to go on."""

    items: Annotated[tuple[EventView, ...], Bounded] | None = None
    next: Text | None = None
