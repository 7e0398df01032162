"""What a network between real nodes can be made to do, and whether this machine lets us have one of our own.

A `Network` gives every member and the clients an address for each other and then holds to a `LinkState`: who cannot
send to whom, which members are off the network, which are slow. States are declared whole, so faults may overlap and
end in any order.

Invariants: nothing is made outside a namespace of our own (net_namespaces.py), or it is a socket of this process
(net_proxy.py): when this process is gone, so is everything it made, however it ended.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

CLIENTS: Final = "clients"
_PROBE_WITHIN_S: Final = 20.0
_NETWORK_TOOLS: Final = ("unshare", "nsenter", "ip", "mount")
_PROBE_MOUNT: Final = "mount -t tmpfs none /run"
_PROBE_NETWORK: Final = (
    f"{_PROBE_MOUNT} && mkdir -p /run/netns && ip netns add probe && ip link add qs-a type veth peer name qs-b"
    " && ip link add qs-c type bridge && nsenter --net=/run/netns/probe ip link set lo up"
)


@dataclass(frozen=True, slots=True)
class LinkState:
    """What is wrong with the network now. `blocked` holds (sender, receiver); CLIENTS may be either."""

    blocked: frozenset[tuple[str, str]] = frozenset()
    down: frozenset[str] = frozenset()
    slow: frozenset[str] = frozenset()


class Network(Protocol):
    """See the module's docstring. `resets`: whether it can reset connections."""

    mode: str
    slow_by: str
    resets: bool

    async def start(self, members: Sequence[str]) -> None: ...

    async def stop(self) -> None: ...

    def peers_of(self, member: str) -> Mapping[str, str]:
        """`HOST:PORT` of every member as `member` (or CLIENTS) reaches it, its own listening address included."""
        ...

    def control_of(self, member: str) -> str:
        """Where its control plane listens."""
        ...

    def broker_of(self, member: str) -> str:
        """Where its broker listens, and everybody reaches it; behind relays nothing stands between."""
        ...

    def prefix_of(self, member: str) -> Sequence[str]:
        """The command that puts a process onto this member's network."""
        ...

    async def apply(self, state: LinkState) -> None:
        """Makes the network be so."""
        ...

    async def reset(self, member: str) -> None:
        """Resets every connection from and to a member."""
        ...


@dataclass(frozen=True, slots=True)
class Isolation:
    """Which namespaces of our own we may have, and the command that enters them; `network` implies `mount`."""

    network: bool
    mount: bool
    command: tuple[str, ...]


def _permitted(words: Sequence[str]) -> bool:
    try:
        return subprocess.run(words, capture_output=True, timeout=_PROBE_WITHIN_S).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def isolation(*, network: bool) -> Isolation:
    """The most that is permitted here, as root or through a user namespace; `network` False asks for mounts alone."""
    ways = ((), ("--user", "--map-root-user")) if os.geteuid() == 0 else (("--user", "--map-root-user"),)
    if network and all(map(shutil.which, _NETWORK_TOOLS)):
        for way in ways:
            command = ("unshare", *way, "--net", "--mount")
            if _permitted([*command, "sh", "-c", _PROBE_NETWORK]):
                return Isolation(True, True, command)
    if all(map(shutil.which, ("unshare", "mount"))):
        for way in ways:
            command = ("unshare", *way, "--mount")
            if _permitted([*command, "sh", "-c", _PROBE_MOUNT]):
                return Isolation(False, True, command)
    return Isolation(False, False, ())


def enter(found: Isolation, module: str, arguments: Sequence[str]) -> None:
    """Becomes `python -m module arguments` inside; the process id stays, so signals still arrive. Does not return."""
    words = [*found.command, sys.executable, "-m", module, *arguments]
    os.execvp(words[0], words)
