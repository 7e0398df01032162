"""Members in network namespaces: one bridge, one cable (veth pair) each, all inside a namespace of this process's own.

A member goes off the network by bringing its cable down. One way between two members is cut by a neighbour entry that
points to a hardware address which nobody has: packets leave and never arrive, and nobody is told, as with a broken
switch. Slow is netem where the kernel has it, else a token bucket, which delays and drops under load.

Invariants: this process already lives in its own network and mount namespace (net.enter), and /run is its own too, so
names cannot collide and the kernel removes everything with the last process inside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from tests.process.net import CLIENTS, LinkState

PORT: Final = 20911
CONTROL_PORT: Final = 8431
BROKER_PORT: Final = 10911
_NETEM: Final = "netem delay 40ms 15ms loss 1%"
_BUCKET: Final = "tbf rate 400kbit burst 8kb latency 400ms"
_NOWHERE: Final = "02:51:53:00:ff:ff"


class ToolFailed(RuntimeError):
    """One of `ip`, `tc`, `mount` refused; the message holds its words."""


async def tool(*words: str) -> None:
    """Runs one command. Raises ToolFailed."""
    process = await asyncio.create_subprocess_exec(
        *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    if process.returncode:
        raise ToolFailed(f"{' '.join(words)}: {said.decode(errors='replace').strip()}")


class NamespaceNetwork:
    """See the module's docstring."""

    mode = "netns"
    resets = False

    def __init__(self) -> None:
        self.slow_by = ""
        self._number: dict[str, int] = {CLIENTS: 1}
        self._state = LinkState()

    async def start(self, members: Sequence[str]) -> None:
        """Builds it."""
        await tool("mount", "-t", "tmpfs", "none", "/run")
        await tool("ip", "link", "set", "lo", "up")
        await tool("ip", "link", "add", "qs", "address", self._hardware(CLIENTS), "type", "bridge")
        await tool("ip", "address", "add", f"{self._address(CLIENTS)}/24", "dev", "qs")
        await tool("ip", "link", "set", "qs", "up")
        for number, member in enumerate(members):
            self._number[member] = 10 + number
            await tool("ip", "netns", "add", member)
            cable = ("ip", "link", "add", f"qs-{member}", "type", "veth", "peer", "name", "eth0")
            await tool(*cable, "address", self._hardware(member), "netns", member)
            await tool("ip", "link", "set", f"qs-{member}", "master", "qs", "up")
            await tool("ip", "-n", member, "address", "add", f"{self._address(member)}/24", "dev", "eth0")
            await tool("ip", "-n", member, "link", "set", "lo", "up")
            await tool("ip", "-n", member, "link", "set", "eth0", "up")
        for sender in self._number:
            for receiver in self._number:
                if sender != receiver:
                    await self._point(sender, receiver, self._hardware(receiver))
        self.slow_by = await self._find_shaper(members[0])

    async def stop(self) -> None:
        """Nothing to do: it ends with this process."""

    def peers_of(self, member: str) -> Mapping[str, str]:
        return {other: f"{self._address(other)}:{PORT}" for other in self._number if other != CLIENTS}

    def control_of(self, member: str) -> str:
        return f"127.0.0.1:{CONTROL_PORT}"

    def broker_of(self, member: str) -> str:
        return f"{self._address(member)}:{BROKER_PORT}"

    def prefix_of(self, member: str) -> Sequence[str]:
        return ("nsenter", f"--net=/run/netns/{member}")

    async def apply(self, state: LinkState) -> None:
        before, self._state = self._state, state
        for member in sorted(state.down ^ before.down):
            await tool("ip", "link", "set", f"qs-{member}", "down" if member in state.down else "up")
        for sender, receiver in sorted(state.blocked ^ before.blocked):
            cut = (sender, receiver) in state.blocked
            await self._point(sender, receiver, _NOWHERE if cut else self._hardware(receiver))
        if self.slow_by:
            for member in sorted(state.slow ^ before.slow):
                await self._shape(member, member in state.slow)

    async def reset(self, member: str) -> None:
        raise NotImplementedError("a bridge resets nothing: the proxy does")

    def _address(self, who: str) -> str:
        return f"10.213.0.{self._number[who]}"

    def _hardware(self, who: str) -> str:
        return f"02:51:53:00:00:{self._number[who]:02x}"

    async def _point(self, sender: str, receiver: str, hardware: str) -> None:
        where = ("ip",) if sender == CLIENTS else ("ip", "-n", sender)
        device = "qs" if sender == CLIENTS else "eth0"
        entry = (self._address(receiver), "lladdr", hardware, "dev", device, "nud", "permanent")
        await tool(*where, "neighbour", "replace", *entry)

    async def _find_shaper(self, member: str) -> str:
        for shaper in (_NETEM, _BUCKET):
            try:
                await tool("tc", "-n", member, "qdisc", "add", "dev", "eth0", "root", *shaper.split())
                await tool("tc", "-n", member, "qdisc", "del", "dev", "eth0", "root")
            except (ToolFailed, OSError):
                continue
            return shaper
        return ""

    async def _shape(self, member: str, slow: bool) -> None:
        """Both ends of the cable: what the member sends and what it is sent."""
        shaper = ["add", "root", *self.slow_by.split()] if slow else ["del", "root"]
        for end in (("tc", "-n", member), ("tc",)):
            device = "eth0" if end[-1] == member else f"qs-{member}"
            await tool(*end, "qdisc", shaper[0], "dev", device, *shaper[1:])
