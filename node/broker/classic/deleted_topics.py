"""Where the queues of deleted topics ended: `DATA/quorumscope/deleted-topics`.

A topic that is made again goes on with its queue offsets, for the log holds the old ones and queues that are written
anew (`rebuild-queues`, a start after a crash) come from the log. What was sent before the topic was deleted is not
shown to its new consumers; RocketMQ leaves the queues as they are, and shows it.

Invariant: a place counts once the topic is gone on disk (or a crash would hide messages of a topic that is there).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from node.message_store.dispatch_mark import OURS
from node.message_store.errors import MessageStoreError
from node.message_store.write_files import OsDisk

NAME: Final = "deleted-topics"
Queue = tuple[str, int]


class DeletedTopics:
    """See the module's docstring. `ends`: of every queue, its next offset. Raises MessageStoreError."""

    def __init__(self, root: Path, ends: Callable[[], Mapping[Queue, int]], forget: Callable[[str], None]) -> None:
        self._path, self._ends, self._forget = root / OURS / NAME, ends, forget
        self.begins: dict[Queue, int] = {}
        self._waiting: set[str] = set()
        try:
            if self._path.exists():
                said = json.loads(self._path.read_bytes())
                self.begins = {(str(topic), int(queue)): int(begin) for topic, queue, begin in said}
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise MessageStoreError(
                f"{self._path} cannot be read ({error}): with it removed, topics that were deleted and are made again"
                " show their old messages"
            ) from error

    def delete(self, topic: str) -> None:
        self._waiting.add(topic)

    async def save(self) -> None:
        """After the topics are on disk. Raises OSError."""
        topics, self._waiting = self._waiting, set()
        if not topics:
            return
        self.begins |= {queue: end for queue, end in self._ends().items() if queue[0] in topics and end}
        for topic in topics:
            self._forget(topic)
        data = json.dumps([[*queue, begin] for queue, begin in sorted(self.begins.items())]).encode()
        await asyncio.to_thread(self._write, data)

    def _write(self, data: bytes) -> None:
        disk = OsDisk()
        try:
            disk.replace(self._path, data)
        finally:
            disk.close()
