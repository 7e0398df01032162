"""Back-pressure (SAFETY C5): what clients have asked for and not been answered, per connection and per node.

Invariants: take and give come in pairs; a connection over a limit is not read from until it is below half of it, and
while the node as a whole is over its limit, no connection that asks for more is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from node.engine.memory_share import MOST

REQUESTS_MAX: Final = 4096
ENTRIES_MAX: Final = 200_000
NODE_FACTOR: Final = 4  # the node's limits, in connections' limits
BYTES_MAX: Final = MOST.requests // NODE_FACTOR
WHY: Final = "quota"


class Readable(Protocol):
    """A connection whose reading can be paused."""

    def stop_reading(self, why: str) -> None: ...
    def resume_reading(self, why: str) -> None: ...


@dataclass(slots=True)
class Load:
    """What waits."""

    requests: int = 0
    entries: int = 0
    bytes: int = 0
    bytes_max: int = BYTES_MAX

    def over(self, share: float, factor: int = 1) -> bool:
        """Whether this is above `share` of the limits, times `factor`."""
        scale = share * factor
        return (
            self.requests > scale * REQUESTS_MAX
            or self.entries > scale * ENTRIES_MAX
            or self.bytes > scale * self.bytes_max
        )


class Quota:
    """One per engine. `bytes_max`: of all requests together."""

    def __init__(self, bytes_max: int = MOST.requests) -> None:
        self._bytes_max = bytes_max // NODE_FACTOR
        self._loads: dict[Readable, Load] = {}
        self._node = Load(bytes_max=self._bytes_max)
        self._stopped: set[Readable] = set()

    def take(self, connection: Readable, entries: int, size_bytes: int) -> None:
        """A request begins."""
        load = self._loads.get(connection)
        if load is None:
            load = self._loads[connection] = Load(bytes_max=self._bytes_max)
        node = self._node
        load.requests, load.entries, load.bytes = load.requests + 1, load.entries + entries, load.bytes + size_bytes
        node.requests, node.entries, node.bytes = node.requests + 1, node.entries + entries, node.bytes + size_bytes
        if node.over(1.0) and (load.over(1.0) or node.over(1.0, NODE_FACTOR)):  # mostly all is below one's
            self._stopped.add(connection)
            connection.stop_reading(WHY)

    def give(self, connection: Readable, entries: int, size_bytes: int) -> None:
        """It has its answer."""
        load, node = self._loads[connection], self._node
        load.requests, load.entries, load.bytes = load.requests - 1, load.entries - entries, load.bytes - size_bytes
        node.requests, node.entries, node.bytes = node.requests - 1, node.entries - entries, node.bytes - size_bytes
        if not load.requests:
            del self._loads[connection]
        if self._stopped and not node.over(0.5, NODE_FACTOR):
            for stopped in [one for one in self._stopped if not self._loads.get(one, Load()).over(0.5)]:
                self._stopped.discard(stopped)
                stopped.resume_reading(WHY)
