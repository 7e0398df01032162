"""What the end of a connection needs of the store that its master's bytes go into."""

from __future__ import annotations

from typing import Protocol

from node.ha.handshake import LogOf
from node.protocol.entry import BytesLike


class SlaveStore(Protocol):
    """What a slave does with its master's bytes."""

    @property
    def log(self) -> LogOf: ...
    @property
    def durable_offset(self) -> int: ...
    @property
    def full(self) -> str:
        """Why it takes nothing now; empty: it does."""

    def append_data(self, offset: int, data: BytesLike) -> int: ...
    def cut_back(self, end: int) -> int:
        """In any thread, while nothing else uses the log: how many bytes are gone, and kept aside."""

    def was_cut(self) -> None:
        """In the owner's, once that is done, or failed."""
