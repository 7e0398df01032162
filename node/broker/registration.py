"""A broker's registration at name servers (103): every 30 seconds, and at once when its role or its topics change.

The brokers of a group may be each other's name servers: each has a registry, and registers at itself without a socket.
A topic that is made or changed is in its own registry at once; all of its topics are said again within a second, once
however many changed meanwhile: to say them costs as much as there are, and whoever reaches the broker makes some.
A slave of a classic pair learns from the answer where its master listens for slaves (`MasterWanted`), as RocketMQ's do.

Invariants: the master alone is registered as id 0, with its term as stateVersion, so that a name server keeps the
newest master; a name server that hangs delays no other, for each has a task and a connection of its own; a broker is
registered where a name server has answered that it is; nothing is registered before the first role.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from node.background import Background
from node.broker.requests.context import Context, Identity
from node.host_names import open_streams
from node.name_service.registry import Registration, Registry, RegistryFull
from node.protocol.entry import crc32
from node.protocol.peers import split_address
from node.rocketmq.bodies import DataVersion, TopicConfig
from node.rocketmq.codes import Answer, Request
from node.rocketmq.command import PREFIX_BYTES, Command, CommandError, decode, encode, read_prefix
from node.rocketmq.header_fields import HeaderError, read_header, write_header
from node.rocketmq.headers import RegisterBrokerAnswer, RegisterBrokerRequest
from node.rocketmq.java_json import bean, dump

log = logging.getLogger(__name__)

EVERY_S: Final = 30.0
WANTED_EVERY_S: Final = 3.0  # by a slave that no master serves
ANSWER_WITHIN_S: Final = 3.0
AT_ITSELF_S: Final = 10.0
DIAL_WITHIN_S: Final = 3.0
AGAIN_S: Final = 1.0
HA_ABOVE: Final = 1  # the HA port, by RocketMQ's rule
_CRC_MASK: Final = 0x7FFFFFFF


class Role(Protocol):
    """What of the role is said: `broker_id` -1 before the first one."""

    @property
    def broker_id(self) -> int: ...
    @property
    def term(self) -> int: ...


class MasterWanted(Protocol):
    """Who asks where the master of its pair is."""

    @property
    def is_lost(self) -> bool:
        """Whether no master serves it now."""

    def learned(self, name_server: str, ha_address: str) -> None:
        """Where a name server says that the master listens for slaves."""


class NotRegistered(Exception):
    """The name server refuses it."""


class OwnRegistration:
    """What this broker says of itself now."""

    def __init__(self, context: Context, role: Role, ha_address: str | None = None) -> None:
        self._context, self._role, self._ha_address = context, role, ha_address

    @property
    def broker_id(self) -> int:
        return self._role.broker_id

    @property
    def identity(self) -> Identity:
        return self._context.identity

    @property
    def is_known(self) -> bool:
        """Whether it has a role."""
        return self._role.broker_id >= 0

    @property
    def version(self) -> DataVersion:
        return replace(self._context.topics.version, state_version=max(0, self._role.term))

    def steady_ms(self) -> int:
        """By the clock of its own registry."""
        return self._context.steady_ms()

    def as_registration(self) -> Registration:
        one = self._context.identity
        ha = self._ha_address or f"{one.ip}:{one.port + HA_ABOVE}"
        return Registration(
            one.cluster, one.name, one.address, self.broker_id, ha, self.version, dict(self._context.topics.topics)
        )

    def as_request(self, opaque: int) -> Command:
        said = self.as_registration()
        topics = {name: topic.as_said() for name, topic in (said.topics or {}).items()}
        wrapper = bean(dataVersion=said.version.as_said(), topicConfigTable=topics)
        body = dump({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})
        header = RegisterBrokerRequest(
            said.name, said.address, said.cluster, said.ha_address, said.broker_id, False, crc32(body) & _CRC_MASK
        )
        return Command(Request.REGISTER_BROKER, opaque, 0, write_header(header), None, body)


class Registrar:
    """`soon` is to be called when the role changed, `changed` with topics that did, `look` every second or so."""

    def __init__(
        self, own: OwnRegistration, registry: Registry, addresses: Sequence[str], wanted: MasterWanted | None = None
    ) -> None:  # fmt: skip
        self._own, self._registry, self._wanted = own, registry, wanted
        self._changed = [asyncio.Event() for _ in addresses]
        self._background = Background()
        self._last: tuple[int, DataVersion] | None = None
        self._last_at_s = 0.0
        # When each was last sent a registration, over the connection that there is; None: there is none.
        self.registered_ms: dict[str, int | None] = dict.fromkeys(addresses)
        for address, changed in zip(addresses, self._changed, strict=True):
            self._background.keep(f"registration at {address}", partial(self._keep, address, changed))

    def soon(self) -> None:
        """Registers again at every name server, and in the broker's own registry at once."""
        self._last = None
        self.look()

    def changed(self, topics: Sequence[TopicConfig]) -> None:
        """These are known to its own name server from now on, and to the others now, or with what else changes."""
        if time.monotonic() - self._last_at_s >= AGAIN_S:
            self.look()
            return
        own = self._own.identity
        with contextlib.suppress(RegistryFull):
            self._registry.add_topics(own.name, own.address, {one.name: one for one in topics})

    def look(self) -> None:
        """At its own registry now and then, and everywhere where something changed."""
        if not self._own.is_known:
            return
        now = self._own.broker_id, self._own.version
        if now != self._last or time.monotonic() - self._last_at_s > AT_ITSELF_S:
            if now != self._last:
                for one in self._changed:
                    one.set()
            self._last, self._last_at_s = now, time.monotonic()
            # Where others' brokers have taken all the room: what it answers about itself needs none there.
            with contextlib.suppress(RegistryFull):
                self._registry.register(self._own.as_registration(), self._own.steady_ms(), self)

    async def _keep(self, address: str, changed: asyncio.Event) -> None:
        """One name server, for ever: over one connection while it lasts."""
        host, port = split_address(address)
        while True:
            try:
                async with asyncio.timeout(DIAL_WITHIN_S):
                    reader, writer = await open_streams(host, port)
            except (OSError, TimeoutError):
                await asyncio.sleep(AGAIN_S)
                continue
            try:
                await self._register_over(address, reader, writer, changed)
            except (OSError, EOFError, CommandError, HeaderError, NotRegistered) as error:
                log.debug("%s: %s", address, error)
            finally:
                self.registered_ms[address] = None
                writer.close()
            await asyncio.sleep(AGAIN_S)

    async def _register_over(
        self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, changed: asyncio.Event
    ) -> None:
        """Until the connection ends. Raises OSError, also where nothing is answered in time; EOFError, CommandError and
        HeaderError of an answer; NotRegistered."""
        said_s, opaque = float("-inf"), 0
        while not (reader.at_eof() or writer.is_closing()):  # the latter where it ended with an error
            now_s = time.monotonic()
            every_s = WANTED_EVERY_S if self._wanted is not None and self._wanted.is_lost else EVERY_S
            if self._own.is_known and (changed.is_set() or now_s >= said_s + every_s):
                changed.clear()
                said_s, opaque = now_s, opaque + 1
                writer.write(encode(self._own.as_request(opaque)))
                async with asyncio.timeout(ANSWER_WITHIN_S):
                    answer = await _answer_of(reader, opaque)
                if self._wanted is not None and answer.ha_server_addr and self._own.broker_id:
                    self._wanted.learned(address, answer.ha_server_addr)
                self.registered_ms[address] = time.time_ns() // 1_000_000
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await changed.wait()

    def close(self) -> None:
        for task in self._background.tasks:
            task.cancel()


async def _answer_of(reader: asyncio.StreamReader, opaque: int) -> RegisterBrokerAnswer:
    """Raises OSError, EOFError, CommandError, HeaderError, NotRegistered."""
    while True:
        head = await reader.readexactly(PREFIX_BYTES)
        found = decode(head + await reader.readexactly(read_prefix(head)[0] - PREFIX_BYTES))
        if found.is_response and found.opaque == opaque:
            if found.code != Answer.SUCCESS:
                raise NotRegistered(f"it answers {found.code}: {found.remark or ''}")
            return read_header(RegisterBrokerAnswer, found.fields)
