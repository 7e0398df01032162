"""Who produces and consumes here: known by their heartbeats, each over its connection.

A consumer's heartbeat says its group and what it wants of which topic. Whoever comes or goes, all of the group hear of
it (40), so that they share its queues out anew.

Invariants: a client that is silent for EXPIRES_AFTER_MS or whose connection ended is gone; a subscription is replaced
by a later one only; how many groups and clients are kept is bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from node.rocketmq.bodies import ConsumerData, Subscription
from node.rocketmq.codes import FLAG_ONE_WAY, Answer, Request
from node.rocketmq.command import Command
from node.rocketmq.dispatch import Peer, Refusal
from node.rocketmq.header_fields import write_header
from node.rocketmq.headers import GroupRequest

EXPIRES_AFTER_MS: Final = 120_000
CLIENTS_MAX: Final = 20_000  # in groups, of both kinds
BROADCASTING: Final = "BROADCASTING"


@dataclass(slots=True)
class _Client:
    client_id: str
    heard_at_ms: int


@dataclass(slots=True)
class ConsumerGroup:
    """A group that has consumers now."""

    name: str
    message_model: str
    clients: dict[Peer, _Client] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)

    @property
    def client_ids(self) -> list[str]:
        return [one.client_id for one in self.clients.values()]


class Clients:
    """See the module's docstring."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[Peer, _Client]] = {}
        self._count = 0
        self._opaque = 0

    def consumes(self, peer: Peer, client_id: str, said: ConsumerData, *, notify: bool) -> None:
        """A heartbeat. Raises Refusal where there is no room."""
        group = self.consumers.get(said.group)
        new = group is None or peer not in group.clients
        if new:
            self._check_room()
        if group is None:
            group = self.consumers[said.group] = ConsumerGroup(said.group, said.message_model)
        group.message_model = said.message_model
        group.clients[peer] = _Client(client_id, self._now_ms())
        self._count += new
        changed = self._subscribe(group, said) or new
        if changed and notify:
            self._notify(group)

    def _subscribe(self, group: ConsumerGroup, said: ConsumerData) -> bool:
        """Whether topics came or went."""
        wanted = {one.topic: one for one in said.subscriptions}
        changed = wanted.keys() != group.subscriptions.keys()
        for topic, one in wanted.items():
            known = group.subscriptions.get(topic)
            if known is None or one.version > known.version:
                group.subscriptions[topic] = one
        for topic in group.subscriptions.keys() - wanted.keys():
            del group.subscriptions[topic]
        return changed

    def produces(self, peer: Peer, client_id: str, group: str) -> None:
        """A heartbeat. Raises Refusal where there is no room."""
        held = self.producers.get(group, {})
        if peer not in held:
            self._check_room()
            self._count += 1
        self.producers.setdefault(group, held)[peer] = _Client(client_id, self._now_ms())

    def _check_room(self) -> None:
        if self._count >= CLIENTS_MAX:
            raise Refusal(Answer.SYSTEM_ERROR, f"there are {CLIENTS_MAX} clients in groups, the most that are kept")

    def produces_no_more(self, peer: Peer, group: str) -> None:
        held = self.producers.get(group, {})
        if held.pop(peer, None) is not None:
            self._count -= 1
            if not held:
                del self.producers[group]

    def consumes_no_more(self, peer: Peer, group_name: str) -> None:
        group = self.consumers.get(group_name)
        if group is None or group.clients.pop(peer, None) is None:
            return
        self._count -= 1
        if not group.clients:
            del self.consumers[group_name]
        self._notify(group)

    def gone(self, peer: Peer) -> None:
        """Its connection ended."""
        for name in [name for name, held in self.producers.items() if peer in held]:
            self.produces_no_more(peer, name)
        for name in [name for name, group in self.consumers.items() if peer in group.clients]:
            self.consumes_no_more(peer, name)

    def expire(self) -> None:
        """Now and then: who is silent for too long is gone."""
        before = self._now_ms() - EXPIRES_AFTER_MS
        for name, held in list(self.producers.items()):
            for peer in [peer for peer, one in held.items() if one.heard_at_ms < before]:
                self.produces_no_more(peer, name)
        for name, group in list(self.consumers.items()):
            for peer in [peer for peer, one in group.clients.items() if one.heard_at_ms < before]:
                self.consumes_no_more(peer, name)

    def _notify(self, group: ConsumerGroup) -> None:
        """Each of the group, also who has just come."""
        for peer in list(group.clients):
            self._opaque = (self._opaque + 1) & 0x7FFFFFFF
            fields = write_header(GroupRequest(group.name))
            peer.send(Command(Request.NOTIFY_CONSUMER_IDS_CHANGED, self._opaque, FLAG_ONE_WAY, fields))
