"""Who produces and consumes here: known by their heartbeats, each over its connection.

A consumer's heartbeat says its group and what it wants of which topic. Whoever comes or goes, all of the group hear of
it (40), so that they share its queues out anew.

Invariants: a client that is silent for EXPIRES_AFTER_MS or whose connection ended is gone; a subscription is replaced
by a later one only; how many clients in groups are kept is bounded, and so is the memory of what they want, in sum:
where there is no room, the connection that takes most of it gives its oldest ones up for one that takes less; a group
that changes over and over hears of it as often as NOTES_A_SECOND allow, and of the last change always.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from node.rocketmq.bodies import ConsumerData, Subscription
from node.rocketmq.codes import FLAG_ONE_WAY, Answer, Request
from node.rocketmq.command import Command
from node.rocketmq.dispatch import Peer, Refusal
from node.rocketmq.header_fields import write_header
from node.rocketmq.headers import GroupRequest

EXPIRES_AFTER_MS: Final = 120_000
CLIENTS_MAX: Final = 20_000  # in groups, of both kinds
CLIENTS_BYTES_MAX: Final = 64 * 1024 * 1024  # of these and of what they want, as `_bytes_of` has it
CLIENT_BYTES: Final = 1024  # one in a group takes about so much ...
SUBSCRIPTION_BYTES: Final = 512  # ... a topic that its group wants so much more ...
CHARACTER_BYTES: Final = 4  # ... and so much for each character of its name and its tags
NOTES_A_SECOND: Final = 1000  # to the clients of one group, in sum
NOTES_AT_ONCE: Final = 64  # so many more after a while without any
BROADCASTING: Final = "BROADCASTING"


@dataclass(slots=True)
class _Client:
    client_id: str
    heard_at_ms: int


@dataclass(slots=True)
class ConsumerGroup:
    """A group that has consumers now. `said_by` said last what it wants, and is charged with `size_bytes` for it."""

    name: str
    message_model: str
    said_by: Peer
    clients: dict[Peer, _Client] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    size_bytes: int = 0
    notes_until_ms: float = 0.0  # what was sent to it takes until then, at NOTES_A_SECOND

    @property
    def client_ids(self) -> list[str]:
        """Each once: a client that dialled anew has two connections until its old one ends, and whoever shares the
        queues out by a list that names it twice leaves some to nobody."""
        return list(dict.fromkeys(one.client_id for one in self.clients.values()))


class _Membership(NamedTuple):
    group: str
    consumes: bool


@dataclass(slots=True)
class _Share:
    """What one connection takes: its places in groups, oldest first, and the memory of these and of what it wants."""

    memberships: dict[_Membership, None] = field(default_factory=dict)
    size_bytes: int = 0


class Clients:
    """See the module's docstring."""

    def __init__(self, steady_ms: Callable[[], int]) -> None:
        self._steady_ms = steady_ms
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[Peer, _Client]] = {}
        self._shares: dict[Peer, _Share] = {}
        self._count = self._size_bytes = 0
        self._to_notify: dict[str, None] = {}  # groups that hear of a change later
        self._opaque = 0

    def consumes(self, peer: Peer, client_id: str, said: ConsumerData, *, notify: bool) -> None:
        """A heartbeat. Raises Refusal where there is no room."""
        known = self.consumers.get(said.group)
        new = known is None or peer not in known.clients
        more_bytes = sum(map(_bytes_of, said.subscriptions)) - (0 if known is None else known.size_bytes)
        self._make_room(peer, int(new), max(0, more_bytes) + CLIENT_BYTES * new)
        group = self.consumers.get(said.group)  # as it is now that others may have gone
        if group is None:
            group = self.consumers[said.group] = ConsumerGroup(said.group, said.message_model, peer)
        if peer not in group.clients:
            new = True
            self._enter(peer, _Membership(said.group, consumes=True))
        group.message_model = said.message_model
        group.clients[peer] = _Client(client_id, self._steady_ms())
        changed = self._subscribe(group, said) or new
        self._charge(group.said_by, -group.size_bytes)
        group.said_by, group.size_bytes = peer, sum(map(_bytes_of, group.subscriptions.values()))
        self._charge(peer, group.size_bytes)
        if changed and notify:
            self._notify(group)

    def _subscribe(self, group: ConsumerGroup, said: ConsumerData) -> bool:
        """Whether topics came or went. The hashes that it says are not kept: they are made of the expression."""
        wanted = {one.topic: one for one in said.subscriptions}
        changed = wanted.keys() != group.subscriptions.keys()
        for topic, one in wanted.items():
            known = group.subscriptions.get(topic)
            if known is None or one.version > known.version:
                group.subscriptions[topic] = replace(one, tags=(), codes=())
        for topic in group.subscriptions.keys() - wanted.keys():
            del group.subscriptions[topic]
        return changed

    def produces(self, peer: Peer, client_id: str, group: str) -> None:
        """A heartbeat. Raises Refusal where there is no room."""
        if peer not in self.producers.get(group, {}):
            self._make_room(peer, 1, CLIENT_BYTES)
            self._enter(peer, _Membership(group, consumes=False))
        self.producers.setdefault(group, {})[peer] = _Client(client_id, self._steady_ms())

    # --- room ---------------------------------------------------------------------------------------------------
    def _make_room(self, peer: Peer, more: int, more_bytes: int) -> None:
        """Raises Refusal."""
        mine = self._shares.get(peer)
        mine_bytes = more_bytes + (0 if mine is None else mine.size_bytes)
        while self._count + more > CLIENTS_MAX or self._size_bytes + more_bytes > CLIENTS_BYTES_MAX:
            heaviest = max(self._shares, key=lambda one: self._shares[one].size_bytes, default=peer)
            if heaviest is peer or self._shares[heaviest].size_bytes <= mine_bytes:
                text = f"{CLIENTS_MAX} clients in groups, {CLIENTS_BYTES_MAX} bytes with what they want"
                raise Refusal(Answer.SYSTEM_ERROR, f"no room for another client: {text} are the most that are kept")
            self._leave(heaviest, next(iter(self._shares[heaviest].memberships)))

    def _enter(self, peer: Peer, membership: _Membership) -> None:
        self._shares.setdefault(peer, _Share()).memberships[membership] = None
        self._count += 1
        self._charge(peer, CLIENT_BYTES)

    def _charge(self, peer: Peer, more_bytes: int) -> None:
        if more_bytes:
            self._shares[peer].size_bytes += more_bytes
            self._size_bytes += more_bytes

    def _leave(self, peer: Peer, membership: _Membership) -> None:
        if membership.consumes:
            self.consumes_no_more(peer, membership.group)
        else:
            self.produces_no_more(peer, membership.group)

    def _left(self, peer: Peer, membership: _Membership) -> None:
        self._charge(peer, -CLIENT_BYTES)
        self._count -= 1
        del self._shares[peer].memberships[membership]
        if not self._shares[peer].memberships:
            del self._shares[peer]

    # --- who goes -----------------------------------------------------------------------------------------------
    def produces_no_more(self, peer: Peer, group: str) -> None:
        held = self.producers.get(group, {})
        if held.pop(peer, None) is not None:
            self._left(peer, _Membership(group, consumes=False))
            if not held:
                del self.producers[group]

    def consumes_no_more(self, peer: Peer, group_name: str) -> None:
        group = self.consumers.get(group_name)
        if group is None or group.clients.pop(peer, None) is None:
            return
        if group.said_by is peer:  # another one of the group is charged from now on
            self._charge(peer, -group.size_bytes)
            group.said_by = next(iter(group.clients), peer)
            if group.clients:
                self._charge(group.said_by, group.size_bytes)
        self._left(peer, _Membership(group_name, consumes=True))
        if not group.clients:
            del self.consumers[group_name]
        self._notify(group)

    def gone(self, peer: Peer) -> None:
        """Its connection ended."""
        share = self._shares.get(peer)
        for membership in [] if share is None else list(share.memberships):
            self._leave(peer, membership)

    def expire(self) -> None:
        """Now and then: who is silent for too long is gone, and groups hear of changes that were too many at once."""
        before = self._steady_ms() - EXPIRES_AFTER_MS
        for name, held in list(self.producers.items()):
            for peer in [peer for peer, one in held.items() if one.heard_at_ms < before]:
                self.produces_no_more(peer, name)
        for name, group in list(self.consumers.items()):
            for peer in [peer for peer, one in group.clients.items() if one.heard_at_ms < before]:
                self.consumes_no_more(peer, name)
        due, self._to_notify = self._to_notify, {}
        for name in due:
            changed = self.consumers.get(name)
            if changed is not None:
                self._notify(changed)

    # --- who hears of it ----------------------------------------------------------------------------------------
    def _notify(self, group: ConsumerGroup) -> None:
        """Each of the group, also who has just come; later where it heard of so much already."""
        now = self._steady_ms()
        if group.notes_until_ms > now:
            self._to_notify[group.name] = None
            return
        rested_since = now - NOTES_AT_ONCE * 1000 / NOTES_A_SECOND
        group.notes_until_ms = max(group.notes_until_ms, rested_since) + len(group.clients) * 1000 / NOTES_A_SECOND
        for peer in list(group.clients):
            self._opaque = (self._opaque + 1) & 0x7FFFFFFF
            fields = write_header(GroupRequest(group.name))
            peer.send(Command(Request.NOTIFY_CONSUMER_IDS_CHANGED, self._opaque, FLAG_ONE_WAY, fields))


def _bytes_of(one: Subscription) -> int:
    return SUBSCRIPTION_BYTES + CHARACTER_BYTES * (len(one.topic) + len(one.expression) + len(one.expression_type))
