"""A simulated member's connections, as `node/engine/peer_links.py` keeps them: two per peer, each opened by a HELLO.

Ours carries our requests, the peer's carries its requests and our answers. The rules of dialling, of the verdict on a
HELLO and of lost connections are the engine's; time-outs are shorter, in proportion to the election time-out.

Invariants: member messages count only on a wire whose HELLO was accepted; the core hears `peer_connected` once per
accepted wire and `peer_lost` when either wire of a peer ends.
"""

from __future__ import annotations

import random
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from node.consensus.api import MS
from node.protocol.codes import ResponseCode
from node.protocol.messages import Hello, Message
from node.transport.bodies import request_code
from tests.simulation.network import ACCEPTOR, DIALLER, Wire

if TYPE_CHECKING:
    from tests.simulation.process import Process

REDIAL_NS_MIN = 8 * MS


class Link:
    """Both wires of one peer."""

    __slots__ = ("attempt", "connected_at", "dialled", "inbound", "outbound", "peer_id", "wait_ns")

    def __init__(self, peer_id: str) -> None:
        self.peer_id = peer_id
        self.attempt: Wire | None = None  # dialled, its HELLO not answered yet
        self.outbound: Wire | None = None
        self.inbound: Wire | None = None
        self.dialled = False  # for ever: that of a guest never is
        self.connected_at = 0
        self.wait_ns = REDIAL_NS_MIN


class Links:
    """All of one incarnation."""

    def __init__(self, process: Process, rng: random.Random) -> None:
        self._process, self._rng = process, rng
        self._network = process.world.network
        self._links = {peer: Link(peer) for peer in process.replica.peers.of}
        self._addresses = dict(process.replica.configuration.members)
        self._views = dict(process.replica.peers.of)
        self._greeting: dict[int, Wire] = {}  # by our own number, as the engine keeps them
        election_ns = process.timing.election_min_ns
        self._redial_ns_max = 2 * election_ns
        self._dial_within_ns = 4 * election_ns
        self._settled_after_ns = election_ns // 2

    def start(self) -> None:
        """Dials every peer, for ever."""
        for link in self._links.values():
            link.dialled = True
            self._process.later(self._rng.randrange(REDIAL_NS_MIN), self._dial, link)

    def add(self, peer_id: str) -> None:
        """A learner came: it is dialled like everybody else."""
        self._links[peer_id] = Link(peer_id)
        self._dial(self._links[peer_id])

    def follow(self, members: Mapping[str, str], guests: Container[str]) -> None:
        """Who belongs to the group now, and where. A guest has the connection that it opened (SAFETY M3)."""
        for peer_id in [one for one in self._links if one not in members and one not in guests]:
            self.remove(peer_id)
        for peer_id in [one for one in members if one != self._process.id]:
            address = members[peer_id]
            if peer_id in self._links and self._addresses.get(peer_id, address) != address:
                self.remove(peer_id)
            self._addresses[peer_id] = address
            link, view = self._links.setdefault(peer_id, Link(peer_id)), self._process.replica.peers.of[peer_id]
            outbound = link.outbound
            if self._views.get(peer_id) is not view and outbound is not None:  # one that had left, and is back
                self._network.close(outbound, DIALLER)
                self._ended(link, outbound)
            self._views[peer_id] = view
            if not link.dialled:
                self._dial(link)

    def remove(self, peer_id: str) -> None:
        """It is gone: its connections end, and nobody dials it any more."""
        link = self._links.pop(peer_id)
        self._addresses.pop(peer_id, None)
        for wire, end in ((link.attempt, DIALLER), (link.outbound, DIALLER), (link.inbound, ACCEPTOR)):
            if wire is not None:
                self._network.close(wire, end)

    # --- outbound -------------------------------------------------------------------------------------------------
    def _dial(self, link: Link) -> None:
        process = self._process
        if link.attempt is not None or link.outbound is not None or self._links.get(link.peer_id) is not link:
            return
        link.dialled = True
        link.attempt = self._network.dial(process.id, link.peer_id)
        self._network.send(link.attempt, DIALLER, process.replica.hello(process.next_seq(), link.peer_id))
        process.later(self._dial_within_ns, self._dial_timed_out, link, link.attempt)

    def _dial_timed_out(self, link: Link, wire: Wire) -> None:
        if link.attempt is wire:
            self._network.close(wire, DIALLER)
            self._ended(link, wire)

    def _ended(self, link: Link, wire: Wire) -> None:
        """Our wire to a peer is gone, accepted or not: another one later."""
        accepted = link.outbound is wire
        if accepted:
            link.outbound = None
            link.wait_ns = REDIAL_NS_MIN
        elif link.attempt is wire:
            link.attempt = None
        else:
            return
        if self._links.get(link.peer_id) is not link:
            return
        wait_ns = link.wait_ns * self._rng.randrange(70, 131) // 100
        link.wait_ns = min(link.wait_ns * 2, self._redial_ns_max)
        self._process.later(wait_ns, self._dial, link)
        if accepted:
            self._process.peer_lost(link.peer_id)

    def _answered(self, link: Link, wire: Wire, message: Message) -> None:
        process = self._process
        process.receive(link.peer_id, message)
        if wire is not link.attempt or not isinstance(message, Hello):
            return
        link.attempt = None
        view = process.replica.peers.of.get(link.peer_id)
        if not process.alive or (view is None and not process.world.spare_ids):
            return
        if view is not None and message.code is ResponseCode.SUCCESS and view.hello is message:
            link.outbound, link.connected_at = wire, process.world.now
            process.peer_connected(link.peer_id)
        else:
            link.attempt = wire
            self._network.close(wire, DIALLER)
            self._ended(link, wire)

    # --- what the network brings ----------------------------------------------------------------------------------
    def arrived(self, wire: Wire, end: int, message: Message) -> None:
        """A message on one of our wires; whoever speaks there is a proven member (SAFETY C11)."""
        if isinstance(message, Hello):
            message = replace(message, proven=True)
        peer_id = wire.ends[1 - end]
        link = self._links.get(peer_id)
        if end == DIALLER:
            if link is not None:
                self._answered(link, wire, message)
        elif isinstance(message, Hello):
            number = self._process.next_seq()
            self._greeting[number] = wire
            self._process.receive(peer_id, replace(message, seq=number))
        elif wire.accepted:
            self._process.receive(peer_id, message)

    def closed(self, wire: Wire, end: int) -> None:
        """The other side of a wire ended it."""
        link = self._links.get(wire.ends[1 - end])
        if link is None:
            return
        if end == DIALLER:
            self._ended(link, wire)
            return
        if link.inbound is not wire:
            return
        link.inbound = None
        outbound = link.outbound
        if outbound is None:
            self._process.peer_lost(link.peer_id)
        elif self._process.world.now - link.connected_at >= self._settled_after_ns:
            self._network.close(outbound, DIALLER)
            self._ended(link, outbound)

    # --- sending --------------------------------------------------------------------------------------------------
    def send(self, to: str, message: Message) -> None:
        """Requests over our wire, answers over the peer's; what cannot be sent is dropped."""
        if isinstance(message, Hello) and message.answer:
            self._answer_hello(to, message)
            return
        link = self._links.get(to)
        if link is None:
            return
        if request_code(message) is None:
            if link.inbound is not None:
                self._network.send(link.inbound, ACCEPTOR, message)
        elif link.outbound is not None:
            self._network.send(link.outbound, DIALLER, message)

    def _answer_hello(self, to: str, answer: Hello) -> None:
        wire = self._greeting.pop(answer.seq, None)
        if wire is None or not wire.open[ACCEPTOR]:
            return
        self._network.send(wire, ACCEPTOR, answer)
        link = self._links.get(to)
        process = self._process
        accepted = answer.code is ResponseCode.SUCCESS
        if link is None and accepted and process.world.spare_ids and to in process.replica.guests:
            link = self._links[to] = Link(to)
        if not accepted or link is None:
            self._network.close(wire, ACCEPTOR)
            return
        wire.accepted = True
        previous, link.inbound = link.inbound, wire
        if previous is not None and previous is not wire:
            self._network.close(previous, ACCEPTOR)
