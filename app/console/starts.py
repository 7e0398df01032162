"""How each member was last started: kept for the time when its control plane is gone, and the console began anew.

Then nobody else could say where a dead member's data lies. Invariants: what a member says itself goes
before what was kept; a database that is away costs nothing but the memory; what is kept is bounded.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable
from typing import Final

from pydantic import TypeAdapter, ValidationError
from sqlalchemy.exc import SQLAlchemyError

from app.console.sample import NodeSample
from app.db.engine import Sessions
from app.db.repositories import meta, set_meta
from app.health.group_view import StartView

log = logging.getLogger(__name__)
META_KEY: Final = "node_starts"
KEEP_EVERY_S: Final = 5.0
# A longer command is not kept: the others must not suffer for it.
TEXT_CHARS_MAX: Final = 4000
MEMBERS_MAX: Final = 1000

Kept = dict[str, dict[str, StartView]]
KEPT: Final = TypeAdapter(Kept)


class Starts:
    """By group and member. `load` comes first, `keep_forever` is one of the console's tasks."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self.kept: Kept = {}
        self.stored = "{}"

    async def load(self) -> None:
        self.stored = await meta(self.sessions, META_KEY, "{}")
        try:
            self.kept = KEPT.validate_json(self.stored)
        except ValidationError:
            log.exception("how members were started cannot be read, and is learned anew")

    def of(self, cluster_id: str, node_id: str) -> StartView | None:
        return self.kept.get(cluster_id, {}).get(node_id)

    def forget(self, cluster_id: str) -> None:
        self.kept.pop(cluster_id, None)

    def learn(self, cluster_id: str, samples: Iterable[NodeSample]) -> None:
        """What members say of themselves now."""
        for one in samples:
            start = start_of(one)
            if start is None or start == self.of(cluster_id, one.node_id):
                continue
            if sum(map(len, self.kept.values())) < MEMBERS_MAX:
                self.kept.setdefault(cluster_id, {})[one.node_id] = start

    async def keep_forever(self, groups: Callable[[], Iterable[tuple[str, Iterable[NodeSample]]]]) -> None:
        while True:
            for cluster_id, samples in groups():
                self.learn(cluster_id, samples)
            await self.keep()
            await asyncio.sleep(KEEP_EVERY_S)

    async def keep(self) -> None:
        """Stores what has changed."""
        text = json.dumps(KEPT.dump_python(self.kept, mode="json", exclude_none=True), sort_keys=True)
        if text == self.stored:
            return
        try:
            await set_meta(self.sessions, META_KEY, text)
        except SQLAlchemyError:
            log.exception("how members were started could not be stored")
        else:
            self.stored = text


def start_of(sample: NodeSample) -> StartView | None:
    """As its control plane says; None where it says nothing, or too much."""
    state = sample.state
    if state is None or not (state.started_with or state.data_dir):
        return None
    start = StartView(started_with=state.started_with, data_dir=state.data_dir)
    return None if max(len(start.started_with or ""), len(start.data_dir or "")) > TEXT_CHARS_MAX else start
