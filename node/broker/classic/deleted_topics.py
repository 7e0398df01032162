"""Where the queues of deleted topics ended: `DATA/quorumscope/deleted-topics`.

A topic that is made again goes on with its queue offsets, for the log holds the old ones and queues that are written
anew (`rebuild-queues`, a start after a crash) come from the log. What was sent before the topic was deleted is not
shown to its new consumers; RocketMQ leaves the queues as they are, and shows it.

A slave has its master's (`DELETED_TOPICS`, beside the topics themselves): whoever is promoted, and who consumes at a
slave, sees what is seen at the master.

Invariants: a place counts once the topic is gone on disk (or a crash would hide messages of a topic that is there);
slaves hear of it at once, for one that has the topics without it would show what was deleted.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from node.message_store.dispatch_mark import OURS
from node.message_store.errors import MessageStoreError
from node.message_store.write_files import OsDisk
from node.rocketmq.dispatch import Call, Reply
from node.rocketmq.java_json import BodyError

NAME: Final = "deleted-topics"
BYTES_MAX: Final = 64 << 20
Queue = tuple[str, int]


class DeletedTopics:
    """See the module's docstring. `ends`: of every queue, its next offset. Raises MessageStoreError."""

    def __init__(self, root: Path, ends: Callable[[], Mapping[Queue, int]], forget: Callable[[str], None]) -> None:
        self._path, self._ends, self._forget = root / OURS / NAME, ends, forget
        self.begins: dict[Queue, int] = {}
        self._waiting: set[str] = set()
        self._followed = b""
        self._writing = threading.Lock()  # of threads: one may still write when its task was cancelled
        self._changes = self._kept = 0  # how often the table was changed, and which change is on disk
        try:
            if self._path.exists():
                self.begins = _decoded(self._path.read_bytes())
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise MessageStoreError(
                f"{self._path} cannot be read ({error}): with it removed, topics that were deleted and are made again"
                " show their old messages"
            ) from error

    def delete(self, topic: str) -> None:
        self._waiting.add(topic)

    @property
    def waiting(self) -> frozenset[str]:
        """Topics that were deleted, and whose places do not count yet."""
        return frozenset(self._waiting)

    async def save(self, topics: frozenset[str]) -> None:
        """Those that wait and are gone on disk. Raises OSError."""
        topics &= self._waiting
        self._waiting -= topics
        if topics:
            self.begins |= self._ends_of(topics)
            self._changes += 1
        for topic in topics:
            self._forget(topic)
        await self.keep()

    def _ends_of(self, topics: Collection[str]) -> dict[Queue, int]:
        return {queue: end for queue, end in self._ends().items() if queue[0] in topics and end}

    # --- master and slave -------------------------------------------------------------------------------------------
    def handle(self, _call: Call) -> Reply:
        """Answers a slave: where the queues of deleted topics ended."""
        return Reply(body=_encoded(self.begins | self._ends_of(self._waiting)))

    async def follow(self, said: bytes) -> bool:
        """The master's, in place of what is here; whether it was another. Raises BodyError, OSError."""
        if said == self._followed:
            return False
        if len(said) > BYTES_MAX:
            raise BodyError(f"the master's deleted topics have {len(said)} bytes")
        try:
            theirs = _decoded(said)
        except (ValueError, TypeError, RecursionError) as error:
            raise BodyError(f"the master's deleted topics cannot be read: {error}") from error
        if is_new := theirs != self.begins:
            changed = {queue[0] for queue, _begin in theirs.items() ^ self.begins.items()}
            self.begins.clear()
            self.begins.update(theirs)
            self._changes += 1
            for topic in changed:
                self._forget(topic)
        await self.keep()
        self._followed = said
        return is_new

    def lower(self) -> None:
        """This broker is master, and its log may lack what was there when a topic was deleted (it was promoted behind
        its master, or lost power): what comes in that place is new. `keep` follows."""
        ends = self._ends()
        lowered = {queue: min(begin, ends[queue]) for queue, begin in self.begins.items() if ends.get(queue)}
        if lowered != self.begins:
            changed = {queue[0] for queue, _begin in lowered.items() ^ self.begins.items()}
            self.begins.clear()
            self.begins.update(lowered)
            self._changes += 1
            self._followed = b""
            for topic in changed:
                self._forget(topic)

    async def keep(self) -> None:
        """All changes so far are on disk, also those of a write that failed. Raises OSError."""
        if self._kept < self._changes:
            await asyncio.to_thread(self._write, self._changes, _encoded(self.begins))

    def _write(self, change: int, data: bytes) -> None:
        """Writes the file, unless a later change is on disk already."""
        with self._writing:
            if change > self._kept:
                disk = OsDisk()
                try:
                    disk.replace(self._path, data)
                finally:
                    disk.close()
                self._kept = change


def _encoded(begins: Mapping[Queue, int]) -> bytes:
    return json.dumps([[*queue, begin] for queue, begin in sorted(begins.items())]).encode()


def _decoded(data: bytes) -> dict[Queue, int]:
    """Raises ValueError, TypeError, RecursionError."""
    return {(str(topic), int(queue)): int(begin) for topic, queue, begin in json.loads(data)}
