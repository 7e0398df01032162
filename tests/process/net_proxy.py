"""Members on loopback, each reaching each other one through a relay of its own: for where namespaces are not permitted.

The relays are the demo's (app/demo/relay.py). What a sender's packets pass is two relays: `forward` of the connections
that it dialled and `backward` of those that its peer dialled; cutting one way of a link cuts both of these.

Invariants: ports are below the range that the kernel gives to outgoing connections, so that a member that was down
finds its port free; relays run in this process's loop and end with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from app.demo.relay import Relay
from tests.ports import free_ports
from tests.process.net import CLIENTS, LinkState

_SLOW_DELAY_S: Final = 0.04
_SLOW_BYTES_PER_S: Final = 50_000.0


class ProxyNetwork:
    """See the module's docstring."""

    mode = "proxy"
    resets = True
    slow_by = f"relays: {_SLOW_DELAY_S * 1000:.0f} ms and {_SLOW_BYTES_PER_S / 1000:.0f} kB/s"

    def __init__(self) -> None:
        self._listening: dict[str, str] = {}
        self._control: dict[str, str] = {}
        self._broker: dict[str, str] = {}
        self._relays: dict[tuple[str, str], Relay] = {}

    async def start(self, members: Sequence[str]) -> None:
        """Starts the relays."""
        ports = iter(free_ports(3 * len(members)))
        for member in members:
            for table in (self._listening, self._control, self._broker):
                table[member] = f"127.0.0.1:{next(ports)}"
        for target in members:
            for source in (*members, CLIENTS):
                if source != target:
                    self._relays[source, target] = Relay(("127.0.0.1", int(self._listening[target].split(":")[1])))
        await asyncio.gather(*(relay.start() for relay in self._relays.values()))

    async def stop(self) -> None:
        await asyncio.gather(*(relay.stop() for relay in self._relays.values()))

    def peers_of(self, member: str) -> Mapping[str, str]:
        return {
            target: listening if target == member else f"127.0.0.1:{self._relays[member, target].port}"
            for target, listening in self._listening.items()
        }

    def control_of(self, member: str) -> str:
        return self._control[member]

    def broker_of(self, member: str) -> str:
        return self._broker[member]

    def prefix_of(self, member: str) -> Sequence[str]:
        return ()

    async def apply(self, state: LinkState) -> None:
        for (source, target), relay in self._relays.items():
            ends = {source, target}
            off = bool(ends & state.down)
            relay.mend()
            relay.cut(
                forward=off or (source, target) in state.blocked, backward=off or (target, source) in state.blocked
            )
            if ends & state.slow:
                relay.delay_s, relay.bytes_per_s = _SLOW_DELAY_S, _SLOW_BYTES_PER_S

    async def reset(self, member: str) -> None:
        for pair, relay in self._relays.items():
            if member in pair:
                relay.reset()
