"""The network between simulated members: connections that keep order, and everything that a real network does to them.

A `Wire` is one TCP connection: its dialler's requests go one way, the acceptor's answers the other. Each end knows on
its own whether it is open: what a crashed process sent may still arrive, and its peer learns of the end a little later.
Drops, duplicates and reordering go beyond what TCP permits: the core must stand them.

Invariants: without `reorder`, a wire's messages arrive in the order in which they were sent, per direction; nothing
arrives at an end that is closed; a blocked direction lets nothing through, and loses it or holds it back.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from node.consensus.api import MS, SECOND
from node.protocol.messages import PushRequest

if TYPE_CHECKING:
    from node.protocol.messages import Message
    from tests.simulation.world import World

DIALLER, ACCEPTOR = 0, 1
REORDER_DELAYS = 6  # how many usual delays a reordered message is late, at most
SLOW_FACTOR = 15


class Wire:
    """One connection; `ends` are member ids, `open` says what each end believes."""

    __slots__ = ("accepted", "ends", "free_at", "number", "open", "slabs_until")

    def __init__(self, number: int, dialler: str, acceptor: str) -> None:
        self.number = number
        self.ends = (dialler, acceptor)
        self.open = [True, True]
        self.free_at = [0, 0]  # per sending end: when its last message arrives
        self.slabs_until = [0, 0]  # and, where links carry only so much, when its last slab has passed
        self.accepted = False  # the acceptor took its HELLO


class Network:
    """All wires, and which directions are blocked."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world, self._rng = world, rng
        self.config = world.config
        self.blocked: dict[tuple[str, str], bool] = {}  # (from, to) -> whether what is sent is held back, not lost
        self.slow: dict[tuple[str, str], int] = {}
        self.bytes_per_s: dict[tuple[str, str], float] = {}  # of slabs, where it is less than usual
        self._held: list[tuple[Wire, int, Message | None]] = []
        self._wires: dict[str, dict[int, Wire]] = {member_id: {} for member_id in world.all_ids}
        self._numbers = 0
        self._delay_ns = int(self.config.delay_ms * MS)
        self.faulty = True

    # --- connections ----------------------------------------------------------------------------------------------
    def dial(self, dialler: str, acceptor: str) -> Wire:
        """A connection under way; that nobody listens there is learnt when the first message arrives."""
        self._numbers += 1
        wire = Wire(self._numbers, dialler, acceptor)
        for member_id in wire.ends:
            self._wires[member_id][wire.number] = wire
        return wire

    def close(self, wire: Wire, end: int, *, notice: bool = True) -> None:
        """One end closes; the other hears of it behind what is under way, or never (a machine without power)."""
        if not wire.open[end]:
            return
        wire.open[end] = False
        self._wires[wire.ends[end]].pop(wire.number, None)
        if notice and wire.open[1 - end]:
            self._transmit(wire, end, None)

    def member_gone(self, member_id: str, *, notice: bool) -> None:
        """A process ended (the kernel closes what it had open), or a machine lost power (it does not)."""
        for wire in list(self._wires[member_id].values()):
            self.close(wire, wire.ends.index(member_id), notice=notice)

    def machine_back(self, member_id: str) -> None:
        """A machine that lost power answers again: what others still hold open to it is reset."""
        for peer_id in self._world.all_ids:
            for wire in list(self._wires[peer_id].values()):
                end = wire.ends.index(peer_id)
                if wire.ends[1 - end] == member_id and not wire.open[1 - end]:
                    self._transmit(wire, 1 - end, None)

    def break_between(self, one: str, other: str) -> None:
        """Both connections of a pair are reset; what was under way is lost."""
        for wire in list(self._wires[one].values()):
            if other in wire.ends:
                for end in (DIALLER, ACCEPTOR):
                    self._world.schedule(self._rng.randrange(2 * self._delay_ns + 1), self._closed, wire, end)

    # --- messages -------------------------------------------------------------------------------------------------
    def send(self, wire: Wire, end: int, message: Message) -> None:
        """Nothing happens where this end is closed."""
        if not wire.open[end]:
            return
        sender, to = wire.ends[end], wire.ends[1 - end]
        self._world.tell.sent(self._world.members[sender], to, message)
        config, rng = self.config, self._rng
        if self.faulty:
            if config.drop and rng.random() < config.drop:
                self._world.tell.fault("drop", f"{sender}>{to}")
                return
            if config.duplicate and rng.random() < config.duplicate:
                self._world.tell.fault("duplicate", f"{sender}>{to}")
                self._transmit(wire, end, message, extra_ns=rng.randrange(REORDER_DELAYS * self._delay_ns))
        self._transmit(wire, end, message)

    def _transmit(self, wire: Wire, end: int, message: Message | None, extra_ns: int = 0) -> None:
        """`message` None: the connection's end."""
        rng = self._rng
        sender, to = wire.ends[end], wire.ends[1 - end]
        held = self.blocked.get((sender, to))
        if held is not None:
            if held or message is None:  # the kernel repeats a connection's end until it is heard
                self._held.append((wire, end, message))
            return
        delay_ns = self._delay_ns // 2 + rng.randrange(self._delay_ns + 1)
        delay_ns *= self.slow.get((sender, to), 1)
        at = self._world.now + delay_ns + extra_ns
        config = self.config
        bytes_per_s = self.bytes_per_s.get((sender, to), 1000 * config.link_kb_per_s)
        if extra_ns:
            pass
        elif self.faulty and config.reorder and message is not None and rng.random() < config.reorder:
            self._world.tell.fault("reorder", f"{sender}>{to}")
            at += rng.randrange(REORDER_DELAYS * self._delay_ns)
        else:
            at = wire.free_at[end] = max(at, wire.free_at[end] + 1)
        if isinstance(message, PushRequest) and message.slab is not None:
            # Slabs wait for those before them; short frames pass them, as between real members.
            took_ns = int(len(message.slab.data) * SECOND / bytes_per_s) if bytes_per_s else 0
            at = wire.slabs_until[end] = max(at, wire.slabs_until[end]) + took_ns
        if message is None:
            self._world.schedule(at - self._world.now, self._closed, wire, 1 - end)
        else:
            self._world.schedule(at - self._world.now, self._arrive, wire, 1 - end, message)

    def _arrive(self, wire: Wire, end: int, message: Message) -> bool:
        """Whether there was anybody to take it; a machine that runs resets a connection that it does not know."""
        member = self._world.members[wire.ends[end]]
        if not wire.open[end]:
            if member.powered and wire.open[1 - end]:
                self._transmit(wire, end, None)
            return False
        if member.process is None:  # nobody listens: the kernel says so
            self.close(wire, end, notice=member.powered)
            return False
        member.process.when_awake(member.process.links.arrived, wire, end, message)
        return True

    def _closed(self, wire: Wire, end: int) -> bool:
        if not wire.open[end]:
            return False
        wire.open[end] = False
        self._wires[wire.ends[end]].pop(wire.number, None)
        member = self._world.members[wire.ends[end]]
        if member.process is None:
            return False
        member.process.when_awake(member.process.links.closed, wire, end)
        return True

    # --- partitions -----------------------------------------------------------------------------------------------
    def block(self, directions: Iterable[tuple[str, str]], *, hold: bool) -> None:
        """Nothing goes these ways from now on: lost, or held back until `unblock` (as TCP does by sending again)."""
        for direction in directions:
            self.blocked[direction] = hold

    def unblock(self, directions: Iterable[tuple[str, str]] | None = None) -> None:
        """These ways, or all, are open again."""
        if directions is None:
            self.blocked.clear()
        else:
            for direction in directions:
                self.blocked.pop(direction, None)
        held, self._held = self._held, []
        for wire, end, message in held:
            if message is None or wire.open[1 - end]:
                self._transmit(wire, end, message)

    def heal(self) -> None:
        """No faults from now on."""
        self.faulty = False
        self.slow.clear()
        self.bytes_per_s.clear()
        self.unblock()

    def describe(self) -> list[Any]:
        """For whoever debugs a stuck world."""
        return [sorted(self.blocked), sorted(self.slow), len(self._held)]
