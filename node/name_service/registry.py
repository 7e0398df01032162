"""What a name server knows: brokers by name, their addresses by id, clusters, and each topic's queues at each broker.

A master (id 0) brings its topics; they are taken over where its version changed, and topics that it no longer names
stay. Invariants: no clock and no socket here; an address has one id at most, a broker one cluster (what it said last);
a broker that lost its last address is gone with its queues; a master whose stateVersion (its term) is behind that of
the master on record is not taken over, so that a resumed old master cannot replace the new one; everything is bounded,
whoever registers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Final

from node.protocol.value_class import value_class
from node.rocketmq.bodies import DataVersion, TopicConfig

MASTER_ID: Final = 0
EXPIRES_AFTER_MS: Final = 120_000
BROKERS_MAX: Final = 1024  # addresses
TOPICS_MAX: Final = 50_000
QUEUES_MAX: Final = 200_000  # of topics at brokers


class RegistryFull(Exception):
    """What is to be registered has no room."""


@value_class(slots=True, frozen=True)
class QueueData:
    """A topic at one broker."""

    broker_name: str
    read_queues: int
    write_queues: int
    perm: int
    sys_flag: int


@dataclasses.dataclass(slots=True)
class Broker:
    """A group of brokers of one name: a master and its slaves."""

    cluster: str
    name: str
    addresses: dict[int, str] = dataclasses.field(default_factory=dict)


@value_class(slots=True, frozen=True)
class Registration:
    """What a broker says of itself; `topics` None: nothing of topics."""

    cluster: str
    name: str
    address: str
    broker_id: int
    ha_address: str
    version: DataVersion
    topics: Mapping[str, TopicConfig] | None


@value_class(slots=True, frozen=True)
class Registered:
    """What a slave learns of its master; nothing for a master."""

    master_address: str | None = None
    ha_address: str | None = None


@dataclasses.dataclass(slots=True)
class _Live:
    """What is known of an address that registered, and over which connection."""

    heard_at_ms: int
    version: DataVersion
    ha_address: str
    owner: object


class Registry:
    """See the module's docstring. `owner` is whatever stands for the connection that a broker registers over."""

    def __init__(self) -> None:
        self.brokers: dict[str, Broker] = {}
        self.clusters: dict[str, dict[str, None]] = {}
        self.topics: dict[str, dict[str, QueueData]] = {}
        self._topics_of: dict[str, dict[str, None]] = {}  # a broker's, by its name
        self._live: dict[str, _Live] = {}
        self._queues = 0

    # --- brokers come and go ------------------------------------------------------------------------------------
    def register(self, said: Registration, now_ms: int, owner: object) -> Registered:
        """Raises RegistryFull, and then nothing has changed."""
        broker = self.brokers.get(said.name)
        if broker is not None and self._is_behind(broker, said):
            if said.address in self._live:  # also from under the id that it had before
                self._drop(said.address)
            return Registered()
        master = said.broker_id == MASTER_ID
        first = broker is None or said.broker_id not in broker.addresses
        live = self._live.get(said.address)
        taken = master and said.topics and (first or live is None or live.version != said.version)
        self._check_room(said, taken=bool(taken), new=live is None or first)
        if broker is None:
            broker = self.brokers[said.name] = Broker(said.cluster, said.name)
        elif broker.cluster != said.cluster:
            self._leave_cluster(broker)
            broker.cluster = said.cluster
        self.clusters.setdefault(said.cluster, {})[said.name] = None
        for broker_id, address in list(broker.addresses.items()):
            if address == said.address and broker_id != said.broker_id:
                del broker.addresses[broker_id]
        broker.addresses[said.broker_id] = said.address
        if taken:
            for topic in (said.topics or {}).values():
                self._put(said.name, topic)
        self._live[said.address] = _Live(now_ms, said.version, said.ha_address, owner)
        if master or MASTER_ID not in broker.addresses:
            return Registered()
        address = broker.addresses[MASTER_ID]
        known = self._live.get(address)
        return Registered() if known is None else Registered(address, known.ha_address)

    def _is_behind(self, broker: Broker, said: Registration) -> bool:
        """Whether another one holds that id, with a later term."""
        address = broker.addresses.get(said.broker_id)
        if address is None or address == said.address or address not in self._live:
            return False
        return self._live[address].version.state_version > said.version.state_version

    def _check_room(self, said: Registration, *, taken: bool, new: bool) -> None:
        # An address may stand under several names; then it is held several times.
        if new and max(len(self._live), sum(len(one.addresses) for one in self.brokers.values())) >= BROKERS_MAX:
            raise RegistryFull(f"{BROKERS_MAX} brokers are registered, there is no room for another one")
        if taken:
            self._check_topics(said.name, said.topics or {})

    def _check_topics(self, broker_name: str, topics: Collection[str]) -> None:
        new_topics = sum(1 for name in topics if name not in self.topics)
        new_queues = sum(1 for name in topics if broker_name not in self.topics.get(name, {}))
        if len(self.topics) + new_topics > TOPICS_MAX or self._queues + new_queues > QUEUES_MAX:
            raise RegistryFull(f"{TOPICS_MAX} topics, {QUEUES_MAX} of all brokers, are the most that can be kept")

    def add_topics(self, broker_name: str, address: str, topics: Mapping[str, TopicConfig]) -> None:
        """What a master that is registered has had made or changed since; its next registration says all of them, with
        the version that they have. Raises RegistryFull, and then nothing has changed."""
        broker = self.brokers.get(broker_name)
        if broker is None or address not in self._live or broker.addresses.get(MASTER_ID) != address:
            return
        self._check_topics(broker_name, topics)
        for topic in topics.values():
            self._put(broker_name, topic)

    def _put(self, broker_name: str, topic: TopicConfig) -> None:
        held = self.topics.setdefault(topic.name, {})
        self._queues += broker_name not in held
        self._topics_of.setdefault(broker_name, {})[topic.name] = None
        held[broker_name] = QueueData(
            broker_name, topic.read_queues, topic.write_queues, topic.perm, topic.sys_flag
        )  # fmt: skip

    def unregister(self, name: str, address: str, broker_id: int) -> None:
        """A broker stops: its address goes, if it is the one on record."""
        self._live.pop(address, None)
        broker = self.brokers.get(name)
        if broker is not None and broker.addresses.get(broker_id) == address:
            del broker.addresses[broker_id]
            self._drop_if_empty(broker)

    def expire(self, now_ms: int) -> list[object]:
        """Drops the brokers that were not heard of for EXPIRES_AFTER_MS; returns their owners."""
        gone = [address for address, live in self._live.items() if now_ms - live.heard_at_ms > EXPIRES_AFTER_MS]
        return [self._drop(address) for address in gone]

    def owner_gone(self, owner: object) -> None:
        """A connection ended: the brokers that registered over it are gone."""
        for address in [address for address, live in self._live.items() if live.owner is owner]:
            self._drop(address)

    def _drop(self, address: str) -> object:
        live = self._live.pop(address)
        for broker in list(self.brokers.values()):
            for broker_id in [number for number, held in broker.addresses.items() if held == address]:
                del broker.addresses[broker_id]
                self._drop_if_empty(broker)
        return live.owner

    def _drop_if_empty(self, broker: Broker) -> None:
        if broker.addresses:
            return
        self.brokers.pop(broker.name, None)
        self._leave_cluster(broker)
        for topic in list(self._topics_of.get(broker.name, {})):
            self._drop_queue(topic, broker.name)

    def _leave_cluster(self, broker: Broker) -> None:
        names = self.clusters.get(broker.cluster, {})
        names.pop(broker.name, None)
        if not names:
            self.clusters.pop(broker.cluster, None)

    def _drop_queue(self, topic: str, broker_name: str) -> None:
        held = self.topics.get(topic, {})
        if held.pop(broker_name, None) is None:
            return
        self._queues -= 1
        if not held:
            del self.topics[topic]
        topics = self._topics_of[broker_name]
        del topics[topic]
        if not topics:
            del self._topics_of[broker_name]

    # --- questions ----------------------------------------------------------------------------------------------
    def route(self, topic: str) -> tuple[list[QueueData], list[Broker]] | None:
        """Where a topic's queues lie; None: no broker that is here has it."""
        queues = list(self.topics.get(topic, {}).values())
        brokers = [self.brokers[one.broker_name] for one in queues if one.broker_name in self.brokers]
        return (queues, brokers) if brokers else None

    def topics_of_cluster(self, cluster: str) -> list[str]:
        names = self.clusters.get(cluster, {})
        return list(dict.fromkeys(topic for name in names for topic in self._topics_of.get(name, {})))

    # --- by hand ------------------------------------------------------------------------------------------------
    def set_permission(self, broker_name: str, *, keep: int, add: int) -> int:
        """Changes the permission of every topic at that broker; how many there are."""
        topics = self._topics_of.get(broker_name, {})
        for topic in topics:
            queue = self.topics[topic][broker_name]
            self.topics[topic][broker_name] = dataclasses.replace(queue, perm=queue.perm & keep | add)
        return len(topics)

    def delete_topic(self, topic: str, cluster: str | None) -> None:
        """In all clusters, or in one."""
        for name in list(self.topics.get(topic, {})):
            if cluster is None or name in self.clusters.get(cluster, {}):
                self._drop_queue(topic, name)
