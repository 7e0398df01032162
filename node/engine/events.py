"""The engine's bounded memory of what happened, for people: `GET events` reads it.

Invariants: ids are `<boot>-<seq>` and ascend; at most EVENTS_MAX are kept, and a reader that asks for a range that is
gone gets a `gap` first.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from node.engine.clock import wall_text
from node.views.base import JsonObject
from node.views.events import EventsView, EventView

EventSink = Callable[[str, str, dict[str, Any]], None]  # kind, severity, detail


def no_sink(_kind: str, _severity: str, _detail: dict[str, Any]) -> None:
    """Where there is no log."""


EVENTS_MAX: Final = 2000
ANSWER_MAX: Final = 500


class EventRing:
    """One per engine run."""

    def __init__(self, boot_id: str) -> None:
        self._boot_id = boot_id
        self._events: deque[EventView] = deque(maxlen=EVENTS_MAX)
        self._next_seq = 1

    def add(self, kind: str, severity: str, detail: dict[str, Any]) -> None:
        """Stamps and keeps one event."""
        event_id = f"{self._boot_id}-{self._next_seq}"
        self._next_seq += 1
        event = EventView(id=event_id, at=wall_text(), kind=kind, severity=severity, detail=_as_json(detail))
        self._events.append(event)

    def since(self, event_id: str | None) -> EventsView:
        """What came after `event_id` (all that is kept for None, and after a restart), oldest first."""
        first_seq = self._next_seq - len(self._events)
        after = first_seq - 1
        gap = False
        if event_id:
            boot, _, seq = event_id.rpartition("-")
            if boot == self._boot_id and seq.isascii() and seq.isdigit() and len(seq) < 20:
                after = int(seq)
                gap = after < first_seq - 1
            else:
                gap = True
        skip = max(0, after - first_seq + 1)
        items = list(self._events)[skip : skip + ANSWER_MAX]
        if gap:
            text = f"events after {event_id} are not kept any more"
            oldest = f"{self._boot_id}-{first_seq - 1}"
            lost = EventView(id=oldest, at=wall_text(), kind="gap", severity="warning", detail={"text": text})
            items.insert(0, lost)
        last = items[-1].id if items else f"{self._boot_id}-{self._next_seq - 1}"
        answer = {"as_of": wall_text(), "engine": "ok", "boot_id": self._boot_id}
        return EventsView(**answer, items=tuple(items), next=last)


def _as_json(detail: dict[str, Any]) -> JsonObject:
    """Whatever else stands in it is shown as text."""
    written: JsonObject = json.loads(json.dumps(detail, default=str))
    return written
