"""`DATA/config/*.json`: topics, groups and offsets as RocketMQ's broker keeps them, for its tools and for people.

They say what the log says, as it was a moment ago; a start reads the log. Each file is written whole beside the old one
and renamed, a copy of the one before stays as `.bak`. Invariants: a file that was there is never missing, whenever this
process ends; what is not changed is not written; one thread writes at a time, and what was looked at earlier never
takes the place of what was looked at later.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from node.broker.requests.context import Context
from node.broker.requests.groups import offsets_of
from node.message_store.write_files import OsDisk
from node.rocketmq.bodies import delay_offsets_answer, groups_answer, topics_answer

TOPICS: Final = "topics.json"
GROUPS: Final = "subscriptionGroup.json"
OFFSETS: Final = "consumerOffset.json"
DELAYS: Final = "delayOffset.json"


class ConfigFiles:
    """`save` now and then, `save_now` at the end."""

    def __init__(self, data: Path, context: Context) -> None:
        self._folder, self._context = data / "config", context
        self._written: dict[str, bytes] = {}
        self._saving = asyncio.Lock()
        self._writing = threading.Lock()  # of threads: one may still write when its task was cancelled
        self.unsaved_by = ""  # why the last save failed
        self._taken = self._newest = 0  # how often the tables were looked at, and which look was written last

    async def save(self) -> None:
        """What is due now, made and written off the loop. Raises OSError."""
        async with self._saving:
            try:
                await asyncio.to_thread(self._write, *self._now())
                self.unsaved_by = ""
            except OSError as error:
                self.unsaved_by = f"{self._folder}: {error.strerror or error}"
                raise

    def save_now(self) -> None:
        """The same in this thread, after what another one still writes. Raises OSError."""
        self._write(*self._now())

    def due(self) -> dict[str, bytes]:
        """What is not in its file as it is now."""
        return self._not_written(self._now()[1]())

    def _not_written(self, files: dict[str, bytes]) -> dict[str, bytes]:
        return {name: data for name, data in files.items() if self._written.get(name) != data}

    def _now(self) -> tuple[int, Callable[[], dict[str, bytes]]]:
        """On the loop: the tables as they are now, and the number of this look. What it gives makes the files of them,
        anywhere."""
        self._taken += 1
        topics, groups = self._context.topics, self._context.groups
        topics_made = partial(topics_answer, topics.version, list(topics.topics.values()))
        groups_made = partial(groups_answer, groups.version, list(groups.groups.values()))
        offsets, delays = self._context.offsets.items(), dict(self._context.delay_offsets())
        return self._taken, lambda: {
            TOPICS: topics_made(), GROUPS: groups_made(), OFFSETS: offsets_of(offsets),
            DELAYS: delay_offsets_answer(delays),
        }  # fmt: skip

    def _write(self, number: int, made: Callable[[], dict[str, bytes]]) -> None:
        """Nothing where a later look was written. Raises OSError: then it is due again."""
        with self._writing:
            if number > self._newest:
                self._newest = number
                self._write_files(self._not_written(made()))

    def _write_files(self, files: dict[str, bytes]) -> None:
        disk = OsDisk()
        for name, data in files.items():
            path = self._folder / name
            if path.exists():
                shutil.copyfile(path, self._folder / f"{name}.bak")
            disk.replace(path, data)
            self._written[name] = data
