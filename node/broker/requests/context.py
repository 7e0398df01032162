"""What all handlers of a broker share: its name, its store, its tables and its clock."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import ip_address
from typing import Final, Protocol

from node.broker.requests.clients import Clients
from node.broker.requests.groups import ConsumerOffsets, GroupTable
from node.broker.requests.locks import QueueLocks
from node.broker.requests.store import Store
from node.broker.requests.topics import TopicTable
from node.message_store.new_message import DELAY_LEVELS, MESSAGE_BYTES_MAX
from node.message_store.record import Host
from node.rocketmq.bodies import GroupConfig
from node.rocketmq.codes import Answer
from node.rocketmq.dispatch import Call, Handler, Refusal, Reply, reply_of

FAQ: Final = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
REGION: Final = "DefaultRegion"
NOT_CERTAIN: Final = "this broker may not be the master any more: ask the name server which one is"
NOT_MASTER: Final = "this broker is not the master now: ask the name server which one is"


@dataclass(frozen=True, slots=True)
class Identity:
    """How clients know this broker; `port` is that of its main listener."""

    cluster: str
    name: str
    ip: str
    port: int

    @property
    def address(self) -> str:
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"

    @property
    def host(self) -> Host:
        """As ids and records have it."""
        return Host(ip_address(self.ip).packed, self.port)


class Changes(Protocol):
    """What is asked of the log; `asked` counts it."""

    asked: int

    async def settled(self) -> None:
        """All of it so far is committed. Raises an error where that is not to be known."""


class SlaveRules(Protocol):
    """Who of a pair answers consumers: of a broker in classic mode."""

    def refuses_pulls(self) -> bool:
        """A slave whose master is alive sends consumers there."""

    def takes_offsets(self) -> bool:
        """Whether what consumers commit here is kept."""

    def suggests(self, group: GroupConfig, *, is_slow: bool) -> int:
        """suggestWhichBrokerId: where a consumer pulls next."""


@dataclass(slots=True)
class Context:
    """`perm`: of the whole broker, 4 to read and 2 to write. `changes`: of tables, where they are in a log. `now_ms` is
    the wall clock; `elapsed_ms` one that nobody sets, for what lasts."""

    identity: Identity
    store: Store
    now_ms: Callable[[], int]
    body_bytes_max: int = MESSAGE_BYTES_MAX
    delay_levels: int = DELAY_LEVELS
    perm: int = 6
    elapsed_ms: Callable[[], int] | None = None
    changes: Changes | None = None
    slave_rules: SlaveRules | None = None
    topics: TopicTable = field(init=False)
    groups: GroupTable = field(init=False)
    offsets: ConsumerOffsets = field(init=False)
    clients: Clients = field(init=False)
    locks: QueueLocks = field(init=False)
    delay_offsets: Callable[[], Mapping[int, int]] = dict  # by level
    # Where the open transactions begin, in the half and the op queue: what of that may be kept now. In a replicated log
    # it comes after what it passes over.
    durable_places: Callable[[tuple[int, int]], tuple[int, int] | None] = lambda places: places

    def __post_init__(self) -> None:
        self.topics = TopicTable(self.identity.cluster, self.identity.name, self.now_ms, self.delay_levels)
        self.groups = GroupTable(self.now_ms)
        self.offsets = ConsumerOffsets()
        self.clients = Clients(self.steady_ms)
        self.locks = QueueLocks(self.steady_ms)

    def steady_ms(self) -> int:
        """By which silence, waits and locks are counted: a clock that is set ends none of them, and keeps none."""
        return (self.elapsed_ms or self.now_ms)()

    @property
    def takes_offsets(self) -> bool:
        return self.store.is_master if self.slave_rules is None else self.slave_rules.takes_offsets()

    def check_master(self) -> None:
        """What only one broker may answer. Raises Refusal."""
        if not self.store.is_master:
            raise Refusal(Answer.SERVICE_NOT_AVAILABLE, NOT_MASTER, {})

    def as_master(self, handler: Handler) -> Handler:
        """The handler, but that a master answers only while it certainly is the one: by its lease, or once a
        linearizable read has confirmed it. A slave answers, or refuses, as a slave, at once."""

        def answered(call: Call) -> Reply | None:
            if not self.must_confirm:
                return handler(call)
            self.when_confirmed(call, handler)
            return None

        return answered

    def linearizable(self, handler: Handler) -> Handler:
        """The handler, but that what it answers is as new as the group's, at a slave as well."""

        def answered(call: Call) -> Reply | None:
            if self.store.is_master and self.store.may_answer():
                return handler(call)
            self.when_confirmed(call, handler)
            return None

        return answered

    @property
    def must_confirm(self) -> bool:
        """Whether this is the master as far as it knows, and has no lease that says so for certain."""
        return self.store.is_master and not self.store.may_answer()

    def when_confirmed(self, call: Call, handler: Handler) -> None:
        """Answers by this handler, once a read has confirmed that it may."""

        def confirmed(done: asyncio.Future[bool]) -> None:
            if done.cancelled() or not done.result():
                call.answer(Reply(Answer.SERVICE_NOT_AVAILABLE, {}, NOT_CERTAIN))
                return
            reply, _sound = reply_of(handler, call)
            if reply is not None:
                call.answer(reply)

        self.store.confirm().add_done_callback(confirmed)


@lru_cache(maxsize=4096)
def peer_host(address: str) -> Host:
    """ip:port of a connection; 0.0.0.0:0 where there is none."""
    ip, _colon, port = address.rpartition(":")
    try:
        return Host(ip_address(ip.strip("[]")).packed, int(port))
    except ValueError:
        return Host(bytes(4), 0)


def host_of(name: str, port: int) -> Host:
    """Of this broker's own address; a name is looked up. Raises OSError."""
    try:
        return Host(ip_address(name).packed, port)
    except ValueError:
        return Host(ip_address(socket.gethostbyname(name)).packed, port)
