"""`GET events`: what happened on a member, oldest first. A range that is lost shows as a `gap`."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator
from pydantic_core import PydanticCustomError

from node.views.base import AnswerView, Bounded, JsonObject, Text, View

DETAIL_BYTES_MAX: Final = 16 << 10  # a console keeps 20,000 of a group, and draws hundreds


def _detail(value: Any) -> Any:
    """Other servers give a sentence."""
    return {"text": value} if isinstance(value, str) else value


def _writable(value: JsonObject) -> JsonObject:
    """pydantic looks into fields of text only: what stands deeper may be half of a character, or without end."""
    try:
        size_bytes = len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
    except UnicodeEncodeError:
        raise PydanticCustomError("string_unicode", "is no text that can be written") from None
    except ValueError:
        raise PydanticCustomError("odd_number", "holds a number that is none") from None
    return value if size_bytes <= DETAIL_BYTES_MAX else {"text": f"{size_bytes:,} bytes of detail are left out"}


class EventView(View):
    """One event. `detail` is for people: nothing is decided by what stands in it."""

    id: Text | None = None
    at: Text | None = None
    kind: Text | None = None
    severity: Text | None = None
    text: Text | None = None
    detail: Annotated[JsonObject, BeforeValidator(_detail), AfterValidator(_writable)] | None = None


class EventsView(AnswerView):
    """`next`: where to go on."""

    items: Annotated[tuple[EventView, ...], Bounded] | None = None
    next: Text | None = None
