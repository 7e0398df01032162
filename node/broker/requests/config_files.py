"""`DATA/config/*.json`: topics, groups and offsets as RocketMQ's broker keeps them, for its tools and for people.

They say what the log says, as it was a moment ago; a start reads the log. Each file is written whole beside the old one
and renamed, the one before stays as `.bak`. Invariants: what is not changed is not written.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

from node.broker.requests.context import Context
from node.rocketmq.bodies import delay_offsets_answer, groups_answer, offsets_answer, topics_answer

TOPICS: Final = "topics.json"
GROUPS: Final = "subscriptionGroup.json"
OFFSETS: Final = "consumerOffset.json"
DELAYS: Final = "delayOffset.json"


class ConfigFiles:
    """`due` on the loop and `write` off it, now and then."""

    def __init__(self, data: Path, context: Context) -> None:
        self._folder, self._context = data / "config", context
        self._written: dict[str, bytes] = {}
        self._saving = asyncio.Lock()

    async def save(self) -> None:
        """What is due now; on the loop, the files are written off it. Raises OSError."""
        async with self._saving:
            due = self.due()
            if due:
                await asyncio.to_thread(self.write, due)

    def due(self) -> dict[str, bytes]:
        """What is not in its file as it is now. On the loop: the tables do not change meanwhile."""
        topics, groups = self._context.topics, self._context.groups
        now = {
            TOPICS: topics_answer(topics.version, topics.topics.values()),
            GROUPS: groups_answer(groups.version, groups.groups.values()),
            OFFSETS: offsets_answer(self._context.offsets.as_said()),
            DELAYS: delay_offsets_answer(self._context.delay_offsets()),
        }
        return {name: data for name, data in now.items() if self._written.get(name) != data}

    def write(self, files: dict[str, bytes]) -> None:
        """Raises OSError: then it is due again."""
        self._folder.mkdir(exist_ok=True)
        for name, data in files.items():
            path, fresh = self._folder / name, self._folder / f"{name}.tmp"
            with fresh.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if path.exists():
                path.replace(self._folder / f"{name}.bak")
            fresh.replace(path)
            self._written[name] = data
