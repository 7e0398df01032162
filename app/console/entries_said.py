"""What a member says of entries and of truncations, as pages draw it: read, so that whatever it is, a page can be made.

Invariant: a field that is absent is unknown; one of another type, or beyond its bounds, is refused, and said.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

from pydantic import AliasChoices, Field, JsonValue

from app.console.errors import NodeUnreachable
from app.console.message_bodies import with_messages
from node.views.base import Flag, Text, View, Whole
from node.views.reading import Unreadable, read

V = TypeVar("V", bound=View)
Json = dict[str, Any]
Index = Annotated[Whole, Field(ge=0)]
ITEMS_MAX: Final = 1000  # as many as may be asked for at once


class EntrySaid(View):
    """One entry; `problem`: its record cannot be read, and why. Other servers call the fields otherwise."""

    index: Index
    term: Whole | None = None
    magic: Text | None = Field(default=None, validation_alias=AliasChoices("magic", "kind"))
    body_bytes: Whole | None = Field(default=None, validation_alias=AliasChoices("body_bytes", "size_bytes"))
    seal: Text | None = None
    as_: Text | None = Field(default=None, alias="as")
    body: JsonValue = None
    note: Text | None = None
    problem: Text | None = None


class EntriesSaid(View):
    """Some entries, of a log or of what was cut from it; `next`: where those behind them begin."""

    begin_index: Index | None = None
    items: Annotated[tuple[EntrySaid, ...], Field(max_length=ITEMS_MAX)]
    next: Annotated[Text, Field(pattern=r"^[0-9]{1,18}$")] | None = None

    def shown(self, as_: str) -> list[Json]:
        """As the template draws them; as text, those that hold messages as these."""
        items: list[Json] = [one.model_dump(by_alias=True) for one in self.items]
        return with_messages(items) if as_ == "text" else items


class CutSaid(View):
    """One truncation; `below_committed`: it cut what was committed."""

    at: Text | None = Field(default=None, validation_alias=AliasChoices("at", "time"))
    by: Text | None = None
    leader_id: Text | None = None
    term: Whole | None = None
    from_index: Whole | None = None
    to_index: Whole | None = None
    count: Whole | None = None
    reason: Text | None = None
    committed_index: Whole | None = None
    begins_behind: Whole | None = None
    below_committed: Flag | None = None


def said(view: type[V], answer: Any, node_id: str) -> V:
    """Raises NodeUnreachable for what cannot be read."""
    try:
        return read(view, answer)
    except Unreadable as error:
        raise NodeUnreachable(f"What {node_id} answers cannot be read: {error}.", code="odd_answer") from None
