"""Where a topic's queues lie: asked of name servers, one after the other, and kept until it proves wrong.

Invariant: a route has a master for every queue in it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from node.loop_home import LoopHome
from node.message_client.errors import ClientError, Unavailable, WrongLoop
from node.message_client.link import Link
from node.protocol.value_class import value_class
from node.rocketmq.bodies import PERM_READ, PERM_WRITE
from node.rocketmq.codes import Answer, Request
from node.rocketmq.command import Command
from node.rocketmq.java_json import BodyError, items_in, load, number_in, object_in, text_in

AUTO_CREATE: Final = "TBW102"
NEW_TOPIC_QUEUES: Final = 4
KEPT_S: Final = 30.0
WITHIN_S: Final = 1.0  # a name server keeps all in memory: one that takes longer is asked last from then on
QUEUES_MAX: Final = 16_384
SLAVES_MAX: Final = 64


@value_class(slots=True, frozen=True)
class Queue:
    """One queue, and where its master is now."""

    broker_name: str
    address: str
    queue_id: int
    topic: str = ""

    @property
    def key(self) -> tuple[str, str, int]:
        """What stays when another broker becomes the master."""
        return self.topic, self.broker_name, self.queue_id


@value_class(slots=True, frozen=True)
class Route:
    """`is_pattern`: the topic is not there yet, and is made by the first message. `slaves`: addresses."""

    read: tuple[Queue, ...]
    write: tuple[Queue, ...]
    is_pattern: bool = False
    slaves: tuple[str, ...] = ()


class Routes:
    """Links and routes of one client."""

    def __init__(self, name_servers: Sequence[str], on_request: Callable[[str, Command], None] | None = None) -> None:
        """`on_request` gets what a broker asks, with its address."""
        if not name_servers:
            raise ClientError("no name server is named")
        self.home = LoopHome(WrongLoop)
        self._name_servers = list(name_servers)
        self._on_request = on_request
        self._links: dict[str, Link] = {}
        self._known: dict[str, tuple[Route, float]] = {}
        self._asking: dict[tuple[str, bool], asyncio.Task[Route]] = {}

    def link(self, address: str) -> Link:
        found = self._links.get(address)
        if found is None:
            asked = None if self._on_request is None else partial(self._on_request, address)
            found = self._links[address] = Link(address, asked)
        return found

    def known(self, topic: str) -> Route | None:
        """Without asking anybody."""
        known = self._known.get(topic)
        return known[0] if known is not None and time.monotonic() - known[1] < KEPT_S else None

    async def of(self, topic: str, *, make: bool = False) -> Route:
        """`make`: for a topic that is not there, the one that new topics are made like. Those who ask together share
        one answer. Raises Unavailable."""
        known = self.known(topic)
        if known is not None:
            return known
        asking = self._asking.get((topic, make))
        if asking is None:
            asking = self._asking[topic, make] = asyncio.create_task(self._find(topic, make=make))
            asking.add_done_callback(partial(self._asked, (topic, make)))
        return await asyncio.shield(asking)

    def _asked(self, key: tuple[str, bool], task: asyncio.Task[Route]) -> None:
        del self._asking[key]
        if not task.cancelled():
            task.exception()  # also where nobody waits for it any more

    async def _find(self, topic: str, *, make: bool) -> Route:
        found = await self._ask(topic)
        if found is None and make:
            pattern = await self._ask(AUTO_CREATE)
            if pattern is not None:
                write = tuple(one for one in pattern.write if one.queue_id < NEW_TOPIC_QUEUES)
                if write:
                    return Route((), write, is_pattern=True)
        if found is None or not (found.write if make else found.read):
            raise Unavailable(f"the topic {topic} has no master now, or is not there: asked {self._name_servers}")
        self._known[topic] = found, time.monotonic()
        return found

    def forget(self, topic: str) -> None:
        """It proved wrong; the next name server is asked first."""
        self._known.pop(topic, None)
        self._name_servers.append(self._name_servers.pop(0))

    async def _ask(self, topic: str) -> Route | None:
        """None: it is not there. Raises Unavailable."""
        trouble = ""
        for address in sorted(self._name_servers, key=lambda one: self.link(one).silent_s >= WITHIN_S):
            fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
            try:
                answer = await self.link(address).ask(Request.GET_ROUTEINFO_BY_TOPIC, fields, b"", WITHIN_S)
            except Unavailable as error:
                trouble = str(error)
                continue
            if answer.code == Answer.TOPIC_NOT_EXIST:
                return None
            if answer.code != Answer.SUCCESS:
                trouble = f"{address}: {answer.remark} (code {answer.code})"
                continue
            try:
                return _route(topic, load(answer.body, 1 << 22))
            except BodyError as error:
                trouble = f"{address}: {error}"
        raise Unavailable(f"no name server says where {topic} lies: {trouble}")

    async def close(self) -> None:
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        if asking:
            await asyncio.wait(asking)
        for link in self._links.values():
            await link.close()


def _route(topic: str, said: dict[Any, Any]) -> Route:
    masters: dict[str, str] = {}
    slaves: list[str] = []
    for one in items_in(said, "brokerDatas"):
        addresses = object_in(one, "brokerAddrs")
        master = addresses.get("0", addresses.get(0))
        if isinstance(master, str):
            masters[text_in(one, "brokerName")] = master
        slaves += [each for number, each in addresses.items() if str(number) != "0" and isinstance(each, str)]
    read: list[Queue] = []
    write: list[Queue] = []
    for one in items_in(said, "queueDatas"):
        name, perm = text_in(one, "brokerName"), number_in(one, "perm")
        address = masters.get(name)
        if address is None:
            continue
        for found, bit, field in ((read, PERM_READ, "readQueueNums"), (write, PERM_WRITE, "writeQueueNums")):
            if perm & bit:
                found += [Queue(name, address, at, topic) for at in range(min(number_in(one, field), QUEUES_MAX))]
    return Route(tuple(read), tuple(write), slaves=tuple(slaves[:SLAVES_MAX]))
