"""A slave's topics, groups and offsets follow its master's (RocketMQ's SlaveSynchronize: requests 21, 43, 45, 201),
and of one of ours, which topics were deleted, and where queues go on that its log has nothing of (`queue_ends.py`).

Nothing is rewritten that is the same, and a table is replaced at once, so that no topic is missing meanwhile. An older
set never replaces a newer one: a master that lost its configuration is refused, and that is a problem to be seen.

How far delayed messages and transactions have come at the master counts here once this broker's log holds what the
master's held then (`kept_behind.py`): request 45 is answered with the end of its log, by one of ours.

What consumers commit here while the master is dead is on disk (`DATA/quorumscope/committed-here`) until the master has
it: of two offsets of one queue the higher wins. Behind the end of its own log nothing counts as committed here: a later
master may have other messages there, which nobody consumed.

Invariants: a topic that messages came of since the master answered stays; what was committed here is forgotten only
once the master has it, or is further, or this broker is the master.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from node.broker.classic.kept_behind import BehindMaster
from node.broker.classic.queue_ends import QueueEnds, Store
from node.broker.classic.tables import LOG_END, VALUES_MAX, TablesInFiles, table_version
from node.broker.client_port import Learn
from node.broker.introspection import DELETED_TOPICS
from node.broker.requests.context import Context
from node.broker.requests.groups import GROUPS_MAX, OFFSETS_MAX
from node.broker.requests.topics import HALF_TOPIC, OP_TOPIC, TOPICS_MAX
from node.broker.transactions import GROUP as TRANSACTIONS
from node.message_client.errors import Unavailable
from node.message_client.link import Link
from node.message_store.dispatch_mark import OURS
from node.message_store.write_files import OsDisk
from node.rocketmq.bodies import (
    DataVersion,
    offsets_answer,
    read_delay_offsets,
    read_groups,
    read_offsets,
    read_topics,
)
from node.rocketmq.codes import Answer, Request
from node.rocketmq.java_json import BodyError, load, object_in

EVERY_S: Final = 3.0
LOOK_S: Final = 0.2  # for a master that serves this slave
WITHIN_S: Final = 5.0
BODY_BYTES_MAX: Final = 64 << 20
HERE: Final = "committed-here"
TRANSACTION_TOPICS: Final = (HALF_TOPIC, OP_TOPIC)
Json = dict[Any, Any]
Queue = tuple[str, str, int]  # topic, group, queue
Ends = Mapping[tuple[str, int], int]  # of queues, by topic
Note = Callable[[str, str, str], None]


def is_newer(one: DataVersion, than: DataVersion) -> bool:
    """By the epoch of the master that changed it, then by how often it was changed."""
    return (one.state_version, one.counter, one.timestamp_ms) > (
        than.state_version, than.counter, than.timestamp_ms
    )  # fmt: skip


class FollowedStore(Store, Protocol):
    """A slave's."""

    @property
    def next_offsets(self) -> Ends: ...


class CommittedHere:
    """Offsets that consumers committed at this broker while it was a slave, and no master has yet. Bounded."""

    def __init__(self, root: Path) -> None:
        self._path = root / OURS / HERE
        self.offsets: dict[Queue, int] = {}
        with contextlib.suppress(OSError, ValueError, BodyError, RecursionError):  # without it consumers get more twice
            said = load(self._path.read_bytes(), BODY_BYTES_MAX, VALUES_MAX)
            for (topic, group), queues in read_offsets(said).items():
                self.offsets |= {(topic, group, queue): offset for queue, offset in queues.items()}
        self._written = self._encoded()
        self._writing = threading.Lock()  # of threads: one may still write when its task was cancelled
        self._saves = self._kept = 0  # how many began, and which one is on disk

    def put(self, topic: str, group: str, queues: Mapping[int, int], ends: Ends) -> None:
        """Up to the ends of their queues; nothing of a queue that this log has nothing of."""
        for queue, offset in queues.items():
            at = min(offset, ends.get((topic, queue), 0))
            has_room = len(self.offsets) < OFFSETS_MAX or (topic, group, queue) in self.offsets
            if has_room and (at or not offset):
                self.offsets[topic, group, queue] = at

    def lower(self, ends: Ends) -> None:
        """Lowers the offsets that lie behind their queue's end: queues may have become shorter."""
        known, self.offsets = self.offsets, {}
        for (topic, group, queue), offset in known.items():
            self.put(topic, group, {queue: offset}, ends)

    async def save(self) -> None:
        """Off the loop, where it changed. Raises OSError."""
        data = self._encoded()
        if data != self._written or self._kept < self._saves:  # one is under way, or has failed
            self._saves += 1
            await asyncio.to_thread(self._write, self._saves, data)

    def _encoded(self) -> bytes:
        table: dict[str, dict[int, int]] = {}
        for (topic, group, queue), offset in self.offsets.items():
            table.setdefault(f"{topic}@{group}", {})[queue] = offset
        return offsets_answer(table) if table else b""

    def _write(self, number: int, data: bytes) -> None:
        """Nothing where a later one is on disk."""
        with self._writing:
            if number > self._kept:
                disk = OsDisk()
                try:
                    disk.replace(self._path, data or b'{"offsetTable":{}}')
                finally:
                    disk.close()
                self._kept, self._written = number, data


class MetadataSync:
    """See the module's docstring. `master`: where the master that serves this slave is reached by clients."""

    def __init__(
        self, root: Path, context: Context, tables: TablesInFiles, master: Callable[[], str | None], note: Note,
        learn: Learn, store: FollowedStore,
    ) -> None:  # fmt: skip
        self._context, self._tables, self._master, self._note, self._learn = context, tables, master, note, learn
        self.here, self._store = CommittedHere(root), store
        if store.end_position == store.log.max_offset:  # else the ends of its queues are not known yet
            self.here.lower(store.next_offsets)
        self._behind, self._ends = BehindMaster(store.log), QueueEnds(store)
        self._link: Link | None = None
        self._fresh: set[tuple[str, int]] = set()  # queues that got messages since the master was asked
        self._came = asyncio.Event()
        self.rounds = self.taken = 0
        self.older: dict[str, str] = {}  # by table: why the master's is not taken
        self.trouble = ""

    # --- what happens here ------------------------------------------------------------------------------------------
    def arrived(self, queues: Mapping[tuple[str, int], int]) -> None:
        self._fresh.update(queues)

    def committed(self, name: tuple[str, str]) -> None:
        """A consumer committed at this slave."""
        topic, group = name
        self.here.put(topic, group, self._context.offsets.queues(topic, group), self._store.next_offsets)

    def was_cut(self) -> None:
        """The log was cut, and the queues with it: offsets behind their ends are lowered."""
        self.here.lower(self._store.next_offsets)
        self.soon()

    async def is_master(self) -> None:
        """The table of this broker is what counts, also what is set back there. Raises OSError."""
        self.here.offsets.clear()
        await self.here.save()
        await self._tables.deleted.keep()

    def soon(self) -> None:
        """Starts the next round now."""
        self._came.set()

    async def run(self) -> None:
        """For ever, while this broker is a slave."""
        try:
            while True:
                self._came.clear()
                address = self._master()
                if address is not None:
                    await self._round(address)
                await self.here.save()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S if address is None else EVERY_S):
                        await self._came.wait()
        finally:
            if self._link is not None:
                await self._link.close()
                self._link = None

    async def _round(self, address: str) -> None:
        if self._link is None or self._link.address != address:
            if self._link is not None:
                await self._link.close()
            self._link = Link(address)
            self._behind.forget()
            self._ends.forget()
        try:
            await self.once(self._link)
            self.trouble = ""
        except (Unavailable, BodyError, OSError) as error:
            if str(error) != self.trouble:
                self.trouble = str(error)
                self._note("metadata_not_synced", "warning", self.trouble)

    async def once(self, link: Link) -> None:
        """All of them. Raises Unavailable, BodyError, OSError: what came before is taken."""
        self._fresh.clear()
        await self._topics(link)
        await self._deleted(link)
        await self._groups(link)
        await self._places(link, await self._offsets(link))
        await self._ends.follow(link)
        self.rounds += 1

    async def _said(self, link: Link, code: Request) -> Json:
        return (await self._answer(link, code))[0]

    async def _answer(self, link: Link, code: Request) -> tuple[Json, Mapping[str, str]]:
        """Its body and its fields."""
        answer = await link.ask(code, {}, b"", WITHIN_S)
        if answer.code != Answer.SUCCESS:
            raise BodyError(f"the master answers {answer.code} to {code.name}: {answer.remark or ''}")
        return load(answer.body, BODY_BYTES_MAX, VALUES_MAX), answer.fields or {}

    # --- each table -------------------------------------------------------------------------------------------------
    async def _topics(self, link: Link) -> None:
        said = await self._said(link, Request.GET_ALL_TOPIC_CONFIG)
        table, version = self._context.topics, table_version(said)
        if self._is_taken("topics", version, table.version):
            table.load(read_topics(object_in(said, "topicConfigTable"), TOPICS_MAX), version)
            self._learn(set(self._fresh))
            self.taken += 1

    async def _deleted(self, link: Link) -> None:
        """Of the master whose topics are taken. RocketMQ's has no such thing: what is known here stays."""
        answer = await link.ask(DELETED_TOPICS, {}, b"", WITHIN_S)
        if answer.code == Answer.SUCCESS and "topics" not in self.older:
            self.taken += await self._tables.deleted.follow(bytes(answer.body))

    async def _groups(self, link: Link) -> None:
        said = await self._said(link, Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        table, version = self._context.groups, table_version(said)
        if self._is_taken("subscription groups", version, table.version):
            table.load(read_groups(object_in(said, "subscriptionGroupTable"), GROUPS_MAX), version)
            self.taken += 1

    def _is_taken(self, name: str, theirs: DataVersion, own: DataVersion) -> bool:
        if theirs == own:
            self.older.pop(name, None)
            return False
        if is_newer(theirs, own):
            self.older.pop(name, None)
            return True
        text = (
            f"the master's {name} are of version {_text(theirs)}, those here of {_text(own)}, which are newer: they"
            " stay. Copy DATA/config of this broker to the master, and start that again, if the master lost its own"
        )
        if self.older.get(name) != text:
            self.older[name] = text
            self._note("metadata_older", "error", text)
        return False

    async def _offsets(self, link: Link) -> dict[str, int]:
        """Of consumers. Returns those of transactions, by topic, which do not count yet."""
        theirs = read_offsets(await self._said(link, Request.GET_ALL_CONSUMER_OFFSET))
        for (topic, group, queue), offset in list(self.here.offsets.items()):
            if theirs.get((topic, group), {}).get(queue, -1) < offset:
                await self._merge_back(link, topic, group, queue, offset)
                theirs.setdefault((topic, group), {})[queue] = offset
            if self.here.offsets.get((topic, group, queue)) == offset:
                del self.here.offsets[topic, group, queue]
        for (topic, group, queue), offset in self.here.offsets.items():  # committed while others were merged
            queues = theirs.setdefault((topic, group), {})
            queues[queue] = max(offset, queues.get(queue, -1))
        own = self._context.offsets
        transactions = {topic: theirs.pop((topic, TRANSACTIONS), {}).get(0) for topic in TRANSACTION_TOPICS}
        for (topic, group), queues in theirs.items():
            if own.queues(topic, group) != queues:
                own.take(topic, group, queues)
        for topic, group in own.names() - set(theirs) - {(topic, TRANSACTIONS) for topic in TRANSACTION_TOPICS}:
            own.take(topic, group, {})
        return {topic: offset for topic, offset in transactions.items() if offset is not None}

    async def _places(self, link: Link, transactions: Mapping[str, int]) -> None:
        """How far delayed messages and transactions have come, the latter as it was said before."""
        said, fields = await self._answer(link, Request.GET_ALL_DELAY_OFFSET)
        end, offsets = fields.get(LOG_END), self._context.offsets
        if end is not None and not (end.isascii() and end.isdigit() and len(end) < 20):
            raise BodyError(f"the master's {LOG_END} is {end[:40]!r}: no place in a log")
        kept = [(topic, offsets.get(TRANSACTIONS, topic, 0)) for topic in TRANSACTION_TOPICS]
        own: dict[int | str, int] = dict(
            [*self._tables.delays.items(), *((topic, at) for topic, at in kept if at is not None)]
        )
        theirs: dict[int | str, int] = dict([*read_delay_offsets(said).items(), *transactions.items()])
        counts = self._behind.take(own, theirs, None if end is None else int(end))
        self._tables.delays = {level: at for level, at in counts.items() if isinstance(level, int)}
        for topic in TRANSACTION_TOPICS:
            offsets.take(topic, TRANSACTIONS, {0: counts[topic]} if topic in counts else {})

    async def _merge_back(self, link: Link, topic: str, group: str, queue: int, offset: int) -> None:
        """Raises Unavailable, BodyError: the master may not have it."""
        fields = {
            "consumerGroup": group, "topic": topic, "queueId": str(queue), "commitOffset": str(offset),
            "onlyForward": "true",
        }  # fmt: skip
        answer = await link.ask(Request.UPDATE_CONSUMER_OFFSET, fields, b"", WITHIN_S)
        if answer.code != Answer.SUCCESS:
            raise BodyError(f"the master does not take offset {offset} of {group} in {topic}: {answer.remark or ''}")
        self._note("offset_merged", "info", f"{group} consumed queue {queue} of {topic} up to {offset} at this slave")


def _text(version: DataVersion) -> str:
    return json.dumps([version.state_version, version.counter, version.timestamp_ms])
