"""What is known of a group's configurations: the leader's newest, and how its members came and went, by its events.

Each member says once that another configuration came into effect; the first word of each counts. Invariants: what was
never heard of is not made up (a console that watches later knows of it no more than the events that are kept).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.db.repositories import Events
from app.times import rfc3339, time_of
from node.views.events import EventView

KIND: Final = "configuration"
KEPT: Final = 50
READ: Final = 400  # every member tells of each


@dataclass(frozen=True, slots=True)
class Changed:
    """A configuration that came into effect."""

    at: str
    index: int
    voters: tuple[str, ...]
    learners: tuple[str, ...]
    text: str


def names(value: Any) -> tuple[str, ...]:
    return tuple(str(one) for one in value) if isinstance(value, list) else ()


def changed(at: str | None, detail: Mapping[str, Any] | None) -> Changed | None:
    """An event in words; None for one that says nothing of members."""
    index = (detail or {}).get("index")
    when = time_of(at)
    if detail is None or when is None or type(index) is not int:
        return None
    voters, learners = names(detail.get("voters")), names(detail.get("learners"))
    joined, left, promoted = (names(detail.get(one)) for one in ("joined", "left", "promoted"))
    said = [f"{one} joined{' as a learner' if one in learners else ''}" for one in joined]
    said += [f"{one} became a voter" for one in promoted]
    said += [f"{one} left" for one in left]
    return Changed(rfc3339(when), index, voters, learners, ", ".join(said) or "an address changed")


class Configurations:
    """Of all groups of a console."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._known: dict[str, dict[tuple[Any, ...], Changed]] = {}
        self._loaded: set[str] = set()

    def note(self, cluster_id: str, items: Sequence[EventView]) -> None:
        """Takes in the changes of configuration among the events that members just reported."""
        found = [changed(one.at, one.detail) for one in items if one.kind == KIND]
        if found:
            self._take(cluster_id, found)

    async def load(self, cluster_id: str) -> None:
        """Reads a group's earlier changes from the database, once."""
        if cluster_id in self._loaded:
            return
        rows = await self._events.list(cluster_id, limit=READ, kinds=(KIND,))
        self._loaded.add(cluster_id)
        self._take(cluster_id, [changed(one["at"], one["detail"]) for one in rows])

    def _take(self, cluster_id: str, found: Iterable[Changed | None]) -> None:
        known = self._known.setdefault(cluster_id, {})
        for one in found:
            if one is not None:
                key = one.index, one.voters, one.learners
                before = known.get(key)
                if before is None or one.at < before.at:
                    known[key] = one
        for old in sorted(known, key=lambda key: known[key].at)[: max(0, len(known) - KEPT)]:
            del known[old]

    def rows(self, cluster_id: str) -> list[Changed]:
        """A group's configurations, the newest first."""
        return sorted(self._known.get(cluster_id, {}).values(), key=lambda one: (one.at, one.index), reverse=True)

    def since(self, cluster_id: str, index: int | None) -> str | None:
        """When the configuration of that entry came into effect, as far as is known."""
        return min((one.at for one in self.rows(cluster_id) if one.index == index), default=None)

    def forget(self, cluster_id: str) -> None:
        self._known.pop(cluster_id, None)
        self._loaded.discard(cluster_id)
